// judge(): what counts as right, at the edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "dispatch/maker.h"
#include "dispatch/oracle.h"

namespace eitri {
namespace {

using testing::HasSubstr;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Judges one element of a dtype, stored by its value.
Verdict judge_one(DType dtype, double got, double want, const Tolerance& tolerance, bool exact = false) {
  alignas(8) std::byte slot[8] = {};
  store_at(slot, dtype, 0, got);
  Expected expected{.value = {want}, .bound = {}, .any = {}};
  if (!exact) expected.bound = {1.0};
  return judge(View(slot, dtype, {1}), expected, tolerance, "out");
}
bool right(DType dtype, double got, double want, const Tolerance& tolerance = {.relative = 0x1p-9}) {
  return judge_one(dtype, got, want, tolerance).ok;
}
bool exact(DType dtype, double got, double want) { return judge_one(dtype, got, want, {}, true).ok; }

TEST(Judge, limit_is_sharp) {
  const Tolerance tolerance{.absolute = 0.25, .relative = 0.125, .bound_eps = 0.125};  // at 2, bound 1: 0.625
  EXPECT_TRUE(judge_one(DType::f32, 2.625, 2, tolerance).ok);
  EXPECT_TRUE(judge_one(DType::f32, 1.375, 2, tolerance).ok);
  EXPECT_FALSE(judge_one(DType::f32, 2.6251, 2, tolerance).ok);
  EXPECT_FALSE(judge_one(DType::f32, 1.3749, 2, tolerance).ok);
  EXPECT_DOUBLE_EQ(judge_one(DType::f32, 2.3125, 2, tolerance).max_error_ratio, 0.5);
  EXPECT_EQ(judge_one(DType::f32, 2, 2, {}).max_error_ratio, 0);
  EXPECT_EQ(judge_one(DType::f32, 2.5, 2, {}).max_error_ratio, kInf);
}

TEST(Judge, nan_only_where_nan_is_right) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    EXPECT_TRUE(right(dtype, kNan, kNan));
    EXPECT_FALSE(right(dtype, kNan, 1));
    EXPECT_FALSE(right(dtype, 1, kNan));
    EXPECT_FALSE(right(dtype, 0, kNan));
    EXPECT_TRUE(exact(dtype, kNan, kNan));
    EXPECT_FALSE(exact(dtype, kNan, 0));
    EXPECT_FALSE(exact(dtype, 0, kNan));
  }
  EXPECT_FALSE(judge_one(DType::f32, 1, 1.5, {.relative = kNan}).ok) << "a tolerance of NaN allows nothing";
}

TEST(Judge, infinity_only_where_the_value_overflows) {
  EXPECT_FALSE(right(DType::f16, kInf, 65504, {}));
  EXPECT_FALSE(right(DType::f16, kInf, 65519, {}));  // rounds to 65504
  EXPECT_TRUE(right(DType::f16, kInf, 65520, {}));   // the tie goes to infinity
  EXPECT_FALSE(right(DType::f16, -kInf, 65520, {}));
  EXPECT_TRUE(right(DType::f16, -kInf, -1e6, {}));
  EXPECT_TRUE(right(DType::f16, kInf, 65500, {.absolute = 32})) << "an allowed error may cross the edge";
  EXPECT_FALSE(right(DType::f16, 65504, 1e6)) << "saturation is not what f16 does";
  EXPECT_FALSE(right(DType::f32, std::numeric_limits<float>::max(), kInf));
  EXPECT_TRUE(right(DType::f32, kInf, kInf));
  EXPECT_FALSE(right(DType::f32, -kInf, kInf));
  EXPECT_FALSE(right(DType::f32, kInf, 3e38, {}));
  EXPECT_TRUE(right(DType::f32, kInf, 3.5e38, {}));
  EXPECT_TRUE(right(DType::bf16, kInf, 3.4e38, {}));
  EXPECT_FALSE(right(DType::bf16, kInf, 3.38e38, {}));
}

TEST(Judge, saturating_dtypes_clamp) {
  EXPECT_TRUE(right(DType::f8e4m3, 448, 1e6, {}));
  EXPECT_TRUE(right(DType::f8e4m3, -448, -kInf, {}));
  EXPECT_FALSE(right(DType::f8e4m3, 416, 1e6, {}));
  EXPECT_TRUE(right(DType::f8e4m3fnuz, 240, 1e6, {}));
  EXPECT_TRUE(exact(DType::i8, 127, 1000));
  EXPECT_FALSE(exact(DType::i8, 126, 1000));
}

TEST(Judge, exact_outputs) {
  EXPECT_TRUE(exact(DType::i32, -7, -7));
  EXPECT_FALSE(exact(DType::i32, -7, -8));
  EXPECT_TRUE(exact(DType::f32, 1.0f / 127.0f, 1.0 / 127.0)) << "the exact value, rounded once";
  EXPECT_FALSE(exact(DType::f32, std::nextafter(1.0f / 127.0f, 1.0f), 1.0 / 127.0));
  EXPECT_FALSE(exact(DType::f32, std::nextafter(1.0f / 127.0f, 0.0f), 1.0 / 127.0));
  EXPECT_TRUE(exact(DType::f32, -0.0, 0.0)) << "the sign of zero is outside the contract";
  EXPECT_TRUE(exact(DType::f8e8m0, 0.25, 0.25));
  EXPECT_FALSE(exact(DType::f8e8m0, 0.5, 0.25));
}

TEST(Judge, packed_dtypes) {
  for (const DType dtype : {DType::f4e2m1, DType::i4}) {
    std::byte data[4] = {};
    Expected expected{.value = {1, -2, 3, 4, 0, -6, 2, 1}, .bound = {}, .any = {}};
    for (int64_t i = 0; i < 8; ++i) store_at(data, dtype, i, expected.value[static_cast<size_t>(i)]);
    const View view(data, dtype, {2, 4});
    EXPECT_TRUE(judge(view, expected, {}, "q").ok);
    store_at(data, dtype, 5, -4);
    const Verdict v = judge(view, expected, {}, "q");
    EXPECT_EQ(v.wrong, 1);
    EXPECT_EQ(v.first, "q[1, 1] is -4; expected -6 exactly");
  }
}

TEST(Judge, strided_views_of_every_rank) {
  std::vector<float> data(200, -1);
  View view(data.data() + 3, DType::f32, {2, 3, 4});
  view.stride[0] = 60;
  view.stride[1] = 15;
  view.stride[2] = 3;
  Expected expected;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j)
      for (int64_t k = 0; k < 4; ++k) {
        expected.value.push_back(static_cast<double>(100 * i + 10 * j + k));
        expected.bound.push_back(0);
        store(view, {i, j, k}, expected.value.back());
      }
  EXPECT_TRUE(judge(view, expected, {}, "out").ok);
  store(view, {1, 0, 3}, 0);
  EXPECT_EQ(judge(view, expected, {}, "out").first, "out[1, 0, 3] is 0; expected 103 +- 0");
  float one = 5;
  EXPECT_TRUE(judge(View(&one, DType::f32, {}), {.value = {5}, .bound = {}, .any = {}}, {}, "x").ok);
}

TEST(Judge, open_elements_are_skipped) {
  float data[3] = {1, std::nanf(""), 3};
  Expected expected{.value = {1, 2, 3}, .bound = {}, .any = {false, true, false}};
  EXPECT_TRUE(judge(View(data, DType::f32, {3}), expected, {}, "out").ok);
  expected.any = {true, false, true};
  EXPECT_FALSE(judge(View(data, DType::f32, {3}), expected, {}, "out").ok);
}

TEST(Judge, a_reference_of_another_size_is_wrong) {
  float data[3] = {};
  const View view(data, DType::f32, {3});
  EXPECT_THAT(judge(view, {.value = {0, 0}, .bound = {}, .any = {}}, {}, "out").first, HasSubstr("the reference has 2 values"));
  EXPECT_FALSE(judge(view, {.value = {0, 0, 0}, .bound = {1}, .any = {}}, {}, "out").ok);
  EXPECT_FALSE(judge(view, {.value = {0, 0, 0}, .bound = {}, .any = {true}}, {}, "out").ok);
  EXPECT_FALSE(judge(View(), {.value = {0}, .bound = {}, .any = {}}, {}, "out").ok);
  EXPECT_TRUE(judge(View(), {}, {}, "out").ok) << "an optional output that is absent on both sides";
  EXPECT_TRUE(judge(View(nullptr, DType::f32, {0, 3}), {}, {}, "out").ok);
}

TEST(Judge, one_wrong_element_of_ten_million) {
  constexpr int64_t kSize = 10'000'000;
  std::vector<float> data(kSize, 0.5f);
  Expected expected{.value = std::vector<double>(kSize, 0.5), .bound = std::vector<double>(kSize, 1), .any = {}};
  const View view(data.data(), DType::f32, {2500, 4000});
  data[kSize - 2] = 0.5001f;
  const auto start = std::chrono::steady_clock::now();
  const Verdict v = judge(view, expected, {.bound_eps = 0x1p-20}, "out");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(v.wrong, 1);
  EXPECT_THAT(v.first, HasSubstr("out[2499, 3998] is 0.5001"));
  EXPECT_LT(seconds, 10) << "generous: sanitizers and busy machines run this, too";
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
}

}  // namespace
}  // namespace eitri
