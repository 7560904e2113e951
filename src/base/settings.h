// The user's settings: at most 12 EITRI_* environment variables, read once, in one table that makes
// the docs page as well. Programs that need other values per call pass arguments, not settings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eitri {

/// What run-time compilation may do: compile what is missing, use only what is cached, or nothing at all.
enum class JitMode : uint8_t { on, cached, off };
/// What a call does about a problem without a tuned row: nothing, have it tuned beside the running program, or wait until it is tuned.
enum class TuneMode : uint8_t { off, online, block };

struct Settings {
  std::string cache_dir;                                       // EITRI_CACHE_DIR; absolute, or empty: nothing is cached on disk
  std::vector<std::string> tuned;                              // EITRI_TUNED: CSV files or folders, the first has priority
  std::vector<std::pair<std::string, std::string>> force;      // EITRI_FORCE: (op, kernel), no op twice
  std::string isa;                                             // EITRI_ISA: name of the highest Isa to use; empty: what the CPU has
  int threads = 0;                                             // EITRI_THREADS; 0: OpenMP decides
  bool check = false;                                          // EITRI_CHECK: compare every call with the reference
  std::string record;                                          // EITRI_RECORD: absolute folder; empty: misses are not recorded
  JitMode jit = JitMode::on;                                   // EITRI_JIT
  TuneMode tune = TuneMode::off;                               // EITRI_TUNE
  int tune_percent = 5;                                        // EITRI_TUNE=online:N: the most time that is spent on tuning
  int tune_seconds = 60;                                       // EITRI_TUNE=block:N: for one problem
  std::vector<std::pair<std::string, std::string>> compilers;  // EITRI_COMPILER: (kind, path), in order

  /// The kernel that EITRI_FORCE names for this op, or an empty string.
  std::string_view forced_kernel(std::string_view op) const;
};

/// Reads the environment on the first call (EITRI_LOG sets the log levels then); afterwards one
/// atomic load. A bad value throws Error{invalid_argument} on every call until it is mended, so
/// entry points must call this where they can report it. Unknown EITRI_* names warn once.
const Settings& settings();

/// Tests only: reads the environment again. References from settings() stay valid and keep the old
/// values.
void reload_settings();

/// The table of settings in Markdown, for docs/generated/settings.md.
std::string settings_markdown();

}  // namespace eitri
