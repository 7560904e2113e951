// Stores of F as 8-bit floats: the codes of device/narrow_f8.h, kLanes at a time. Format is F8e4m3 or F8e4m3fnuz of
// base/numeric.h.
#pragma once

#include <cstring>

#include "device/narrow_f8.h"
#include "device/x86/vec.h"

namespace eitri::EITRI_VEC {

#if defined(__AVX512F__)
template <class Format> EITRI_INLINE __m128i to_f8(F x) {
  constexpr int kShift = 23 - Format::mantissa_bits;
  const auto word = [](uint32_t w) { return _mm512_set1_epi32(static_cast<int>(w)); };
  const __m512i bits = _mm512_castps_si512(x.v), magnitude = _mm512_and_si512(bits, word(0x7fffffffu));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, kShift), word(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(magnitude, word((1u << (kShift - 1)) - 1)), odd);
  const __m512i normal =
      _mm512_sub_epi32(_mm512_srli_epi32(rounded, kShift), word(static_cast<uint32_t>(127 - Format::bias) << Format::mantissa_bits));
  const __m512 shifter = _mm512_set1_ps(power_of_two(kShift + 1 - Format::bias));
  const __m512i subnormal =
      _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), shifter)), _mm512_castps_si512(shifter));
  const __mmask16 small = _mm512_cmplt_epu32_mask(magnitude, word(float_bits(power_of_two(1 - Format::bias))));
  const __m512i code = _mm512_min_epu32(_mm512_mask_mov_epi32(normal, small, subnormal), word(Format::max_code));
  __m512i result = _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi32(bits, 24), word(0x80u)));
  if constexpr (Format::nan_code == 0x80u)  // no -0
    result = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(code, code), result);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(result, nan, word(Format::nan_code)));
}
template <class Format> EITRI_INLINE void store_f8(F x, void* p) { _mm_storeu_si128(static_cast<__m128i*>(p), to_f8<Format>(x)); }
template <class Format> EITRI_INLINE void store_f8_partial(F x, void* p, int64_t n) {
  _mm_mask_storeu_epi8(p, first_lanes(n), to_f8<Format>(x));
}
#elif defined(__AVX2__)
template <class Format> EITRI_INLINE __m128i to_f8(F x) {
  constexpr int kShift = 23 - Format::mantissa_bits;
  const auto word = [](uint32_t w) { return _mm256_set1_epi32(static_cast<int>(w)); };
  const __m256i bits = _mm256_castps_si256(x.v), magnitude = _mm256_and_si256(bits, word(0x7fffffffu));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, kShift), word(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(magnitude, word((1u << (kShift - 1)) - 1)), odd);
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, kShift), word(static_cast<uint32_t>(127 - Format::bias) << Format::mantissa_bits));
  const __m256 shifter = _mm256_set1_ps(power_of_two(kShift + 1 - Format::bias));
  const __m256i subnormal =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), shifter)), _mm256_castps_si256(shifter));
  // Magnitudes are not negative as signed numbers.
  const __m256i small = _mm256_cmpgt_epi32(word(float_bits(power_of_two(1 - Format::bias))), magnitude);
  const __m256i code = _mm256_min_epu32(_mm256_blendv_epi8(normal, subnormal, small), word(Format::max_code));
  __m256i result = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), word(0x80u)));
  if constexpr (Format::nan_code == 0x80u)  // no -0
    result = _mm256_andnot_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), result);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  result = _mm256_blendv_epi8(result, word(Format::nan_code), nan);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  return _mm_packus_epi16(words, words);
}
template <class Format> EITRI_INLINE void store_f8(F x, void* p) { _mm_storel_epi64(static_cast<__m128i*>(p), to_f8<Format>(x)); }
template <class Format> EITRI_INLINE void store_f8_partial(F x, void* p, int64_t n) {
  alignas(16) char codes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(codes), to_f8<Format>(x));
  std::memcpy(p, codes, static_cast<size_t>(n));
}
#else
template <class Format> EITRI_INLINE void store_f8(F x, void* p) { *static_cast<uint8_t*>(p) = narrow_f8<Format>(x.v); }
template <class Format> EITRI_INLINE void store_f8_partial(F x, void* p, int64_t n) {
  if (n) store_f8<Format>(x, p);
}
#endif

}  // namespace eitri::EITRI_VEC
