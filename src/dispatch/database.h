// Tuned rows: read from CSV files, matched by field, advice only. One file per op and arch: <op>.<arch>.csv. Files are looked for
// in EITRI_TUNED, in .eitri/tuned of the working folder, and among the shipped ones; changed files are read again between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "dispatch/problem.h"

namespace eitri {

/// A column of a problem: its name, how it is matched, and what its cells may hold.
struct TunedField {
  std::string name;
  Match match = Match::exact;
  bool (*valid)(std::string_view cell) = nullptr;  // null: an integer without leading zeros
};
template <class P> std::vector<TunedField> tuned_fields() {
  std::vector<TunedField> out;
  P{}.fields([&](const char* name, const auto& value, Match match = Match::exact) {
    using T = std::decay_t<decltype(value)>;
    bool (*valid)(std::string_view) = nullptr;
    if constexpr (!std::is_same_v<T, int64_t>) {
      valid = [](std::string_view cell) {
        try {
          T parsed{};
          detail::parse_value("", cell, parsed);
          return true;
        } catch (const Error&) {
          return false;
        }
      };
    }
    out.push_back({name, match, valid});
  });
  return out;
}

/// A row as read. Columns: arch,units,<problem fields>,rank,kernel,config,us,spread_us,baseline_us,error,revision,toolchain,date.
struct TunedRow {
  std::string key;  // key_of(problem)
  int units = 0;
  int rank = 1;
  std::string kernel;
  std::string config;
  double us = 0;           // of a call
  double spread_us = 0;    // half the width of the interval that `us` is known to
  double baseline_us = 0;  // of the default at the same time; 0: not known
  double error = 0;        // largest error over allowed error that the check saw
  std::string revision, toolchain, date;
  std::string origin = {};  // "file:line"
};

/// What was wrong with a line; the line is skipped, the rest of the file counts.
struct TunedProblem {
  std::string origin;
  std::string text;
  bool is_note = false;  // as it should be, and nothing to warn of: rows for machines of other sizes
};
struct TunedFile {
  std::vector<TunedRow> rows;
  std::vector<TunedProblem> problems;
};
/// Parses one file's text. Treats it as hostile: BOM, CRLF, missing or extra columns, bad numbers, truncation give
/// problems, never exceptions. `fields` are the op's, in order.
TunedFile parse_tuned(std::string_view text, std::string_view file, std::string_view arch, const std::vector<TunedField>& fields);

/// What rows of an op say about other numbers of rows (m, tokens).
struct CurveRules {
  bool whole_tiles = true;  // rows count in whole tiles where a config names tile_m; not where each expert has tiles of its own
  /// Kernels with knobs whose values are places in a list of the problem, and their config at another problem: the first places.
  std::map<std::string, std::string, std::less<>> elsewhere = {};
};

/// Ops announce their problem fields and rules once (ops.cpp), so that files can be read by op name.
void set_tuned_fields(std::string_view op, std::vector<TunedField> fields, CurveRules rules = {});
std::vector<TunedField> fields_of(std::string_view op);
CurveRules curve_rules_of(std::string_view op);

/// Why a row is offered for a problem.
enum class AdviceKind : uint8_t {
  exact,         // its own row
  near_units,    // tuned on a device of the same arch with up to 25 % more or fewer units
  interpolated,  // rows of the problem with other numbers of rows (tokens) below and above
};
struct TunedAdvice {
  TunedRow row;
  AdviceKind kind = AdviceKind::exact;
  double us = 0;           // expected at this problem
  double baseline_us = 0;  // expected of the default; 0: not known
  double margin = 0;       // interpolated: the part of the default's time that it must save to replace it
};
/// Rows for this problem on this device, best first; user files before the project's and shipped ones. Interpolated ones are
/// offered only where no exact row is.
std::vector<TunedAdvice> tuned_advice(std::string_view op, const Device& device, const std::string& key);
/// "no row: units 132 wanted, file has 114 (gemm.sm_90a.csv:17)": the row that is nearest, and the fields that differ. For explain.
std::string why_no_row(std::string_view op, const Device& device, const std::string& key);
/// Problems met while reading the files of an op; for doctor and explain.
std::vector<TunedProblem> tuned_problems(std::string_view op, const Device& device);
/// Counts, and logs once, that a row was passed over.
void skipped_row(const TunedRow& row, std::string_view reason);

/// Folders and files that are searched, in order.
std::vector<std::string> tuned_paths();
/// The project's folder for tuned rows, in the working folder: where `eitri tune` writes unless told otherwise.
inline constexpr const char* kProjectTuned = ".eitri/tuned";

/// Called on every 32nd routed call of a thread: at most once a second it looks whether files have changed, and has their rows
/// and all routes made anew. Never waits for another thread; does nothing while `stream` captures a graph.
void poll_tuned(Stream stream);
/// Bumps of the route generation that changed files caused.
uint32_t tuned_reloads();
/// As if a file had changed: the next call reads all of them again.
void tuned_rows_changed();
/// Forgets what was read and every cached route; the next call reads again. For tests and the tuner.
void reload_tuned();

}  // namespace eitri
