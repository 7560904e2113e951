// Unseen numbers of rows: each candidate's own curve, never a snap to the nearest row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dispatch/tuned_curve.h"

namespace eitri {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TunedRow timed(const char* kernel, double us, double baseline = 0, const char* config = "", double spread = 0) {
  return {.key = "",
          .kernel = kernel,
          .config = config,
          .us = us,
          .spread_us = spread,
          .baseline_us = baseline,
          .revision = {},
          .toolchain = {},
          .date = {}};
}

TEST(TunedCurve, a_candidate_timed_on_both_sides_is_interpolated_in_log_m) {
  const std::vector<CurvePoint> ladder = {{16, {timed("a", 10, 20)}}, {64, {timed("a", 40, 80)}}};
  const auto advice = interpolate(ladder, 32);
  ASSERT_THAT(advice, SizeIs(1));
  EXPECT_NEAR(advice[0].us, 20, 1e-9);
  EXPECT_NEAR(advice[0].baseline_us, 40, 1e-9);
  EXPECT_EQ(advice[0].margin, kBothMargin);
  EXPECT_EQ(advice[0].kind, AdviceKind::interpolated);
}

TEST(TunedCurve, whole_tiles_count_where_the_config_names_them) {
  // 100 rows are two tiles of 64, as 128 rows are.
  const std::vector<CurvePoint> ladder = {{64, {timed("a", 10, 0, "tile_m=64")}}, {128, {timed("a", 20, 0, "tile_m=64")}}};
  EXPECT_NEAR(interpolate(ladder, 100)[0].us, 20, 1e-9);
  const std::vector<CurvePoint> plain = {{64, {timed("a", 10, 0, "stages=64")}}, {128, {timed("a", 20, 0, "stages=64")}}};
  EXPECT_LT(interpolate(plain, 100)[0].us, 17);
}

TEST(TunedCurve, tiles_of_experts_are_not_tiles_of_rows) {
  const std::vector<CurvePoint> ladder = {{1, {timed("a", 10, 0, "tile_m=64")}}, {64, {timed("a", 40, 0, "tile_m=64")}}};
  EXPECT_EQ(interpolate(ladder, 8)[0].us, 10);
  EXPECT_NEAR(interpolate(ladder, 8, {.whole_tiles = false})[0].us, 20, 1e-9);
}

TEST(TunedCurve, a_place_in_a_list_means_nothing_at_another_problem) {
  const CurveRules rules{.elsewhere = {{"library", "algorithm=0"}}};
  const std::vector<CurvePoint> ladder = {{16, {timed("library", 10, 20, "algorithm=7"), timed("library", 12, 20, "algorithm=0")}},
                                          {64, {timed("library", 40, 80, "algorithm=3"), timed("b", 60, 80)}}};
  const auto advice = interpolate(ladder, 32, rules);
  ASSERT_THAT(advice, SizeIs(2));
  EXPECT_EQ(advice[0].row.config, "algorithm=0");
  EXPECT_NEAR(advice[0].us, 20, 1e-9);
  EXPECT_EQ(advice[0].margin, kBothMargin);
  EXPECT_EQ(advice[1].row.kernel, "b");
  EXPECT_THAT(interpolate(ladder, 32), SizeIs(4));
}

TEST(TunedCurve, curves_that_cross_hand_over_where_they_cross) {
  // a is flat at 10 us, b goes with m: they meet near m = 45.
  const std::vector<CurvePoint> ladder = {{16, {timed("b", 4), timed("a", 10)}}, {128, {timed("a", 10), timed("b", 28)}}};
  EXPECT_EQ(interpolate(ladder, 24)[0].row.kernel, "b");
  EXPECT_EQ(interpolate(ladder, 40)[0].row.kernel, "b");
  EXPECT_EQ(interpolate(ladder, 60)[0].row.kernel, "a");
  EXPECT_EQ(interpolate(ladder, 100)[0].row.kernel, "a");
}

TEST(TunedCurve, one_sided_candidates_keep_their_distance_to_the_default) {
  const std::vector<CurvePoint> ladder = {{16, {timed("a", 8, 10)}}, {64, {timed("b", 30, 40)}}};
  const auto advice = interpolate(ladder, 32);
  ASSERT_THAT(advice, SizeIs(2));
  EXPECT_EQ(advice[0].row.kernel, "b");
  EXPECT_NEAR(advice[0].us, 15, 1e-9);  // 30 / 40 of the default's 20
  EXPECT_NEAR(advice[1].us, 16, 1e-9);  // 8 / 10
}

TEST(TunedCurve, P10_a_ladder_of_small_m_says_nothing_about_large_m) {
  const std::vector<CurvePoint> ladder = {{1, {timed("a", 1, 2)}}, {4, {timed("a", 2, 4)}}, {8, {timed("a", 3, 6)}}};
  EXPECT_THAT(interpolate(ladder, 16), SizeIs(1));  // within a factor of two
  EXPECT_THAT(interpolate(ladder, 17), IsEmpty());
  EXPECT_THAT(interpolate(ladder, 4096), IsEmpty());
  const std::vector<CurvePoint> large = {{1024, {timed("a", 1, 2)}}};
  EXPECT_THAT(interpolate(large, 512), SizeIs(1));
  EXPECT_THAT(interpolate(large, 8), IsEmpty());
  EXPECT_THAT(interpolate({}, 8), IsEmpty());
}

TEST(TunedCurve, what_the_neighbours_know_less_of_must_save_more) {
  const std::vector<CurvePoint> ladder = {{8, {timed("a", 9.7, 10)}}, {512, {timed("a", 97, 100)}}};
  EXPECT_EQ(interpolate(ladder, 64)[0].margin, kFarMargin);
  EXPECT_EQ(interpolate(ladder, 300)[0].margin, kBothMargin);
  const auto advice = interpolate({{16, {timed("a", 9.7, 10)}}, {32, {timed("b", 19, 20)}}}, 24);
  ASSERT_THAT(advice, SizeIs(2));
  EXPECT_EQ(advice[0].margin, kOneMargin);
  EXPECT_EQ(advice[1].margin, kOneMargin);
  EXPECT_EQ(interpolate({{16, {timed("a", 9.7, 10)}}}, 24)[0].margin, kOneMargin);
}

TEST(TunedCurve, within_the_spread_the_upper_neighbours_winner_wins) {
  const auto ladder = [](double spread) {
    return std::vector<CurvePoint>{{16, {timed("a", 10, 0, "", spread), timed("b", 10.1, 0, "", spread)}},
                                   {32, {timed("b", 20, 0, "", spread), timed("a", 20.05, 0, "", spread)}}};
  };
  EXPECT_EQ(interpolate(ladder(0), 20)[0].row.kernel, "a");
  EXPECT_EQ(interpolate(ladder(0.5), 20)[0].row.kernel, "b");
}

TEST(TunedCurve, a_lower_rank_with_a_lower_time_does_not_replace_rank_1) {
  const std::vector<CurvePoint> ladder = {{16, {timed("default", 10, 10), timed("b", 9.7, 10)}},
                                          {32, {timed("default", 20, 20), timed("b", 19, 20)}}};
  const auto advice = interpolate(ladder, 24);
  ASSERT_THAT(advice, SizeIs(2));
  EXPECT_EQ(advice[0].row.kernel, "default");
  EXPECT_EQ(advice[0].us, advice[1].us);
}

TEST(TunedCurve, rubbish_in_configs_and_points_without_rows) {
  const std::vector<CurvePoint> ladder = {
      {0, {timed("a", 1)}}, {8, {}}, {16, {timed("a", 10, 0, "tile_m=0;;=;tile_m=")}}, {32, {timed("a", 20, 0, "tile_m=-5")}}};
  for (const auto& advice : interpolate(ladder, 20)) EXPECT_GT(advice.us, 0);
  EXPECT_THAT(interpolate(ladder, 20), SizeIs(2));
}

}  // namespace
}  // namespace eitri
