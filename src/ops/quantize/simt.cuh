// quantize.simt.block_per_row: a block takes a row, keeps it in registers as it lies in memory, finds the largest finite
// magnitude (one reduction), and writes the codes: memory is read once and written once, and bounds it. The same fp32
// operations as every other row of the table, and a maximum has no rounding: the bits agree. Rows of any length with
// chunks == 0, which reads them twice.
//
// Compiled with EITRI_THREADS the file has the entry quantize_block_per_row for the form that the other macros say; EITRI_ROWS is
// the kind of access (device/row.h).
#pragma once

#include "device/row.h"
#include "ops/quantize/simt_params.h"

namespace eitri::EITRI_SIMT {

template <QuantizeForm kForm, Rows kRows> EITRI_INLINE void quantize_block_per_row(const QuantizeGrid& grid) {
  constexpr int kWide = kWideOf<kForm.x>, kThreads = kForm.threads;
  constexpr bool kKeep = kForm.chunks > 0;
  const QuantizeTask& t = grid.task;
  const auto cols = static_cast<Column<kRows>>(t.cols);
  const int64_t chunks = (t.cols + kThreads * kWide - 1) / (kThreads * kWide);
  const auto first_of = [](int64_t c) { return static_cast<Column<kRows>>(static_cast<Column<kRows>>(c) * kThreads + thread()) * kWide; };

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);
  launch_dependents();
  ThreadChunks<kForm.x, kThreads> x(t.x, t.x_stride);
  if (is_early_block() && block() < grid.rows) x.prefetch(kKeep ? kForm.chunks : 1, t.cols);
  wait_for_dependencies();

  for (int64_t row = block(); row < grid.rows; row += grid.blocks, x.next(grid.blocks * t.x_stride)) {
    if (is_padding(t.sorted_ids, grid.num_valid, t.tokens, row)) continue;
    Raw<kForm.x, kWide> kept[kKeep ? kForm.chunks : 1];
    float v[kWide];
    Magnitude magnitude;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      const auto raw = load_raw_at<kForm.x, kWide, kRows>(x[c], first_of(c), cols);
      if constexpr (kKeep) kept[c] = raw;
      unpack(raw, v);
      magnitude.add(v);
    });
    const Scale scale = scale_of<kForm.q>(reduce.largest(magnitude.largest));
    if (thread() == 0) t.scale[row] = scale.value;
    for_each_chunk<kForm.chunks>(chunks, [&](int64_t c) {
      if constexpr (kKeep) unpack(kept[c], v);
      else unpack(load_raw_at<kForm.x, kWide, kRows>(x[c], first_of(c), cols), v);
      store_codes<kForm.q, kRows>(v, scale.inverse, magnitude.all_finite(), t.q + row * t.q_stride, first_of(c), cols);
    });
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
EITRI_KERNEL_FOR(EITRI_THREADS, EITRI_REGISTERS) quantize_block_per_row(const eitri::QuantizeGrid grid) {
  using namespace eitri;
  EITRI_SIMT::quantize_block_per_row<QuantizeForm{
                                         .x = DType::EITRI_X, .q = DType::EITRI_Q, .threads = EITRI_THREADS, .chunks = EITRI_CHUNKS},
                                     EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
