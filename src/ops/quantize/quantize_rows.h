// Kernel template of quantize: a row at a time, twice: its largest finite magnitude, then the codes (the second pass reads
// L1 or L2). Bound by memory: 2 or 4 bytes in, 1 out. All levels do the same fp32 operations on each element, and a maximum
// has no rounding, so their bits agree. No limits on rows, columns or strides.
#pragma once

#include "base/numeric.h"
#include "device/x86/vec.h"
#include "ops/quantize/quantize_kernels.h"

namespace eitri::EITRI_VEC {

/// |x| where finite, 0 elsewhere.
EITRI_INLINE F finite_abs(F x) {
  const F magnitude = abs(x);
  return select(magnitude < F::set1(bits_float(0x7f800000u)), magnitude, F::zero());
}

template <DType kType> EITRI_INLINE float row_amax(const std::byte* x, int64_t cols) {
  constexpr int64_t kLanes = F::kLanes, kStep = 4 * kLanes;
  F a = F::zero(), b = F::zero(), c = F::zero(), d = F::zero();
  int64_t j = 0;
  for (; j + kStep <= cols; j += kStep) {
    a = max(a, finite_abs(load_as<kType>(x, j)));
    b = max(b, finite_abs(load_as<kType>(x, j + kLanes)));
    c = max(c, finite_abs(load_as<kType>(x, j + 2 * kLanes)));
    d = max(d, finite_abs(load_as<kType>(x, j + 3 * kLanes)));
  }
  for (; j + kLanes <= cols; j += kLanes) a = max(a, finite_abs(load_as<kType>(x, j)));
  if (j < cols) b = max(b, finite_abs(load_as_partial<kType>(x, j, cols - j)));
  return reduce_max(max(max(a, b), max(c, d)));
}

/// codes = x * inverse, rounded to nearest even and clamped.
template <DType kType> EITRI_INLINE void row_codes(const std::byte* x, int64_t cols, float inverse, int8_t* q) {
  constexpr int64_t kLanes = F::kLanes;
  const F factor = F::set1(inverse);
  int64_t j = 0;
  for (; j + kLanes <= cols; j += kLanes) store_as<DType::i8>(load_as<kType>(x, j) * factor, q, j);
  if (j < cols) store_as_partial<DType::i8>(load_as_partial<kType>(x, j, cols - j) * factor, q, j, cols - j);
}

template <DType kType> void quantize_typed(const QuantizeTask& task, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    if (task.sorted_ids != nullptr && (task.sorted_ids[r] & 0xffffff) >= task.tokens) continue;
    const std::byte* x = task.x + r * task.x_stride;
    const float scale = scale_from_amax(row_amax<kType>(x, task.cols), kI8Max);
    task.scale[r] = scale;
    row_codes<kType>(x, task.cols, inverse_scale(scale), task.q + r * task.q_stride);
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
