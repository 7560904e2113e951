// The race with times that a test makes up: noise, drift, ties and failures are known, so what must win is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tune/race.h"

namespace eitri::tune {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Candidates with true times; every sample is off by a factor with this standard deviation, and the machine drifts.
struct Machine {
  std::vector<double> us;
  double noise = 0.005, drift_per_sample = 0;
  uint64_t seed = 1;
  std::mt19937_64 random = std::mt19937_64(1);
  std::vector<int> samples = {};
  int64_t all = 0;
  std::vector<double> operator()(const std::vector<size_t>& order) {
    samples.resize(us.size());
    std::vector<double> out;
    for (const size_t i : order) {
      double sum = 0;
      for (int k = 0; k < 12; ++k) sum += static_cast<double>(random() >> 11) * 0x1p-53;
      out.push_back(us[i] * std::exp((sum - 6) * noise + drift_per_sample * static_cast<double>(all++)));
      ++samples[i];
    }
    return out;
  }
};

RaceResult run(Machine& machine, size_t control = 0, RaceOptions options = {}) {
  return race(
      machine.us.size(), control, [&](const std::vector<size_t>& order) { return machine(order); }, options);
}

TEST(Race, the_fastest_wins) {
  Machine machine{.us = {100, 90, 80, 120, 85}};
  const RaceResult result = run(machine);
  EXPECT_EQ(result.winner, 2u);
  EXPECT_NEAR(result.standings[2].us, 80, 2);
  EXPECT_NEAR(result.control_us, 100, 2);
  EXPECT_FALSE(result.noisy);
}

TEST(Race, drift_of_the_machine_is_taken_out) {
  // One percent slower with every sample: after 20 rounds the machine has a tenth of its speed. Without the control, order would win.
  Machine machine{.us = {100, 97, 100, 101}, .noise = 0.001, .drift_per_sample = 0.002};
  EXPECT_EQ(run(machine).winner, 1u);
}

TEST(Race, ties_go_to_the_control_and_then_to_the_first) {
  Machine all_equal{.us = {100, 100.2, 99.8, 100.1}};
  EXPECT_EQ(run(all_equal, 3).winner, 3u);
  Machine better{.us = {100, 80.1, 80, 79.9}};
  EXPECT_EQ(run(better).winner, 1u);
}

TEST(Race, two_runs_with_other_noise_choose_alike) {
  // Four candidates within 0.6 % of one another, one 5 % slower, one 20 %: of 40 runs all choose the first of the tie.
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Machine machine{.us = {100, 95, 80.2, 80, 80.4, 80.3}, .noise = 0.003, .random = std::mt19937_64(seed)};
    EXPECT_EQ(run(machine, 0, {.seed = seed}).winner, 2u) << seed;
  }
}

TEST(Race, the_least_times_are_kept_of_rounds_that_were_thrown_away_too) {
  // Others have the cores for a while: the control, which needs all of them, takes ten times as long but for one sample in five.
  int sample = 0;
  const RaceResult result = race(2, 0, [&](const std::vector<size_t>& order) {
    std::vector<double> out;
    for (const size_t i : order) out.push_back(i == 1 ? 16.0 : ++sample % 5 == 0 ? 9.0 : 90.0);
    return out;
  });
  EXPECT_LT(result.standings[1].score, 0) << "it looks faster";
  EXPECT_EQ(result.standings[0].least_us, 9);
  EXPECT_EQ(result.standings[1].least_us, 16);
}

TEST(Race, ends_when_nobody_can_gain_enough) {
  // One percent slower than the control, and another by half: neither alone nor tied.
  Machine machine{.us = {100, 101, 100.5}, .noise = 0.003};
  EXPECT_EQ(run(machine, 0, {.tied = false, .in_vain = true}).rounds, 6);
  EXPECT_EQ(run(machine, 0, {.tied = false}).rounds, 12);
  // One that may gain is waited for.
  Machine near{.us = {100, 98.2}, .noise = 0.003};
  const RaceResult result = run(near, 0, {.settled = 1, .tied = false, .in_vain = true});
  EXPECT_EQ(result.rounds, 12);
}

TEST(Race, the_slow_are_dropped_early) {
  Machine machine{.us = {100}};
  for (int i = 1; i < 64; ++i) machine.us.push_back(100 + 5 * i);
  machine.us[40] = 70;
  machine.us[41] = 70.9;  // too near to settle at once
  const RaceResult result = run(machine);
  EXPECT_EQ(result.winner, 40u);
  EXPECT_EQ(machine.samples[50], 2);
  int64_t total = 0;
  for (const int n : machine.samples) total += n;
  EXPECT_LT(total, 64 * 101 / 5);  // at least 5 times less than 101 samples of each
  EXPECT_LT(total, 64 * 5);
}

TEST(Race, equals_end_it_when_that_is_sure) {
  Machine machine{.us = {100, 100.1, 99.9}, .noise = 0.0005};
  const RaceResult result = run(machine);
  EXPECT_EQ(result.rounds, 6);
  EXPECT_EQ(result.winner, 0u);
}

TEST(Race, one_bad_sample_of_two_drops_nobody) {
  Machine machine{.us = {100, 80, 100}, .noise = 0.002};
  const auto stumbling = [&](const std::vector<size_t>& order) {
    const bool first = machine.all == 0;
    auto us = machine(order);
    for (size_t k = 0; k < order.size(); ++k)
      if (first && order[k] == 1) us[k] *= 20;
    return us;
  };
  EXPECT_EQ(race(3, 0, stumbling, {}).winner, 1u);
}

TEST(Race, a_clear_leader_ends_it) {
  Machine machine{.us = {100, 50}, .noise = 0.001};
  EXPECT_EQ(run(machine).rounds, 3);
}

TEST(Race, noisy_rounds_are_thrown_away) {
  // Every third round the machine stumbles between the two controls.
  Machine machine{.us = {100, 97, 110}, .noise = 0.002};
  int round = 0;
  const auto stumbling = [&](const std::vector<size_t>& order) {
    auto us = machine(order);
    if (++round % 3 == 0)
      for (size_t i = us.size() / 2; i < us.size(); ++i) us[i] *= 1.5;
    return us;
  };
  const RaceResult result = race(3, 0, stumbling, {});
  EXPECT_EQ(result.winner, 1u);
  EXPECT_GT(result.discarded, 0);
  EXPECT_FALSE(result.noisy);
  for (const Standing& s : result.standings) EXPECT_EQ(s.rounds, result.rounds);
}

TEST(Race, a_machine_that_is_never_quiet_is_said_to_be_noisy_and_the_control_stays) {
  Machine machine{.us = {100, 99}, .noise = 1};
  const RaceResult result = run(machine);
  EXPECT_TRUE(result.noisy);
  EXPECT_EQ(result.winner, 0u);
}

TEST(Race, candidates_that_fail_are_not_asked_again_and_never_win) {
  Machine machine{.us = {100, 50, 90}};
  int asked = 0;
  const auto failing = [&](const std::vector<size_t>& order) {
    auto us = machine(order);
    for (size_t k = 0; k < order.size(); ++k)
      if (order[k] == 1) {
        us[k] = kNan;
        ++asked;
      }
    return us;
  };
  const RaceResult result = race(3, 0, failing, {});
  EXPECT_EQ(result.winner, 2u);
  EXPECT_TRUE(result.standings[1].failed);
  EXPECT_EQ(asked, 1);
}

TEST(Race, without_a_control_there_is_no_result) {
  const RaceResult result = race(2, 0, [](const std::vector<size_t>& order) { return std::vector<double>(order.size(), kNan); }, {});
  EXPECT_EQ(result.control_us, 0);
  EXPECT_TRUE(result.standings[0].failed && result.standings[1].failed);
}

TEST(Race, a_budget_ends_it_after_the_first_round) {
  Machine machine{.us = {100, 99.5, 99}};
  const RaceResult result = run(machine, 0, {.out_of_time = [] { return true; }});
  EXPECT_EQ(result.rounds, 1);
}

TEST(Race, a_gain_that_outliers_hide_is_seen_by_counting_rounds) {
  // Every third round something else has the cores: times of that round are off by up to six times, each by another factor.
  Machine machine{.us = {100, 70}, .noise = 0.01};
  std::mt19937_64 other(7);
  int round = 0;
  const auto disturbed = [&](const std::vector<size_t>& order) {
    auto us = machine(order);
    if (++round % 3 == 0)
      for (double& t : us) t *= 1 + 5 * static_cast<double>(other() >> 11) * 0x1p-53;
    return us;
  };
  RaceOptions options{.rungs = {27}, .settled = 1e9, .tied = false, .gate = 1e9};
  const Standing gain = race(2, 0, disturbed, options).standings[1];
  EXPECT_LT(chance_of(gain.ahead, gain.rounds), 0.0025) << gain.ahead << " of " << gain.rounds;
  machine.us[1] = 100;
  const Standing none = race(2, 0, disturbed, options).standings[1];
  EXPECT_GT(chance_of(none.ahead, none.rounds), 0.0025) << none.ahead << " of " << none.rounds;
  EXPECT_EQ(chance_of(9, 9), 1.0 / 512);
  EXPECT_EQ(chance_of(0, 9), 1);
  EXPECT_NEAR(chance_of(22, 27), 0.0008, 0.0001);
  EXPECT_GT(chance_of(21, 27), 0.0025);
}

TEST(Race, alone) {
  Machine machine{.us = {100}};
  const RaceResult result = run(machine);
  EXPECT_EQ(result.winner, 0u);
  EXPECT_NEAR(result.standings[0].us, 100, 2);
}

TEST(Race, interval_of_few_values_is_unknown) {
  EXPECT_TRUE(std::isinf(interval_of({1, 2})));
  EXPECT_EQ(interval_of({1, 1, 1}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace eitri::tune
