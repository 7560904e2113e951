#include "tune/race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace eitri::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Times of one candidate over the control's, one a round.
struct Track {
  std::vector<double> logs;
  double least_us = kInfinity;
  bool failed = false, dropped = false;
  double score() const { return logs.empty() ? kInfinity : median(logs); }
  double interval() const { return interval_of(logs); }
  double least_log() const { return logs.empty() ? kInfinity : *std::ranges::min_element(logs); }
};

class Race {
 public:
  Race(size_t count, size_t control, const TimeRound& time_round, const RaceOptions& options)
      : control_(control), time_round_(time_round), options_(options), random_(options.seed), tracks_(count) {}

  RaceResult run() {
    for (size_t rung = 0; rung < options_.rungs.size() && !stopped_; ++rung) {
      while (result_.rounds < options_.rungs[rung] && !stopped_) round();
      if (is_settled() || is_tied() || is_in_vain()) break;
      if (rung + 1 < options_.rungs.size()) drop_the_slow();
    }
    return finish();
  }

 private:
  bool runs(size_t i) const { return !tracks_[i].failed && !tracks_[i].dropped; }

  void round() {
    // A budget that is used up ends the race, but not before every candidate has a time.
    if (result_.rounds >= options_.least_rounds && options_.out_of_time()) {
      stopped_ = true;
      return;
    }
    std::vector<size_t> order = {control_};
    for (size_t i = 0; i < tracks_.size(); ++i)
      if (i != control_ && runs(i)) order.push_back(i);
    for (size_t i = order.size() - 1; i > 1; --i) std::swap(order[i], order[1 + random_() % i]);  // the same on every machine
    order.push_back(control_);
    const std::vector<double> us = time_round_(order);
    if (us.size() != order.size() || !(us.front() > 0) || !(us.back() > 0)) {  // no control, no race
      tracks_[control_].failed = true;
      stopped_ = true;
      return;
    }
    for (size_t k = 0; k < order.size(); ++k)
      if (us[k] > 0) tracks_[order[k]].least_us = std::min(tracks_[order[k]].least_us, us[k]);
    const double drift = std::log(us.back() / us.front());
    for (size_t k = 1; k + 1 < order.size(); ++k)
      if (!(us[k] > 0)) tracks_[order[k]].failed = true;
    if (std::fabs(drift) > options_.gate && !result_.noisy) {
      ++result_.discarded;
      result_.noisy = result_.discarded >= options_.discard * options_.rungs.back();
      return;
    }
    ++result_.rounds;
    drifts_.push_back(drift);
    const double control = std::sqrt(us.front() * us.back());
    control_us_.push_back(control);
    for (size_t k = 1; k + 1 < order.size(); ++k)
      if (us[k] > 0) tracks_[order[k]].logs.push_back(std::log(us[k] / control));
    tracks_[control_].logs.push_back(0);
  }

  double noise() const { return std::max(options_.tie, interval_of(drifts_) == kInfinity ? options_.tie : interval_of(drifts_)); }

  size_t leader() const {
    size_t best = control_;
    for (size_t i = 0; i < tracks_.size(); ++i)
      if (runs(i) && tracks_[i].score() < tracks_[best].score()) best = i;
    return best;
  }

  /// The leader is alone: nobody's interval comes near.
  bool is_settled() const {
    const size_t best = leader();
    for (size_t i = 0; i < tracks_.size(); ++i) {
      if (i == best || !runs(i)) continue;
      if (tracks_[i].score() - tracks_[i].interval() <
          tracks_[best].score() + tracks_[best].interval() + std::max(options_.settled, noise()))
        return false;
    }
    return true;
  }

  /// All that are left are as good as each other, as far as can be told. Not with few rounds: intervals are guesses then.
  bool is_tied() const {
    if (!options_.tied || result_.rounds < 6) return false;
    const size_t best = leader();
    for (size_t i = 0; i < tracks_.size(); ++i)
      if (runs(i) && tracks_[i].score() + tracks_[i].interval() > tracks_[best].score() + options_.tie) return false;
    return true;
  }

  /// The control stays, whatever the others do: which of them is best says nothing then.
  bool is_in_vain() const {
    if (!options_.in_vain || result_.rounds < 6) return false;
    for (size_t i = 0; i < tracks_.size(); ++i)
      if (i != control_ && runs(i) && tracks_[i].score() - tracks_[i].interval() <= std::log(1 - options_.min_gain)) return false;
    return true;
  }

  void drop_the_slow() {
    const size_t best = leader();
    if (result_.rounds < 3) {
      if (options_.give_up > 0) return;
      double least = kInfinity;
      for (size_t i = 0; i < tracks_.size(); ++i)
        if (runs(i)) least = std::min(least, tracks_[i].least_log());
      for (size_t i = 0; i < tracks_.size(); ++i)
        if (i != control_ && runs(i)) tracks_[i].dropped = tracks_[i].least_log() > least + std::log(options_.far);
      return;
    }
    const double bar = tracks_[best].score() + tracks_[best].interval();
    std::vector<size_t> field;
    for (size_t i = 0; i < tracks_.size(); ++i) {
      if (i == control_ || !runs(i)) continue;
      if (options_.give_up > 0) {
        tracks_[i].dropped = tracks_[i].score() > tracks_[best].score() + std::log(options_.give_up);
        continue;
      }
      // Certainly slower than the leader.
      if (tracks_[i].score() - tracks_[i].interval() > bar + options_.tie) tracks_[i].dropped = true;
      else field.push_back(i);
    }
    std::ranges::stable_sort(field, {}, [&](size_t i) { return tracks_[i].score(); });
    const size_t keep = std::max(options_.keep_at_least, (field.size() + 1) / 2);
    for (size_t k = keep; k < field.size(); ++k) {
      // What is within the tie stays: the rule for ties may want it.
      if (tracks_[field[k]].score() > tracks_[best].score() + options_.tie) tracks_[field[k]].dropped = true;
    }
  }

  RaceResult finish() {
    result_.control_us = median(control_us_);
    result_.control_interval = interval_of(drifts_);
    const size_t best = leader();
    result_.winner = result_.leader = best;
    for (size_t i = 0; i < tracks_.size(); ++i) {
      const Track& track = tracks_[i];
      result_.standings.push_back(
          {.index = i,
           .score = track.score(),
           .interval = track.interval(),
           .us = result_.control_us * std::exp(track.score()),
           .least_us = track.least_us,
           .rounds = static_cast<int>(track.logs.size()),
           .ahead = static_cast<int>(std::ranges::count_if(track.logs, [&](double l) { return l <= std::log(1 - options_.min_gain); })),
           .failed = track.failed || track.logs.empty()});
    }
    // Ties: the control, else the lowest index. Only what ran to the end may tie: times of fewer rounds say less.
    const double bar = tracks_[best].score() + noise();
    if (runs(control_) && tracks_[control_].score() <= bar) {
      result_.winner = control_;
      return std::move(result_);
    }
    for (size_t i = 0; i < tracks_.size(); ++i) {
      if (!runs(i) || tracks_[i].score() > bar) continue;
      result_.winner = i;
      break;
    }
    return std::move(result_);
  }

  const size_t control_;
  const TimeRound& time_round_;
  const RaceOptions& options_;
  std::mt19937_64 random_;
  std::vector<Track> tracks_;
  std::vector<double> drifts_, control_us_;
  RaceResult result_;
  bool stopped_ = false;
};

}  // namespace

double chance_of(int ahead, int rounds) {
  double sum = 0, ways = 1;  // ways: of k rounds out of all
  for (int k = 0; k <= rounds; ++k) {
    if (k >= ahead) sum += ways;
    ways = ways * (rounds - k) / (k + 1);
  }
  return sum / std::exp2(rounds);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double interval_of(const std::vector<double>& values) {
  if (values.size() < 3) return kInfinity;
  const double middle = median(values);
  std::vector<double> off;
  for (const double v : values) off.push_back(std::fabs(v - middle));
  // 1.4826: from the MAD to a standard deviation; 1.2533: from the error of a mean to that of a median. The MAD of a few values is
  // often far too small, so it counts for more.
  const auto n = static_cast<double>(values.size());
  return 2 * 1.2533 * 1.4826 * (1 + 4 / n) * median(std::move(off)) / std::sqrt(n);
}

RaceResult race(size_t count, size_t control, const TimeRound& time_round, const RaceOptions& options) {
  return Race(count, control, time_round, options).run();
}

}  // namespace eitri::tune
