// One float, plain C++: the portable level and the model that the other levels are tested against. See vec.h for the
// interface; include that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/numeric.h"
#include "device/x86/inline.h"

namespace eitri::vec1 {

struct M {
  bool m;
};
EITRI_INLINE M operator&(M a, M b) { return {a.m && b.m}; }
EITRI_INLINE M operator|(M a, M b) { return {a.m || b.m}; }
EITRI_INLINE M operator!(M a) { return {!a.m}; }
EITRI_INLINE bool any(M a) { return a.m; }

struct F {
  static constexpr int kLanes = 1;
  float v;

  static EITRI_INLINE F set1(float x) { return {x}; }
  static EITRI_INLINE F zero() { return {0.0f}; }

  static EITRI_INLINE F load(const void* p) { return {get<float>(p)}; }
  static EITRI_INLINE F load_bf16(const void* p) { return {decode_bf16(get<uint16_t>(p))}; }
  static EITRI_INLINE F load_f16(const void* p) { return {decode_f16(get<uint16_t>(p))}; }
  static EITRI_INLINE F load_i8(const void* p) { return {static_cast<float>(get<int8_t>(p))}; }
  static EITRI_INLINE F load_i32(const void* p) { return {static_cast<float>(get<int32_t>(p))}; }
  static EITRI_INLINE F load_partial(const void* p, int64_t n) { return n ? load(p) : zero(); }
  static EITRI_INLINE F load_bf16_partial(const void* p, int64_t n) { return n ? load_bf16(p) : zero(); }
  static EITRI_INLINE F load_f16_partial(const void* p, int64_t n) { return n ? load_f16(p) : zero(); }
  static EITRI_INLINE F load_i8_partial(const void* p, int64_t n) { return n ? load_i8(p) : zero(); }
  static EITRI_INLINE F load_i32_partial(const void* p, int64_t n) { return n ? load_i32(p) : zero(); }

  EITRI_INLINE void store(void* p) const { put(p, v); }
  EITRI_INLINE void store_bf16(void* p) const { put(p, encode_bf16(v)); }
  EITRI_INLINE void store_f16(void* p) const { put(p, encode_f16(v)); }
  EITRI_INLINE void store_i8(void* p) const { put(p, encode_i8(v)); }
  EITRI_INLINE void store_partial(void* p, int64_t n) const {
    if (n) store(p);
  }
  EITRI_INLINE void store_bf16_partial(void* p, int64_t n) const {
    if (n) store_bf16(p);
  }
  EITRI_INLINE void store_f16_partial(void* p, int64_t n) const {
    if (n) store_f16(p);
  }
  EITRI_INLINE void store_i8_partial(void* p, int64_t n) const {
    if (n) store_i8(p);
  }

 private:
  template <class T> static EITRI_INLINE T get(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  template <class T> static EITRI_INLINE void put(void* p, T value) { std::memcpy(p, &value, sizeof value); }
};

EITRI_INLINE F operator+(F a, F b) { return {a.v + b.v}; }
EITRI_INLINE F operator-(F a, F b) { return {a.v - b.v}; }
EITRI_INLINE F operator*(F a, F b) { return {a.v * b.v}; }
EITRI_INLINE F operator/(F a, F b) { return {a.v / b.v}; }
EITRI_INLINE F operator-(F a) { return {-a.v}; }
EITRI_INLINE M operator<(F a, F b) { return {a.v < b.v}; }
EITRI_INLINE M operator<=(F a, F b) { return {a.v <= b.v}; }
EITRI_INLINE M operator>(F a, F b) { return {a.v > b.v}; }
EITRI_INLINE M operator>=(F a, F b) { return {a.v >= b.v}; }
EITRI_INLINE M operator==(F a, F b) { return {a.v == b.v}; }

/// a * b + c through double: the product is exact, the sum is rounded to double, then to float. No machine without FMA
/// has anything faster that is as good; a fused result differs only where the first rounding makes a tie.
EITRI_INLINE F fma(F a, F b, F c) {
  return {static_cast<float>(static_cast<double>(a.v) * static_cast<double>(b.v) + static_cast<double>(c.v))};
}
EITRI_INLINE F min(F a, F b) { return {b.v < a.v ? b.v : a.v}; }
EITRI_INLINE F max(F a, F b) { return {b.v > a.v ? b.v : a.v}; }
EITRI_INLINE F abs(F a) { return {bits_float(float_bits(a.v) & 0x7fffffffu)}; }
/// |magnitude| with the sign of `sign`.
EITRI_INLINE F copysign(F magnitude, F sign) {
  return {bits_float((float_bits(magnitude.v) & 0x7fffffffu) | (float_bits(sign.v) & 0x80000000u))};
}
EITRI_INLINE F round_even(F a) {
  // Above 2^23 every float is whole. Below, adding and taking off 2^23 leaves a whole number, rounded to even.
  constexpr float kWhole = 8388608.0f;
  const float magnitude = abs(a).v;
  if (!(magnitude < kWhole)) return a;
  return copysign(F{(magnitude + kWhole) - kWhole}, a);
}
EITRI_INLINE F select(M m, F yes, F no) { return m.m ? yes : no; }
EITRI_INLINE M is_nan(F a) { return {eitri::is_nan(a.v)}; }
/// x * 2^n for whole n in [-252, 254], subnormal results rounded once (the first factor is exact for x near 1).
EITRI_INLINE F scale2(F x, F n) {
  // A NaN n (from a NaN x) must not reach the conversion to int.
  const int whole = n.v == n.v ? static_cast<int>(n.v) : 0, half = whole >> 1;
  return {x.v * power_of_two(half) * power_of_two(whole - half)};
}
EITRI_INLINE float reduce_add(F a) { return a.v; }
EITRI_INLINE float reduce_max(F a) { return a.v; }

}  // namespace eitri::vec1
