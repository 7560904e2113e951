// exp, sigmoid, tanh, erf and the normal distribution on F: the same operations at every level, so AVX2 and AVX-512 agree
// bit for bit and vec1 all but. Largest errors, measured against double over the whole range by tests/device (ulp of
// the result): exp 1.1, sigmoid 2.5, tanh 2.5, erf 2.5, normal_cdf 6. Subnormal results are within one subnormal step more. NaN
// stays NaN; infinities give the limits. GPU kernels use the same text on one float a thread (device/simt.h), with their own
// sigmoid and division. Include device/x86/vec.h or device/simt.h: they define F, EITRI_VEC and EITRI_INLINE.
#pragma once

#if !defined(EITRI_VEC)
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(__AMDGCN__) || defined(EITRI_SIMT_EMULATED)
#include "device/simt.h"
#else
#include "device/x86/vec.h"
#endif
#endif

namespace eitri::EITRI_VEC {

#if defined(EITRI_SIMT)
/// a / b within 1 ulp for finite b; 0 instead of subnormal results, and where |b| is above 2^126.
EITRI_INLINE F quotient(F a, F b) {
  const float y = fast_reciprocal(b.v);
  return a * F{fma(fma(-b.v, y, 1.0f), y, y)};
}
#else
EITRI_INLINE F quotient(F a, F b) { return a / b; }
#endif

namespace detail {

// x = n ln 2 + r with |r| <= ln(2)/2, in two pieces of ln 2: the high one has 9 trailing zero bits, so n * high is exact.
struct Reduced {
  F n, r;
};
EITRI_INLINE Reduced reduce_exp(F x) {
  const F n = round_even(x * F::set1(1.4426950408889634f));
  const F r = fma(n, F::set1(-0.693359375f), x);
  return {n, fma(n, F::set1(2.12194440054690583e-4f), r)};
}
/// e^r - 1: r + r^2 g(r), g a minimax polynomial with relative error 3e-9 of e^r.
EITRI_INLINE F expm1_reduced(F r) {
  F g = F::set1(0.0013950602151453495f);
  g = fma(g, r, F::set1(0.008368953131139278f));
  g = fma(g, r, F::set1(0.04166620597243309f));
  g = fma(g, r, F::set1(0.166665181517601f));
  g = fma(g, r, F::set1(0.5f));
  return fma(r * r, g, r);
}
/// erfc(z) e^(z^2) for 0 <= z <= 10.2, as t q(t), t = 1 / (1 + 0.4 z); relative error 1e-8.
EITRI_INLINE F scaled_erfc(F z) {
  const F t = quotient(F::set1(1.0f), fma(F::set1(0.4f), z, F::set1(1.0f)));
  F q = F::set1(-0.029205792f);
  q = fma(q, t, F::set1(0.19590288f));
  q = fma(q, t, F::set1(-0.49384892f));
  q = fma(q, t, F::set1(0.5408177f));
  q = fma(q, t, F::set1(-0.27886334f));
  q = fma(q, t, F::set1(0.2691129f));
  q = fma(q, t, F::set1(0.13070017f));
  q = fma(q, t, F::set1(0.21470052f));
  q = fma(q, t, F::set1(0.22497831f));
  q = fma(q, t, F::set1(0.22570556f));
  return q * t;
}

}  // namespace detail

EITRI_INLINE F exp(F x) {
  // Beyond these the result is 0 or infinity anyway.
  const F clamped = min(max(x, F::set1(-104.0f)), F::set1(89.0f));
  const detail::Reduced reduced = detail::reduce_exp(clamped);
  return scale2(detail::expm1_reduced(reduced.r) + F::set1(1.0f), reduced.n);
}

/// e^x - 1 for 0 <= x <= 60, with full relative accuracy near 0.
EITRI_INLINE F expm1_positive(F x) {
  const detail::Reduced reduced = detail::reduce_exp(x);
  const F power = scale2(F::set1(1.0f), reduced.n);
  return fma(detail::expm1_reduced(reduced.r), power, power - F::set1(1.0f));
}

/// What a value is computed for: `narrow` is for results of 16 bits or fewer, whose rounding is far coarser than a few ulp.
enum class Precision : uint8_t { full, narrow };

#if defined(EITRI_SIMT)
/// 1 / (1 + e^-x) through the special function unit, whose 2^t is exact to 2^-22 only for the t that it is given. full: what rounding
/// loses of t = -x log2 e is put back as a factor; within 3 ulp; 0 below -87.3. narrow: it is not, so that the relative error is up to
/// 0.65 |x| / (1 + e^x) + 5.5 ulp.
template <Precision kPrecision = Precision::full> EITRI_INLINE F sigmoid(F x) {
  constexpr float kLog2e = 1.44269502f, kLog2eLow = 1.92596299e-8f, kLn2 = 0.69314718f;
  if constexpr (kPrecision == Precision::narrow) return {fast_reciprocal(1.0f + fast_exp2(x.v * -kLog2e))};
  const float y = bounded(-x.v, -88.0f, 88.0f);
  const float t = y * kLog2e, lost = fma(y, kLog2eLow, -fma(y, -kLog2e, t));
  const float power = fast_exp2(t);
  return quotient(F::set1(1.0f), F{1.0f + fma(power, lost * kLn2, power)});
}
#else
/// 1 / (1 + e^-x); 0 below -88.7.
template <Precision = Precision::full> EITRI_INLINE F sigmoid(F x) { return F::set1(1.0f) / (F::set1(1.0f) + exp(-x)); }
#endif

EITRI_INLINE F tanh(F x) {
  // (e^2a - 1) / (e^2a + 1), a = |x|; 1 in fp32 from 9.02 on.
  const F twice = min(abs(x), F::set1(10.0f)) * F::set1(2.0f);
  const F e = expm1_positive(twice);
  return copysign(quotient(e, e + F::set1(2.0f)), x);
}

EITRI_INLINE F erf(F x) {
  const F z = min(abs(x), F::set1(4.5f));  // erf is 1 in fp32 from 3.92 on
  const F square = z * z;
  F small = F::set1(7.8538615e-05f);  // erf(z) / z in z^2, for z <= 1
  small = fma(small, square, F::set1(-0.00080101937f));
  small = fma(small, square, F::set1(0.0051883277f));
  small = fma(small, square, F::set1(-0.026853813f));
  small = fma(small, square, F::set1(0.112835854f));
  small = fma(small, square, F::set1(-0.37612626f));
  small = fma(small, square, F::set1(1.1283791f));
  const F large = F::set1(1.0f) - detail::scaled_erfc(z) * exp(-square);
  return copysign(select(z > F::set1(1.0f), large, small * z), x);
}

/// The standard normal distribution function (1 + erf(x / sqrt 2)) / 2, relatively accurate in the lower tail as well.
EITRI_INLINE F normal_cdf(F x) {
  constexpr float kHigh = 0.70710677f, kLow = 1.2101617e-8f;  // 1 / sqrt 2 in two pieces
  const F a = min(abs(x), F::set1(14.4f));                    // 1 - normal_cdf(14.4) is below the smallest subnormal
  const F z = fma(a, F::set1(kLow), a * F::set1(kHigh));
  // e^(-a^2 / 2) with the rounding error of a^2 put back: it is multiplied by a^2 / 2 in the result.
  const F square = a * a, rest = fma(a, a, -square);
  const F power = exp(square * F::set1(-0.5f)) * fma(rest, F::set1(-0.5f), F::set1(1.0f));
  const F tail = F::set1(0.5f) * detail::scaled_erfc(z) * power;
  return select(x > F::zero(), F::set1(1.0f) - tail, tail);
}

}  // namespace eitri::EITRI_VEC
