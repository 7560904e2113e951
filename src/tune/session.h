// One problem under way: what the tuner asks its worker processes, and what it concludes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tune/tuner.h"

namespace eitri::tune {

/// The processes that run a problem's candidates.
struct Workers {
  WorkerProcess& racer;      // every candidate
  WorkerProcess& confirmer;  // finalists alone
};
/// Kernel and config of a tuned row.
struct RowChoice {
  std::string kernel, config;
};

class Session {
 public:
  /// `row`: what is scored, if there is one.
  Session(const TuneProblem& problem, const TunedOp& op, Choices choices, const Device& device, const TuneOptions& options,
          Journal& journal, Workers workers, std::function<bool()> out_of_time, std::optional<RowChoice> row)
      : problem_(problem),
        op_(op),
        choices_(std::move(choices)),
        device_(device),
        options_(options),
        journal_(journal),
        workers_(workers),
        out_of_time_(std::move(out_of_time)),
        row_(std::move(row)) {}

  Outcome run();
  /// Of the kernels that are candidates, "a,b".
  static std::string revisions_of(const Choices& choices);

 private:
  // died: wrong, and its process has gone. unclear: it met inputs that somebody had written to.
  enum class Verdict { right, wrong, died, slow, unclear };
  using StandingOf = std::function<Standing(size_t)>;
  using SampleLength = std::function<double(int round)>;

  const Choice& choice(size_t i) const { return choices_.all[i]; }
  std::string name_of(size_t i) const { return choice(i).config.empty() ? choice(i).kernel : str(choice(i).kernel, " ", choice(i).config); }
  WorkerProcess& worker() { return confirming_ ? workers_.confirmer : workers_.racer; }
  Answer ask(double Phases::*phase, const nlohmann::json& request, double limit_s);

  bool open(bool with_reference);
  bool failed(const std::string& why);
  void fail_run(const char* why);
  void reject(size_t i, const std::string& why, bool everywhere);
  Verdict check(size_t i, int repeats, double most_us);
  bool check_each();
  void check_all();
  bool inputs_are_intact();
  bool start_over();
  bool check_finalists(const RaceResult& first, size_t control, std::vector<size_t>& finalists);
  double sample(size_t i, double sample_us);
  RaceResult run_race(const std::vector<size_t>& field, size_t control, const RaceOptions& options, const char* what,
                      const SampleLength& sample_us);
  void time_all();
  void score_all();
  std::vector<size_t> ranked_of(const RaceResult& first) const;
  void finish(size_t adopted, const std::vector<size_t>& finalists, const RaceResult& first, const StandingOf& standing);

  const TuneProblem& problem_;
  const TunedOp& op_;
  const Choices choices_;
  const Device& device_;
  const TuneOptions& options_;
  Journal& journal_;
  const Workers workers_;
  const std::function<bool()> out_of_time_;
  const std::optional<RowChoice> row_;
  Outcome out_;
  std::vector<size_t> field_;  // right ones, in table order
  std::map<size_t, std::string> rejected_;
  std::map<size_t, double> errors_;
  std::map<size_t, double> slow_us_;  // those that were not judged
  std::optional<size_t> anchor_;      // the first right candidate: the default where that is right
  double base_us_ = 0;                // its microseconds with warm caches
  std::set<size_t> thorough_;         // right again and again
  bool lost_worker_ = false, has_ring_ = false, confirming_ = false;
  // Inputs and canaries are looked at after every candidate: when one wrote to them, or took its process with it. Else once after all of
  // them, for they are large, and on a GPU have to be brought back.
  bool accuses_ = false;
};

}  // namespace eitri::tune
