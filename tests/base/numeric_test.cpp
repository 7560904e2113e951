// The codecs of numeric.h against models in double that share no code with them.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace eitri {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

/// A float format of at most 8 bits, as its specification words it.
struct Format {
  std::string name;
  int exponent_bits, mantissa_bits, bias;
  float (*decode)(uint8_t);
  uint8_t (*encode)(float);
  std::vector<int> nan_codes, infinity_codes;
  uint8_t nan_code;
  bool negative_zero = true;

  int codes() const { return 1 << (1 + exponent_bits + mantissa_bits); }
  double value(int code) const {
    if (std::count(nan_codes.begin(), nan_codes.end(), code) > 0) return kNoNumber;
    const int mantissa = code % (1 << mantissa_bits);
    const int exponent = code / (1 << mantissa_bits) % (1 << exponent_bits);
    const double sign = code >= codes() / 2 ? -1 : 1;
    if (std::count(infinity_codes.begin(), infinity_codes.end(), code) > 0) {
      return sign * HUGE_VAL;
    }
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  }
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"f8e4m3", 4, 3, 7, decode_f8e4m3, encode_f8e4m3, {0x7f, 0xff}, {}, 0x7f},
      {"f8e4m3fnuz", 4, 3, 8, decode_f8e4m3fnuz, encode_f8e4m3fnuz, {0x80}, {}, 0x80, false},
      {"f8e5m2", 5, 2, 15, decode_f8e5m2, encode_f8e5m2, {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff}, {0x7c, 0xfc}, 0x7f},
      {"f4e2m1", 2, 1, 1, decode_f4e2m1, encode_f4e2m1, {}, {}, 0x7},
  };
  return all;
}

/// Non-negative finite values in order; the position is the code.
std::vector<double> magnitudes(const Format& format) {
  std::vector<double> values;
  for (int code = 0; code < format.codes() / 2; ++code) {
    if (std::isfinite(format.value(code))) values.push_back(format.value(code));
  }
  return values;
}

/// Nearest code by comparison with the exact middle between neighbours.
int nearest_code(const Format& format, const std::vector<double>& values, float x) {
  if (std::isnan(x)) return format.nan_code;
  const double magnitude = std::fabs(double{x});
  size_t code = values.size() - 1;
  if (magnitude < values.back()) {
    const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
    const auto upper = static_cast<size_t>(above - values.begin());
    const double middle = (values[upper - 1] + values[upper]) / 2;
    const bool up = magnitude > middle || (magnitude == middle && upper % 2 == 0);
    code = up ? upper : upper - 1;
  }
  if (code == 0 && !format.negative_zero) return 0;
  return static_cast<int>(code) + (std::signbit(x) ? format.codes() / 2 : 0);
}

void expect_nearest(const Format& format, const std::vector<double>& values, float x) {
  ASSERT_EQ(format.encode(x), nearest_code(format, values, x))
      << format.name << " of " << x << ", bits " << std::hex << std::bit_cast<uint32_t>(x);
}

TEST(Numeric, SmallFloatsDecodeAsSpecified) {
  for (const Format& format : formats()) {
    for (int code = 0; code < format.codes(); ++code) {
      const double got = format.decode(static_cast<uint8_t>(code)), want = format.value(code);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << format.name << " code " << code;
      } else {
        EXPECT_EQ(got, want) << format.name << " code " << code;
        EXPECT_EQ(std::signbit(got), std::signbit(want)) << format.name << " code " << code;
      }
    }
  }
  EXPECT_EQ(decode_f8e4m3(0x7e), 448.0f);
  EXPECT_EQ(decode_f8e4m3fnuz(0x7f), 240.0f);
  EXPECT_EQ(decode_f8e5m2(0x7b), 57344.0f);
  EXPECT_EQ(decode_f4e2m1(0x7), 6.0f);
}

TEST(Numeric, SmallFloatsRoundTrip) {
  for (const Format& format : formats()) {
    for (int code = 0; code < format.codes(); ++code) {
      const double value = format.value(code);
      int want = code;
      if (std::isnan(value)) want = format.nan_code;
      if (std::isinf(value)) want = code - 1;  // saturates to the largest finite
      EXPECT_EQ(format.encode(format.decode(static_cast<uint8_t>(code))), want) << format.name << " code " << code;
    }
  }
}

TEST(Numeric, SmallFloatsEncodeToTheNearest) {
  for (const Format& format : formats()) {
    const std::vector<double> values = magnitudes(format);
    for (int code = 0; code < 65536; ++code) {  // every bf16 and every f16
      expect_nearest(format, values, std::bit_cast<float>(static_cast<uint32_t>(code) << 16));
      expect_nearest(format, values, decode_f16(static_cast<uint16_t>(code)));
      if (HasFatalFailure()) return;
    }
    for (size_t i = 0; i + 1 < values.size(); ++i) {  // every tie and its neighbours
      const auto tie = static_cast<float>((values[i] + values[i + 1]) / 2);
      ASSERT_EQ(double{tie}, (values[i] + values[i + 1]) / 2);
      for (float x : {tie, std::nextafter(tie, kInf), std::nextafter(tie, 0.0f)}) {
        expect_nearest(format, values, x);
        expect_nearest(format, values, -x);
      }
    }
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {  // a million others
      expect_nearest(format, values, std::bit_cast<float>(static_cast<uint32_t>(bits)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Numeric, SmallFloatsSaturate) {
  for (const Format& format : formats()) {
    const auto top = static_cast<int>(magnitudes(format).size()) - 1;
    for (float x : {kInf, std::numeric_limits<float>::max(), 1e6f}) {
      EXPECT_EQ(format.encode(x), top) << format.name;
      EXPECT_EQ(format.encode(-x), top + format.codes() / 2) << format.name;
    }
  }
  EXPECT_EQ(encode_f8e4m3fnuz(-0.0f), 0) << "this format has no negative zero";
  EXPECT_EQ(encode_f8e4m3fnuz(-1e-9f), 0);
}

/// Rounds a float to a wider format: scale so that its unit is 1, round, scale back.
double rounded(double x, int mantissa_bits, int min_exponent, double max) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 1, min_exponent) - mantissa_bits;
  const double result = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(result) > max ? std::copysign(HUGE_VAL, x) : result;
}

void expect_same(double got, double want, float x) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << x;
  } else {
    ASSERT_EQ(got, want) << x;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << x;
  }
}

/// Each code, each middle between two codes, the floats around both, and a million others.
template <class F> void for_many_floats(int shift, F&& f) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += uint64_t{1} << shift) {
    if (testing::Test::HasFatalFailure()) return;
    for (uint64_t half : {uint64_t{0}, uint64_t{1} << (shift - 1)}) {
      for (uint64_t near : {-1, 0, 1}) f(std::bit_cast<float>(static_cast<uint32_t>(bits + half + near)));
    }
  }
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    f(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
}

TEST(Numeric, F16MatchesTheCompilersType) {
  __extension__ using Half = _Float16;
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float want = static_cast<float>(std::bit_cast<Half>(bits));
    const float got = decode_f16(bits);
    ASSERT_NO_FATAL_FAILURE(expect_same(got, want, want)) << code;
    ASSERT_EQ(encode_f16(got), std::isnan(want) ? bits | 0x200 : bits) << "quiet, payload kept";
  }
  for_many_floats(13, [](float x) {
    if (std::isnan(x)) {
      ASSERT_EQ(encode_f16(x) & 0x7e00, 0x7e00) << "a quiet NaN";
      return;
    }
    ASSERT_EQ(encode_f16(x), std::bit_cast<uint16_t>(static_cast<Half>(x))) << x;
  });
}

TEST(Numeric, F16RoundsAsTheModel) {
  // Subnormal results have ties that the grid of for_many_floats does not meet.
  for (int code = 0; code < 0x7c00; ++code) {
    const double low = decode_f16(static_cast<uint16_t>(code));
    const double high = code == 0x7bff ? 65536.0 : double{decode_f16(static_cast<uint16_t>(code + 1))};
    const auto tie = static_cast<float>((low + high) / 2);
    for (float x : {tie, std::nextafter(tie, kInf), std::nextafter(tie, 0.0f), -tie}) {
      ASSERT_NO_FATAL_FAILURE(expect_same(decode_f16(encode_f16(x)), rounded(x, 10, -14, 65504), x));
    }
  }
}

TEST(Numeric, Bf16RoundsAsTheModel) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = decode_bf16(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), static_cast<uint32_t>(code) << 16);
    ASSERT_EQ(encode_bf16(value), std::isnan(value) ? bits | 0x40 : bits);
  }
  for_many_floats(16,
                  [](float x) { ASSERT_NO_FATAL_FAILURE(expect_same(decode_bf16(encode_bf16(x)), rounded(x, 7, -126, 0x1.fep127), x)); });
  EXPECT_EQ(encode_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0) << "never rounded to infinity";
}

TEST(Numeric, IntegersRoundToEvenAndClamp) {
  for (int code = -128; code < 128; ++code) {
    EXPECT_EQ(decode_i8(static_cast<int8_t>(code)), static_cast<float>(code));
    EXPECT_EQ(encode_i8(static_cast<float>(code)), std::max(code, -127));
  }
  for (int code = 0; code < 16; ++code) {
    const int value = code < 8 ? code : code - 16;
    EXPECT_EQ(decode_i4(static_cast<uint8_t>(code)), static_cast<float>(value));
    EXPECT_EQ(encode_i4(static_cast<float>(value)), value == -8 ? 0x9 : code);
  }
  for (int quarter = -700; quarter <= 700; ++quarter) {
    for (float nudge : {-1e-4f, 0.0f, 1e-4f}) {
      const float x = static_cast<float>(quarter) / 4 + nudge;
      const double nearest = std::nearbyint(double{x});
      EXPECT_EQ(encode_i8(x), std::clamp(nearest, -127.0, 127.0)) << x;
      EXPECT_EQ(decode_i4(encode_i4(x)), std::clamp(nearest, -7.0, 7.0)) << x;
    }
  }
  for (float x : {kInf, 3e38f, 127.5f}) {
    EXPECT_EQ(encode_i8(x), 127);
    EXPECT_EQ(encode_i8(-x), -127);
    EXPECT_EQ(encode_i4(x), 7);
    EXPECT_EQ(encode_i4(-x), 9);
  }
  EXPECT_EQ(encode_i8(kNan), 0);
  EXPECT_EQ(encode_i4(kNan), 0);
  EXPECT_EQ(encode_i8(1e-40f), 0);
}

TEST(Numeric, NibblesLowFirst) {
  EXPECT_EQ(pack_nibbles(0x3, 0xa), 0xa3);
  for (int byte = 0; byte < 256; ++byte) {
    const auto pair = static_cast<uint8_t>(byte);
    EXPECT_EQ(unpack_nibble(pair, 0), byte & 15);
    EXPECT_EQ(unpack_nibble(pair, 1), byte >> 4);
    EXPECT_EQ(pack_nibbles(unpack_nibble(pair, 0), unpack_nibble(pair, 1)), pair);
  }
}

TEST(Numeric, E8m0EveryCode) {
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float value = decode_e8m0(byte);
    EXPECT_EQ(double{value}, std::ldexp(1.0, code - 127));
    EXPECT_EQ(double{inverse_e8m0(byte)}, std::ldexp(1.0, 127 - code));
    for (ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::down, ScaleRounding::even}) {
      EXPECT_EQ(encode_e8m0(value, rounding), code);
      // B28: a scale that takes the way through bf16 keeps its exponent.
      EXPECT_EQ(encode_e8m0(decode_bf16(encode_bf16(value)), rounding), code);
    }
    if (code == 254) continue;
    const int nearest_even = code % 2 == 0 ? code : code + 1;
    const struct {
      float x;
      int down, up, even;
    } cases[] = {
        {std::nextafter(value, kInf), code, code + 1, code},
        {value * 1.25f, code, code + 1, code},
        {std::nextafter(value * 1.5f, 0.0f), code, code + 1, code},
        {value * 1.5f, code, code + 1, nearest_even},
        {std::nextafter(value * 1.5f, kInf), code, code + 1, code + 1},
        {std::nextafter(value * 2, 0.0f), code, code + 1, code + 1},
    };
    for (const auto& c : cases) {
      EXPECT_EQ(encode_e8m0(c.x, ScaleRounding::down), c.down) << c.x;
      EXPECT_EQ(encode_e8m0(c.x, ScaleRounding::up), c.up) << c.x;
      EXPECT_EQ(encode_e8m0(c.x, ScaleRounding::even), c.even) << c.x;
    }
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_TRUE(std::isnan(inverse_e8m0(255)));
  EXPECT_EQ(encode_e8m0(kNan), 255);
  EXPECT_EQ(encode_e8m0(0.0f), 0);
  EXPECT_EQ(encode_e8m0(1e-45f), 0);
  EXPECT_EQ(encode_e8m0(kInf), 254);
  EXPECT_EQ(encode_e8m0(std::numeric_limits<float>::max()), 254) << "saturates, is not NaN";
}

static_assert(encode_f8e4m3(448.0f) == 0x7e && encode_f16(1.0f) == 0x3c00, "usable at compile time");
static_assert(encode_i8(-3.5f) == -4 && mx_scale_code<F4e2m1>(6.0f) == 127);

}  // namespace
}  // namespace eitri
