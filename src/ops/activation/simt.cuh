// The SIMT kernels of activation; the functions are those of device/activation.h, so every machine computes the same.
//
//   activation.simt.tiles          out f32, bf16 or f16: a block takes a piece of a row, each thread 16 bytes of gate and of up
//   activation.simt.block_per_row  out i8: a block takes a row and keeps the fp32 values (or, with chunks == 0, computes them
//                                  twice), finds the largest magnitude, and writes the codes
//
// Bound by memory, each element being read and written once; gelu and situv2 come near the limit of the arithmetic.
//
// Compiled with EITRI_THREADS the file has the entry activation_tiles or activation_block_per_row, by the form's out; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/row.h"  // first: it bounds thread() and decides what F is

#include "device/activation.h"
#include "ops/activation/simt_params.h"

namespace eitri::EITRI_SIMT {

/// act of columns [first, first + kWide) of a row.
template <ActivationForm kForm, Rows kRows, int kWide>
EITRI_INLINE void activated(const ActivationTask& t, const void* x, Column<kRows> first, float (&out)[kWide]) {
  const auto inter = static_cast<Column<kRows>>(t.inter);
  constexpr Precision kPrecision = kForm.out == DType::f32 ? Precision::full : Precision::narrow;
  ActivationParams params = t.params;
  if constexpr (!kForm.limited) params.limit = 0;  // known to the compiler
  float a[kWide];
  if constexpr (kForm.gate == GateLayout::none) {
    unpack(load_raw<kForm.x, kWide, kRows>(x, first, inter), a);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] = activate<kForm.kind, kPrecision>(params, F{a[e]}).v;
  } else {
    float b[kWide];
    if constexpr (kForm.gate == GateLayout::separated) {
      const void* up = byte_at(x, t.inter * kBytesOf<kForm.x>);
      unpack(load_raw<kForm.x, kWide, kRows>(x, first, inter), a);
      unpack(load_raw<kForm.x, kWide, kRows>(up, first, inter), b);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) out[e] = activate<kForm.kind, kPrecision>(params, F{a[e]}, F{b[e]}).v;
    } else {
      // Pairs: the first half of ours is in a, the second in b.
      unpack(load_raw<kForm.x, kWide, kRows>(x, 2 * first, 2 * inter), a);
      unpack(load_raw<kForm.x, kWide, kRows>(x, 2 * first + kWide, 2 * inter), b);
      EITRI_UNROLL for (int e = 0; e < kWide / 2; ++e) {
        out[e] = activate<kForm.kind, kPrecision>(params, F{a[2 * e]}, F{a[2 * e + 1]}).v;
        out[e + kWide / 2] = activate<kForm.kind, kPrecision>(params, F{b[2 * e]}, F{b[2 * e + 1]}).v;
      }
    }
  }
}

template <ActivationForm kForm, Rows kRows> EITRI_INLINE void activation_tiles(const ActivationGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>;
  const ActivationTask& t = grid.task;
  const auto inter = static_cast<Column<kRows>>(t.inter);
  // Fewer than 2^31 tiles in rows of vectors: 32-bit division is much cheaper.
  const auto place_of = [&](int64_t tile, int64_t& row, Column<kRows>& first) {
    int64_t part;
    if constexpr (kRows == Rows::vectors) {
      const auto tiles = static_cast<uint32_t>(grid.tiles_per_row), index = static_cast<uint32_t>(tile);
      row = index / tiles;
      part = index % tiles;
    } else {
      row = tile / grid.tiles_per_row;
      part = tile % grid.tiles_per_row;
    }
    first = static_cast<Column<kRows>>((part * kForm.threads + thread()) * kWide);
  };
  launch_dependents();
  if (is_early_block() && block() < grid.rows * grid.tiles_per_row && thread() % 8 == 0) {  // 8 threads share a line
    int64_t row;
    Column<kRows> first;
    place_of(block(), row, first);
    const auto* const x = byte_at(static_cast<const void*>(t.x), row * t.x_stride);
    constexpr int64_t kBytes = kBytesOf<kForm.x>, kStep = kForm.gate == GateLayout::interleaved ? 2 : 1;
    const int64_t gate = first * kStep * kBytes;
    const int64_t up = kForm.gate == GateLayout::separated ? (t.inter + first) * kBytes : gate + 128;
    if (first < inter) prefetch(byte_at(x, gate));
    if (kForm.gate != GateLayout::none && first < inter && up < 2 * t.inter * kBytes) prefetch(byte_at(x, up));
  }
  wait_for_dependencies();
  for (int64_t tile = block(); tile < grid.rows * grid.tiles_per_row; tile += grid.blocks) {
    int64_t row;
    Column<kRows> first;
    place_of(tile, row, first);
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    if (first >= inter) continue;
    float v[kWide];
    activated<kForm, kRows>(t, byte_at(static_cast<const void*>(t.x), row * t.x_stride), first, v);
    store_raw<kForm.out, kWide, kRows>(pack<kForm.out>(v), byte_at(static_cast<void*>(t.out), row * t.out_stride), first, inter);
  }
}

template <ActivationForm kForm, Rows kRows> EITRI_INLINE void activation_block_per_row(const ActivationGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>, kThreads = kForm.threads;
  constexpr bool kKeep = kForm.chunks > 0;
  const ActivationTask& t = grid.task;
  const auto inter = static_cast<Column<kRows>>(t.inter);
  const int64_t chunks = (t.inter + kThreads * kWide - 1) / (kThreads * kWide);
  const auto first_of = [](int64_t c) { return static_cast<Column<kRows>>(static_cast<Column<kRows>>(c) * kThreads + thread()) * kWide; };

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);
  launch_dependents();
  if (is_early_block() && block() < grid.rows)
    prefetch_row<kThreads>(byte_at(static_cast<const void*>(t.x), block() * t.x_stride),
                           t.inter * kBytesOf<kForm.x> * (kForm.gate == GateLayout::none ? 1 : 2));
  const unsigned char* x = byte_at(static_cast<const void*>(t.x), block() * t.x_stride);
  settle(x);
  for (int64_t row = block(); row < grid.rows; row += grid.blocks, x += grid.blocks * t.x_stride) {
    wait_for_dependencies();
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    float kept[kKeep ? kForm.chunks : 1][kWide];
    float largest = 0.0f;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      float(&v)[kWide] = kept[kKeep ? c : 0];
      activated<kForm, kRows>(t, x, first_of(c), v);
      // Beyond the row lie zeros, of which every function makes 0.
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) largest = max_or_nan(largest, magnitude(v[e]));
    });
    largest = reduce.largest(largest);
    const bool all_finite = float_bits(largest) < 0x7f800000u;
    if (!all_finite) {  // what counts is the largest finite one
      Magnitude magnitude;
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        float(&v)[kWide] = kept[kKeep ? c : 0];
        if constexpr (!kKeep) activated<kForm, kRows>(t, x, first_of(c), v);
        magnitude.add(v);
      });
      largest = reduce.largest(magnitude.largest);
    }
    const Scale scale = scale_of<kForm.out>(largest);
    if (thread() == 0) t.scale[row] = scale.value;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      float(&v)[kWide] = kept[kKeep ? c : 0];
      if constexpr (!kKeep) activated<kForm, kRows>(t, x, first_of(c), v);
      store_codes<kForm.out, kRows>(v, scale.inverse, all_finite, byte_at(static_cast<void*>(t.out), row * t.out_stride), first_of(c),
                                    inter);
    });
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
#if !defined(EITRI_ENTRY)
#error "EITRI_ENTRY is activation_tiles or activation_block_per_row"
#endif
EITRI_KERNEL_FOR(EITRI_THREADS, EITRI_REGISTERS) EITRI_ENTRY(const eitri::ActivationGrid grid) {
  using namespace eitri;
  EITRI_SIMT::EITRI_ENTRY<ActivationForm{.x = DType::EITRI_X,
                                         .out = DType::EITRI_OUT,
                                         .kind = ActivationKind::EITRI_KIND,
                                         .gate = GateLayout::EITRI_GATE,
                                         .limited = EITRI_LIMITED,
                                         .threads = EITRI_THREADS,
                                         .chunks = EITRI_CHUNKS},
                          EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
