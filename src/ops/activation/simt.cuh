// The SIMT kernels of activation; the functions are those of device/activation.h, so every machine computes the same.
//
//   activation.simt.tiles          out f32, bf16 or f16: a block takes a piece of a row, each thread 16 bytes of gate and of up
//   activation.simt.block_per_row  out i8: a block takes a row and keeps the fp32 values (or, with chunks == 0, computes them
//                                  twice), finds the largest magnitude, and writes the codes
//
// Bound by memory, each element being read and written once; gelu and situv2 come near the limit of the arithmetic.
//
// Compiled with EITRI_THREADS the file has the entry activation_tiles or activation_block_per_row, by the form's out.
#pragma once

#include "device/row.h"  // first: it decides what F is

#include "device/activation.h"
#include "ops/activation/simt_params.h"

namespace eitri::EITRI_SIMT {

/// act of columns [first, first + kWide) of a row.
template <ActivationForm kForm, int kWide>
EITRI_INLINE void activated(const ActivationTask& t, const void* x, int64_t first, bool vectors, float (&out)[kWide]) {
  float a[kWide];
  if constexpr (kForm.gate == GateLayout::none) {
    unpack(load_raw<kForm.x, kWide>(x, first, t.inter, vectors), a);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] = activate<kForm.kind>(t.params, F{a[e]}).v;
  } else {
    float b[kWide];
    if constexpr (kForm.gate == GateLayout::separated) {
      const void* up = byte_at(x, t.inter * kBytesOf<kForm.x>);
      unpack(load_raw<kForm.x, kWide>(x, first, t.inter, vectors), a);
      unpack(load_raw<kForm.x, kWide>(up, first, t.inter, vectors), b);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] = activate<kForm.kind>(t.params, F{a[e]}, F{b[e]}).v;
    } else {
      // Pairs: the first half of ours is in a, the second in b.
      unpack(load_raw<kForm.x, kWide>(x, 2 * first, 2 * t.inter, vectors), a);
      unpack(load_raw<kForm.x, kWide>(x, 2 * first + kWide, 2 * t.inter, vectors), b);
      EITRI_UNROLL for (int e = 0; e < kWide / 2; ++e) {
        out[e] = activate<kForm.kind>(t.params, F{a[2 * e]}, F{a[2 * e + 1]}).v;
        out[e + kWide / 2] = activate<kForm.kind>(t.params, F{b[2 * e]}, F{b[2 * e + 1]}).v;
      }
    }
  }
}

template <ActivationForm kForm> EITRI_INLINE void activation_tiles(const ActivationGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>;
  const ActivationTask& t = grid.task;
  const bool vectors = grid.vectors != 0;
  launch_dependents();
  wait_for_dependencies();
  for (int64_t tile = block(); tile < grid.rows * grid.tiles_per_row; tile += grid.blocks) {
    const int64_t row = tile / grid.tiles_per_row, part = tile % grid.tiles_per_row;
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    const int64_t first = (part * kForm.threads + thread()) * kWide;
    if (first >= t.inter) continue;
    float v[kWide];
    activated<kForm>(t, byte_at(static_cast<const void*>(t.x), row * t.x_stride), first, vectors, v);
    store_raw(pack<kForm.out>(v), byte_at(static_cast<void*>(t.out), row * t.out_stride), first, t.inter, vectors);
  }
}

template <ActivationForm kForm> EITRI_INLINE void activation_block_per_row(const ActivationGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>, kThreads = kForm.threads;
  constexpr bool kKeep = kForm.chunks > 0;
  const ActivationTask& t = grid.task;
  const bool vectors = grid.vectors != 0;
  const int64_t chunks = (t.inter + kThreads * kWide - 1) / (kThreads * kWide);
  const auto first_of = [](int64_t c) { return (c * kThreads + thread()) * kWide; };

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);
  launch_dependents();
  wait_for_dependencies();

  for (int64_t row = block(); row < grid.rows; row += grid.blocks) {
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    const void* const x = byte_at(static_cast<const void*>(t.x), row * t.x_stride);
    float kept[kKeep ? kForm.chunks : 1][kWide], amax = 0.0f;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      float(&v)[kWide] = kept[kKeep ? c : 0];
      activated<kForm>(t, x, first_of(c), vectors, v);
      amax = largest_magnitude(v, amax);  // beyond the row lie zeros, of which every function makes 0
    });
    const float scale = scale_from_amax(reduce.max(amax), largest_of<kForm.out>()), inverse = inverse_scale(scale);
    if (thread() == 0) t.scale[row] = scale;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      float(&v)[kWide] = kept[kKeep ? c : 0];
      if constexpr (!kKeep) activated<kForm>(t, x, first_of(c), vectors, v);
      store_codes<kForm.out>(v, inverse, byte_at(static_cast<void*>(t.out), row * t.out_stride), first_of(c), t.inter, vectors);
    });
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
#if !defined(EITRI_ENTRY)
#error "EITRI_ENTRY is activation_tiles or activation_block_per_row"
#endif
EITRI_KERNEL(EITRI_THREADS) EITRI_ENTRY(const eitri::ActivationGrid grid) {
  using namespace eitri;
  EITRI_SIMT::EITRI_ENTRY<ActivationForm{.x = DType::EITRI_X,
                                         .out = DType::EITRI_OUT,
                                         .kind = ActivationKind::EITRI_KIND,
                                         .gate = GateLayout::EITRI_GATE,
                                         .threads = EITRI_THREADS,
                                         .chunks = EITRI_CHUNKS}>(grid);
}
#endif
