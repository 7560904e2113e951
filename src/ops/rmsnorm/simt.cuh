// rmsnorm.simt.block_per_row: a block takes a row. Its threads keep the row's values in registers as they lie in memory (after
// the residual is added and rounded), sum the squares, and use the values again for the output: memory is read once and
// written once, and bounds it. Quantised rows take a second reduction (per token) or a maximum over 16 bytes' worth of lanes
// (groups of 128), and compute the normed values twice rather than keep them.
//
// With one chunk a thread, the form for few rows, weights are fetched together with the row; else they are read when they are needed,
// from a cache, for registers are worth more. With chunks == 0, rows of any length are read again in
// every pass (each thread reads what it wrote itself, so in-place calls are fine there too).
//
// Compiled with EITRI_THREADS the file has the entry rmsnorm_block_per_row for the form that the other macros say; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/row.h"
#include "ops/rmsnorm/simt_params.h"

namespace eitri::EITRI_SIMT {

/// The chunk of the row that is normed: x, or x + residual as stored in residual_out.
template <RmsNormForm kForm, Rows kRows, DType kSum, int kWide>
EITRI_INLINE Raw<kSum, kWide> summed_chunk(const RmsNormTask& t, int64_t row, Column<kRows> first, Column<kRows> hidden) {
  const auto x = load_raw<kForm.x, kWide, kRows>(byte_at(t.x, row * t.x_stride), first, hidden);
  if constexpr (kForm.residual == DType::none) {
    return x;
  } else {
    const auto residual = load_raw<kForm.residual, kWide, kRows>(byte_at(t.residual, row * t.residual_stride), first, hidden);
    float a[kWide], b[kWide];
    unpack(x, a);
    unpack(residual, b);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) a[e] += b[e];
    const auto sum = pack<kSum>(a);
    store_raw<kSum, kWide, kRows>(sum, byte_at(t.residual_out, row * t.residual_out_stride), first, hidden);
    return sum;
  }
}

/// values * factor * weight.
template <RmsNormForm kForm, DType kSum, int kWide, class Weights>
EITRI_INLINE void normed(const Raw<kSum, kWide>& sum, const Weights& weights, float factor, float (&out)[kWide]) {
  unpack(sum, out);
  EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] *= factor;
  if constexpr (kForm.weight != DType::none) {
    float w[kWide];
    unpack(weights, w);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] *= kForm.norm_weight == NormWeight::plus_one ? 1.0f + w[e] : w[e];
  }
}

template <RmsNormForm kForm, Rows kRows> EITRI_INLINE void rmsnorm_block_per_row(const RmsNormGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>, kThreads = kForm.threads;
  constexpr DType kSum = kForm.residual == DType::none ? kForm.x : kForm.residual;
  constexpr DType kWeight = kForm.weight == DType::none ? kForm.x : kForm.weight;
  constexpr bool kKeep = kForm.chunks > 0;
  constexpr int kKept = kKeep ? kForm.chunks : 1;
  constexpr bool kEarly = kForm.chunks == 1 && kForm.weight != DType::none;
  const RmsNormTask& t = grid.task;
  const auto hidden = static_cast<Column<kRows>>(t.hidden);
  const int64_t chunks = kKeep ? kKept : (t.hidden + kThreads * kWide - 1) / (kThreads * kWide);
  const auto first_of = [](int64_t c) { return static_cast<Column<kRows>>(static_cast<Column<kRows>>(c) * kThreads + thread()) * kWide; };

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);

  launch_dependents();
  if (is_early_block() && block() < grid.tokens) {
    prefetch_row<kThreads>(byte_at(static_cast<const void*>(t.x), block() * t.x_stride), t.hidden * kBytesOf<kForm.x>);
    if constexpr (kForm.residual != DType::none)
      prefetch_row<kThreads>(byte_at(static_cast<const void*>(t.residual), block() * t.residual_stride),
                             t.hidden * kBytesOf<kForm.residual>);
    if constexpr (kForm.weight != DType::none) prefetch_row<kThreads>(t.weight, t.hidden * kBytesOf<kWeight>);
  }
  wait_for_dependencies();
  Raw<kWeight, kWide> weights[1] = {};
  if constexpr (kEarly) weights[0] = load_raw<kWeight, kWide, kRows>(t.weight, first_of(0), hidden);

  for (int64_t row = block(); row < grid.tokens; row += grid.blocks) {
    Raw<kSum, kWide> kept[kKept];
    float squares = 0.0f, v[kWide];
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      const auto sum = summed_chunk<kForm, kRows, kSum, kWide>(t, row, first_of(c), hidden);
      if constexpr (kKeep) kept[c] = sum;
      unpack(sum, v);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) squares += v[e] * v[e];
    });
    const float factor = rsqrt(reduce.sum(squares) / static_cast<float>(t.hidden) + t.eps);
    // Chunk c of the normed row.
    const auto value = [&](int64_t c) {
      if constexpr (kForm.weight != DType::none && !kEarly) weights[0] = load_raw<kWeight, kWide, kRows>(t.weight, first_of(c), hidden);
      if constexpr (kKeep) {
        normed<kForm>(kept[c], weights[0], factor, v);
      } else {
        const void* source = kForm.residual == DType::none ? byte_at(t.x, row * t.x_stride)
                                                           : byte_at(static_cast<const void*>(t.residual_out), row * t.residual_out_stride);
        const auto sum = load_raw<kSum, kWide, kRows>(source, first_of(c), hidden);
        normed<kForm>(sum, weights[0], factor, v);
      }
    };
    void* const out = byte_at(t.out, row * t.out_stride);
    float* const scale = t.scale + row * t.scale_row_stride;
    if constexpr (kForm.quant == Quant::none) {
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        value(c);
        store_raw<kForm.out, kWide, kRows>(pack<kForm.out>(v), out, first_of(c), hidden);
      });
    } else if constexpr (kForm.quant == Quant::per_token) {
      float amax = 0.0f;
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        value(c);
        amax = largest_magnitude(v, amax);
      });
      const float s = scale_from_amax(reduce.max(amax), largest_of<kForm.out>()), inverse = inverse_scale(s);
      if (thread() == 0) *scale = s;
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        value(c);
        store_codes<kForm.out, kRows>(v, inverse, out, first_of(c), hidden);
      });
    } else {
      static_assert(kForm.quant == Quant::per_1x128);
      constexpr int kLanes = 128 / kWide;  // of a group: adjacent, in one warp
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        value(c);
        const float amax = group_reduce<kLanes>(largest_magnitude(v, 0.0f), Largest{});
        const float s = scale_from_amax(amax, largest_of<kForm.out>()), inverse = inverse_scale(s);
        const auto first = first_of(c);
        if (first < hidden && thread() % kLanes == 0) scale[first / 128 * t.scale_group_stride] = s;
        store_codes<kForm.out, kRows>(v, inverse, out, first, hidden);
      });
    }
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
EITRI_KERNEL_FOR(EITRI_THREADS, EITRI_REGISTERS) rmsnorm_block_per_row(const eitri::RmsNormGrid grid) {
  using namespace eitri;
  EITRI_SIMT::rmsnorm_block_per_row<RmsNormForm{.x = DType::EITRI_X,
                                                .weight = DType::EITRI_WEIGHT,
                                                .residual = DType::EITRI_RESIDUAL,
                                                .out = DType::EITRI_OUT,
                                                .quant = Quant::EITRI_QUANT,
                                                .norm_weight = NormWeight::EITRI_NORM_WEIGHT,
                                                .threads = EITRI_THREADS,
                                                .chunks = EITRI_CHUNKS},
                                    EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
