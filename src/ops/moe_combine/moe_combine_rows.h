// Kernel template of moe_combine: a block of columns of a token stays in registers while the slots pass, in ascending order;
// each product and each sum is rounded on its own (no fused multiply-add), so every level gives the same bits. Bound by
// memory: top_k rows of y in, one row out. Offsets are 64 bits wide.
#pragma once

#include "device/x86/vec.h"
#include "ops/moe_combine/moe_combine_kernels.h"

namespace eitri::EITRI_VEC {

/// kVectors full vectors of columns from `column` on.
template <DType kIn, DType kOut, int kVectors> EITRI_INLINE void combine_block(const MoeCombineTask& task, int64_t token, int64_t column) {
  constexpr int64_t kLanes = F::kLanes;
  const auto* reverse = reinterpret_cast<const int32_t*>(task.reverse + token * task.reverse_stride);
  const auto* weights = reinterpret_cast<const float*>(task.weights + (task.weights == nullptr ? 0 : token * task.weights_stride));
  F sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = F::zero();
  for (int64_t s = 0; s < task.top_k; ++s) {
    const int64_t r = reverse[s];
    if (r < 0 || r >= task.y_rows) continue;
    const std::byte* y = task.y + r * task.y_stride;
    const F weight = F::set1(weights == nullptr ? 1.0f : weights[s]);
    for (int v = 0; v < kVectors; ++v) sum[v] = sum[v] + weight * load_as<kIn>(y, column + v * kLanes);
  }
  if (task.shared != nullptr) {
    const std::byte* shared = task.shared + token * task.shared_stride;
    for (int v = 0; v < kVectors; ++v) sum[v] = sum[v] + load_as<kIn>(shared, column + v * kLanes);
  }
  std::byte* out = task.out + token * task.out_stride;
  for (int v = 0; v < kVectors; ++v) store_as<kOut>(sum[v], out, column + v * kLanes);
}

/// The last n < kLanes columns.
template <DType kIn, DType kOut> EITRI_INLINE void combine_tail(const MoeCombineTask& task, int64_t token, int64_t column, int64_t n) {
  const auto* reverse = reinterpret_cast<const int32_t*>(task.reverse + token * task.reverse_stride);
  const auto* weights = reinterpret_cast<const float*>(task.weights + (task.weights == nullptr ? 0 : token * task.weights_stride));
  F sum = F::zero();
  for (int64_t s = 0; s < task.top_k; ++s) {
    const int64_t r = reverse[s];
    if (r < 0 || r >= task.y_rows) continue;
    const F weight = F::set1(weights == nullptr ? 1.0f : weights[s]);
    sum = sum + weight * load_as_partial<kIn>(task.y + r * task.y_stride, column, n);
  }
  if (task.shared != nullptr) sum = sum + load_as_partial<kIn>(task.shared + token * task.shared_stride, column, n);
  store_as_partial<kOut>(sum, task.out + token * task.out_stride, column, n);
}

template <DType kIn, DType kOut> void combine_typed(const MoeCombineTask& task, int64_t begin, int64_t end) {
  constexpr int64_t kLanes = F::kLanes, kVectors = 8;
  const int64_t pieces = (task.hidden + kCombineColumns - 1) / kCombineColumns;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t token = piece / pieces;
    int64_t column = piece % pieces * kCombineColumns;
    if (token >= task.local) {
      const int64_t n = task.hidden - column < kCombineColumns ? task.hidden - column : kCombineColumns;
      constexpr int64_t kBytes = kOut == DType::f32 ? 4 : 2;
      __builtin_memset(task.out + token * task.out_stride + column * kBytes, 0, static_cast<size_t>(n * kBytes));
      continue;
    }
    const int64_t stop = column + kCombineColumns < task.hidden ? column + kCombineColumns : task.hidden;
    for (; column + kVectors * kLanes <= stop; column += kVectors * kLanes) combine_block<kIn, kOut, kVectors>(task, token, column);
    for (; column + kLanes <= stop; column += kLanes) combine_block<kIn, kOut, 1>(task, token, column);
    if (column < stop) combine_tail<kIn, kOut>(task, token, column, stop - column);
  }
}

template <DType kIn> EITRI_INLINE void combine_from(const MoeCombineTask& task, int64_t begin, int64_t end) {
  switch (task.out_dtype) {
    case DType::f32: return combine_typed<kIn, DType::f32>(task, begin, end);
    case DType::bf16: return combine_typed<kIn, DType::bf16>(task, begin, end);
    case DType::f16: return combine_typed<kIn, DType::f16>(task, begin, end);
    default: return;  // refused by check
  }
}

EITRI_INLINE void combine_any(const MoeCombineTask& task, int64_t begin, int64_t end) {
  switch (task.y_dtype) {
    case DType::f32: return combine_from<DType::f32>(task, begin, end);
    case DType::bf16: return combine_from<DType::bf16>(task, begin, end);
    case DType::f16: return combine_from<DType::f16>(task, begin, end);
    default: return;
  }
}

}  // namespace eitri::EITRI_VEC
