// The numerics contract (docs: design, section 8): every conversion between fp32 and a narrow code,
// and the rules that make quantisation scales. CPU code, host tests and run-time compiled GPU
// kernels include this one file, so all machines agree bit for bit. It needs C++17, <cstdint> and
// nothing else: no library calls, no exceptions.
//
// Conversions round to nearest, ties to even, subnormals included; codes are handled as integers,
// so the flush-to-zero mode of a machine does not change them. Out of range:
//   f16, bf16               infinity, as IEEE 754
//   f8e4m3(fnuz), f8e5m2    the largest finite value, for infinity as well (f8e5m2 has an infinity:
//                           it is only decoded)
//   f4e2m1, i4, i8          +-6, +-7, +-127 (symmetric: -8 and -128 are decoded but never made)
// NaN: f16, bf16 a quiet NaN with its sign and upper payload; f8e4m3 and f8e5m2 0x7f; f8e4m3fnuz
// 0x80 (its only NaN); f4e2m1 has none: 0x7, +6, as the NVIDIA instruction does; i4, i8 0. NaN
// payloads are outside the bit contract.
//
// Quantisation of a block (scale in fp32):
//   amax    = the largest finite_abs(x): NaN and infinity never reach the scale
//   scale   = scale_from_amax(amax, max): amax / max, not below 2^-126; 0 when amax is 0
//   inverse = inverse_scale(scale): 1 / scale, 0 for 0; never infinite
//   code    = encode(x * inverse), one fp32 product: infinity saturates, NaN follows the line above
// A block without any non-zero finite value has scale 0, thus dequantises to 0; its zeros have code
// 0, and an infinity in it becomes 0 * inf = NaN. MX blocks: mx_scale_code() instead of
// scale_from_amax(), the rest is the same.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define EITRI_HD __host__ __device__
#elif defined(__HIP__) || defined(__CUDA__)  // clang, also without the vendor's headers
#define EITRI_HD __attribute__((host)) __attribute__((device))
#else
#define EITRI_HD
#endif

namespace eitri {

/// How a scale becomes a power of two; see encode_e8m0() and mx_scale_code().
enum class ScaleRounding : uint8_t { down, up, even };

EITRI_HD constexpr uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
EITRI_HD constexpr float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// 2^exponent for normal results: -126 <= exponent <= 127.
EITRI_HD constexpr float power_of_two(int exponent) { return bits_float(static_cast<uint32_t>(exponent + 127) << 23); }

inline constexpr float kNan = bits_float(0x7fc00000u);
EITRI_HD constexpr bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }

/// |x|, or 0 when x is NaN or infinite: what a block maximum counts.
EITRI_HD constexpr float finite_abs(float x) {
  const uint32_t magnitude = float_bits(x) & 0x7fffffffu;
  return bits_float(magnitude < 0x7f800000u ? magnitude : 0u);
}

// The narrow floating-point formats. `max_code` is the largest finite magnitude, `nan_code` what
// NaN becomes.
struct F16 {
  static constexpr int mantissa_bits = 10, bias = 15, max_exponent = 15;
  static constexpr uint32_t max_code = 0x7bff;
};
struct F8e4m3 {
  static constexpr int mantissa_bits = 3, bias = 7, max_exponent = 8, sign_bit = 7;
  static constexpr uint32_t max_code = 0x7e, nan_code = 0x7f;
  static constexpr float max = 448.0f;
};
struct F8e4m3fnuz {
  static constexpr int mantissa_bits = 3, bias = 8, max_exponent = 7, sign_bit = 7;
  static constexpr uint32_t max_code = 0x7f, nan_code = 0x80;
  static constexpr float max = 240.0f;
};
struct F8e5m2 {
  static constexpr int mantissa_bits = 2, bias = 15, max_exponent = 15, sign_bit = 7;
  static constexpr uint32_t max_code = 0x7b, nan_code = 0x7f;
  static constexpr float max = 57344.0f;
};
struct F4e2m1 {
  static constexpr int mantissa_bits = 1, bias = 1, max_exponent = 2, sign_bit = 3;
  static constexpr uint32_t max_code = 0x7, nan_code = 0x7;
  static constexpr float max = 6.0f;
};
inline constexpr float kI8Max = 127.0f;
inline constexpr float kI4Max = 7.0f;

namespace detail {

/// Rounds |x|, given as fp32 bits that are not NaN, to a code of Format; may exceed max_code.
template <class Format> EITRI_HD constexpr uint32_t encode_magnitude(uint32_t magnitude) {
  constexpr int kMantissa = Format::mantissa_bits;
  constexpr uint32_t kFirstNormal = 128 - Format::bias;  // fp32's biased exponent of that value
  const uint32_t exponent = magnitude >> 23;
  if (exponent >= kFirstNormal) {
    constexpr int kShift = 23 - kMantissa;
    const uint32_t tie = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
    return ((magnitude + tie) >> kShift) - ((kFirstNormal - 1) << kMantissa);
  }
  // Count the smallest subnormals in |x|; a carry into the first normal code is the right code.
  const uint32_t mantissa = exponent == 0 ? magnitude : ((magnitude & 0x7fffffu) | 0x800000u);
  const int shift = 151 - Format::bias - kMantissa - static_cast<int>(exponent == 0 ? 1 : exponent);
  if (shift > 24) return 0;  // below half of the smallest subnormal
  const uint32_t quotient = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  return quotient + ((rest > half || (rest == half && (quotient & 1u))) ? 1u : 0u);
}

template <class Format> EITRI_HD constexpr uint8_t encode_saturating(float x) {
  const uint32_t bits = float_bits(x);
  if (is_nan(x)) return Format::nan_code;
  const uint32_t code = encode_magnitude<Format>(bits & 0x7fffffffu);
  const uint32_t sign = (bits >> 31) << Format::sign_bit;
  return static_cast<uint8_t>(sign | (code < Format::max_code ? code : Format::max_code));
}

/// The value of a finite magnitude code.
template <class Format> EITRI_HD constexpr float decode_magnitude(uint32_t code) {
  constexpr int kMantissa = Format::mantissa_bits;
  const uint32_t exponent = code >> kMantissa;
  const uint32_t mantissa = code & ((1u << kMantissa) - 1);
  if (exponent == 0) return static_cast<float>(mantissa) * power_of_two(1 - Format::bias - kMantissa);
  return bits_float(((exponent + 127 - Format::bias) << 23) | (mantissa << (23 - kMantissa)));
}

EITRI_HD constexpr float with_sign(float magnitude, uint32_t sign) { return bits_float(float_bits(magnitude) | (sign << 31)); }

/// |x| = (1 + fraction / 2^23) * 2^exponent, for x != 0; exact for fp32 subnormals too.
struct Parts {
  int exponent;
  uint32_t fraction;
};
EITRI_HD constexpr Parts split(uint32_t magnitude) {
  if (magnitude >= 0x800000u) return {static_cast<int>(magnitude >> 23) - 127, magnitude & 0x7fffffu};
  // A subnormal counts units of 2^-149; its conversion to float is exact and normalises it.
  const uint32_t bits = float_bits(static_cast<float>(magnitude));
  return {static_cast<int>(bits >> 23) - 127 - 149, bits & 0x7fffffu};
}

EITRI_HD constexpr uint8_t e8m0_clamped(int exponent) {
  return static_cast<uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}

/// Rounds to an integer within [-limit, limit]; NaN gives 0.
EITRI_HD constexpr int round_clamped(float x, float limit) {
  if (is_nan(x)) return 0;
  const float clamped = x < -limit ? -limit : x > limit ? limit : x;
  constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23: the sum has unit 1 and is rounded to it
  return static_cast<int>(float_bits(clamped + kShifter)) - static_cast<int>(float_bits(kShifter));
}

}  // namespace detail

EITRI_HD constexpr uint16_t encode_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if (is_nan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
EITRI_HD constexpr float decode_bf16(uint16_t code) { return bits_float(static_cast<uint32_t>(code) << 16); }

EITRI_HD constexpr uint16_t encode_f16(float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  if (is_nan(x)) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  const uint32_t code = detail::encode_magnitude<F16>(magnitude);
  return static_cast<uint16_t>(sign | (code > F16::max_code ? 0x7c00u : code));
}
EITRI_HD constexpr float decode_f16(uint16_t code) {
  const uint32_t magnitude = code & 0x7fffu, sign = code >> 15;
  if (magnitude > F16::max_code) return bits_float((sign << 31) | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  return detail::with_sign(detail::decode_magnitude<F16>(magnitude), sign);
}

EITRI_HD constexpr uint8_t encode_f8e4m3(float x) { return detail::encode_saturating<F8e4m3>(x); }
EITRI_HD constexpr float decode_f8e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = code >> 7;
  if (magnitude == 0x7f) return detail::with_sign(kNan, sign);
  return detail::with_sign(detail::decode_magnitude<F8e4m3>(magnitude), sign);
}

/// Has no negative zero: what rounds to -0 becomes +0.
EITRI_HD constexpr uint8_t encode_f8e4m3fnuz(float x) {
  const uint8_t code = detail::encode_saturating<F8e4m3fnuz>(x);
  return code == 0x80 && !is_nan(x) ? uint8_t{0} : code;
}
EITRI_HD constexpr float decode_f8e4m3fnuz(uint8_t code) {
  if (code == 0x80) return kNan;
  return detail::with_sign(detail::decode_magnitude<F8e4m3fnuz>(code & 0x7fu), code >> 7);
}

EITRI_HD constexpr uint8_t encode_f8e5m2(float x) { return detail::encode_saturating<F8e5m2>(x); }
EITRI_HD constexpr float decode_f8e5m2(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = code >> 7;
  if (magnitude > 0x7c) return detail::with_sign(kNan, sign);
  if (magnitude == 0x7c) return detail::with_sign(bits_float(0x7f800000u), sign);
  return detail::with_sign(detail::decode_magnitude<F8e5m2>(magnitude), sign);
}

/// Codes 0..15, in the low nibble.
EITRI_HD constexpr uint8_t encode_f4e2m1(float x) { return detail::encode_saturating<F4e2m1>(x); }
EITRI_HD constexpr float decode_f4e2m1(uint8_t code) {
  return detail::with_sign(detail::decode_magnitude<F4e2m1>(code & 0x7u), (code >> 3) & 1u);
}

EITRI_HD constexpr int8_t encode_i8(float x) { return static_cast<int8_t>(detail::round_clamped(x, kI8Max)); }
EITRI_HD constexpr float decode_i8(int8_t code) { return static_cast<float>(code); }

/// Two's complement in the low nibble; the high nibble is 0.
EITRI_HD constexpr uint8_t encode_i4(float x) { return static_cast<uint8_t>(detail::round_clamped(x, kI4Max) & 0xf); }
EITRI_HD constexpr float decode_i4(uint8_t code) { return static_cast<float>(((code & 0xf) ^ 8) - 8); }

/// Two nibbles in a byte: element 0 of the pair is the low one.
EITRI_HD constexpr uint8_t pack_nibbles(uint8_t low, uint8_t high) { return static_cast<uint8_t>((low & 0xfu) | ((high & 0xfu) << 4)); }
EITRI_HD constexpr uint8_t unpack_nibble(uint8_t pair, int element) { return static_cast<uint8_t>((pair >> (4 * (element & 1))) & 0xfu); }

/// 2^(code - 127), exact (code 0 is the fp32 subnormal 2^-127); 255 is NaN.
EITRI_HD constexpr float decode_e8m0(uint8_t code) {
  if (code == 255) return kNan;
  return bits_float(code == 0 ? 0x400000u : static_cast<uint32_t>(code) << 23);
}

/// |x| as a power of two: the next at or below it (down), at or above it (up), or the nearest one
/// (even; half way, the one with the even code). Clamped to codes 0, also for x = 0, and 254.
/// NaN is 255.
EITRI_HD constexpr uint8_t encode_e8m0(float x, ScaleRounding rounding = ScaleRounding::up) {
  const uint32_t magnitude = float_bits(x) & 0x7fffffffu;
  if (is_nan(x)) return 255;
  if (magnitude == 0) return 0;
  const detail::Parts parts = detail::split(magnitude);
  const bool odd = ((parts.exponent + 127) & 1) != 0;
  bool next = false;
  if (rounding == ScaleRounding::up) next = parts.fraction != 0;
  if (rounding == ScaleRounding::even) next = parts.fraction > 0x400000u || (parts.fraction == 0x400000u && odd);
  return detail::e8m0_clamped(parts.exponent + (next ? 1 : 0));
}

/// 1 / decode_e8m0(code), exact and finite for every code but 255.
EITRI_HD constexpr float inverse_e8m0(uint8_t code) { return decode_e8m0(code == 255 ? uint8_t{255} : static_cast<uint8_t>(254 - code)); }

/// The E8M0 scale of an MX block of Format elements. It depends on the exact fp32 amax: no quotient
/// is rounded on the way.
///   up    the smallest scale at which amax does not exceed Format's maximum: nothing saturates
///   down  2^(floor(log2 amax) - Format's largest exponent), the OCP MX rule: amax may saturate
///   even  as down, but amax is first rounded to Format's mantissa width, halves upwards
/// An all-zero block gets code 0 (E8M0 has no zero) and codes 0: it dequantises to exactly 0.
template <class Format> EITRI_HD constexpr uint8_t mx_scale_code(float amax, ScaleRounding rounding = ScaleRounding::up) {
  const uint32_t magnitude = float_bits(amax) & 0x7fffffffu;
  if (is_nan(amax)) return 255;
  if (magnitude == 0) return 0;
  constexpr uint32_t kMaxFraction = float_bits(Format::max) & 0x7fffffu;
  const detail::Parts parts = detail::split(magnitude);
  uint32_t next = 0;
  if (rounding == ScaleRounding::up) next = parts.fraction > kMaxFraction ? 1u : 0u;
  if (rounding == ScaleRounding::even) next = (parts.fraction + (1u << (22 - Format::mantissa_bits))) >> 23;
  return detail::e8m0_clamped(parts.exponent - Format::max_exponent + static_cast<int>(next));
}

/// The fp32 scale of a block. The floor keeps 1 / scale finite; so small a block uses fewer codes.
EITRI_HD constexpr float scale_from_amax(float amax, float max_of_dtype) {
  if (amax == 0.0f) return 0.0f;
  const float scale = amax / max_of_dtype;
  constexpr float kSmallestNormal = power_of_two(-126);
  return scale < kSmallestNormal ? kSmallestNormal : scale;
}

/// 1 / scale; 0 for scale 0, so that zeros get code 0. Finite for scales made above.
EITRI_HD constexpr float inverse_scale(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

}  // namespace eitri
