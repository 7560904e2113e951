// Leave-one-out regret over ladders whose best candidates are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tune/regret.h"
#include "tune/sabotage_op.h"

namespace eitri::tune {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

JournalRecord record(int64_t m, double a_us, double b_us, double default_us) {
  const bool a_wins = a_us < b_us;
  return {.op = "probe",
          .arch = "x86_avx2",
          .units = 2,
          .problem = key_of(Probe::Problem{.m = m, .k = 33}),
          .revisions = "r",
          .kernel = a_wins ? "probe.a" : "probe.b",
          .config = "",
          .us = std::min(a_us, b_us),
          .race_control_us = default_us,
          .date = "2024-05-01",
          .candidates = {{.kernel = "probe.a", .config = "", .wrong = {}, .us = a_us},
                         {.kernel = "probe.b", .config = "", .wrong = {}, .us = b_us},
                         {.kernel = "probe.wrong", .config = "", .wrong = "out[0] is 1", .us = 0}}};
}

class Regret : public testing::Test {
 protected:
  Regret() { set_tuned_fields("probe", tuned_fields<Probe::Problem>()); }
};

TEST_F(Regret, smooth_curves_that_cross_cost_nothing) {
  // a takes 10 us whatever m is, b one microsecond a row: they cross at 10.
  std::vector<JournalRecord> records;
  for (const int64_t m : {1, 2, 4, 8, 16, 32, 64}) records.push_back(record(m, 10, static_cast<double>(m), 2.0 * static_cast<double>(m)));
  const RegretReport report = leave_one_out(records);
  ASSERT_THAT(report.points, SizeIs(5));
  EXPECT_NEAR(report.mean, 0, 1e-12);
  EXPECT_GT(report.default_mean, 1);
  EXPECT_EQ(report.points.front().chosen, "probe.b");
  EXPECT_EQ(report.points.back().chosen, "probe.a");
}

TEST_F(Regret, a_dip_that_the_neighbours_do_not_show_is_counted) {
  const RegretReport report = leave_one_out({record(8, 10, 20, 30), record(16, 20, 10, 30), record(32, 40, 80, 100)});
  ASSERT_THAT(report.points, SizeIs(1));
  EXPECT_EQ(report.points[0].chosen, "probe.a");
  EXPECT_EQ(report.points[0].best, "probe.b");
  EXPECT_NEAR(report.points[0].regret, 1, 1e-12);
  EXPECT_NEAR(report.points[0].default_regret, 2, 1e-12);
  EXPECT_NEAR(report.worst, 1, 1e-12);
}

TEST_F(Regret, what_noise_may_have_made_is_told_apart) {
  std::vector<JournalRecord> records = {record(8, 10, 20, 30), record(16, 20, 18, 30), record(32, 40, 80, 100)};
  RegretReport report = leave_one_out(records);
  EXPECT_NEAR(report.mean, 1.0 / 9, 1e-12);
  EXPECT_NEAR(report.beyond_noise_mean, 1.0 / 9, 1e-12);
  for (JournalEntry& e : records[1].candidates) e.spread_us = 1.5;  // 2.1 for both
  report = leave_one_out(records);
  EXPECT_NEAR(report.mean, 1.0 / 9, 1e-12);
  EXPECT_EQ(report.beyond_noise_mean, 0);
}

TEST_F(Regret, the_default_counts_where_the_neighbours_promise_nothing) {
  const RegretReport report = leave_one_out({record(8, 9.7, 20, 10), record(16, 20, 30, 19), record(32, 38.8, 80, 40)});
  ASSERT_THAT(report.points, SizeIs(1));
  EXPECT_EQ(report.points[0].chosen, "probe.a");  // it saves 3 %, as far as the neighbours tell
  const RegretReport worse = leave_one_out({record(8, 9.9, 20, 10), record(16, 20, 30, 19), record(32, 39.6, 80, 40)});
  EXPECT_EQ(worse.points.at(0).chosen, "the default");
}

TEST_F(Regret, ends_of_a_ladder_and_other_problems_are_no_neighbours) {
  EXPECT_THAT(leave_one_out({record(8, 1, 2, 3), record(16, 1, 2, 3)}).points, IsEmpty());
  auto other = record(32, 1, 2, 3);
  other.problem = key_of(Probe::Problem{.m = 32, .k = 34});
  EXPECT_THAT(leave_one_out({record(8, 1, 2, 3), record(16, 1, 2, 3), other}).points, IsEmpty());
  EXPECT_THAT(leave_one_out({}).points, IsEmpty());
}

}  // namespace
}  // namespace eitri::tune
