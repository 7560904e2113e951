// Numbers of SIMT kernels that are computed in another way than base/numeric.h says it: the bits must be the same.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#define EITRI_SIMT_EMULATED 32
#include "device/narrow_f4.h"
#include "device/row.h"

namespace eitri::simt32 {
namespace {

template <DType kType> void check_scales() {
  // A quotient's rounding depends on the mantissa alone: all of them, at exponents on both sides of what is scaled up first.
  for (const int exponent : {-126, -60, -1, 0, 7, 100})
    for (uint32_t mantissa = 0; mantissa < 0x800000u; ++mantissa) {
      const float amax = bits_float(static_cast<uint32_t>(exponent + 127) << 23 | mantissa);
      const Scale scale = scale_of<kType>(amax);
      const float expected = scale_from_amax(amax, largest_of<kType>());
      ASSERT_EQ(scale.value, expected) << amax;
      ASSERT_EQ(scale.inverse, inverse_scale(expected)) << amax;
    }
  for (const float amax : {0.0f, 0x1p-149f, 0x1p-127f, 0x1.fffffep-120f, 0x1p-119f, std::numeric_limits<float>::max()}) {
    const Scale scale = scale_of<kType>(amax);
    EXPECT_EQ(scale.value, scale_from_amax(amax, largest_of<kType>())) << amax;
    EXPECT_EQ(scale.inverse, inverse_scale(scale.value)) << amax;
  }
}
TEST(SimtNumbers, scales_have_the_bits_of_the_contract_i8) { check_scales<DType::i8>(); }
TEST(SimtNumbers, scales_have_the_bits_of_the_contract_f8e4m3) { check_scales<DType::f8e4m3>(); }
TEST(SimtNumbers, scales_have_the_bits_of_the_contract_f8e4m3fnuz) { check_scales<DType::f8e4m3fnuz>(); }

TEST(SimtNumbers, quotients_by_columns_are_rounded_correctly) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> bits(0x0e000000u, 0x7e000000u);  // 2^-99 to 2^125
  for (const int columns : {1, 2, 3, 7, 100, 127, 768, 2880, 4096, 5120, 7168, 16383, 1 << 20, 16777215}) {
    const auto divisor = static_cast<float>(columns);
    for (int i = 0; i < 200000; ++i) {
      const float x = bits_float(bits(random));
      ASSERT_EQ(quotient_by(x, divisor, 1.0f / divisor), x / divisor) << x << " / " << columns;
    }
    EXPECT_EQ(quotient_by(0, divisor, 1.0f / divisor), 0.0f);
    EXPECT_TRUE(std::isinf(quotient_by(std::numeric_limits<float>::infinity(), divisor, 1.0f / divisor)));
    EXPECT_TRUE(std::isnan(quotient_by(kNan, divisor, 1.0f / divisor)));
  }
}

TEST(SimtNumbers, small_numbers_have_the_codes_of_the_contract) {
  for (int quarter = -510; quarter <= 510; ++quarter)
    for (const float off : {-0x1p-18f, 0.0f, 0x1p-18f}) {
      const float x = static_cast<float>(quarter) / 4 + off;
      if (std::fabs(x) >= 127.5f) continue;
      const uint32_t codes = pack4_small(x, 0, -x, 1);
      EXPECT_EQ(codes & 0xffu, static_cast<uint8_t>(encode_i8(x))) << x;
      EXPECT_EQ(codes >> 8, 0x10000u | static_cast<uint32_t>(static_cast<uint8_t>(encode_i8(-x))) << 8) << x;
    }
}

TEST(SimtNumbers, f4e2m1_has_the_codes_of_the_contract) {
  const auto check = [](uint32_t bits) {
    const float x = bits_float(bits);
    float eight[8] = {};
    eight[bits % 8] = x;
    ASSERT_EQ(pack8_f4(eight, !eitri::is_nan(x)), uint32_t{encode_f4e2m1(x)} << (bits % 8 * 4)) << x;
  };
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 4093) check(static_cast<uint32_t>(bits));
  for (const float midpoint : {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f})
    for (int off = -2; off <= 2; ++off)
      for (const uint32_t sign : {0u, 0x80000000u}) check((float_bits(midpoint) + static_cast<uint32_t>(off)) | sign);
  for (const uint32_t special : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7fffffffu}) check(special);
}
TEST(SimtNumbers, f4e2m1_of_bf16_has_the_codes_of_the_contract) {
  for (uint32_t code = 0; code <= 0xffffu; ++code) {
    const float x = bits_float(code << 16);
    if (!std::isfinite(x)) continue;
    float eight[8] = {};
    eight[code % 8] = x * kF4InHalf;
    const uint32_t expected = uint32_t{encode_f4e2m1(x)} << (code % 8 * 4);
    if (std::fabs(x) < 0x1p20f) ASSERT_EQ(pack8_f4_of_bf16(eight), expected) << x;
  }
}
template <class Format> void check_codes_of_scales() {
  for (const auto rounding : {ScaleRounding::up, ScaleRounding::down, ScaleRounding::even})
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += (bits & 0x1fffffu) >= 0x1ffffeu || (bits & 0x1fffffu) < 2 ? 1 : 0x1ffffcu) {
      ASSERT_EQ(code_of_scale<Format>(bits_float(bits), scale_carries<Format>(rounding)), mx_scale_code<Format>(bits_float(bits), rounding))
          << std::hex << bits;
    }
  EXPECT_EQ(code_of_scale<Format>(std::numeric_limits<float>::max(), scale_carries<Format>(ScaleRounding::even)),
            0u + mx_scale_code<Format>(std::numeric_limits<float>::max(), ScaleRounding::even));
}
TEST(SimtNumbers, codes_of_scales_are_those_of_the_contract) {
  check_codes_of_scales<F4e2m1>();
  check_codes_of_scales<F8e4m3>();
}
TEST(SimtNumbers, the_larger_magnitude_is_nan_if_one_is) {
  EXPECT_EQ(max_or_nan(1, 2), 2.0f);
  EXPECT_EQ(max_or_nan(2, 0), 2.0f);
  EXPECT_TRUE(eitri::is_nan(max_or_nan(2, kNan)));
  EXPECT_TRUE(eitri::is_nan(max_or_nan(kNan, std::numeric_limits<float>::infinity())));
}
template <DType kType> void check_magnitudes_of_halves() {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    Raw<kType, 8> raw;
    for (uint32_t& word : raw.w) word = static_cast<uint32_t>(random()) & (i % 2 == 0 ? 0xbfffbfffu : 0xffffffffu);  // half of them finite
    float x[8];
    unpack(raw, x);
    Magnitude of_values, of_halves;
    of_values.add(x);
    of_halves.add(raw, x);
    ASSERT_EQ(float_bits(of_values.largest), float_bits(of_halves.largest));
    ASSERT_EQ(of_values.all_finite(), of_halves.all_finite());
  }
}
TEST(SimtNumbers, magnitudes_of_bf16_as_they_lie_in_memory) { check_magnitudes_of_halves<DType::bf16>(); }
TEST(SimtNumbers, magnitudes_of_f16_as_they_lie_in_memory) { check_magnitudes_of_halves<DType::f16>(); }
TEST(SimtNumbers, magnitude_passes_over_what_is_not_finite) {
  const float inf = std::numeric_limits<float>::infinity();
  Magnitude finite, mixed;
  const float numbers[4] = {1, -3, 0, 2}, others[4] = {kNan, 5, -inf, -7};
  finite.add(numbers);
  EXPECT_EQ(finite.largest, 3.0f);
  EXPECT_TRUE(finite.all_finite());
  mixed.add(numbers);
  mixed.add(others);
  EXPECT_EQ(mixed.largest, 7.0f);
  EXPECT_FALSE(mixed.all_finite());
}

}  // namespace
}  // namespace eitri::simt32
