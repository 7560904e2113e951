// Kernel template of quantize: a row at a time, twice: its largest finite magnitude, then the codes (the second pass reads
// L1 or L2). Bound by memory: 2 or 4 bytes in, 1 out. All levels do the same fp32 operations on each element, and a maximum
// has no rounding, so their bits agree. No limits on rows, columns or strides.
#pragma once

#include "base/numeric.h"
#include "device/x86/vec.h"
#include "ops/quantize/quantize_kernels.h"

namespace eitri::EITRI_VEC {

/// The largest magnitude of a row; at least infinity when an element is infinite. NaN counts as 0 or as NaN: either way the
/// result says when row_amax has to look again.
template <DType kType> EITRI_INLINE float largest_magnitude(const std::byte* x, int64_t cols) {
  constexpr int64_t kLanes = F::kLanes, kStep = 4 * kLanes;
  F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
  int64_t j = 0;
  for (; j + kStep <= cols; j += kStep) {
    a = max(a, abs(load_as<kType>(x, j)));
    b = max(b, abs(load_as<kType>(x, j + kLanes)));
    c = max(c, abs(load_as<kType>(x, j + 2 * kLanes)));
    d = max(d, abs(load_as<kType>(x, j + 3 * kLanes)));
  }
  for (; j + kLanes <= cols; j += kLanes) a = max(a, abs(load_as<kType>(x, j)));
  if (j < cols) b = max(b, abs(load_as_partial<kType>(x, j, cols - j)));
  return reduce_max(max(max(a, b), max(c, d)));
}

#if defined(__AVX512BW__)
/// bf16 and f16 magnitudes are ordered like their codes: 32 at a time, without conversion. NaN is above infinity.
EITRI_INLINE uint16_t largest_code(const std::byte* x, int64_t cols) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i a = _mm512_setzero_si512(), b = a;
  int64_t j = 0;
  for (; j + 64 <= cols; j += 64) {
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_loadu_si512(x + j * 2), magnitude));
    b = _mm512_max_epu16(b, _mm512_and_si512(_mm512_loadu_si512(x + j * 2 + 64), magnitude));
  }
  for (; j < cols; j += 32) {
    const auto lanes = static_cast<__mmask32>(cols - j >= 32 ? 0xffffffffu : (1u << (cols - j)) - 1u);
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_maskz_loadu_epi16(lanes, x + j * 2), magnitude));
  }
  a = _mm512_max_epu16(a, b);
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The instruction finds a minimum: of the complements.
  return static_cast<uint16_t>(~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1))), 0));
}
template <> EITRI_INLINE float largest_magnitude<DType::bf16>(const std::byte* x, int64_t cols) {
  return decode_bf16(largest_code(x, cols));
}
template <> EITRI_INLINE float largest_magnitude<DType::f16>(const std::byte* x, int64_t cols) { return decode_f16(largest_code(x, cols)); }
#endif

struct RowAmax {
  float amax;   // of the finite elements
  bool finite;  // no element is infinite
};
template <DType kType> EITRI_INLINE RowAmax row_amax(const std::byte* x, int64_t cols) {
  const F infinity = F::set1(bits_float(0x7f800000u));
  const float largest = largest_magnitude<kType>(x, cols);
  if (largest <= bits_float(0x7f7fffffu)) return {largest, true};
  F amax = F::zero();
  for (int64_t j = 0; j < cols; j += F::kLanes) {
    const int64_t n = cols - j < F::kLanes ? cols - j : F::kLanes;
    const F magnitude = abs(load_as_partial<kType>(x, j, n));
    amax = max(amax, select(magnitude < infinity, magnitude, F::zero()));
  }
  return {reduce_max(amax), false};
}

/// The code of a product that is NaN or within +-127.5: no clamp is needed.
EITRI_INLINE void store_bounded_code(F product, int8_t* q, int64_t j) {
#if defined(__AVX512F__)
  // NaN becomes INT_MIN, whose low byte is 0.
  const __m512i code = _mm512_cvt_roundps_epi32(product.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + j), _mm512_cvtepi32_epi8(code));
#else
  store_as<DType::i8>(product, q, j);
#endif
}

/// codes = x * inverse, rounded to nearest even and clamped. `finite` as row_amax says: then |x * inverse| <= amax * inverse,
/// which is 127 up to three roundings.
template <DType kType> EITRI_INLINE void row_codes(const std::byte* x, int64_t cols, float inverse, bool finite, int8_t* q) {
  constexpr int64_t kLanes = F::kLanes;
  const F factor = F::set1(inverse);
  int64_t j = 0;
  if (finite)
    for (; j + kLanes <= cols; j += kLanes) store_bounded_code(load_as<kType>(x, j) * factor, q, j);
  for (; j + kLanes <= cols; j += kLanes) store_as<DType::i8>(load_as<kType>(x, j) * factor, q, j);
  if (j < cols) store_as_partial<DType::i8>(load_as_partial<kType>(x, j, cols - j) * factor, q, j, cols - j);
}

template <DType kType> void quantize_typed(const QuantizeTask& task, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    if (task.sorted_ids != nullptr && (task.sorted_ids[r] & 0xffffff) >= task.tokens) continue;
    const std::byte* x = task.x + r * task.x_stride;
    const RowAmax seen = row_amax<kType>(x, task.cols);
    const float scale = scale_from_amax(seen.amax, kI8Max);
    task.scale[r] = scale;
    row_codes<kType>(x, task.cols, inverse_scale(scale), seen.finite, task.q + r * task.q_stride);
  }
}

EITRI_INLINE void quantize_rows_any(const QuantizeTask& task, int64_t begin, int64_t end) {
  switch (task.x_dtype) {
    case DType::f32: return quantize_typed<DType::f32>(task, begin, end);
    case DType::bf16: return quantize_typed<DType::bf16>(task, begin, end);
    case DType::f16: return quantize_typed<DType::f16>(task, begin, end);
    default: return;  // refused by check
  }
}

}  // namespace eitri::EITRI_VEC
