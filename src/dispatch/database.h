// Tuned rows: read from CSV, matched by key, advice only. One file per op and arch: <op>.<arch>.csv.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace eitri {

/// A row as read. Columns: arch,units,<problem fields>,rank,kernel,config,us,spread_us,baseline_us,error,revision,toolchain,date.
struct TunedRow {
  std::string key;  // key_of(problem)
  int units = 0;
  int rank = 1;
  std::string kernel;
  std::string config;
  double us = 0;
  std::string revision;
  std::string origin;  // "file:line"
};

/// What was wrong with a line; the line is skipped, the rest of the file counts.
struct TunedProblem {
  std::string origin;
  std::string text;
};
struct TunedFile {
  std::vector<TunedRow> rows;
  std::vector<TunedProblem> problems;
};
/// Parses one file's text. Treats it as hostile: BOM, CRLF, missing or extra columns, bad numbers, truncation give
/// problems, never exceptions. `fields` are the op's problem field names in order.
TunedFile parse_tuned(std::string_view text, std::string_view file, std::string_view arch, const std::vector<std::string>& fields);

/// Ops announce their problem fields once (ops.cpp), so that files can be read by op name.
void set_tuned_fields(std::string_view op, std::vector<std::string> fields);
/// Rows for exactly this problem on this device, best rank first; user files (EITRI_TUNED) before shipped ones.
std::vector<const TunedRow*> tuned_rows(std::string_view op, const Device& device, const std::string& key);
/// Problems met while reading the files of an op; for doctor and explain.
std::vector<TunedProblem> tuned_problems(std::string_view op, const Device& device);
/// Logs once that a row was passed over.
void skipped_row(const TunedRow& row, std::string_view reason);
/// Forgets what was read and every cached route; the next call reads again. Not while other threads route. For tests.
void reload_tuned();

}  // namespace eitri
