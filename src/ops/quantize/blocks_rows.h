// Kernel template of quantize to any codes: a block at a time (32 or 128 columns, or the row), twice: its largest finite magnitude,
// then the codes (the second pass reads L1 or L2). Bound by memory for long blocks, by the scale's division for blocks of 32. A scale
// of the whole tensor takes one pass more, over all rows, before. All levels do the same fp32 operations on each element, and a
// maximum has no rounding, so their bits agree. Rows of f4e2m1 have an even number of columns.
#pragma once

#include <cstring>

#include "device/x86/vec_f8.h"
#include "ops/quantize/blocks_kernels.h"
#include "ops/quantize/quantize_rows.h"

namespace eitri::EITRI_VEC {

/// encode_f4e2m1 without branches: the seven midpoints, in the order of bits; those between an odd code and an even one above it
/// round up, so that they belong to the upper code.
EITRI_INLINE uint8_t narrow_f4(uint32_t bits) {
  const uint32_t m = bits & 0x7fffffffu;
  const auto above = [m](float midpoint) { return static_cast<uint32_t>(m > float_bits(midpoint)); };
  const auto from = [m](float midpoint) { return static_cast<uint32_t>(m >= float_bits(midpoint)); };
  const uint32_t code = above(0.25f) + from(0.75f) + above(1.25f) + from(1.75f) + above(2.5f) + from(3.5f) + above(5.0f);
  const uint32_t sign = m > 0x7f800000u ? 0u : bits >> 28 & 8u;  // NaN is +6
  return static_cast<uint8_t>(code | sign);
}

inline constexpr float kAbove[] = {0.25f, 1.25f, 2.5f, 5.0f}, kFrom[] = {0.75f, 1.75f, 3.5f};
/// kLanes products as kLanes / 2 bytes: the same, a vector at a time.
#if defined(__AVX512F__)
EITRI_INLINE void store_f4(F product, std::byte* q) {
  const auto word = [](uint32_t w) { return _mm512_set1_epi32(static_cast<int>(w)); };
  const __m512i bits = _mm512_castps_si512(product.v), m = _mm512_and_si512(bits, word(0x7fffffffu)), one = word(1);
  __m512i code = _mm512_setzero_si512();
  for (const float midpoint : kAbove) code = _mm512_mask_add_epi32(code, _mm512_cmpgt_epu32_mask(m, word(float_bits(midpoint))), code, one);
  for (const float midpoint : kFrom) code = _mm512_mask_add_epi32(code, _mm512_cmpge_epu32_mask(m, word(float_bits(midpoint))), code, one);
  const __mmask16 number = _mm512_cmple_epu32_mask(m, word(0x7f800000u));
  code = _mm512_mask_or_epi32(code, number, code, _mm512_and_si512(_mm512_srli_epi32(bits, 28), word(8)));
  const __m128i pairs = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(code), _mm_set1_epi16(0x1001));  // low + 16 * high
  _mm_storel_epi64(reinterpret_cast<__m128i*>(q), _mm_packus_epi16(pairs, pairs));
}
#elif defined(__AVX2__)
EITRI_INLINE void store_f4(F product, std::byte* q) {
  const auto word = [](uint32_t w) { return _mm256_set1_epi32(static_cast<int>(w)); };
  // Magnitudes are not negative as signed numbers; a comparison that holds is -1.
  const __m256i bits = _mm256_castps_si256(product.v), m = _mm256_and_si256(bits, word(0x7fffffffu));
  __m256i code = _mm256_setzero_si256();
  for (const float midpoint : kAbove) code = _mm256_sub_epi32(code, _mm256_cmpgt_epi32(m, word(float_bits(midpoint))));
  for (const float midpoint : kFrom) code = _mm256_sub_epi32(code, _mm256_cmpgt_epi32(m, word(float_bits(midpoint) - 1)));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 28), word(8));
  code = _mm256_or_si256(code, _mm256_andnot_si256(_mm256_cmpgt_epi32(m, word(0x7f800000u)), sign));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
  const __m128i pairs = _mm_maddubs_epi16(_mm_packus_epi16(words, words), _mm_set1_epi16(0x1001));  // low + 16 * high
  const int four = _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs));
  std::memcpy(q, &four, 4);
}
#endif

template <DType kType> EITRI_INLINE void block_codes_f4(const std::byte* x, int64_t cols, float inverse, std::byte* q) {
  const F factor = F::set1(inverse);
  int64_t j = 0;
#if defined(__AVX2__)
  for (; j + F::kLanes <= cols; j += F::kLanes) store_f4(load_as<kType>(x, j) * factor, q + j / 2);
#endif
  for (; j < cols; j += 2) {  // portable, and the last few
    float product[2];
    for (int64_t i = 0; i < 2; ++i) (load_as_partial<kType>(x, j + i, 1) * factor).store_partial(product + i, 1);
    q[j / 2] = static_cast<std::byte>(narrow_f4(float_bits(product[0])) | narrow_f4(float_bits(product[1])) << 4);
  }
}

template <DType kType, class Format> EITRI_INLINE void block_codes_f8(const std::byte* x, int64_t cols, float inverse, std::byte* q) {
  const F factor = F::set1(inverse);
  int64_t j = 0;
  for (; j + F::kLanes <= cols; j += F::kLanes) store_f8<Format>(load_as<kType>(x, j) * factor, q + j);
  if (j < cols) store_f8_partial<Format>(load_as_partial<kType>(x, j, cols - j) * factor, q + j, cols - j);
}

template <DType kType, DType kCode>
EITRI_INLINE void block_codes(const std::byte* x, int64_t cols, float inverse, bool finite, std::byte* q) {
  if constexpr (kCode == DType::i8) row_codes<kType>(x, cols, inverse, finite, reinterpret_cast<int8_t*>(q));
  else if constexpr (kCode == DType::f8e4m3) block_codes_f8<kType, F8e4m3>(x, cols, inverse, q);
  else if constexpr (kCode == DType::f8e4m3fnuz) block_codes_f8<kType, F8e4m3fnuz>(x, cols, inverse, q);
  else block_codes_f4<kType>(x, cols, inverse, q);
}

/// The largest code.
template <DType kCode> constexpr float largest_code_of() {
  return kCode == DType::i8 ? kI8Max : kCode == DType::f8e4m3 ? F8e4m3::max : kCode == DType::f8e4m3fnuz ? F8e4m3fnuz::max : F4e2m1::max;
}

/// Writes the scale of a block, and returns its inverse.
template <DType kCode> EITRI_INLINE float store_scale(const QuantizeBlocksTask& task, float amax, std::byte* scale) {
  if constexpr (kCode == DType::f8e4m3 || kCode == DType::f4e2m1) {
    if (task.scale_dtype == DType::f8e8m0) {
      const uint8_t code = kCode == DType::f8e4m3 ? mx_scale_code<F8e4m3>(amax, task.rounding) : mx_scale_code<F4e2m1>(amax, task.rounding);
      *scale = static_cast<std::byte>(code);
      return inverse_e8m0(code);
    }
  }
  const float s = scale_from_amax(amax, largest_code_of<kCode>());
  std::memcpy(scale, &s, sizeof s);
  return inverse_scale(s);
}

EITRI_INLINE bool is_skipped(const QuantizeBlocksTask& task, int64_t row) {
  return task.sorted_ids != nullptr && (task.sorted_ids[row] & 0xffffff) >= task.tokens;
}

template <DType kType, DType kCode> void quantize_blocks_typed(const QuantizeBlocksTask& task, int64_t begin, int64_t end) {
  constexpr int64_t kBytes = kType == DType::f32 ? 4 : 2;
  constexpr int64_t kPerByte = kCode == DType::f4e2m1 ? 2 : 1;
  for (int64_t r = begin; r < end; ++r) {
    if (is_skipped(task, r)) continue;
    const std::byte* const x = task.x + r * task.x_stride;
    std::byte* const q = task.q + r * task.q_stride;
    if (task.tensor_scale != nullptr) {
      block_codes<kType, kCode>(x, task.cols, inverse_scale(*task.tensor_scale), false, q);
      continue;
    }
    for (int64_t b = 0; b < task.blocks; ++b) {
      const int64_t first = b * task.block_cols, left = task.cols - first, cols = left < task.block_cols ? left : task.block_cols;
      const RowAmax seen = row_amax<kType>(x + first * kBytes, cols);
      const float inverse = store_scale<kCode>(task, seen.amax, task.scale + r * task.scale_row_stride + b * task.scale_block_stride);
      block_codes<kType, kCode>(x + first * kBytes, cols, inverse, seen.finite, q + first / kPerByte);
    }
  }
}

template <DType kType> EITRI_INLINE void quantize_blocks_from(const QuantizeBlocksTask& task, int64_t begin, int64_t end) {
  switch (task.q_dtype) {
    case DType::i8: return quantize_blocks_typed<kType, DType::i8>(task, begin, end);
    case DType::f8e4m3: return quantize_blocks_typed<kType, DType::f8e4m3>(task, begin, end);
    case DType::f8e4m3fnuz: return quantize_blocks_typed<kType, DType::f8e4m3fnuz>(task, begin, end);
    case DType::f4e2m1: return quantize_blocks_typed<kType, DType::f4e2m1>(task, begin, end);
    default: return;  // refused by check
  }
}
EITRI_INLINE void quantize_blocks_any(const QuantizeBlocksTask& task, int64_t begin, int64_t end) {
  switch (task.x_dtype) {
    case DType::f32: return quantize_blocks_from<DType::f32>(task, begin, end);
    case DType::bf16: return quantize_blocks_from<DType::bf16>(task, begin, end);
    case DType::f16: return quantize_blocks_from<DType::f16>(task, begin, end);
    default: return;
  }
}

template <DType kType> float quantize_amax_typed(const QuantizeBlocksTask& task, int64_t begin, int64_t end) {
  float amax = 0;
  for (int64_t r = begin; r < end; ++r) {
    if (is_skipped(task, r)) continue;
    const float row = row_amax<kType>(task.x + r * task.x_stride, task.cols).amax;
    amax = row > amax ? row : amax;
  }
  return amax;
}
EITRI_INLINE float quantize_amax_any(const QuantizeBlocksTask& task, int64_t begin, int64_t end) {
  switch (task.x_dtype) {
    case DType::f32: return quantize_amax_typed<DType::f32>(task, begin, end);
    case DType::bf16: return quantize_amax_typed<DType::bf16>(task, begin, end);
    case DType::f16: return quantize_amax_typed<DType::f16>(task, begin, end);
    default: return 0;
  }
}

}  // namespace eitri::EITRI_VEC
