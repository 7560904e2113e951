// fp32 to f4e2m1 without branches: the codes of encode_f4e2m1() in base/numeric.h, on machines without an instruction for it.
#pragma once

#include "device/simt.h"

namespace eitri::EITRI_SIMT {

/// encode_f4e2m1 of a number. The magnitude is counted in units of the code, which are 0.5 below 2, 1 below 4, and 2 above, and rounded to
/// even by a sum whose unit is 1; the first code of each range is even, so ties go the same way.
EITRI_INLINE uint32_t narrow_f4(float x) {
  constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23
  constexpr uint32_t kOne = float_bits(1.0f), kTwo = float_bits(2.0f);
  const float within = -max_number(-magnitude(x), -F4e2m1::max);
  const uint32_t power = float_bits(within) & 0x7f800000u, first = power > kOne ? power : kOne;  // 1, 2 or 4
  const uint32_t count = float_bits(fma(within, bits_float(kTwo + kOne - first), kShifter));
  return (count + (first >> 22) - (float_bits(kShifter) + (kOne >> 22))) | (float_bits(x) >> 28 & 8u);
}

/// The factor of pack8_f4's fast way.
inline constexpr float kF4InHalf = power_of_two(-14);
/// Eight codes in a word, the first one low, of numbers of at most 8 significant bits that come times kF4InHalf. So small a number in fp16
/// has the bits of its code and eight more: exponents from 1 up, and below them a fixed unit. These are rounded off to even, two numbers
/// at a time; what fp16 itself rounds is below a quarter, and its code 0.
EITRI_INLINE uint32_t pack8_f4_of_bf16(const float* scaled) {
  constexpr uint32_t kLast = 0x00010001u, kHalf = 0x00ff00ffu, kSix = 0x0e000e00u, kCodes = 0x1e001e00u;
  uint32_t codes[4];
  EITRI_UNROLL for (int i = 0; i < 4; ++i) {
    const uint32_t two = bounded2_f16(pack2_f16(scaled[i], scaled[i + 4]), kSix);
    const uint32_t rounded = two + kHalf + (two >> 9 & kLast);
    codes[i] = (rounded | rounded >> 3) & kCodes;  // signs beside the three bits of the magnitudes
  }
  return ((codes[0] >> 4 | codes[1]) >> 5) | (codes[2] >> 4 | codes[3]) << 3;
}

/// Eight codes in a word, the first one low. `numbers`: none is NaN, which is +6.
EITRI_INLINE uint32_t pack8_f4(const float* x, bool numbers) {
  uint32_t codes = 0;
  if (numbers) {
    EITRI_UNROLL for (int e = 0; e < 8; ++e) codes |= narrow_f4(x[e]) << (4 * e);
  } else {
    EITRI_UNROLL for (int e = 0; e < 8; ++e) codes |= narrow_f4(x[e] == x[e] ? x[e] : F4e2m1::max) << (4 * e);
  }
  return codes;
}

}  // namespace eitri::EITRI_SIMT
