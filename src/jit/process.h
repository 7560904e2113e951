// Runs a program without a shell: arguments as a list, output captured, a time limit, and no child left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eitri::jit {

struct ProcessOptions {
  std::string folder = {};      // working folder; empty: ours
  double time_limit_s = 120;    // then the child's whole process group is killed
  size_t max_output = 1 << 20;  // bytes of output that are kept; the rest is read and dropped
};

struct ProcessResult {
  enum class End : uint8_t {
    exited,       // `code` is the exit status
    killed,       // `code` is the signal
    timed_out,    // we killed it
    not_started,  // `output` says why
    unknown,      // the host program reaps our children (it ignores SIGCHLD, say)
  };
  End end = End::not_started;
  int code = 0;
  std::string output;  // stdout and stderr in the order written
  bool ok() const { return end == End::exited && code == 0; }
  /// "exited with status 1", "was killed by signal 9", "ran longer than 120 s and was killed", …
  std::string ending(const ProcessOptions& options) const;
};

/// `argv[0]` is a path. The child gets a small, fixed environment (PATH, LD_LIBRARY_PATH, TMPDIR = folder, LC_ALL = C), so
/// that variables which change what a compiler makes cannot slip past the cache key. Never throws for what the child does.
ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options = {});

/// The command as one line that a shell would take; for messages only.
std::string command_line(const std::vector<std::string>& argv);

/// The executable regular file of that name in $PATH (empty parts are passed over); empty when there is none.
std::string find_program(const std::string& name);

}  // namespace eitri::jit
