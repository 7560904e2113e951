// e^x, log(1 + x) and their like in double, as routers need them: only + - * / and comparisons, each rounded once, so that every
// machine gives the same bits. D is double, or a vector of doubles of the compiler's own type; I the integers of its width.
// Include it after the header that defines EITRI_VEC and EITRI_INLINE (device/simt.h or device/x86/vec.h).
#pragma once

#include <cstdint>

#if !defined(EITRI_VEC)
#include "device/simt.h"
#endif

namespace eitri::EITRI_VEC::detail {

/// e^x for x <= 0, within 2 ulp; 0 below -708.
template <class I, class D> EITRI_INLINE D exp_negative(D x) {
  const D lowest = D{} - 708.0;
  const D clamped = x < lowest ? lowest : x;
  // x = n ln 2 + r; adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  const D shifter = D{} + 0x1.8p52;
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
  const D scaled = __builtin_bit_cast(D, __builtin_bit_cast(I, p) + (__builtin_bit_cast(I, shifted) << 52));
  return x < lowest ? D{} : scaled;
}

/// sum * x^n + ... + 1 / odd[n], by Horner's rule.
template <int... kOdd, class D> EITRI_INLINE D odd_series(D sum, D x) {
  ((sum = sum * x + 1.0 / kOdd), ...);
  return sum;
}

/// log(1 + x) for 0 <= x <= 1, relative error 1e-15: 2 artanh(s), s = x / (2 + x) <= 1/3.
template <class D, class Divide> EITRI_INLINE D log1p_unit(D x, Divide&& divide) {
  const D s = divide(x, x + 2.0), square = s * s;
  return odd_series<35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1>(D{} + 1.0 / 37.0, square) * s * 2.0;
}

}  // namespace eitri::EITRI_VEC::detail
