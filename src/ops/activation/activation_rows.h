// Kernel template of activation: kinds, layouts and dtypes are template arguments, so that the loop over a row has no
// branch. An i8 out takes two steps: the fp32 values of the row to scratch (L1 or L2) and their largest magnitude, then the
// codes. Bound by memory for none, relu and silu; by the divisions and polynomials of the function for the others.
#pragma once

#include "base/numeric.h"
#include "device/activation.h"
#include "ops/activation/activation_kernels.h"
#include "ops/quantize/quantize_rows.h"

namespace eitri::EITRI_VEC {

struct Pair {
  F gate, up;
};
/// The even and the odd ones of 2 * kLanes floats.
EITRI_INLINE Pair deinterleave(F a, F b) {
#if defined(__AVX512F__)
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {{_mm512_permutex2var_ps(a.v, even, b.v)}, {_mm512_permutex2var_ps(a.v, odd, b.v)}};
#elif defined(__AVX2__)
  // Shuffles work within 128 bits: the halves come out as a0 b0 a1 b1 and are put in order as 64-bit pieces.
  const __m256 even = _mm256_shuffle_ps(a.v, b.v, 0x88), odd = _mm256_shuffle_ps(a.v, b.v, 0xdd);
  return {{_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8))},
          {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8))}};
#else
  return {a, b};
#endif
}

/// f(x) of columns j .. j + kLanes - 1.
template <ActivationKind kKind, GateLayout kGate, DType kIn>
EITRI_INLINE F activated(const ActivationTask& task, const std::byte* x, int64_t j) {
  if constexpr (kGate == GateLayout::none) return activate<kKind>(task.params, load_as<kIn>(x, j));
  else if constexpr (kGate == GateLayout::separated)
    return activate<kKind>(task.params, load_as<kIn>(x, j), load_as<kIn>(x, task.inter + j));
  else {
    const Pair pair = deinterleave(load_as<kIn>(x, 2 * j), load_as<kIn>(x, 2 * j + F::kLanes));
    return activate<kKind>(task.params, pair.gate, pair.up);
  }
}
/// The last n < kLanes columns; lanes beyond n are f(0) or f(0, 0).
template <ActivationKind kKind, GateLayout kGate, DType kIn>
EITRI_INLINE F activated_partial(const ActivationTask& task, const std::byte* x, int64_t j, int64_t n) {
  if constexpr (kGate == GateLayout::none) return activate<kKind>(task.params, load_as_partial<kIn>(x, j, n));
  else if constexpr (kGate == GateLayout::separated)
    return activate<kKind>(task.params, load_as_partial<kIn>(x, j, n), load_as_partial<kIn>(x, task.inter + j, n));
  else {
    constexpr int64_t kLanes = F::kLanes;
    const int64_t first = 2 * n < kLanes ? 2 * n : kLanes;
    const F a = load_as_partial<kIn>(x, 2 * j, first);
    const F b = 2 * n > first ? load_as_partial<kIn>(x, 2 * j + kLanes, 2 * n - first) : F::zero();
    const Pair pair = deinterleave(a, b);
    return activate<kKind>(task.params, pair.gate, pair.up);
  }
}

/// A function of its own: rows of f32 and rows to be quantised share it.
template <ActivationKind kKind, GateLayout kGate, DType kIn, DType kOut>
__attribute__((noinline)) void activate_row(const ActivationTask& task, const std::byte* x, void* out) {
  int64_t j = 0;
  for (; j + F::kLanes <= task.inter; j += F::kLanes) store_as<kOut>(activated<kKind, kGate, kIn>(task, x, j), out, j);
  if (j < task.inter) store_as_partial<kOut>(activated_partial<kKind, kGate, kIn>(task, x, j, task.inter - j), out, j, task.inter - j);
}

template <ActivationKind kKind, GateLayout kGate, DType kIn, DType kOut>
void activate_typed(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  for (int64_t r = begin; r < end; ++r) {
    if (task.sorted_ids != nullptr && (task.sorted_ids[r] & 0xffffff) >= task.tokens) continue;
    const std::byte* x = task.x + r * task.x_stride;
    std::byte* out = task.out + r * task.out_stride;
    if constexpr (kOut != DType::i8) {
      activate_row<kKind, kGate, kIn, kOut>(task, x, out);
    } else {
      activate_row<kKind, kGate, kIn, DType::f32>(task, x, scratch);
      const auto* values = reinterpret_cast<const std::byte*>(scratch);
      const RowAmax seen = row_amax<DType::f32>(values, task.inter);
      const float scale = scale_from_amax(seen.amax, kI8Max);
      task.scale[r] = scale;
      row_codes<DType::f32>(values, task.inter, inverse_scale(scale), seen.finite, reinterpret_cast<int8_t*>(out));
    }
  }
}

template <ActivationKind kKind, GateLayout kGate, DType kIn>
EITRI_INLINE void activate_to(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  switch (task.out_dtype) {
    case DType::f32: return activate_typed<kKind, kGate, kIn, DType::f32>(task, begin, end, scratch);
    case DType::bf16: return activate_typed<kKind, kGate, kIn, DType::bf16>(task, begin, end, scratch);
    case DType::f16: return activate_typed<kKind, kGate, kIn, DType::f16>(task, begin, end, scratch);
    case DType::i8: return activate_typed<kKind, kGate, kIn, DType::i8>(task, begin, end, scratch);
    default: return;  // refused by check
  }
}
template <ActivationKind kKind, GateLayout kGate>
void activate_from(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  switch (task.x_dtype) {
    case DType::f32: return activate_to<kKind, kGate, DType::f32>(task, begin, end, scratch);
    case DType::bf16: return activate_to<kKind, kGate, DType::bf16>(task, begin, end, scratch);
    case DType::f16: return activate_to<kKind, kGate, DType::f16>(task, begin, end, scratch);
    default: return;
  }
}
template <ActivationKind kKind> EITRI_INLINE void activate_gated(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  if (task.gate == GateLayout::separated) activate_from<kKind, GateLayout::separated>(task, begin, end, scratch);
  else activate_from<kKind, GateLayout::interleaved>(task, begin, end, scratch);
}

/// Only the pairs of kind and gate that check lets through are compiled.
EITRI_INLINE void activate_any(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  const bool gated = task.gate != GateLayout::none;
  switch (task.params.kind) {
    case ActivationKind::none: return activate_from<ActivationKind::none, GateLayout::none>(task, begin, end, scratch);
    case ActivationKind::relu: return activate_from<ActivationKind::relu, GateLayout::none>(task, begin, end, scratch);
    case ActivationKind::silu:
      if (gated) return activate_gated<ActivationKind::silu>(task, begin, end, scratch);
      return activate_from<ActivationKind::silu, GateLayout::none>(task, begin, end, scratch);
    case ActivationKind::gelu:
      if (gated) return activate_gated<ActivationKind::gelu>(task, begin, end, scratch);
      return activate_from<ActivationKind::gelu, GateLayout::none>(task, begin, end, scratch);
    case ActivationKind::gelu_tanh:
      if (gated) return activate_gated<ActivationKind::gelu_tanh>(task, begin, end, scratch);
      return activate_from<ActivationKind::gelu_tanh, GateLayout::none>(task, begin, end, scratch);
    case ActivationKind::swiglu: return activate_gated<ActivationKind::swiglu>(task, begin, end, scratch);
    case ActivationKind::situv2: return activate_gated<ActivationKind::situv2>(task, begin, end, scratch);
  }
}

}  // namespace eitri::EITRI_VEC
