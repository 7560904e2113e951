// Vectors of doubles for the router, by the compiler's own vector type: only + - * / and comparisons, each rounded once, so
// that every level gives the same bits (the build forbids fusing them).
#pragma once

#include <cstdint>

#include "device/x86/vec.h"

#include "device/double_math.h"

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

EITRI_INLINE D exp_negative(D x) { return detail::exp_negative<I>(x); }
EITRI_INLINE D log1p_unit(D x) {
  return detail::log1p_unit(x, [](D a, D b) { return a / b; });
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
