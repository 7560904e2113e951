// The miss recorder: problems that were served without a tuned row of their own, for every op in one schema, so that
// `eitri tune --from-record` knows what to tune. Off unless EITRI_RECORD names a folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace eitri {

/// Calls of one recorded problem since it was last written; the route of the problem points here.
struct MissCounter {
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> ns = 0;  // on CPUs alone: a GPU's calls are not waited for
};

/// Columns: op,arch,units,kernel,calls,us,"problem". `us` is the time of all calls together; 0 where it is not known.
struct Miss {
  std::string op, arch;
  int units = 0;
  std::string kernel;
  int64_t calls = 0;
  double us = 0;
  std::string problem;  // key_of(problem)
};

/// The counter of a problem that `kernel` serves without a row; the same for every call. Null when nothing is recorded.
MissCounter* record_miss(std::string_view op, const Device& device, const std::string& problem, std::string_view kernel);
/// Appends what was counted to <EITRI_RECORD>/misses.csv, in one write: several processes may share the folder. Also done every
/// 30 s between calls, and when the process ends.
void flush_misses();
void flush_misses_if_due();

struct MissFile {
  std::vector<Miss> misses;           // one a problem, device and op: of all processes together, most time first
  std::vector<std::string> problems;  // lines that were skipped, and why
  size_t lines = 0;
};
/// Reads misses.csv of a folder, or a file; `path` of several separated by ':'. Throws Error{io_error} when there is none.
MissFile read_misses(const std::string& path);
/// Puts one line a problem, device and op in place of all that programs have appended to the folder's misses.csv, without what cannot be
/// read. False: nothing was changed; another process has the file, or it may not be written.
bool compact_misses(const std::string& folder);

}  // namespace eitri
