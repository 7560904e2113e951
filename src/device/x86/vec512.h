// 16 floats on AVX-512 F, BW, DQ, VL. See vec.h for the interface; include that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

namespace eitri::vec512 {

struct M {
  __mmask16 m;
};
EITRI_INLINE M operator&(M a, M b) { return {static_cast<__mmask16>(a.m & b.m)}; }
EITRI_INLINE M operator|(M a, M b) { return {static_cast<__mmask16>(a.m | b.m)}; }
EITRI_INLINE M operator!(M a) { return {static_cast<__mmask16>(~a.m)}; }
EITRI_INLINE bool any(M a) { return a.m != 0; }

/// Lanes 0 .. n-1; 0 <= n <= 16.
EITRI_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << static_cast<unsigned>(n)) - 1u); }

struct F {
  static constexpr int kLanes = 16;
  __m512 v;

  static EITRI_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
  static EITRI_INLINE F zero() { return {_mm512_setzero_ps()}; }

  static EITRI_INLINE F load(const void* p) { return {_mm512_loadu_ps(p)}; }
  static EITRI_INLINE F load_partial(const void* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
  static EITRI_INLINE F from_bf16(__m256i codes) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16))}; }
  static EITRI_INLINE F load_bf16(const void* p) { return from_bf16(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static EITRI_INLINE F load_bf16_partial(const void* p, int64_t n) { return from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
  static EITRI_INLINE F load_f16(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
  static EITRI_INLINE F load_f16_partial(const void* p, int64_t n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
  }
  static EITRI_INLINE F from_i8(__m128i codes) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))}; }
  static EITRI_INLINE F load_i8(const void* p) { return from_i8(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static EITRI_INLINE F load_i8_partial(const void* p, int64_t n) { return from_i8(_mm_maskz_loadu_epi8(first_lanes(n), p)); }
  static EITRI_INLINE F load_i32(const void* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
  static EITRI_INLINE F load_i32_partial(const void* p, int64_t n) {
    return {_mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(first_lanes(n), p))};
  }

  EITRI_INLINE void store(void* p) const { _mm512_storeu_ps(p, v); }
  EITRI_INLINE void store_partial(void* p, int64_t n) const { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
  EITRI_INLINE __m256i to_bf16() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i even = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(even, nan, quiet), 16));
  }
  EITRI_INLINE void store_bf16(void* p) const { _mm256_storeu_si256(static_cast<__m256i*>(p), to_bf16()); }
  EITRI_INLINE void store_bf16_partial(void* p, int64_t n) const { _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16()); }
  EITRI_INLINE __m256i to_f16() const { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  EITRI_INLINE void store_f16(void* p) const { _mm256_storeu_si256(static_cast<__m256i*>(p), to_f16()); }
  EITRI_INLINE void store_f16_partial(void* p, int64_t n) const { _mm256_mask_storeu_epi16(p, first_lanes(n), to_f16()); }
  EITRI_INLINE __m128i to_i8() const {
    const __m512 low = _mm512_max_ps(v, _mm512_set1_ps(-127.0f));
    const __m512 both = _mm512_min_ps(low, _mm512_set1_ps(127.0f));
    const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
    return _mm512_cvtepi32_epi8(_mm512_maskz_cvt_roundps_epi32(number, both, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  EITRI_INLINE void store_i8(void* p) const { _mm_storeu_si128(static_cast<__m128i*>(p), to_i8()); }
  EITRI_INLINE void store_i8_partial(void* p, int64_t n) const { _mm_mask_storeu_epi8(p, first_lanes(n), to_i8()); }
};

EITRI_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
EITRI_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
EITRI_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
EITRI_INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
EITRI_INLINE F operator-(F a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
EITRI_INLINE M operator<(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
EITRI_INLINE M operator<=(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
EITRI_INLINE M operator>(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
EITRI_INLINE M operator>=(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
EITRI_INLINE M operator==(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }

/// a * b + c with one rounding.
EITRI_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EITRI_INLINE F min(F a, F b) { return {_mm512_min_ps(b.v, a.v)}; }
EITRI_INLINE F max(F a, F b) { return {_mm512_max_ps(b.v, a.v)}; }
EITRI_INLINE F abs(F a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
EITRI_INLINE F round_even(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
EITRI_INLINE F select(M m, F yes, F no) { return {_mm512_mask_mov_ps(no.v, m.m, yes.v)}; }
EITRI_INLINE M is_nan(F a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
/// |magnitude| with the sign of `sign`.
EITRI_INLINE F copysign(F magnitude, F sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
}
/// x * 2^n for whole n in [-252, 254], subnormal results rounded once.
EITRI_INLINE F scale2(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }

/// Pairwise: lane i + lane i + 8, then 4, 2, 1. A fixed order.
EITRI_INLINE float reduce_add(F a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/// NaN-free input expected.
EITRI_INLINE float reduce_max(F a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace eitri::vec512

#endif
