// fp32 to 8-bit floats and back without branches: the codes and values of encode_f8*() and decode_f8e4m3() in base/numeric.h, in a form
// that machines without a conversion instruction of the right format run fast.
#pragma once

#include "base/numeric.h"

namespace eitri {

/// encode_f8e4m3, encode_f8e4m3fnuz or encode_f8e5m2, by Format.
template <class Format> EITRI_HD constexpr uint8_t narrow_f8(float x) {
  constexpr int kShift = 23 - Format::mantissa_bits;
  constexpr float kFirstNormal = power_of_two(1 - Format::bias);
  // Added to a subnormal, it leaves whole multiples of the smallest subnormal in the low bits, rounded to even.
  constexpr float kShifter = power_of_two(kShift + 1 - Format::bias);
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu, sign = bits >> 31 << 7;
  const uint32_t tie = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
  const uint32_t normal = ((magnitude + tie) >> kShift) - (static_cast<uint32_t>(127 - Format::bias) << Format::mantissa_bits);
  const uint32_t subnormal = float_bits(bits_float(magnitude) + kShifter) - float_bits(kShifter);
  const uint32_t code = magnitude < float_bits(kFirstNormal) ? subnormal : normal;
  const uint32_t finite = sign | (code < Format::max_code ? code : Format::max_code);
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(Format::nan_code);
  // A format whose NaN is the code of -0 has no -0.
  return static_cast<uint8_t>(finite == 0x80u && Format::nan_code == 0x80u ? 0u : finite);
}

/// decode_f8e4m3: the product puts the exponent right, subnormals included, and is exact.
EITRI_HD constexpr float widen_f8e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  return bits_float(magnitude == 0x7fu ? sign | 0x7fc00000u : sign | magnitude << 20) * power_of_two(120);
}

}  // namespace eitri
