// Which candidate is fastest, from noisy times: interleaved rounds against a control, successive halving, a fixed rule for ties.
//
// A round times the control, then every candidate once in random order, then the control again. A candidate's score is the median
// over rounds of log(its time / the control's of the same round), which drift, clocks and neighbours leave alone. Rounds whose two
// controls differ too much are thrown away. Nothing here knows where times come from, so the tests bring their own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace eitri::tune {

struct RaceOptions {
  /// Rounds in all at the end of each rung. After each about half of the field goes; after less than three, what is far behind.
  std::vector<int> rungs = {2, 3, 6, 12};
  double far = 1.35;  // times the leader's time, the least of both
  size_t keep_at_least = 3;
  double tie = 0.01;       // candidates within this of the best, or within the noise, are equal: the lowest index wins
  double settled = 0.01;   // stops when the leader is ahead of the rest by this and the noise
  bool tied = true;        // stops when all that are left are surely equal
  bool in_vain = false;    // stops when nobody that is left can save min_gain over the control, as far as 6 rounds can tell
  double gate = 0.05;      // a round counts if its controls differ by less
  double min_gain = 0.02;  // see Standing::ahead and in_vain
  double give_up = 0;      // 0: halving. Else only what takes this many times as long as the leader leaves, after each rung
  double discard = 0.5;    // rounds that may be thrown away, over rounds that count; then all count, and `noisy` is set
  uint64_t seed = 1;       // of the order within rounds
  int least_rounds = 1;    // that a race has when its time is over
  std::function<bool()> out_of_time = [] { return false; };  // asked between rounds; the race ends at the first good moment
};

/// How a candidate did. Times are microseconds.
struct Standing {
  size_t index = 0;
  double score = 0;     // median log(time / control); -inf .. inf
  double interval = 0;  // half width: twice the standard error of the median, by the MAD
  double us = 0;        // control's median time * exp(score)
  double least_us = 0;  // of all its samples, those of rounds that were thrown away too
  int rounds = 0;
  int ahead = 0;        // rounds in which it saved at least min_gain over the control
  bool failed = false;  // it gave no time; never wins
};

struct RaceResult {
  std::vector<Standing> standings;  // by index
  size_t winner = 0;                // after the tie rule; the control where nothing else gave a time
  size_t leader = 0;                // before it: the least score
  double control_us = 0;
  double control_interval = 0;  // of log(last control / first control), as a measure of the noise
  int rounds = 0, discarded = 0;
  bool noisy = false;  // the gate had to be opened
};

/// Times the candidates of `order` one after the other; one time each, NaN for one that failed (it is not asked again).
using TimeRound = std::function<std::vector<double>(const std::vector<size_t>& order)>;

/// `count` candidates, 0 .. count-1, of which `control` is one.
RaceResult race(size_t count, size_t control, const TimeRound& time_round, const RaceOptions& options = {});

/// The probability of being ahead in so many rounds or more where that is as likely as not. It asks nothing of the noise, whose outliers make
/// intervals wide: a candidate that is ahead in 22 of 27 rounds has a gain.
double chance_of(int ahead, int rounds);
double median(std::vector<double> values);
/// Twice the standard error of the median of these, estimated by the median absolute deviation; infinity for fewer than 3.
double interval_of(const std::vector<double>& values);

}  // namespace eitri::tune
