#include "tune/session.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "tune/tuned_writer.h"

namespace eitri::tune {
namespace {

using nlohmann::json;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of a score: all run kScoreAll rounds; what is kScoreFar times slower than the best leaves, and after kScoreSome more what is kScoreNear
// times slower. The best kScoreJudged are judged beside the row and the default.
constexpr int kScoreAll = 3, kScoreSome = 12, kScoreLast = 61;
constexpr double kScoreFar = 1.5, kScoreNear = 1.15;
constexpr size_t kScoreJudged = 3;

// Microseconds that the start of a call may take more than another's: a launch, threads that wake. Nobody is slow for that.
constexpr double kCallUs = 50;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A death that says something about the candidate: not one by the time limit, or by whoever kills processes from outside.
bool is_its_fault(const Answer& answer) {
  return !answer.death.empty() && !answer.timed_out && !answer.death.starts_with("was killed by signal 9 ") &&
         !answer.death.starts_with("was killed by signal 15 ");
}

}  // namespace

Outcome Session::run() {
  out_.problem = problem_;
  const auto started = [&] { return workers_.racer.started() + workers_.confirmer.started(); };
  const int before = started();
  if (open(true)) {
    check_all();
    if (!field_.empty()) options_.score_rounds > 0 ? score_all() : time_all();
  }
  // Memory goes back; the process stays for the next problem.
  if (worker().running()) worker().ask({{"do", "close"}}, options_.time_limit_s);
  out_.workers = started() - before;
  return std::move(out_);
}

Answer Session::ask(double Phases::*phase, const json& request, double limit_s) {
  const auto start = std::chrono::steady_clock::now();
  Answer answer = worker().ask(request, limit_s);
  out_.phases.*(confirming_ && phase != &Phases::start ? &Phases::confirm : phase) += seconds_since(start);
  return answer;
}

/// `with_reference`: for checks.
bool Session::open(bool with_reference) {
  has_ring_ = false;
  if (!worker().running()) {
    const Answer answer =
        ask(&Phases::start, {{"do", "start"}, {"device", options_.device}, {"threads", options_.threads}}, options_.prepare_limit_s);
    if (!answer.ok()) return failed(answer.why());
  }
  const Answer answer =
      ask(&Phases::inputs,
          {{"do", "open"},
           {"op", problem_.op},
           {"problem", problem_.problem},
           {"check", with_reference},
           // Finalists have been judged on all rows that the limit allows: a second process looks for what comes and goes.
           {"most_flops", options_.check.most_flops / (confirming_ ? 10 : 1)}},
          options_.prepare_limit_s);
  if (!answer.ok()) return failed(answer.why());
  // In a new process the whole problem has to be compared with something that is known to be right, not with whoever comes first.
  if (anchor_ && answer.json.value("fewer_rows", false) && check(*anchor_, 2, 0) != Verdict::right)
    return failed(name_of(*anchor_) + " was right, and is not any more");
  return true;
}
bool Session::failed(const std::string& why) {
  out_.status = TuneStatus::failed;
  out_.why = why;
  return false;
}
void Session::fail_run(const char* why) {
  out_.status = TuneStatus::failed;
  if (out_.why.empty()) out_.why = why;
}

/// Not tried again: at every problem when it is wrong or faults, at this one when it is only slow or hungry.
void Session::reject(size_t i, const std::string& why, bool everywhere) {
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

/// What is wrong is rejected. The worker is gone afterwards if the candidate may have written anywhere.
Session::Verdict Session::check(size_t i, int repeats, double most_us) {
  const Answer answer = ask(&Phases::check,
                            {{"do", "check"},
                             {"kernel", choice(i).kernel},
                             {"config", choice(i).config},
                             {"repeats", repeats},
                             {"most_us", most_us},
                             {"inputs", accuses_}},
                            options_.time_limit_s);
  if (!answer.ok()) {
    reject(i, answer.why(), is_its_fault(answer));
    return worker().running() ? Verdict::wrong : Verdict::died;
  }
  if (answer.json.at("damaged")) return Verdict::unclear;
  const std::string wrong = answer.json.at("wrong");
  const double us = answer.json.at("us");
  if (wrong.empty()) {
    if (answer.json.at("slow")) {
      slow_us_[i] = us;
      ++out_.slow;
      return Verdict::slow;
    }
    if (!anchor_) {
      anchor_ = i;
      base_us_ = us;
    }
    errors_[i] = std::max(errors_[i], answer.json.value("error", 0.0));
    return Verdict::right;
  }
  const bool everywhere = answer.json.value("everywhere", true);
  reject(i, wrong, everywhere);
  if (everywhere) worker().stop();
  return Verdict::wrong;
}

/// Whether nobody wrote to inputs since the problem was opened.
bool Session::inputs_are_intact() {
  const Answer answer = ask(&Phases::check, {{"do", "damage"}}, options_.prepare_limit_s);
  return answer.ok() && answer.json.at("found").get<std::string>().empty();
}

/// From here on each candidate is asked alone for what it did to the inputs; nothing is known of those before, but of the rejected ones.
bool Session::start_over() {
  accuses_ = true;
  thorough_.clear();
  worker().stop();
  return open(true);
}

/// False: what was found right must be checked again, for a candidate wrote to the inputs, or ended the process before they were looked at.
bool Session::check_each() {
  std::vector<size_t> order = {choices_.control};  // first: it decides whether the run makes sense, and what is slow
  double best_guess = choice(choices_.control).guess_us;
  for (size_t i = 0; i < choices_.all.size(); ++i) {
    if (i == choices_.control || !choice(i).refused.empty()) continue;
    order.push_back(i);
    best_guess = std::min(best_guess, choice(i).guess_us);
  }
  out_.candidates = order.size();
  size_t done = 0;
  for (const size_t i : order) {
    if (out_of_time_() && !field_.empty()) break;  // what has been checked is raced
    if (rejected_.contains(i)) continue;
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
    const bool doubtful = c.guess_us > Pruning::kDoubtful * best_guess;
    const double slow = options_.score_rounds > 0 ? 0 : doubtful ? std::min(kSlowInCaches, choices_.slow) : choices_.slow;
    const Verdict verdict = check(i, 2, slow > 0 && anchor_ ? slow * base_us_ + kCallUs : 0);
    if (verdict == Verdict::unclear || (verdict == Verdict::died && !accuses_)) return false;
    if (verdict == Verdict::right) field_.push_back(i);
    if (!worker().running() && !open(true)) return true;
  }
  return accuses_ || inputs_are_intact();
}

void Session::check_all() {
  if (!check_each()) {
    field_.clear();
    errors_.clear();
    slow_us_.clear();
    out_.slow = 0;
    anchor_.reset();
    if (!start_over()) return;
    check_each();
  }
  if (!out_.why.empty()) return field_.clear();
  out_.control_is_wrong = rejected_.contains(choices_.control);
  if (field_.empty()) {
    out_.status = TuneStatus::failed;
    out_.why = "no candidate is right";
    return;
  }
  std::ranges::sort(field_);  // ties go to the first in the table
}

/// Microseconds of one sample; NaN when the candidate failed, which rejects it.
double Session::sample(size_t i, double sample_us) {
  if (!has_ring_) {  // large tensors take longer than a sample may
    const Answer made = ask(&Phases::ring, {{"do", "ring"}}, options_.prepare_limit_s);
    has_ring_ = made.ok() || failed("its tensors cannot be made: " + made.why());
    lost_worker_ = !has_ring_;
    if (lost_worker_) return NAN;
  }
  const Answer answer =
      ask(&Phases::race, {{"do", "time"}, {"kernel", choice(i).kernel}, {"config", choice(i).config}, {"sample_us", sample_us}},
          options_.time_limit_s);
  ++out_.samples;
  if (answer.ok()) return answer.json.at("us");
  reject(i, answer.why(), is_its_fault(answer));
  // A GPU that faulted answers every later call with that fault.
  worker().stop();
  lost_worker_ = lost_worker_ || !open(false);
  return NAN;
}

RaceResult Session::run_race(const std::vector<size_t>& field, size_t control, const RaceOptions& options, const char* what,
                             const SampleLength& sample_us) {
  const auto at = static_cast<size_t>(std::ranges::find(field, control) - field.begin());
  int round = 0;
  return race(
      field.size(), at,
      [&](const std::vector<size_t>& order) {
        options_.progress(str(what, ", round ", ++round, ", ", order.size() - 1, " candidates"));
        std::vector<double> us;
        for (const size_t k : order) us.push_back(lost_worker_ || rejected_.contains(field[k]) ? NAN : sample(field[k], sample_us(round)));
        return us;
      },
      options);
}

/// Finalists are checked again, longer; one that is wrong after all gives way. False: the run is over.
bool Session::check_finalists(const RaceResult& first, size_t control, std::vector<size_t>& finalists) {
  for (;;) {
    finalists.clear();
    for (const size_t k : ranked_of(first)) finalists.push_back(field_[k]);
    if (std::ranges::find(finalists, control) == finalists.end()) finalists.push_back(control);
    const auto unchecked = std::ranges::find_if(finalists, [&](size_t i) { return !thorough_.contains(i); });
    if (unchecked == finalists.end()) {
      if (accuses_ || inputs_are_intact()) return true;
      if (!start_over()) return false;
      continue;
    }
    options_.progress(str("checking finalist ", name_of(*unchecked)));
    const Verdict verdict = check(*unchecked, options_.repeats, 0);
    if (verdict == Verdict::right) {
      thorough_.insert(*unchecked);
      continue;
    }
    if (verdict == Verdict::unclear || (verdict == Verdict::died && !accuses_ && *unchecked != control)) {
      if (!start_over()) return false;
      continue;
    }
    if (*unchecked == control) {
      fail_run("the default is not right every time");
      return false;
    }
    if (!worker().running() && !open(true)) return false;
  }
}

void Session::time_all() {
  // Where the default is wrong, the first right candidate stands in as the control; its time is no baseline.
  const size_t control = out_.control_is_wrong ? field_.front() : choices_.control;
  RaceOptions options = options_.race;
  options.out_of_time = out_of_time_;
  options.min_gain = options_.min_gain;
  options.in_vain = !out_.control_is_wrong;
  const auto whole = [&](int) { return options_.sample_us; };
  RaceResult first = run_race(field_, control, options, "racing", [&](int round) {
    // The first rounds part what is far apart; graphs of a GPU stay as long as they are.
    return round <= 2 && !device_.is_gpu() ? options_.sample_us / 4 : options_.sample_us;
  });
  out_.rounds = first.rounds;
  out_.discarded = first.discarded;
  if (lost_worker_ || first.control_us <= 0) return fail_run("the default cannot be timed");
  out_.noise = first.control_interval;
  out_.noisy = first.noisy;
  out_.control_us = first.control_us;

  // A winner that would take the default's place is checked and timed again in a process that ran no other candidates, unless its gain is
  // beyond doubt.
  const double enough = -std::log(1 - options_.min_gain), clear = -std::log(1 - options_.clear_gain);
  const auto place = [](const std::vector<size_t>& all, size_t i) { return static_cast<size_t>(std::ranges::find(all, i) - all.begin()); };
  constexpr double kUnlikely = 0.0025;  // 9 of 9 rounds, or 22 of 27
  const auto is_sure = [](const Standing& s) { return -s.score >= s.interval || chance_of(s.ahead, s.rounds) < kUnlikely; };
  const auto is_clear = [&](size_t i) {
    const Standing& s = first.standings[place(field_, i)];
    // The spread of a few rounds says little of what the next ones would be: then a gain of half at least.
    constexpr int kRounds = 6;
    const bool lasts = s.rounds >= kRounds || -s.score >= std::log(2.0);
    return !first.noisy && lasts && std::isfinite(s.interval) && -s.score - s.interval >= clear;
  };
  const auto is_open = [&](size_t i) {
    const Standing& s = first.standings[place(field_, i)];
    return i != control && -s.score + (std::isfinite(s.interval) ? s.interval : 0) >= enough && !is_clear(i);
  };
  // Where noise let the rule for ties choose the default, what seems to gain enough is timed beside it for longer.
  if (field_[first.winner] == control && -first.standings[first.leader].score >= enough) first.winner = first.leader;
  std::vector<size_t> finalists;
  bool confirm = out_.control_is_wrong || is_open(field_[first.winner]);
  if (!confirm) {
    if (!check_finalists(first, control, finalists)) return;
    confirm = is_open(finalists.front());  // after the winner was wrong
  }
  RaceResult last;
  // Of the finalists but the default, by their last race, of which they ran all rounds; near ties go to the first in the table.
  const auto best_of = [&](const RaceResult& race) {
    double least = kInfinity;
    const auto score = [&](size_t i) {
      const Standing& s = race.standings[place(finalists, i)];
      return (i == control && !out_.control_is_wrong) || s.failed || s.rounds < race.rounds ? kInfinity : s.score;
    };
    for (const size_t i : finalists) least = std::min(least, score(i));
    std::optional<size_t> best;
    for (const size_t i : finalists)
      if (score(i) < kInfinity && score(i) <= least + options.tie && i < best.value_or(i + 1)) best = i;
    return best.value_or(control);
  };
  if (confirm) {
    if (worker().running()) worker().ask({{"do", "close"}}, options_.time_limit_s);
    confirming_ = out_.confirmed = true;
    thorough_.clear();
    if (!open(true) || !check_finalists(first, control, finalists)) return;
    RaceOptions rules = options_.race;
    rules.rungs = {options_.confirm_rounds / 3, options_.confirm_rounds};  // what is surely slower leaves after a third
    rules.keep_at_least = 1;
    rules.min_gain = options_.min_gain;
    rules.least_rounds = 3;  // for an interval
    rules.out_of_time = out_of_time_;
    rules.settled = kInfinity;
    rules.tied = rules.in_vain = false;
    rules.seed = options_.race.seed + 1;
    last = run_race(finalists, control, rules, "confirming", whole);
    const auto hidden = [&] {  // a gain, by noise
      const size_t best = best_of(last);
      const Standing& s = last.standings[place(finalists, best)];
      return best != control && !s.failed && -s.score >= enough && !is_sure(s);
    };
    if (!lost_worker_ && last.control_us > 0 && hidden() && !out_of_time_()) {
      rules.rungs = {options_.confirm_rounds, 2 * options_.confirm_rounds, 3 * options_.confirm_rounds};
      rules.in_vain = !out_.control_is_wrong;
      ++rules.seed;
      last = run_race(finalists, control, rules, "confirming longer", whole);
    }
    if (lost_worker_ || last.control_us <= 0) return fail_run("the default cannot be timed again");
    out_.noise = last.control_interval;
    out_.noisy = first.noisy || last.noisy;
    out_.control_us = last.control_us;
  }

  const auto standing = [&](size_t i) {
    if (!out_.confirmed) return first.standings[place(field_, i)];
    return place(finalists, i) < finalists.size() ? last.standings[place(finalists, i)] : Standing{.failed = true};
  };
  const size_t winner = out_.confirmed ? best_of(last) : finalists.front();
  const Standing won = standing(winner);
  // Where others have the cores, some candidates suffer more than others, round after round: a gain shows in the least times as well, or there
  // is none.
  const Standing beside = standing(control);
  const bool is_calm = !out_.noisy && out_.control_us < 1.5 * beside.least_us;
  const bool shows = is_calm || won.least_us < beside.least_us;
  const bool gains =
      winner != control && !won.failed && shows && (out_.confirmed ? -won.score >= enough && is_sure(won) : is_clear(winner));
  finish(gains || (out_.control_is_wrong && !won.failed) ? winner : control, finalists, first, standing);
}

/// The tuned row and the default against the best of all candidates.
void Session::score_all() {
  if (!row_) return fail_run("it has no row to score");
  const size_t control = out_.control_is_wrong ? field_.front() : choices_.control;
  const std::string config = op_.plain(problem_.problem, row_->kernel, row_->config, device_);
  const auto row = std::ranges::find_if(field_, [&](size_t i) { return choice(i).kernel == row_->kernel && choice(i).config == config; });
  if (row == field_.end()) return fail_run("the row's kernel and config are no candidate, or wrong");
  const size_t chosen = *row;

  Score& score = out_.score;
  RaceOptions options = options_.race;
  options.settled = options.gate = options.give_up = kInfinity;
  options.tied = false;
  options.out_of_time = out_of_time_;
  // So many rounds of these; false: the default has no time.
  RaceResult result;
  const auto rounds = [&](const std::vector<size_t>& field, int count, const char* what, double sample_us) {
    options.rungs = {count};
    options.seed += 1;
    result = run_race(field, control, options, what, [&](int) { return sample_us; });
    out_.rounds += result.rounds;
    if (!lost_worker_ && result.control_us > 0) return true;
    fail_run("the default cannot be timed");
    return false;
  };
  // What is left of a field: within `most` times the least score's time.
  const auto near = [&](const std::vector<size_t>& field, double most) {
    double least = 0;
    for (const Standing& s : result.standings)
      if (!s.failed) least = std::min(least, s.score);
    std::vector<size_t> out;
    for (size_t k = 0; k < field.size(); ++k)
      if (field[k] == control || (!result.standings[k].failed && result.standings[k].score <= least + std::log(most)))
        out.push_back(field[k]);
    return out;
  };

  // Single calls on a CPU; on a GPU graphs as the tuner's, captured in a round of their own.
  const double single = device_.is_gpu() ? options_.sample_us : 0;
  if (!rounds(field_, 1, "scoring", single)) return;
  const double race_s = out_.phases.race;
  if (!rounds(field_, kScoreAll, "scoring", single)) return;
  score.round_us = (out_.phases.race - race_s) / result.rounds * 1e6;
  for (size_t k = 0; k < field_.size(); ++k) {
    const Standing& s = result.standings[k];
    if (s.failed) continue;
    score.every.push_back({choice(field_[k]).kernel, choice(field_[k]).config, s.us, choice(field_[k]).guess_us});
    score.configs += static_cast<size_t>(choice(field_[k]).configs);
    score.every_us += s.us;
    score.every_config_us += s.us * choice(field_[k]).configs;
  }
  std::vector<size_t> field = near(field_, kScoreFar);
  const int second = std::min(kScoreSome, options_.score_rounds - kScoreAll);
  if (second > 0) {
    if (!rounds(field, second, "scoring", single)) return;
    field = near(field, kScoreNear);
  }
  if (const int rest = options_.score_rounds - kScoreAll - second; rest > 0 && !rounds(field, rest, "scoring", single)) return;

  // The least of many times looks better than it is: what may be the best runs once more beside the row and the default, as the tuner
  // times them.
  std::vector<size_t> order;  // places in the field
  for (size_t k = 0; k < field.size(); ++k)
    if (!result.standings[k].failed) order.push_back(k);
  std::ranges::stable_sort(order, {}, [&](size_t k) { return result.standings[k].score; });
  std::vector<size_t> judged = {control};
  const auto add = [&](size_t i) {
    if (std::ranges::find(judged, i) == judged.end()) judged.push_back(i);
  };
  add(chosen);
  for (size_t n = 0; n < std::min(order.size(), kScoreJudged); ++n) add(field[order[n]]);
  const size_t first = order.empty() ? control : field[order.front()];
  const double before_s = out_.phases.race;
  if (!rounds(judged, kScoreLast, "scoring the row", options_.sample_us)) return;
  out_.phases.confirm += out_.phases.race - before_s;  // not of the loop over all
  out_.phases.race = before_s;
  const auto standing = [&](size_t i) { return result.standings[static_cast<size_t>(std::ranges::find(judged, i) - judged.begin())]; };
  size_t best = control;
  for (const size_t i : judged)
    if (!standing(i).failed && standing(i).score < standing(best).score) best = i;
  score.best_kernel = choice(best).kernel;
  score.best_config = choice(best).config;
  score.best_us = standing(best).us;
  score.first_kernel = choice(first).kernel;
  score.first_config = choice(first).config;
  score.first_us = standing(first).us;
  score.row_us = standing(chosen).us;
  score.default_us = out_.control_is_wrong ? 0 : standing(control).us;
  const auto apart = [&](size_t i) { return i == best ? 0 : std::hypot(standing(i).interval, standing(best).interval); };
  score.row_interval = apart(chosen);
  score.default_interval = apart(control);
  score.noise = result.control_interval;
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
std::vector<size_t> Session::ranked_of(const RaceResult& first) const {
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

/// Rows of the adopted candidate and two alternatives.
void Session::finish(size_t adopted, const std::vector<size_t>& finalists, const RaceResult& first, const StandingOf& standing) {
  std::vector<size_t> order = {adopted};
  std::vector<size_t> others;
  for (const size_t i : finalists)
    if (i != adopted && !standing(i).failed) others.push_back(i);
  std::ranges::stable_sort(others, {}, [&](size_t i) { return standing(i).score; });
  // The second rank is of another kernel where there is one: it serves when the first kernel cannot be loaded.
  const auto other = std::ranges::find_if(others, [&](size_t i) { return choice(i).kernel != choice(adopted).kernel; });
  if (other != others.end()) std::rotate(others.begin(), other, other + 1);
  order.insert(order.end(), others.begin(), others.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(2, others.size())));
  std::vector<TunedRow> rows;
  for (const size_t i : order) {
    const Standing s = standing(i);
    // The default is what the others are measured by: its own is the noise.
    const double interval = i == choices_.control ? out_.noise : s.interval;
    const double spread = s.us * (std::isfinite(interval) ? std::min(interval, 1.0) : 0);
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
  for (const auto& [i, us] : slow_us_)  // about: caches were warm
    record.candidates.push_back({.kernel = choice(i).kernel,
                                 .config = choice(i).config,
                                 .wrong = {},
                                 .us = base_us_ > 0 ? first.control_us * us / base_us_ : us,
                                 .rounds = 0});
  for (const auto& [i, why] : rejected_)
    record.candidates.push_back({.kernel = choice(i).kernel, .config = choice(i).config, .wrong = why});
  journal_.add(record);
}

std::string Session::revisions_of(const Choices& choices) {
  std::set<std::string> all;
  for (const Choice& c : choices.all)
    if (c.refused.empty()) all.insert(c.revision);
  std::string out;
  for (const std::string& r : all) out += str(out.empty() ? "" : ",", r);
  return out;
}

}  // namespace eitri::tune
