// The rules that turn block maxima into scales, with the public bug reports that they answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/numeric.h"

namespace eitri {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// One block quantised as the contract says, with the codes that a kernel would store.
template <class Code> struct Block {
  float scale = 0;
  std::vector<Code> codes;
};

float amax_of(const std::vector<float>& x) {
  float amax = 0;
  for (float value : x) amax = std::max(amax, finite_abs(value));
  return amax;
}

template <class Code> Block<Code> quantise(const std::vector<float>& x, float max, Code (*encode)(float)) {
  Block<Code> block;
  block.scale = scale_from_amax(amax_of(x), max);
  const float inverse = inverse_scale(block.scale);
  for (float value : x) block.codes.push_back(encode(value * inverse));
  return block;
}

TEST(Scale, B26AllZeroBlock) {
  const std::vector<float> zeros(128, 0.0f);
  const auto fp8 = quantise<uint8_t>(zeros, F8e4m3::max, encode_f8e4m3);
  const auto i8 = quantise<int8_t>(zeros, kI8Max, encode_i8);
  EXPECT_EQ(fp8.scale, 0.0f);
  EXPECT_EQ(i8.scale, 0.0f);
  for (size_t i = 0; i < zeros.size(); ++i) {
    EXPECT_EQ(fp8.codes[i], 0);
    EXPECT_EQ(i8.codes[i], 0);
    EXPECT_EQ(decode_f8e4m3(fp8.codes[i]) * fp8.scale, 0.0f);
  }
  // A neighbouring block with one element is exact.
  std::vector<float> one = zeros;
  one[0] = 1;
  const auto fp8_one = quantise<uint8_t>(one, F8e4m3::max, encode_f8e4m3);
  EXPECT_EQ(fp8_one.codes[0], F8e4m3::max_code);
  EXPECT_EQ(fp8_one.codes[1], 0);
  EXPECT_EQ(mx_scale_code<F8e4m3>(0.0f), 0) << "E8M0 has no zero; the codes are 0";
  EXPECT_EQ(decode_e8m0(0) * decode_f4e2m1(encode_f4e2m1(0.0f * inverse_e8m0(0))), 0.0f);
}

TEST(Scale, TinyAndHugeBlocksHaveFiniteScales) {
  for (float max : {F8e4m3::max, F8e4m3fnuz::max, F8e5m2::max, F4e2m1::max, kI8Max, kI4Max}) {
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 104729) {
      const float amax = std::bit_cast<float>(bits);
      const float scale = scale_from_amax(amax, max), inverse = inverse_scale(scale);
      ASSERT_TRUE(std::isnormal(scale) && std::isnormal(inverse)) << amax << " / " << max;
      ASSERT_LE(amax * inverse, max * 1.000001f) << amax;
      if (amax >= max * std::numeric_limits<float>::min()) {
        ASSERT_EQ(scale, amax / max);
      }
    }
    const float smallest = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(std::isnormal(inverse_scale(scale_from_amax(smallest, max))));
  }
  // What the floor costs: the smallest normal still gets code 1.
  const auto tiny = quantise<int8_t>({0x1p-126f, 0x1p-127f, 0}, kI8Max, encode_i8);
  EXPECT_EQ(tiny.scale, 0x1p-126f);
  EXPECT_EQ(tiny.codes, (std::vector<int8_t>{1, 0, 0}));
}

TEST(Scale, B31NanAndInfinityInARow) {
  const auto i8_nan = quantise<int8_t>({1, 2, kNan, 4}, kI8Max, encode_i8);
  EXPECT_EQ(i8_nan.scale, 4 / kI8Max);
  EXPECT_EQ(i8_nan.codes, (std::vector<int8_t>{32, 64, 0, 127}));
  const auto i8_inf = quantise<int8_t>({1, 2, -kInf, 4}, kI8Max, encode_i8);
  EXPECT_EQ(i8_inf.scale, 4 / kI8Max);
  EXPECT_EQ(i8_inf.codes, (std::vector<int8_t>{32, 64, -127, 127}));

  const auto fp8_nan = quantise<uint8_t>({1, 2, kNan, 4}, F8e4m3::max, encode_f8e4m3);
  EXPECT_EQ(fp8_nan.scale, 4 / F8e4m3::max);
  EXPECT_EQ(fp8_nan.codes, (std::vector<uint8_t>{0x6e, 0x76, 0x7f, 0x7e}));
  const auto fp8_inf = quantise<uint8_t>({1, 2, -kInf, 4}, F8e4m3::max, encode_f8e4m3);
  EXPECT_EQ(fp8_inf.codes, (std::vector<uint8_t>{0x6e, 0x76, 0xfe, 0x7e}));

  // No finite value but zeros: scale 0, so the block is 0 whatever the codes say, NaN excepted.
  const auto lost = quantise<int8_t>({kInf, kNan, 0}, kI8Max, encode_i8);
  EXPECT_EQ(lost.scale, 0.0f);
  EXPECT_EQ(lost.codes, (std::vector<int8_t>{0, 0, 0}));
  const auto lost_fp8 = quantise<uint8_t>({kInf, kNan, 0}, F8e4m3::max, encode_f8e4m3);
  EXPECT_EQ(lost_fp8.codes, (std::vector<uint8_t>{0x7f, 0x7f, 0}));
  EXPECT_EQ(finite_abs(-3.0f), 3.0f);
  EXPECT_EQ(finite_abs(kNan), 0.0f);
  EXPECT_EQ(finite_abs(-kInf), 0.0f);
}

/// A block of 32 with this maximum, through e4m3 and back; returns what the maximum became.
float through_mx(float maximum, ScaleRounding rounding, float* scale) {
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = maximum * static_cast<float>(i) / 64;
  x[17] = -maximum;
  const uint8_t code = mx_scale_code<F8e4m3>(amax_of(x), rounding);
  *scale = decode_e8m0(code);
  return -decode_f8e4m3(encode_f8e4m3(x[17] * inverse_e8m0(code))) * *scale;
}

TEST(Scale, B28PowerOfTwoScales) {
  struct Case {
    float maximum, scale_up, up, scale_down, down, scale_even, even;
  };
  const Case cases[] = {
      {957, 4, 960, 2, 896, 2, 896},     {449, 2, 448, 1, 448, 1, 448}, {633.5f, 2, 640, 2, 640, 2, 640}, {448, 1, 448, 1, 448, 1, 448},
      {640, 2, 640, 2, 640, 2, 640},     {480, 2, 480, 1, 448, 1, 448}, {496, 2, 512, 1, 448, 2, 512},  // half way from 480 to 512 in e4m3
      {495.99f, 2, 480, 1, 448, 1, 448},
  };
  for (const Case& c : cases) {
    float scale = 0;
    EXPECT_EQ(through_mx(c.maximum, ScaleRounding::up, &scale), c.up) << c.maximum;
    EXPECT_EQ(scale, c.scale_up) << c.maximum;
    EXPECT_EQ(through_mx(c.maximum, ScaleRounding::down, &scale), c.down) << c.maximum;
    EXPECT_EQ(scale, c.scale_down) << c.maximum;
    EXPECT_EQ(through_mx(c.maximum, ScaleRounding::even, &scale), c.even) << c.maximum;
    EXPECT_EQ(scale, c.scale_even) << c.maximum;
  }
  // One step above the maximum needs the next scale; in bf16 the two could not be told apart.
  EXPECT_EQ(mx_scale_code<F8e4m3>(448.0f), 127);
  EXPECT_EQ(mx_scale_code<F8e4m3>(std::nextafter(448.0f, kInf)), 128);
  EXPECT_EQ(mx_scale_code<F4e2m1>(std::nextafter(6.0f, kInf)), 128);
}

template <class Format> void check_mx_scales() {
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 52361) {
    const double amax = double{std::bit_cast<float>(bits)}, max = double{Format::max};
    const auto code = [&](ScaleRounding r) { return mx_scale_code<Format>(static_cast<float>(amax), r); };
    const uint8_t up = code(ScaleRounding::up), down = code(ScaleRounding::down);
    const uint8_t even = code(ScaleRounding::even);
    ASSERT_LE(amax, max * decode_e8m0(up)) << "nothing saturates: " << amax;
    const double smaller = std::ldexp(max, up - 1 - 127);
    ASSERT_TRUE(up == 0 || amax > smaller) << "no smaller scale would do: " << amax;
    const int floor_rule = std::ilogb(amax) - std::ilogb(max);
    ASSERT_EQ(down, std::max(floor_rule + 127, 0)) << amax;
    const int exponent = std::ilogb(amax);
    const double unit = std::ldexp(1.0, exponent - Format::mantissa_bits);
    const double rounded = std::floor(amax / unit + 0.5) * unit;
    ASSERT_EQ(even, std::max(std::ilogb(rounded) - std::ilogb(max) + 127, 0)) << amax;
  }
  EXPECT_EQ(mx_scale_code<Format>(kNan), 255);
}

TEST(Scale, MxRulesHoldForAllMagnitudes) {
  check_mx_scales<F8e4m3>();
  check_mx_scales<F8e4m3fnuz>();
  check_mx_scales<F8e5m2>();
  check_mx_scales<F4e2m1>();
}

}  // namespace
}  // namespace eitri
