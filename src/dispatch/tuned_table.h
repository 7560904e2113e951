// One file of tuned rows in memory: the text as read, and an index into it. Rows are made of it when they are asked for, so that
// 50,000 rows load in some 20 ms and a lookup is a hash and a comparison.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/database.h"

namespace eitri {

class TunedTable {
 public:
  struct Entry {
    std::string_view values;  // the problem's cells: "1,4096,4096,bf16"
    std::string_view tail;    // from rank to the end of the line
    double us = 0;
    int32_t units = 0, rank = 1;
    uint32_t line = 0;
    uint32_t next = 0;  // of the same problem and units, the next rank; 0: none (entries count from 1)
  };

  TunedTable(std::string text, std::string file, std::string_view arch, std::vector<TunedField> fields);
  TunedTable(const TunedTable&) = delete;  // entries are views into the text

  /// The best rank of this problem and number of units; null: none.
  const Entry* find(std::string_view values, int units) const;
  const Entry* next(const Entry& entry) const { return entry.next == 0 ? nullptr : &entries_[entry.next]; }
  TunedRow row(const Entry& entry) const;
  /// All rows, in the order of the file.
  std::span<const Entry> entries() const { return std::span(entries_).subspan(1); }
  const std::vector<TunedProblem>& problems() const { return problems_; }
  /// Lines that no row was made of, and that a writer keeps as they are.
  const std::vector<std::string_view>& rejected() const { return rejected_; }
  /// Lines that begin with #, likewise kept.
  const std::vector<std::string_view>& comments() const { return comments_; }
  const std::string& file() const { return file_; }
  /// The header is that of this version.
  bool readable() const { return readable_; }

  /// Rows that differ from `values` in bucketed fields alone: (value of the first bucketed field, best rank), ascending. Made on
  /// first use; not for several threads at once.
  struct Point {
    int64_t at;
    const Entry* entry;
  };
  std::vector<Point> ladder(std::string_view values, int units) const;

 private:
  struct Line;
  void read(std::string_view arch);
  void read_row(std::string_view line, std::string_view arch, std::vector<std::string_view>& cells);
  void insert(Entry entry, std::string_view line);
  size_t slot_of(uint64_t hash, std::string_view values, int units) const;
  template <class... Parts> void problem(std::string_view line, const Parts&... parts);

  std::string text_, file_;
  std::vector<TunedField> fields_;
  std::vector<Entry> entries_;  // [0] is no entry
  /// Open addressing, a power of two of them. The tag, 32 bits of the hash, spares most looks at the text.
  struct Slot {
    uint32_t tag = 0, entry = 0;  // entry 0: free
  };
  std::vector<Slot> slots_;
  std::vector<TunedProblem> problems_;
  std::vector<std::string_view> rejected_, comments_;
  std::vector<std::string_view> known_good_;  // per column: the last cell that was valid
  uint32_t line_ = 0;
  size_t more_problems_ = 0;
  bool readable_ = false;
  struct Curve {
    uint64_t hash;
    int64_t at;
    uint32_t entry;
  };
  mutable std::vector<Curve> curves_;
  mutable bool curves_made_ = false;
};

/// "m=1,n=4096" -> "1,4096".
std::string values_of(std::string_view key);
/// The first bucketed field's place; fields.size() when there is none.
size_t bucketed_field(const std::vector<TunedField>& fields);
/// The header line of an op's files.
std::string tuned_header(const std::vector<TunedField>& fields);
/// A row as a line of a file, without the end of line. `arch` is the first cell.
std::string tuned_line(const TunedRow& row, std::string_view arch);

}  // namespace eitri
