// Kernel template of rmsnorm. A row at a time: its values (with the residual) to scratch in fp32 while their squares are
// summed, then scratch times the factor and the weight to out, or, quantised, back to scratch, its largest magnitudes, and
// the codes. Scratch and weight stay in L1 or L2, so that memory is read and written once: bound by memory.
//
// The squares go into 64 partial sums at every level, which are added in one order, and nothing is fused: all levels give the
// same bits. No limits on rows, columns or strides.
#pragma once

#include "base/numeric.h"
#include "device/x86/vec.h"
#include "device/x86/vec_f8.h"
#include "ops/quantize/quantize_rows.h"
#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace eitri::EITRI_VEC {

inline constexpr int kSquareSums = 64;

/// Values [j, j + n) of the row; with a residual their sum, as rounded to residual_out.
template <DType kIn, DType kResidual>
EITRI_INLINE F summed(const std::byte* x, const std::byte* residual, std::byte* residual_out, int64_t j, int64_t n) {
  const bool whole = n == F::kLanes;
  F v = whole ? load_as<kIn>(x, j) : load_as_partial<kIn>(x, j, n);
  if constexpr (kResidual != DType::none) {
    v = v + (whole ? load_as<kResidual>(residual, j) : load_as_partial<kResidual>(residual, j, n));
    if (whole) store_as<kResidual>(v, residual_out, j);
    else store_as_partial<kResidual>(v, residual_out, j, n);
    if constexpr (kResidual != DType::f32) v = whole ? load_as<kResidual>(residual_out, j) : load_as_partial<kResidual>(residual_out, j, n);
  }
  return v;
}

/// The row to scratch; returns the sum of squares.
template <DType kIn, DType kResidual>
EITRI_INLINE float sum_of_squares(const std::byte* x, const std::byte* residual, std::byte* residual_out, int64_t hidden, float* scratch) {
  constexpr int kSums = kSquareSums / F::kLanes;
  F sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = F::zero();
  int64_t j = 0;
  for (; j + kSquareSums <= hidden; j += kSquareSums) {
    for (int i = 0; i < kSums; ++i) {
      const F v = summed<kIn, kResidual>(x, residual, residual_out, j + i * F::kLanes, F::kLanes);
      v.store(scratch + j + i * F::kLanes);
      sums[i] = sums[i] + v * v;
    }
  }
  for (int i = 0; j < hidden; ++i, j += F::kLanes) {
    const int64_t n = hidden - j < F::kLanes ? hidden - j : F::kLanes;
    const F v = summed<kIn, kResidual>(x, residual, residual_out, j, n);
    v.store_partial(scratch + j, n);
    sums[i] = sums[i] + v * v;
  }
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return reduce_add(sums[0]);
}

/// scratch * factor * weight to out; out may be scratch itself.
template <DType kWeight, NormWeight kKind, DType kOut>
EITRI_INLINE void scale_row(const float* scratch, float factor, const std::byte* weight, int64_t hidden, void* out) {
  const F by = F::set1(factor), one = F::set1(1.0f);
  for (int64_t j = 0; j < hidden; j += F::kLanes) {
    const int64_t n = hidden - j;
    const bool whole = n >= F::kLanes;
    F v = (whole ? F::load(scratch + j) : F::load_partial(scratch + j, n)) * by;
    if constexpr (kWeight != DType::none) {
      F w = whole ? load_as<kWeight>(weight, j) : load_as_partial<kWeight>(weight, j, n);
      if constexpr (kKind == NormWeight::plus_one) w = one + w;
      v = v * w;
    }
    if (whole) store_as<kOut>(v, out, j);
    else store_as_partial<kOut>(v, out, j, n);
  }
}

template <class Format> EITRI_INLINE void row_codes_f8(const float* x, int64_t cols, float inverse, void* q) {
  const F factor = F::set1(inverse);
  auto* out = static_cast<uint8_t*>(q);
  int64_t j = 0;
  for (; j + F::kLanes <= cols; j += F::kLanes) store_f8<Format>(F::load(x + j) * factor, out + j);
  if (j < cols) store_f8_partial<Format>(F::load_partial(x + j, cols - j) * factor, out + j, cols - j);
}

EITRI_INLINE void quantize_row(const RmsNormTask& task, const float* scratch, std::byte* out, float* scale) {
  const float largest = task.out_dtype == DType::i8 ? kI8Max : task.out_dtype == DType::f8e4m3 ? F8e4m3::max : F8e4m3fnuz::max;
  for (int64_t begin = 0, g = 0; begin < task.hidden; begin += task.group, ++g) {
    const int64_t cols = task.hidden - begin < task.group ? task.hidden - begin : task.group;
    const auto* values = reinterpret_cast<const std::byte*>(scratch + begin);
    const RowAmax seen = row_amax<DType::f32>(values, cols);
    const float s = scale_from_amax(seen.amax, largest), inverse = inverse_scale(s);
    scale[g * task.scale_group_stride] = s;
    if (task.out_dtype == DType::i8) row_codes<DType::f32>(values, cols, inverse, seen.finite, reinterpret_cast<int8_t*>(out + begin));
    else if (task.out_dtype == DType::f8e4m3) row_codes_f8<F8e4m3>(scratch + begin, cols, inverse, out + begin);
    else row_codes_f8<F8e4m3fnuz>(scratch + begin, cols, inverse, out + begin);
  }
}

template <DType kWeight, NormWeight kKind>
EITRI_INLINE void scale_row_to(const RmsNormTask& task, float* scratch, float factor, std::byte* out) {
  switch (task.out_dtype) {
    case DType::bf16: return scale_row<kWeight, kKind, DType::bf16>(scratch, factor, task.weight, task.hidden, out);
    case DType::f16: return scale_row<kWeight, kKind, DType::f16>(scratch, factor, task.weight, task.hidden, out);
    case DType::f32: return scale_row<kWeight, kKind, DType::f32>(scratch, factor, task.weight, task.hidden, out);
    default: return scale_row<kWeight, kKind, DType::f32>(scratch, factor, task.weight, task.hidden, scratch);
  }
}
template <DType kWeight> EITRI_INLINE void scale_row_by(const RmsNormTask& task, float* scratch, float factor, std::byte* out) {
  if (task.norm_weight == NormWeight::plus_one) scale_row_to<kWeight, NormWeight::plus_one>(task, scratch, factor, out);
  else scale_row_to<kWeight, NormWeight::plain>(task, scratch, factor, out);
}
static inline void finish_row(const RmsNormTask& task, float* scratch, float sum, int64_t row) {
  const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(task.hidden) + task.eps);
  std::byte* out = task.out + row * task.out_stride;
  switch (task.weight_dtype) {
    case DType::f32: scale_row_by<DType::f32>(task, scratch, factor, out); break;
    case DType::bf16: scale_row_by<DType::bf16>(task, scratch, factor, out); break;
    case DType::f16: scale_row_by<DType::f16>(task, scratch, factor, out); break;
    default: scale_row_to<DType::none, NormWeight::plain>(task, scratch, factor, out); break;
  }
  if (task.group > 0) quantize_row(task, scratch, out, task.scale + row * task.scale_row_stride);
}

template <DType kIn, DType kResidual> void rmsnorm_typed(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch) {
  for (int64_t r = begin; r < end; ++r) {
    const float sum = sum_of_squares<kIn, kResidual>(task.x + r * task.x_stride, task.residual + r * task.residual_stride,
                                                     task.residual_out + r * task.residual_out_stride, task.hidden, scratch);
    finish_row(task, scratch, sum, r);
  }
}
template <DType kIn> EITRI_INLINE void rmsnorm_from(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch) {
  if (task.residual_dtype == DType::none) return rmsnorm_typed<kIn, DType::none>(task, begin, end, scratch);
  if (task.residual_dtype == DType::f32) return rmsnorm_typed<kIn, DType::f32>(task, begin, end, scratch);
  return rmsnorm_typed<kIn, kIn>(task, begin, end, scratch);
}
EITRI_INLINE void rmsnorm_any(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch) {
  switch (task.x_dtype) {
    case DType::f32: return rmsnorm_from<DType::f32>(task, begin, end, scratch);
    case DType::bf16: return rmsnorm_from<DType::bf16>(task, begin, end, scratch);
    case DType::f16: return rmsnorm_from<DType::f16>(task, begin, end, scratch);
    default: return;  // refused by check
  }
}

}  // namespace eitri::EITRI_VEC
