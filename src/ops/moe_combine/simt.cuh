// moe_combine.simt.chunks: a thread takes a chunk of a token, 16 bytes' worth of columns, and adds the slots' products in ascending
// order in fp32, each product and each sum rounded on its own: the bits of every other row of the table. A block's threads take
// consecutive chunks, whatever tokens they belong to, so short rows share blocks and long ones are spread over several. The
// rows of several slots are fetched at once; memory bounds it: top_k rows of y in, one row out.
//
// Compiled with EITRI_THREADS the file has the entry moe_combine_chunks for the form that the other macros say.
#pragma once

#include "device/mixed_row.h"
#include "ops/moe_combine/simt_params.h"

namespace eitri::EITRI_SIMT {

template <MoeCombineForm kForm> EITRI_INLINE void moe_combine_chunks(const MoeCombineGrid& grid) {
  constexpr int kWide = kWideOf<kForm.y>, kThreads = kForm.threads, kSlots = kForm.slots;
  const MoeCombineTask& t = grid.task;
  const bool vectors = grid.vectors != 0;
  const int64_t work = grid.tokens * grid.chunks;

  launch_dependents();
  wait_for_dependencies();
  for (int64_t first = block() * kThreads; first < work; first += grid.blocks * kThreads) {
    // A token and a chunk of thread 0; from there a 32-bit division, or rows so long that at most one ends in the block.
    int64_t token = first / grid.chunks, chunk = first - token * grid.chunks + thread();
    if (chunk >= grid.chunks) {
      const auto over = static_cast<uint32_t>(chunk - grid.chunks);
      const uint32_t rows = grid.chunks >= kThreads ? 0 : over / static_cast<uint32_t>(grid.chunks);
      token += 1 + rows;
      chunk = over - rows * grid.chunks;
    }
    if (token >= grid.tokens) continue;
    const int64_t column = chunk * kWide;
    const auto* const reverse = reinterpret_cast<const int32_t*>(byte_at(static_cast<const void*>(t.reverse), token * t.reverse_stride));
    const auto* const weights =
        t.weights == nullptr ? nullptr
                             : reinterpret_cast<const float*>(byte_at(static_cast<const void*>(t.weights), token * t.weights_stride));
    float sum[kWide] = {}, v[kWide];
    const bool local = t.num_local == nullptr || token < t.num_local[0];
    EITRI_ROLL for (int64_t slot = local ? 0 : t.top_k; slot < t.top_k; slot += kSlots) {
      Raw<kForm.y, kWide> rows[kSlots];
      float weight[kSlots];
      bool known[kSlots];
      EITRI_UNROLL for (int i = 0; i < kSlots; ++i) {
        const int64_t r = slot + i < t.top_k ? reverse[slot + i] : -1;
        known[i] = r >= 0 && r < t.y_rows;
        weight[i] = 1.0f;
        if (!known[i]) continue;
        if (weights != nullptr) weight[i] = weights[slot + i];
        rows[i] = load_mixed<kForm.y, kWide>(byte_at(static_cast<const void*>(t.y), r * t.y_stride), column, t.hidden, vectors);
      }
      EITRI_UNROLL for (int i = 0; i < kSlots; ++i) {
        if (!known[i]) continue;
        unpack(rows[i], v);
        EITRI_UNROLL for (int e = 0; e < kWide; ++e) sum[e] += weight[i] * v[e];
      }
    }
    if (t.shared != nullptr && local) {
      unpack(load_mixed<kForm.y, kWide>(byte_at(static_cast<const void*>(t.shared), token * t.shared_stride), column, t.hidden, vectors),
             v);
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) sum[e] += v[e];
    }
    store_mixed(pack<kForm.out>(sum), byte_at(static_cast<void*>(t.out), token * t.out_stride), column, t.hidden, vectors);
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
EITRI_KERNEL(EITRI_THREADS) moe_combine_chunks(const eitri::MoeCombineGrid grid) {
  using namespace eitri;
  EITRI_SIMT::moe_combine_chunks<MoeCombineForm{
      .y = DType::EITRI_Y, .out = DType::EITRI_OUT, .threads = EITRI_THREADS, .slots = EITRI_SLOTS}>(grid);
}
#endif
