// 8 floats on AVX2, FMA, F16C. See vec.h for the interface; include that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

namespace eitri::vec256 {

struct M {
  __m256 m;  // all ones or all zeros per lane
};
EITRI_INLINE M operator&(M a, M b) { return {_mm256_and_ps(a.m, b.m)}; }
EITRI_INLINE M operator|(M a, M b) { return {_mm256_or_ps(a.m, b.m)}; }
EITRI_INLINE M operator!(M a) { return {_mm256_xor_ps(a.m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))}; }
EITRI_INLINE bool any(M a) { return _mm256_movemask_ps(a.m) != 0; }

/// Lanes 0 .. n-1; 0 <= n <= 8.
EITRI_INLINE __m256i first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

struct F {
  static constexpr int kLanes = 8;
  __m256 v;

  static EITRI_INLINE F set1(float x) { return {_mm256_set1_ps(x)}; }
  static EITRI_INLINE F zero() { return {_mm256_setzero_ps()}; }

  static EITRI_INLINE F load(const void* p) { return {_mm256_loadu_ps(static_cast<const float*>(p))}; }
  static EITRI_INLINE F load_partial(const void* p, int64_t n) {
    return {_mm256_maskload_ps(static_cast<const float*>(p), first_lanes(n))};
  }
  static EITRI_INLINE F from_bf16(__m128i codes) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16))}; }
  static EITRI_INLINE F load_bf16(const void* p) { return from_bf16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static EITRI_INLINE F load_bf16_partial(const void* p, int64_t n) { return from_bf16(copy_in(p, n * 2)); }
  static EITRI_INLINE F load_f16(const void* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
  static EITRI_INLINE F load_f16_partial(const void* p, int64_t n) { return {_mm256_cvtph_ps(copy_in(p, n * 2))}; }
  static EITRI_INLINE F from_i8(__m128i codes) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))}; }
  static EITRI_INLINE F load_i8(const void* p) { return from_i8(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
  static EITRI_INLINE F load_i8_partial(const void* p, int64_t n) { return from_i8(copy_in(p, n)); }
  static EITRI_INLINE F load_i32(const void* p) { return {_mm256_cvtepi32_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
  static EITRI_INLINE F load_i32_partial(const void* p, int64_t n) {
    return {_mm256_cvtepi32_ps(_mm256_maskload_epi32(static_cast<const int*>(p), first_lanes(n)))};
  }

  EITRI_INLINE void store(void* p) const { _mm256_storeu_ps(static_cast<float*>(p), v); }
  EITRI_INLINE void store_partial(void* p, int64_t n) const { _mm256_maskstore_ps(static_cast<float*>(p), first_lanes(n), v); }
  EITRI_INLINE __m128i to_bf16() const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i even = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i codes = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  }
  EITRI_INLINE void store_bf16(void* p) const { _mm_storeu_si128(static_cast<__m128i*>(p), to_bf16()); }
  EITRI_INLINE void store_bf16_partial(void* p, int64_t n) const { copy_out(to_bf16(), p, n * 2); }
  EITRI_INLINE __m128i to_f16() const { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
  EITRI_INLINE void store_f16(void* p) const { _mm_storeu_si128(static_cast<__m128i*>(p), to_f16()); }
  EITRI_INLINE void store_f16_partial(void* p, int64_t n) const { copy_out(to_f16(), p, n * 2); }
  /// In the low 8 bytes.
  EITRI_INLINE __m128i to_i8() const {
    const __m256 low = _mm256_max_ps(v, _mm256_set1_ps(-127.0f));
    const __m256 both = _mm256_min_ps(low, _mm256_set1_ps(127.0f));
    const __m256 number = _mm256_and_ps(both, _mm256_cmp_ps(v, v, _CMP_ORD_Q));
    const __m256 whole = _mm256_round_ps(number, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i codes = _mm256_cvttps_epi32(whole);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packs_epi16(words, words);
  }
  EITRI_INLINE void store_i8(void* p) const { _mm_storel_epi64(static_cast<__m128i*>(p), to_i8()); }
  EITRI_INLINE void store_i8_partial(void* p, int64_t n) const { copy_out(to_i8(), p, n); }

 private:
  // AVX2 masks 32-bit elements only; narrower rests go through the stack.
  static EITRI_INLINE __m128i copy_in(const void* p, int64_t bytes) {
    alignas(16) char buffer[16] = {};
    std::memcpy(buffer, p, static_cast<size_t>(bytes));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  static EITRI_INLINE void copy_out(__m128i codes, void* p, int64_t bytes) {
    alignas(16) char buffer[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(buffer), codes);
    std::memcpy(p, buffer, static_cast<size_t>(bytes));
  }
};

EITRI_INLINE F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
EITRI_INLINE F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
EITRI_INLINE F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
EITRI_INLINE F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
EITRI_INLINE F operator-(F a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
EITRI_INLINE M operator<(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
EITRI_INLINE M operator<=(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
EITRI_INLINE M operator>(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
EITRI_INLINE M operator>=(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
EITRI_INLINE M operator==(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }

/// a * b + c with one rounding.
EITRI_INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
EITRI_INLINE F min(F a, F b) { return {_mm256_min_ps(b.v, a.v)}; }
EITRI_INLINE F max(F a, F b) { return {_mm256_max_ps(b.v, a.v)}; }
EITRI_INLINE F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
EITRI_INLINE F round_even(F a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
EITRI_INLINE F select(M m, F yes, F no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }
EITRI_INLINE M is_nan(F a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
/// |magnitude| with the sign of `sign`.
EITRI_INLINE F copysign(F magnitude, F sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}
/// x * 2^n for whole n in [-252, 254], subnormal results rounded once (the first factor is exact for x near 1).
EITRI_INLINE F scale2(F x, F n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high))};
}

/// Pairwise: lane i + lane i + 4, then 2, 1. A fixed order.
EITRI_INLINE float reduce_add(F a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/// NaN-free input expected.
EITRI_INLINE float reduce_max(F a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace eitri::vec256

#endif
