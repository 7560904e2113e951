// Tunes problems: candidates are checked in a worker process and raced; a winner that would take the default's place by little is
// confirmed in another process. Ranks are written as rows and noted in the journal. See docs/tuning.md for the protocol.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tune/journal.h"
#include "tune/race.h"
#include "tune/worker.h"

namespace eitri::tune {

struct TuneOptions {
  std::string folder = kProjectTuned;    // of rows and journal
  std::vector<std::string> worker = {};  // the worker's command; argv[0] is a path
  std::string device = "cpu";            // "cpu", "cuda:0"
  int threads = 0;                       // 0: what OpenMP would use
  /// Of the run. A problem that has begun is ended early, not dropped: with fewer candidates, rounds, and rounds of confirmation.
  double budget_s = std::numeric_limits<double>::infinity();
  double time_limit_s = 20;      // of one check or sample of a candidate; then it is killed
  double prepare_limit_s = 600;  // of making a problem's tensors and reference
  double min_gain = 0.02;        // that a candidate must save over the default, and more than the noise
  Pruning pruning = {};
  double sample_us = 1000;     // a sample lasts at least this long
  int confirm_rounds = 9;      // and three times as many more where the noise hides a gain
  double clear_gain = 0.1;     // less its interval: then the race's result needs no confirmation
  int repeats = 20;            // calls of a finalist that must give the same bits; other candidates are called twice
  /// Not 0: nothing is tuned, the row of each problem is scored. Every candidate is timed, of single calls on a CPU; what may be the best, in
  /// so many rounds. Then the best of them, the row and the default run side by side.
  int score_rounds = 0;
  bool again = false;  // also problems that the journal has
  CheckOptions check = {};
  RaceOptions race = {};
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

struct TuneProblem {
  std::string op, problem;  // problem: key_of
  bool operator==(const TuneProblem&) const = default;
};

enum class TuneStatus : uint8_t {
  tuned,         // a candidate gains over the default; rows are written
  default_best,  // the default is as good as any; rows say so
  known,         // the journal or the folder's file has it, with the kernels of now
  unsupported,   // no kernel takes it here
  failed,        // `why`
  out_of_time,   // the budget was used up before it began
  scored,        // nothing is written
};
std::span<const char* const> enum_names(TuneStatus);

struct Rejected {
  std::string kernel, config, why;
};
/// Microseconds of a call, in rounds that all take part in, and what the cost model expects for the kernel's guessed config.
struct Timed {
  std::string kernel, config;
  double us = 0, guess_us = 0;
};
/// What TuneOptions::score_rounds finds. Times are microseconds of a call, in the last race where nothing else is said.
struct Score {
  std::string best_kernel, best_config;    // in the last race
  std::string first_kernel, first_config;  // in the rounds before it
  double best_us = 0, first_us = 0, row_us = 0, default_us = 0, noise = 0;
  double row_interval = 0, default_interval = 0;  // half widths of log(its time / the best's)
  double every_us = 0;                            // one call of each candidate, added up; of rounds that all take part in
  double every_config_us = 0;                     // and of each config that a knob's values make, though several do the same
  double round_us = 0;                            // one sample of each candidate
  size_t configs = 0;
  std::vector<Timed> every = {};
};
/// Where the seconds of a problem went.
struct Phases {
  double start = 0;    // of processes: libraries, the device
  double inputs = 0;   // tensors and the reference's results
  double check = 0;    // of candidates
  double ring = 0;     // tensors to time with
  double race = 0;     // samples
  double confirm = 0;  // all of that again, but the start, in another process
};
struct Outcome {
  TuneProblem problem;
  TuneStatus status = TuneStatus::failed;
  std::string why = {};
  std::string kernel = {}, config = {}, control_kernel = {}, control_config = {};
  double us = 0, control_us = 0, spread_us = 0;  // of the confirmation, else of the race
  double noise = 0;                              // half width of log(control / control)
  size_t candidates = 0;
  std::vector<Rejected> rejected = {};  // wrong, faulting, too slow to answer
  int rounds = 0, discarded = 0, workers = 0;
  bool noisy = false, control_is_wrong = false, confirmed = false;
  double seconds = 0;  // in all
  Phases phases = {};
  size_t slow = 0;  // candidates that were no longer judged after a call or two
  int samples = 0;
  Score score = {};
  double gain() const { return control_us > 0 && us > 0 ? 1 - us / control_us : 0; }
};

class Tuner {
 public:
  /// Throws Error for a journal that cannot be read.
  Tuner(std::span<const TunedOp> ops, const Device& device, TuneOptions options);

  Outcome tune(const TuneProblem& problem);
  /// Of a problem, without running anything: candidates and those that are refused.
  Choices candidates(const TuneProblem& problem) const;
  bool out_of_time() const;
  const Journal& journal() const { return journal_; }

 private:
  const TunedOp& op_named(const std::string& name) const;
  std::optional<TunedRow> row_of(const TuneProblem& problem) const;
  Outcome tune_now(const TuneProblem& problem, const TunedOp& op);

  const std::span<const TunedOp> ops_;
  const Device& device_;
  const TuneOptions options_;
  Journal journal_;
  WorkerProcess racer_, confirmer_;  // kept from problem to problem; the second runs nothing but finalists
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Compiler and libraries that kernels are made of, for rows: "gcc 12.2.0".
std::string toolchain(const Device& device);
/// "2026-11-29", UTC.
std::string today();

}  // namespace eitri::tune
