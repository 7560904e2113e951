// quantize.simt.block_per_row: a block takes a row, keeps it in registers as it lies in memory, finds the largest finite
// magnitude, and writes the codes: memory is read once and written once, and bounds it. The magnitude of a row is one reduction over
// the block; that of a block of 32 or 128 columns, whose threads are neighbours, one within a warp. A scale for the tensor takes a
// pass before, in which every thread block leaves the largest magnitude of its rows, and reads the tensor twice. The same fp32
// operations as every other row of the table, and a maximum has no rounding: the bits agree. Rows of any length with
// chunks == 0, which reads them twice.
//
// Measured on an H200, 2026-11-30, bf16, `eitri bench quantize`, bench/results/gpu-h200.json, TB/s at 4096 and 16384 rows of 7168: i8 a
// row 4.12 and 4.37, f8e4m3 for 128 columns 4.04 and 4.31, mxfp8 3.97 and 4.25 (of 4.8 nominal). mxfp4 2.27 and 2.40: its codes and
// scales take more instructions than memory takes time. One scale for the tensor 2.19 and 2.48 by bytes read once; it reads them twice.
//
// Compiled with EITRI_THREADS the file has the entry quantize_block_per_row for the form that the other macros say; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/narrow_f4.h"
#include "device/row.h"
#include "ops/quantize/simt_params.h"

namespace eitri::EITRI_SIMT {

/// Writes the scale of elements whose largest magnitude is `amax`, if `writes`, and returns its inverse.
template <QuantizeForm kForm> EITRI_INLINE float store_scale(float amax, ScaleRounding rounding, unsigned char* scale, bool writes) {
  if constexpr (kForm.quant == Quant::per_1x32 && kForm.q != DType::i8) {
    const uint8_t code = kForm.q == DType::f4e2m1 ? mx_scale_code<F4e2m1>(amax, rounding) : mx_scale_code<F8e4m3>(amax, rounding);
    if (writes) *scale = code;
    return inverse_e8m0(code);
  } else {
    const Scale s = scale_of<kForm.q>(amax);
    if (writes) *reinterpret_cast<float*>(scale) = s.value;
    return s.inverse;
  }
}

/// Codes of kWide elements; see store_codes in device/row.h.
template <DType kOut, Rows kRows, int kWide>
EITRI_INLINE void store_quantized(const float (&x)[kWide], float inverse, bool all_finite, void* row, Column<kRows> first,
                                  Column<kRows> n) {
  if constexpr (kOut == DType::f4e2m1) {
    static_assert(kWide == 8);
    float scaled[kWide];
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) scaled[e] = x[e] * inverse;
    // Bytes hold two codes each, and rows an even number of them.
    const Raw<DType::i8, 4> raw = {{pack8_f4(scaled, all_finite)}};
    store_raw<DType::i8, 4, kRows>(raw, row, first / 2, n / 2);
  } else {
    store_codes<kOut, kRows>(x, inverse, all_finite, row, first, n);
  }
}

template <QuantizeForm kForm, Rows kRows> EITRI_INLINE void quantize_block_per_row(const QuantizeGrid& grid) {
  constexpr int kWide = quantize_wide(kForm.x, kForm.q), kThreads = kForm.threads;
  constexpr bool kKeep = kForm.chunks > 0, kOfTensor = kForm.quant == Quant::per_tensor;
  constexpr int kBlock = kForm.quant == Quant::per_1x32 ? 32 : 128;
  constexpr bool kOfBlocks = kForm.quant == Quant::per_1x32 || kForm.quant == Quant::per_1x128;
  const QuantizeBlocksTask& t = grid.task;
  const auto cols = static_cast<Column<kRows>>(t.cols);
  const int64_t chunks = (t.cols + kThreads * kWide - 1) / (kThreads * kWide);
  const auto first_of = [](int64_t c) { return static_cast<Column<kRows>>(static_cast<Column<kRows>>(c) * kThreads + thread()) * kWide; };

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);
  launch_dependents();
  ThreadChunks<kForm.x, kThreads, kWide> x(t.x, t.x_stride);
  if (is_early_block() && block() < grid.rows) x.prefetch(kKeep ? kForm.chunks : 1, t.cols);
  wait_for_dependencies();

  float inverse = 0.0f;
  if constexpr (kOfTensor && kForm.pass == QuantizePass::codes) {
    float largest = 0.0f;
    for (int64_t i = thread(); i < grid.parts; i += kThreads) largest = max_number(largest, grid.partials[i]);
    inverse =
        store_scale<kForm>(reduce.largest(largest), t.rounding, byte_at(static_cast<void*>(t.scale), 0), thread() == 0 && block() == 0);
  }
  Magnitude seen;  // by the thread, of all its rows
  for (int64_t row = block(); row < grid.rows; row += grid.blocks, x.next(grid.blocks * t.x_stride)) {
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    Raw<kForm.x, kWide> kept[kKeep ? kForm.chunks : 1] = {};
    float v[kWide];
    const auto load = [&](int64_t c) { return load_raw_at<kForm.x, kWide, kRows>(x[c], first_of(c), cols); };
    const auto raw_of = [&](int64_t c) {
      if constexpr (kKeep) return kept[c];
      else return load(c);
    };
    unsigned char* const q = byte_at(static_cast<void*>(t.q), row * t.q_stride);
    unsigned char* const scale = byte_at(static_cast<void*>(t.scale), row * t.scale_row_stride);
    Magnitude magnitude;
    // All loads before the first use, behind which branches keep them.
    if constexpr (kKeep) for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) { kept[c] = load(c); });
    if constexpr (!kOfBlocks) {
      for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
        const auto raw = raw_of(c);
        unpack(raw, v);
        magnitude.add(raw, v);
      });
      seen.largest = max_number(seen.largest, magnitude.largest);
      if constexpr (kForm.pass == QuantizePass::amax) continue;
      if constexpr (!kOfTensor) inverse = store_scale<kForm>(reduce.largest(magnitude.largest), t.rounding, scale, thread() == 0);
    }
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      const auto raw = raw_of(c);
      unpack(raw, v);
      const auto first = first_of(c);
      if constexpr (kOfBlocks) {
        constexpr int kLanes = kBlock / kWide;
        magnitude = {};
        magnitude.add(raw, v);
        const float amax = group_reduce<kLanes>(magnitude.largest, Largest{});
        const bool leads = thread() % kLanes == 0 && first < cols;
        inverse = store_scale<kForm>(amax, t.rounding, scale + first / kBlock * t.scale_block_stride, leads);
      }
      store_quantized<kForm.q, kRows>(v, inverse, magnitude.all_finite(), q, first, cols);
    });
  }
  if constexpr (kForm.pass == QuantizePass::amax) {
    const float largest = reduce.largest(seen.largest);
    if (thread() == 0) grid.partials[block()] = largest;
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
EITRI_KERNEL_FOR(EITRI_THREADS, EITRI_REGISTERS) quantize_block_per_row(const eitri::QuantizeGrid grid) {
  using namespace eitri;
  EITRI_SIMT::quantize_block_per_row<QuantizeForm{.x = DType::EITRI_X,
                                                  .q = DType::EITRI_Q,
                                                  .quant = Quant::EITRI_QUANT,
                                                  .pass = QuantizePass::EITRI_PASS,
                                                  .threads = EITRI_THREADS,
                                                  .chunks = EITRI_CHUNKS},
                                     EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
