// Writing of tuned files: rows are added or replaced by problem, whoever else writes at the same time; merging of files.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/database.h"
#include "dispatch/tuned_table.h"

namespace eitri::tune {

/// "<folder>/<op>.<arch>.csv".
std::string tuned_file(const std::string& folder, std::string_view op, std::string_view arch);

/// Throws Error{invalid_argument} for a file that rows cannot be added to: one with other columns.
void require_own_columns(const TunedTable& table, const std::string& path);

/// Puts rows into a file of <folder>, which is made when missing. Rows of the same problems and units are replaced, all others stay,
/// lines that cannot be read too (at the end). The file is sorted, and replaced in one step. Writers of one host wait for one
/// another; on file systems without locks the last one wins, so workers on several hosts get folders of their own.
/// Throws Error{invalid_argument} when the file has other columns: nothing is overwritten.
void write_tuned(const std::string& folder, std::string_view op, std::string_view arch, const std::vector<TunedRow>& rows);

/// Rows of one op and arch from several files.
struct Merged {
  std::vector<TunedRow> rows;
  std::vector<TunedProblem> problems;  // lines that were skipped
  size_t problems_merged = 0;          // problems that more than one file had
};
/// For each problem and number of units the ranks of one file: of those whose kernels are as they are now (`is_stale` says of a row that its
/// kernel is not) where there are any, of the least time, unless intervals overlap; then, and among equals, of the latest date, then of the
/// first in alphabet. The result does not depend on the order of the files. Times are never averaged.
Merged merge_tuned(
    const std::vector<std::string>& files, std::string_view op, std::string_view arch,
    const std::function<bool(const TunedRow&)>& is_stale = [](const TunedRow&) { return false; });

}  // namespace eitri::tune
