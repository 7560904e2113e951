#include "tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>

#include <omp.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "dispatch/tuned_table.h"
#include "tune/tuned_writer.h"

namespace eitri::tune {
namespace {

using nlohmann::json;

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

/// One problem under way.
class Session {
 public:
  Session(const TuneProblem& problem, Choices choices, const Device& device, const TuneOptions& options, Journal& journal,
          WorkerProcess& worker, std::function<bool()> out_of_time)
      : problem_(problem),
        choices_(std::move(choices)),
        device_(device),
        options_(options),
        journal_(journal),
        worker_(worker),
        out_of_time_(std::move(out_of_time)) {}

  Outcome run() {
    out_.problem = problem_;
    const int workers_before = worker_.started();
    worker_.stop();  // a problem starts with a fresh heap
    if (open(true)) {
      check_all();
      if (!field_.empty()) options_.score_rounds > 0 ? score_all() : time_all();
    }
    out_.workers = worker_.started() - workers_before;
    return std::move(out_);
  }

 private:
  const Choice& choice(size_t i) const { return choices_.all[i]; }
  std::string name_of(size_t i) const { return choice(i).config.empty() ? choice(i).kernel : str(choice(i).kernel, " ", choice(i).config); }

  /// `check`: with the reference's results.
  bool open(bool check) {
    const auto start = std::chrono::steady_clock::now();
    const Answer answer = worker_.ask({{"do", "open"},
                                       {"op", problem_.op},
                                       {"problem", problem_.problem},
                                       {"device", options_.device},
                                       {"threads", options_.threads},
                                       {"check", check},
                                       {"most_flops", options_.check.most_flops}},
                                      options_.prepare_limit_s);
    out_.check_s += seconds_since(start);
    has_ring_ = false;
    return answer.ok() || failed(answer.why());
  }
  bool failed(const std::string& why) {
    out_.status = TuneStatus::failed;
    out_.why = why;
    return false;
  }

  /// Not tried again: at every problem when it is wrong or faults, at this one when it is only slow or hungry.
  void reject(size_t i, const std::string& why, bool everywhere) {
    const Choice& c = choice(i);
    out_.rejected.push_back({c.kernel, c.config, why});
    rejected_[i] = why;
    journal_.add({.op = problem_.op,
                  .arch = std::string(device_.arch()),
                  .kernel = c.kernel,
                  .config = c.config,
                  .revision = c.revision,
                  .problem = everywhere ? "" : problem_.problem,
                  .why = why});
    log(LogLevel::warning, LogTopic::tune, problem_.op, " ", problem_.problem, ": ", name_of(i), " is rejected: ", why);
  }

  /// A death that says something about the candidate: not one by the time limit, or by whoever kills processes from outside.
  static bool is_its_fault(const Answer& answer) {
    return !answer.death.empty() && !answer.timed_out && answer.death != "was killed by signal 9" &&
           answer.death != "was killed by signal 15";
  }

  /// Asks the worker; what is wrong is rejected. The worker is gone afterwards if the candidate may have written anywhere.
  bool is_right(size_t i, int repeats) {
    const auto start = std::chrono::steady_clock::now();
    const Answer answer = worker_.ask({{"do", "check"}, {"kernel", choice(i).kernel}, {"config", choice(i).config}, {"repeats", repeats}},
                                      options_.time_limit_s);
    out_.check_s += seconds_since(start);
    if (!answer.ok()) {
      reject(i, answer.why(), is_its_fault(answer));
      return false;
    }
    const std::string wrong = answer.json.at("wrong");
    if (wrong.empty()) {
      errors_[i] = std::max(errors_[i], answer.json.value("error", 0.0));
      return true;
    }
    const bool everywhere = answer.json.value("everywhere", true);
    reject(i, wrong, everywhere);
    if (everywhere) worker_.stop();
    return false;
  }

  void check_all() {
    std::vector<size_t> order = {choices_.control};  // first: it decides whether the run makes sense
    for (size_t i = 0; i < choices_.all.size(); ++i)
      if (i != choices_.control && choice(i).refused.empty()) order.push_back(i);
    out_.candidates = order.size();
    size_t done = 0;
    for (const size_t i : order) {
      if (out_of_time_() && !field_.empty()) break;  // what has been checked is raced
      const Choice& c = choice(i);
      options_.progress(str("checking ", ++done, "/", order.size(), " ", name_of(i)));
      // Tuned again, a candidate that was too slow or too hungry at this problem has another chance.
      if (const std::string why = journal_.quarantined(problem_.op, std::string(device_.arch()), c.kernel, c.config, c.revision,
                                                       options_.again ? std::string("?") : problem_.problem);
          !why.empty()) {
        out_.rejected.push_back({c.kernel, c.config, "in quarantine: " + why});
        rejected_[i] = "in quarantine: " + why;
        continue;
      }
      if (!is_right(i, 2)) {
        if (!worker_.running() && !open(true)) return field_.clear();
        continue;
      }
      field_.push_back(i);
    }
    out_.control_is_wrong = rejected_.contains(choices_.control);
    if (field_.empty()) {
      out_.status = TuneStatus::failed;
      out_.why = "no candidate is right";
      return;
    }
    std::ranges::sort(field_);  // ties go to the first in the table
  }

  /// Microseconds of one sample; NaN when the candidate failed, which rejects it.
  double sample(size_t i) {
    if (!has_ring_) {  // large tensors take longer than a sample may
      const auto begin = std::chrono::steady_clock::now();
      const Answer made = worker_.ask({{"do", "ring"}}, options_.prepare_limit_s);
      out_.check_s += seconds_since(begin);
      has_ring_ = made.ok() || failed("its tensors cannot be made: " + made.why());
      lost_worker_ = !has_ring_;
      if (lost_worker_) return NAN;
    }
    const auto start = std::chrono::steady_clock::now();
    const Answer answer =
        worker_.ask({{"do", "time"}, {"kernel", choice(i).kernel}, {"config", choice(i).config}, {"sample_us", options_.sample_us}},
                    options_.time_limit_s);
    out_.time_s += seconds_since(start);
    ++out_.samples;
    if (answer.ok()) return answer.json.at("us");
    reject(i, answer.why(), is_its_fault(answer));
    // A GPU that faulted answers every later call with that fault.
    worker_.stop();
    lost_worker_ = lost_worker_ || !open(false);
    return NAN;
  }

  RaceResult run_race(const std::vector<size_t>& field, size_t control, const RaceOptions& options, const char* what) {
    const auto at = static_cast<size_t>(std::ranges::find(field, control) - field.begin());
    int round = 0;
    return race(
        field.size(), at,
        [&](const std::vector<size_t>& order) {
          options_.progress(str(what, ", round ", ++round, ", ", order.size() - 1, " candidates"));
          std::vector<double> us;
          for (const size_t k : order) us.push_back(lost_worker_ || rejected_.contains(field[k]) ? NAN : sample(field[k]));
          return us;
        },
        options);
  }

  void time_all() {
    // Where the default is wrong, the first right candidate stands in as the control; its time is no baseline.
    const size_t control = out_.control_is_wrong ? field_.front() : choices_.control;
    RaceOptions options = options_.race;
    options.out_of_time = out_of_time_;
    const RaceResult first = run_race(field_, control, options, "racing");
    out_.rounds = first.rounds;
    out_.discarded = first.discarded;
    if (lost_worker_ || first.control_us <= 0) return fail_run("the default cannot be timed");

    // In a fresh process: finalists are checked again, longer; one that is wrong after all gives way.
    worker_.stop();
    if (!open(true)) return;
    std::vector<size_t> finalists;
    for (;;) {
      const std::vector<size_t> ranked = ranked_of(first);
      finalists.clear();
      for (const size_t k : ranked) finalists.push_back(field_[k]);
      if (std::ranges::find(finalists, control) == finalists.end()) finalists.push_back(control);
      const auto unchecked = std::ranges::find_if(finalists, [&](size_t i) { return !thorough_.contains(i); });
      if (unchecked == finalists.end()) break;
      options_.progress(str("checking finalist ", name_of(*unchecked)));
      if (is_right(*unchecked, options_.repeats)) {
        thorough_.insert(*unchecked);
        continue;
      }
      if (*unchecked == control) return fail_run("the default is not right every time");
      if (!worker_.running() && !open(true)) return;
    }
    RaceOptions confirm = options_.race;
    confirm.rungs = {options_.confirm_rounds};
    confirm.least_rounds = 3;  // for an interval
    confirm.out_of_time = out_of_time_;
    confirm.settled = std::numeric_limits<double>::infinity();
    confirm.seed = options_.race.seed + 1;
    const RaceResult last = run_race(finalists, control, confirm, "confirming");
    if (lost_worker_ || last.control_us <= 0) return fail_run("the default cannot be timed again");
    out_.noise = last.control_interval;
    out_.noisy = first.noisy || last.noisy;
    out_.control_us = last.control_us;

    const auto standing = [&](size_t i) {
      const auto it = std::ranges::find(finalists, i);
      return it == finalists.end() ? Standing{.failed = true} : last.standings[static_cast<size_t>(it - finalists.begin())];
    };
    const size_t winner = finalists.front();
    const Standing won = standing(winner);
    const bool gains = winner != control && !won.failed && -won.score >= std::max(-std::log(1 - options_.min_gain), won.interval);
    const size_t adopted = gains || (out_.control_is_wrong && !won.failed) ? winner : control;
    std::vector<size_t> order = {adopted};
    std::vector<size_t> others;
    for (const size_t i : finalists)
      if (i != adopted && !standing(i).failed) others.push_back(i);
    std::ranges::stable_sort(others, {}, [&](size_t i) { return standing(i).score; });
    // The second rank is of another kernel where there is one: it serves when the first kernel cannot be loaded.
    const auto other = std::ranges::find_if(others, [&](size_t i) { return choice(i).kernel != choice(adopted).kernel; });
    if (other != others.end()) std::rotate(others.begin(), other, other + 1);
    order.insert(order.end(), others.begin(), others.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(2, others.size())));
    finish(adopted, order, first, standing);
  }

  /// The row of the journal and the default against the best of all candidates.
  void score_all() {
    const size_t control = out_.control_is_wrong ? field_.front() : choices_.control;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    RaceOptions options = options_.race;
    options.rungs = {std::min(5, options_.score_rounds), options_.score_rounds};
    options.settled = options.gate = kInfinity;
    options.give_up = 2;
    options.out_of_time = out_of_time_;
    const RaceResult every = run_race(field_, control, options, "scoring");
    out_.rounds = every.rounds;
    if (lost_worker_ || every.control_us <= 0) return fail_run("the default cannot be timed");
    Score& score = out_.score;
    size_t best = control;
    double least = 0;
    for (size_t k = 0; k < field_.size(); ++k) {
      const Standing& s = every.standings[k];
      if (s.failed) continue;
      ++score.timed;
      score.every_us += s.us;
      if (s.score < least) least = s.score, best = field_[k];
    }
    const JournalRecord* const row = journal_.find(problem_.op, std::string(device_.arch()), device_.units, problem_.problem);
    size_t chosen = control;
    if (row != nullptr) {
      const auto it =
          std::ranges::find_if(field_, [&](size_t i) { return choice(i).kernel == row->kernel && choice(i).config == row->config; });
      if (it == field_.end()) return fail_run("the row's kernel and config are no candidate");
      chosen = *it;
    }
    // The least of many times looks better than it is: the three run once more.
    std::vector<size_t> three = {control};
    for (const size_t i : {best, chosen})
      if (std::ranges::find(three, i) == three.end()) three.push_back(i);
    options.rungs = {std::max(9, options_.score_rounds / 2)};
    options.give_up = 0;
    options.seed += 1;
    const RaceResult last = run_race(three, control, options, "scoring the row");
    if (lost_worker_ || last.control_us <= 0) return fail_run("the default cannot be timed again");
    const auto us = [&](size_t i) { return last.standings[static_cast<size_t>(std::ranges::find(three, i) - three.begin())].us; };
    if (us(chosen) < us(best)) best = chosen;
    if (us(control) < us(best)) best = control;
    score.best_kernel = choice(best).kernel;
    score.best_config = choice(best).config;
    score.best_us = us(best);
    score.row_us = us(chosen);
    score.default_us = out_.control_is_wrong ? 0 : us(control);
    score.noise = last.control_interval;
    out_.status = TuneStatus::scored;
    out_.kernel = choice(chosen).kernel;
    out_.config = choice(chosen).config;
    out_.control_kernel = choice(choices_.control).kernel;
    out_.control_config = choice(choices_.control).config;
    out_.us = score.row_us;
    out_.control_us = score.default_us;
    out_.noise = score.noise;
  }

  /// The winner of the race and two alternatives, as places in the field, without those that were rejected since: the best of another
  /// kernel, then the best of what is left.
  std::vector<size_t> ranked_of(const RaceResult& first) const {
    std::vector<size_t> places;
    for (size_t k = 0; k < field_.size(); ++k)
      if (!first.standings[k].failed && !rejected_.contains(field_[k])) places.push_back(k);
    std::ranges::stable_sort(places, {}, [&](size_t k) { return first.standings[k].score; });
    std::vector<size_t> ranked;
    const auto take = [&](auto&& wanted) {
      const auto it = std::ranges::find_if(places, wanted);
      if (it == places.end() || ranked.size() == 3) return;
      ranked.push_back(*it);
      places.erase(it);
    };
    take([&](size_t k) { return k == first.winner; });
    if (ranked.empty()) take([](size_t) { return true; });
    if (ranked.empty()) return ranked;
    const std::string& kernel = choice(field_[ranked.front()]).kernel;
    take([&](size_t k) { return choice(field_[k]).kernel != kernel; });
    take([](size_t) { return true; });
    take([](size_t) { return true; });
    return ranked;
  }

  void fail_run(const char* why) {
    out_.status = TuneStatus::failed;
    if (out_.why.empty()) out_.why = why;
  }

  template <class StandingOf>
  void finish(size_t adopted, const std::vector<size_t>& order, const RaceResult& first, const StandingOf& standing) {
    std::vector<TunedRow> rows;
    for (const size_t i : order) {
      const Standing s = standing(i);
      const double spread = std::isfinite(s.interval) ? s.us * s.interval : 0;
      rows.push_back({.key = problem_.problem,
                      .units = device_.units,
                      .rank = static_cast<int>(rows.size()) + 1,
                      .kernel = choice(i).kernel,
                      .config = choice(i).config,
                      .us = s.us,
                      .spread_us = spread,
                      .baseline_us = out_.control_is_wrong ? 0 : out_.control_us,
                      .error = errors_[i],
                      .revision = choice(i).revision,
                      .toolchain = toolchain(device_),
                      .date = today()});
    }
    write_tuned(options_.folder, problem_.op, device_.arch(), rows);
    out_.status = adopted == choices_.control ? TuneStatus::default_best : TuneStatus::tuned;
    out_.kernel = choice(adopted).kernel;
    out_.config = choice(adopted).config;
    out_.control_kernel = choice(choices_.control).kernel;
    out_.control_config = choice(choices_.control).config;
    out_.us = rows[0].us;
    out_.spread_us = rows[0].spread_us;

    JournalRecord record{.op = problem_.op,
                         .arch = std::string(device_.arch()),
                         .units = device_.units,
                         .problem = problem_.problem,
                         .revisions = revisions_of(choices_),
                         .kernel = out_.kernel,
                         .config = out_.config,
                         .us = out_.us,
                         .control_us = out_.control_us,
                         .race_control_us = first.control_us,
                         .date = today(),
                         .candidates = {}};
    for (size_t k = 0; k < field_.size(); ++k) {
      const Standing& s = first.standings[k];
      if (rejected_.contains(field_[k])) continue;
      record.candidates.push_back({.kernel = choice(field_[k]).kernel,
                                   .config = choice(field_[k]).config,
                                   .wrong = {},
                                   .us = s.us,
                                   .spread_us = std::isfinite(s.interval) ? s.us * s.interval : 0,
                                   .error = errors_[field_[k]],
                                   .rounds = s.rounds});
    }
    for (const auto& [i, why] : rejected_)
      record.candidates.push_back({.kernel = choice(i).kernel, .config = choice(i).config, .wrong = why});
    journal_.add(record);
  }

 public:
  static std::string revisions_of(const Choices& choices) {
    std::set<std::string> all;
    for (const Choice& c : choices.all)
      if (c.refused.empty()) all.insert(c.revision);
    std::string out;
    for (const std::string& r : all) out += str(out.empty() ? "" : ",", r);
    return out;
  }

 private:
  const TuneProblem& problem_;
  const Choices choices_;
  const Device& device_;
  const TuneOptions& options_;
  Journal& journal_;
  WorkerProcess& worker_;
  const std::function<bool()> out_of_time_;
  Outcome out_;
  std::vector<size_t> field_;  // right ones, in table order
  std::map<size_t, std::string> rejected_;
  std::map<size_t, double> errors_;
  std::set<size_t> thorough_;  // right again and again
  bool lost_worker_ = false, has_ring_ = false;
};

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
      worker_(options_.worker, worker_environment(options_), str(options_.folder, "/worker.log")) {}

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

/// The row that another run left in the folder, merged or shared with other machines: one of a kernel that has not changed since.
std::optional<TunedRow> Tuner::fresh_row(const TuneProblem& problem, const Choices& choices) const {
  const std::string path = tuned_file(options_.folder, problem.op, device_.arch());
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const TunedTable table(read_file(path, size_t{256} << 20), path, device_.arch(), fields_of(problem.op));
  const TunedTable::Entry* const entry = table.find(values_of(problem.problem), device_.units);
  if (entry == nullptr) return std::nullopt;
  const TunedRow row = table.row(*entry);
  for (const Choice& c : choices.all)
    if (c.kernel == row.kernel && c.revision == row.revision && c.refused.empty()) return row;
  return std::nullopt;
}

Outcome Tuner::tune_now(const TuneProblem& problem, const TunedOp& op) {
  Choices choices = op.choices(problem.problem, device_, options_.pruning);
  if (choices.control >= choices.all.size()) {
    std::string why = "no kernel takes it";
    for (const Choice& c : choices.all) why += str("; ", c.kernel, ": ", c.refused);
    return {.problem = problem, .status = TuneStatus::unsupported, .why = why};
  }
  if (!options_.again && options_.score_rounds == 0) {
    const JournalRecord* const known = journal_.find(problem.op, std::string(device_.arch()), device_.units, problem.problem);
    if (known != nullptr && known->revisions == Session::revisions_of(choices)) {
      return {.problem = problem,
              .status = TuneStatus::known,
              .why = str("tuned on ", known->date),
              .kernel = known->kernel,
              .config = known->config,
              .us = known->us,
              .control_us = known->control_us};
    }
    if (const auto row = known == nullptr ? fresh_row(problem, choices) : std::nullopt) {
      return {.problem = problem,
              .status = TuneStatus::known,
              .why = str("tuned on ", row->date, " (", row->origin, ")"),
              .kernel = row->kernel,
              .config = row->config,
              .us = row->us,
              .control_us = row->baseline_us};
    }
  }
  std::error_code ignored;
  std::filesystem::create_directories(options_.folder, ignored);  // for the worker's log; writing says what is wrong
  if (out_of_time()) return {.problem = problem, .status = TuneStatus::out_of_time, .why = "the budget is used up"};
  return Session(problem, std::move(choices), device_, options_, journal_, worker_, [this] { return out_of_time(); }).run();
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
