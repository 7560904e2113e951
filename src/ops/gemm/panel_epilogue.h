// The end of every panel kernel: finished sums of a panel become rows of c. One template for all instruction levels; the
// file that includes it picks the level by its flags (device/x86/vec.h).
//
//   x = sum * (sum_scale * a_scale[source] * row_weight[i]) * b_scale[column] + bias[column];  y = act(x) or act(gate, up)
//   c = y, or c += c_weight[i] * y
#pragma once

#include "device/activation.h"
#include "device/x86/vec.h"
#include "ops/gemm/panel_kernels.h"

namespace eitri::EITRI_VEC {

enum class Sums : uint8_t { f32, i32 };

/// Scales and biases of the columns of one panel, in panel order, padding 0. Made once per panel and row block.
struct PanelVectors {
  alignas(64) float scale[kPanelColumns];
  alignas(64) float bias[kPanelColumns];
};
/// The first `count` (at most 16) of 16 values, zeros behind them.
static inline void copy_run(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < 16; i += F::kLanes) {
    const int64_t left = count - i;
    F::load_partial(from + i, left < 0 ? 0 : left < F::kLanes ? left : F::kLanes).store(to + i);
  }
}
static inline void gather_vector(const PanelTask& task, int64_t panel, const float* from, float* to) {
  if (task.gate == GateLayout::interleaved) {
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      const int64_t row = weight_row(task.n, task.gate, panel, column);
      to[column] = row < 0 ? 0.0f : from[row];
    }
    return;
  }
  for (int64_t half = 0; half < kPanelColumns; half += 16) {
    const int64_t row = weight_row(task.n, task.gate, panel, half);  // of a run of consecutive rows
    const int64_t output = task.gate == GateLayout::none ? panel * kPanelColumns + half : panel * 16;
    copy_run(from + (row < 0 ? 0 : row), row < 0 ? 0 : task.n - output, to + half);
  }
}
static inline void gather_vectors(const PanelTask& task, int64_t panel, PanelVectors& out) {
  if (task.b_scale != nullptr) gather_vector(task, panel, task.b_scale, out.scale);
  if (task.bias != nullptr) gather_vector(task, panel, task.bias, out.bias);
}

namespace detail {

template <Sums kSums> EITRI_INLINE F load_sums(const void* p) {
  if constexpr (kSums == Sums::i32) return F::load_i32(p);
  else return F::load(p);
}

/// `count` lanes of y to column `column` of the row at `c`.
EITRI_INLINE void put(const PanelTask& task, F y, std::byte* c, int64_t column, int64_t count, F c_weight) {
  if (task.accumulate) {
    std::byte* at = c + column * 4;
    if (count == F::kLanes) fma(c_weight, y, F::load(at)).store(at);
    else fma(c_weight, y, F::load_partial(at, count)).store_partial(at, count);
  } else if (task.c_dtype == DType::bf16) {
    if (count == F::kLanes) y.store_bf16(c + column * 2);
    else y.store_bf16_partial(c + column * 2, count);
  } else if (task.c_dtype == DType::f16) {
    if (count == F::kLanes) y.store_f16(c + column * 2);
    else y.store_f16_partial(c + column * 2, count);
  } else {
    if (count == F::kLanes) y.store(c + column * 4);
    else y.store_partial(c + column * 4, count);
  }
}

template <ActivationKind kKind, bool kGated, Sums kSums>
EITRI_INLINE void finish(const PanelTask& task, const PanelVectors& vectors, int64_t panel, const std::byte* sums, int64_t sums_stride,
                         int64_t row_begin, int64_t rows, int64_t sums_half) {
  constexpr int64_t kOutputs = kGated ? kPanelColumns / 2 : kPanelColumns;
  const int64_t first = panel * kOutputs;
  const int64_t valid = task.n - first < kOutputs ? task.n - first : kOutputs;
  for (int64_t r = 0; r < rows; ++r, sums += sums_stride) {
    const int64_t i = row_begin + r;
    const int64_t source = task.row_index != nullptr ? task.row_index[i] & task.row_mask : i;
    float row_factor = task.a_scale != nullptr ? task.sum_scale * task.a_scale[source] : task.sum_scale;
    if (task.row_weight != nullptr) row_factor *= task.row_weight[i];
    const F factor = F::set1(row_factor);
    const F c_weight = F::set1(task.accumulate && task.c_weight != nullptr ? task.c_weight[i] : 1.0f);
    std::byte* c = task.c + (task.c_row_index != nullptr ? task.c_row_index[i] : i) * task.c_stride;
    const auto value = [&](int64_t column) {
      F x = load_sums<kSums>(sums + column / 16 * sums_half + column % 16 * 4) * factor;
      if (task.b_scale != nullptr) x = x * F::load(vectors.scale + column);
      if (task.bias != nullptr) x = x + F::load(vectors.bias + column);
      return x;
    };
    for (int64_t column = 0; column < valid; column += F::kLanes) {
      F y;
      if constexpr (kGated) y = activate<kKind>(task.activation, value(column), value(column + 16));
      else y = activate<kKind>(task.activation, value(column));
      const int64_t left = valid - column;
      put(task, y, c, first + column, left < F::kLanes ? left : F::kLanes, c_weight);
    }
  }
}

}  // namespace detail

/// Rows [row_begin, row_begin + rows) of the task: row r of the panel's 32 sums (f32 or i32) starts at
/// sums + r * sums_stride bytes; a gated panel has 16 gate sums, then the matching 16 up sums. Only columns that exist
/// are written. `vectors` are those of the panel. The right 16 columns are `sums_half` bytes behind the left ones.
template <Sums kSums>
static void finish_rows(const PanelTask& task, const PanelVectors& vectors, int64_t panel, const void* sums, int64_t sums_stride,
                        int64_t row_begin, int64_t rows, int64_t sums_half = 64) {
  const auto* bytes = static_cast<const std::byte*>(sums);
  with_activation(task.activation.kind, [&](auto kind) {
    constexpr ActivationKind kKind = decltype(kind)::value;
    // swiglu and situv2 have no form without a gate (the operators' checks refuse them).
    constexpr bool kNeedsGate = kKind == ActivationKind::swiglu || kKind == ActivationKind::situv2;
    if (kNeedsGate || task.gate != GateLayout::none)
      detail::finish<kKind, true, kSums>(task, vectors, panel, bytes, sums_stride, row_begin, rows, sums_half);
    else if constexpr (!kNeedsGate)
      detail::finish<kKind, false, kSums>(task, vectors, panel, bytes, sums_stride, row_begin, rows, sums_half);
  });
}
/// The same, when all rows of a panel are finished at once.
template <Sums kSums>
static void finish_rows(const PanelTask& task, int64_t panel, const void* sums, int64_t sums_stride, int64_t row_begin, int64_t rows) {
  PanelVectors vectors;
  gather_vectors(task, panel, vectors);
  finish_rows<kSums>(task, vectors, panel, sums, sums_stride, row_begin, rows);
}

/// Rows [0, task.m) and panels [panel_begin, panel_end) of sums that lie side by side: 32 a panel.
static inline void finish_side_by_side(const PanelTask& task, const void* sums, int64_t stride, bool i32) {
  const auto* bytes = static_cast<const std::byte*>(sums);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel, bytes += kPanelColumns * 4) {
    if (i32) finish_rows<Sums::i32>(task, panel, bytes, stride, 0, task.m);
    else finish_rows<Sums::f32>(task, panel, bytes, stride, 0, task.m);
  }
}

}  // namespace eitri::EITRI_VEC
