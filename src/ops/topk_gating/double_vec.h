// Vectors of doubles for the router, by the compiler's own vector type: only + - * / and comparisons, each rounded once, so
// that every level gives the same bits (the build forbids fusing them).
#pragma once

#include <cstdint>

#include "device/x86/vec.h"

namespace eitri::EITRI_VEC {

inline constexpr int kDoubles = F::kLanes == 1 ? 2 : F::kLanes / 2;
typedef double D __attribute__((vector_size(kDoubles * 8)));
typedef int64_t I __attribute__((vector_size(kDoubles * 8)));

EITRI_INLINE D set(double x) { return D{} + x; }
EITRI_INLINE I lane_numbers() {
  I x = {};
  for (int i = 0; i < kDoubles; ++i) x[i] = i;
  return x;
}
EITRI_INLINE D load(const double* p) {
  D x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
EITRI_INLINE void store(double* p, D x) { __builtin_memcpy(p, &x, sizeof x); }

/// e^x for x <= 0, within 2 ulp; 0 below -708.
EITRI_INLINE D exp_negative(D x) {
  const D clamped = x < -708.0 ? set(-708.0) : x;
  // x = n ln 2 + r; adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  const D shifter = set(0x1.8p52);
  const D shifted = clamped * 0x1.71547652b82fep0 + shifter, n = shifted - shifter;
  const D r = (clamped - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  D p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;  // Taylor, |r| <= 0.35: the rest is below 1e-17
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const D scaled = reinterpret_cast<D>(reinterpret_cast<I>(p) + (reinterpret_cast<I>(shifted) << 52));
  return x < -708.0 ? D{} : scaled;
}

/// log(1 + x) for 0 <= x <= 1, relative error 1e-15: 2 artanh(s), s = x / (2 + x) <= 1/3.
EITRI_INLINE D log1p_unit(D x) {
  const D s = x / (x + 2.0), square = s * s;
  D sum = set(1.0 / 37.0);
  for (int odd = 35; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return sum * s * 2.0;
}

EITRI_INLINE D sqrt(D x) {
  for (int i = 0; i < kDoubles; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}

/// Adds eight partial sums in one order, whatever the vector length.
struct EightSums {
  static constexpr int kParts = 8 / kDoubles;
  D part[kParts] = {};
  EITRI_INLINE double total() const {
    double s[8];
    for (int i = 0; i < kParts; ++i) store(s + i * kDoubles, part[i]);
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
};

}  // namespace eitri::EITRI_VEC
