// quantize.simt.block_per_row: a block takes a row, keeps it in registers as it lies in memory, finds the largest finite
// magnitude, and writes the codes: memory is read once and written once, and bounds it. The magnitude of a row is one reduction over
// the block; that of a block of 32 or 128 columns, whose threads are neighbours, one within a warp. A scale for the tensor takes a
// pass before, in which every thread block leaves the largest magnitude of its rows, and reads the tensor twice. The same fp32
// operations as every other row of the table, and a maximum has no rounding: the bits agree. Rows of any length with
// chunks == 0, which reads them twice.
//
// Measured on an H200, 2026-11-30, bf16, `eitri bench quantize`, bench/results/gpu-h200.json, TB/s at 4096 and 16384 rows of 7168: i8 a
// row 4.21 and 4.36, f8e4m3 for 128 columns 4.12 and 4.30, mxfp8 4.13 and 4.29 (of 4.8 nominal). mxfp4 3.71 and 4.04 (2.27 and 2.40 before
// codes of bf16 were made in pairs): its codes and scales take more instructions than memory takes time. One scale for the tensor took 2.41
// and 2.58 by bytes read once; it reads them twice (quantize.simt.one_pass: 2.52 and 2.64).
//
// Compiled with EITRI_THREADS the file has the entry quantize_block_per_row for the form that the other macros say; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/row.h"  // first: it bounds thread()

#include "device/narrow_f4.h"
#include "ops/quantize/simt_params.h"

namespace eitri::EITRI_SIMT {

template <QuantizeForm kForm> inline constexpr bool kHasMxScales = kForm.quant == Quant::per_1x32&& kForm.q != DType::i8;
template <QuantizeForm kForm> EITRI_INLINE uint32_t carries_of(ScaleRounding rounding) {
  return kForm.q == DType::f4e2m1 ? scale_carries<F4e2m1>(rounding) : scale_carries<F8e4m3>(rounding);
}
/// Writes the scale of elements whose largest magnitude is `amax`, if `writes`, and returns its inverse.
template <QuantizeForm kForm> EITRI_INLINE float store_scale(float amax, uint32_t carries, unsigned char* scale, bool writes) {
  if constexpr (kHasMxScales<kForm>) {
    const uint32_t code = kForm.q == DType::f4e2m1 ? code_of_scale<F4e2m1>(amax, carries) : code_of_scale<F8e4m3>(amax, carries);
    if (writes) *scale = static_cast<unsigned char>(code);
    return bits_float((254 - code) << 23);  // codes end at 253
  } else {
    const Scale s = scale_of<kForm.q>(amax);
    if (writes) *reinterpret_cast<float*>(scale) = s.value;
    return s.inverse;
  }
}

/// Magnitudes from here on are rare: not finite, or (codes of bf16 numbers as f4e2m1) with scales whose inverse has no room for kF4InHalf.
template <QuantizeForm kForm>
inline constexpr uint32_t kRareFrom = kForm.x == DType::bf16&& kForm.q == DType::f4e2m1 ? 0x7200u : kInfinityOf<kForm.x>;

/// Codes of kWide elements; see store_codes in device/row.h. `is_rare`: one of the warp's elements may be.
template <QuantizeForm kForm, Rows kRows, int kWide>
EITRI_INLINE void store_quantized(const float (&x)[kWide], float inverse, bool all_finite, bool is_rare, void* row, Column<kRows> first,
                                  Column<kRows> n) {
  if constexpr (kForm.q == DType::f4e2m1) {
    static_assert(kWide == 8);
    float scaled[kWide];
    Raw<DType::i8, 4> raw;  // bytes hold two codes each, and rows an even number of them
    if (kForm.x == DType::bf16 && !is_rare) {
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) scaled[e] = x[e] * (inverse * kF4InHalf);
      raw.w[0] = pack8_f4_of_bf16(scaled);
    } else {
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) scaled[e] = x[e] * inverse;
      raw.w[0] = pack8_f4(scaled, all_finite);
    }
    store_raw<DType::i8, 4, kRows>(raw, row, first / 2, n / 2);
  } else {
    store_codes<kForm.q, kRows>(x, inverse, all_finite, row, first, n);
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
  // The pass that writes codes begins with the last rows, which the pass before left in the cache.
  constexpr bool kBackwards = kOfTensor && kForm.pass == QuantizePass::codes;
  const int64_t x_stride = kBackwards ? -t.x_stride : t.x_stride;
  ThreadChunks<kForm.x, kThreads, kWide> x(t.x + (kBackwards ? (grid.rows - 1) * t.x_stride : 0), x_stride, block(), thread());
  if (is_early_block(264) && block() < grid.rows) x.prefetch(kKeep ? kForm.chunks : 1, thread(), t.cols);
  wait_for_dependencies();

  const uint32_t carries = kHasMxScales<kForm> ? carries_of<kForm>(t.rounding) : 0;
  float inverse = 0.0f;
  if constexpr (kOfTensor && kForm.pass == QuantizePass::codes) {
    float largest = 0.0f;
    for (int64_t i = thread(); i < grid.parts; i += kThreads) largest = max_number(largest, grid.partials[i]);
    inverse = store_scale<kForm>(reduce.largest(largest), carries, byte_at(static_cast<void*>(t.scale), 0), thread() == 0 && block() == 0);
  }
  Magnitude seen;  // by the thread, of all its rows
  for (int64_t i = block(); i < grid.rows; i += grid.blocks, x.next(grid.blocks * x_stride)) {
    const int64_t row = kBackwards ? grid.rows - 1 - i : i;
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
      if constexpr (!kOfTensor) inverse = store_scale<kForm>(reduce.largest(magnitude.largest), carries, scale, thread() == 0);
    }
    constexpr int kLanes = kBlock / kWide;  // of a block of columns
    static_assert(kThreads % kLanes == 0);
    unsigned char* scale_at = scale + thread() / kLanes * t.scale_block_stride;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      const auto raw = raw_of(c);
      unpack(raw, v);
      const auto first = first_of(c);
      bool is_rare = true;
      if constexpr (kOfBlocks) {
        const bool leads = thread() % kLanes == 0 && first < cols;
        float amax = 0.0f;
        magnitude = {};
        if constexpr (kBytesOf<kForm.x> == 2 && kForm.quant == Quant::per_1x32) {
          const uint32_t code = larger_half(group_reduce<kLanes>(largest_halves(raw), LargestHalves{}));
          amax = value_of<kForm.x>(code);
          is_rare = any(code >= kRareFrom<kForm>);
        }
        if (is_rare) {
          magnitude.add(raw, v);
          amax = group_reduce<kLanes>(magnitude.largest, Largest{});
        }
        inverse = store_scale<kForm>(amax, carries, scale_at, leads);
        scale_at += kThreads / kLanes * t.scale_block_stride;
      }
      store_quantized<kForm, kRows>(v, inverse, magnitude.all_finite(), is_rare, q, first, cols);
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
