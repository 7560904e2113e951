#include "tune/tuner.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>

#include <omp.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "dispatch/tuned_table.h"
#include "tune/session.h"
#include "tune/tuned_writer.h"

namespace eitri::tune {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> worker_environment(const TuneOptions& options) {
  std::vector<std::string> out;
  // Recipes route their calls by what has been tuned so far.
  std::string tuned = options.folder;
  for (const std::string& path : settings().tuned) tuned += ":" + path;
  out.push_back("EITRI_TUNED=" + tuned);
  if (options.device == "cpu" && omp_get_proc_bind() == omp_proc_bind_false) {  // threads stay where they are
    out.emplace_back("OMP_PROC_BIND=close");
    out.emplace_back("OMP_PLACES=cores");
  }
  return out;
}

/// Makes the folder. Throws Error of io_error where its files cannot be written: before work is done, and not of each problem anew.
void require_writable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(Code::io_error, str("cannot make folder ", folder, ": ", error.message()));
  const std::string path = str(folder, "/worker.log");
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail(Code::io_error, str("cannot write ", path, ": ", std::strerror(errno)));
  ::close(fd);
}

/// The row that another run left in the folder, merged or shared with other machines, if its kernel has not changed since.
std::optional<TunedRow> fresh(const std::optional<TunedRow>& row, const Choices& choices) {
  for (const Choice& c : choices.all)
    if (row && c.kernel == row->kernel && c.revision == row->revision && c.refused.empty()) return row;
  return std::nullopt;
}

}  // namespace

std::span<const char* const> enum_names(TuneStatus) {
  static constexpr const char* kNames[] = {"tuned", "default is best", "known", "unsupported", "failed", "out of time", "scored"};
  return kNames;
}

Tuner::Tuner(std::span<const TunedOp> ops, const Device& device, TuneOptions options)
    : ops_(ops),
      device_(device),
      options_(std::move(options)),
      journal_(options_.folder),
      racer_(options_.worker, worker_environment(options_), str(options_.folder, "/worker.log")),
      confirmer_(options_.worker, worker_environment(options_), str(options_.folder, "/worker.log")) {}

const TunedOp& Tuner::op_named(const std::string& name) const {
  std::string known;
  for (const TunedOp& op : ops_) {
    if (op.name == name) return op;
    known += str(known.empty() ? "" : ", ", op.name);
  }
  fail(Code::invalid_argument, str("op is ", name, "; expected one of ", known));
}

Choices Tuner::candidates(const TuneProblem& problem) const {
  return op_named(problem.op).choices(problem.problem, device_, options_.pruning);
}

bool Tuner::out_of_time() const { return seconds_since(start_) > options_.budget_s; }

Outcome Tuner::tune(const TuneProblem& problem) {
  const auto start = std::chrono::steady_clock::now();
  Outcome out;
  try {
    out = tune_now(problem, op_named(problem.op));
  } catch (const Error& error) {
    if (error.code() == Code::io_error) throw;  // no folder, no journal: the run is over
    out = {.problem = problem, .status = TuneStatus::failed, .why = error.what()};
  }
  out.seconds = seconds_since(start);
  return out;
}

/// The row of the problem in the folder's file.
std::optional<TunedRow> Tuner::row_of(const TuneProblem& problem) const {
  const std::string path = tuned_file(options_.folder, problem.op, device_.arch());
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const TunedTable table(read_file(path, size_t{256} << 20), path, device_.arch(), fields_of(problem.op));
  require_own_columns(table, path);
  const TunedTable::Entry* const entry = table.find(values_of(problem.problem), device_.units);
  return entry == nullptr ? std::nullopt : std::optional(table.row(*entry));
}

Outcome Tuner::tune_now(const TuneProblem& problem, const TunedOp& op) {
  Choices choices = op.choices(problem.problem, device_, options_.pruning);
  if (choices.control >= choices.all.size()) {
    std::string why = "no kernel takes it";
    for (const Choice& c : choices.all) why += str("; ", c.kernel, ": ", c.refused);
    if (choices.empty) why = "an extent is 0: the reference serves it, whatever rows say";
    return {.problem = problem, .status = TuneStatus::unsupported, .why = why};
  }
  const bool skips_known = !options_.again && options_.score_rounds == 0;  // what is known already
  const JournalRecord* const known = journal_.find(problem.op, std::string(device_.arch()), device_.units, problem.problem);
  const auto in_file = row_of(problem);  // throws for a file that rows could not be added to
  if (skips_known && known != nullptr && in_file && known->revisions == Session::revisions_of(choices)) {
    return {.problem = problem,
            .status = TuneStatus::known,
            .why = str("tuned on ", known->date),
            .kernel = known->kernel,
            .config = known->config,
            .us = known->us,
            .control_us = known->control_us};
  }
  if (const auto row = skips_known && known == nullptr ? fresh(in_file, choices) : std::nullopt) {
    return {.problem = problem,
            .status = TuneStatus::known,
            .why = str("tuned on ", row->date, " (", row->origin, ")"),
            .kernel = row->kernel,
            .config = row->config,
            .us = row->us,
            .control_us = row->baseline_us};
  }
  require_writable(options_.folder);
  if (out_of_time()) return {.problem = problem, .status = TuneStatus::out_of_time, .why = "the budget is used up"};
  // A folder that rows were merged into has no journal.
  std::optional<RowChoice> row;
  if (options_.score_rounds > 0) {
    if (known != nullptr) row = RowChoice{known->kernel, known->config};
    else if (in_file) row = RowChoice{in_file->kernel, in_file->config};
  }
  return Session(
             problem, op, std::move(choices), device_, options_, journal_, {racer_, confirmer_}, [this] { return out_of_time(); },
             std::move(row))
      .run();
}

std::string toolchain(const Device& device) {
#if defined(__clang__)
  std::string out = "clang " __clang_version__;
#else
  std::string out = "gcc " __VERSION__;
#endif
  if (device.is_gpu()) out += str(" driver ", gpu::driver_version());
  return out;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

}  // namespace eitri::tune
