// quantize.simt.one_pass: one scale for the tensor in one launch. The tensor is cut into pieces of as many elements as a block has room
// for in its registers. A block finds the largest magnitude of its pieces and keeps the last of them, the blocks tell each other what
// they found (device/meeting.h), and each writes the codes of its pieces. Up to as many pieces as there are blocks memory is read once;
// of more a block reads all but its last again, backwards, so that as much as possible comes from the cache. Few rows are bound by
// latency: of memory, of a store and a load that meet in the cache, and of the launch; a tensor of one piece meets nobody.
//
// Measured on an H200, 2026-11-30, bf16 to f8e4m3, us, `eitri bench quantize --all-configs` (in brackets the two launches of
// quantize.simt.block_per_row in the same run): 1 row of 4096 1.15 (2.00), 16 2.00 (2.09), 64 2.53 (2.60), 256 3.53 (3.35), 4096 17.8 (21.0);
// of 7168 1.35 (2.26), 2.16 (2.35), 2.80 (2.68), 4.29 (4.34), 35.0 (37.0). To meet takes some 0.9 us, as long as another launch.
//
// Measured on an H200, 2026-11-30, bf16 to f8e4m3, bench/results/gpu-h200.json: one row of 4096 and 7168 1.15 and 1.36 us (two launches 2.00 and
// 2.26), 16 rows 2.01 and 2.16 (2.09 and 2.35), 4096 rows 17.8 and 35.0 (21.0 and 37.0); between, at 64 and 256 rows, either may be faster.
//
// Compiled with EITRI_ONE_PASS_THREADS the file has the entry quantize_one_pass for the form that the other macros say.
#pragma once

#include "ops/quantize/simt.cuh"  // first: it bounds thread()

#include "device/meeting.h"

namespace eitri::EITRI_SIMT {

static_assert(sizeof(Meeting) <= kOnePassBytes && Meeting::kMostBlocks == kOnePassBlocks);

template <QuantizeForm kForm, Rows kRows> EITRI_INLINE void quantize_one_pass(const QuantizeOnePassGrid& grid) {
  static_assert(kForm.quant == Quant::per_tensor && kForm.pass == QuantizePass::codes && kForm.chunks > 0);
  constexpr int kWide = quantize_wide(kForm.x, kForm.q), kThreads = kForm.threads, kChunks = kForm.chunks;
  constexpr int kPiece = kThreads * kChunks * kWide;
  const QuantizeBlocksTask& t = grid.task;

  EITRI_SHARED typename BlockReduce<kThreads>::Partials partials;
  BlockReduce<kThreads> reduce(partials);
  launch_dependents();
  struct Place {
    int64_t row, column;
  };
  const auto place_of = [&](int piece) -> Place {
    if (grid.row_pieces == grid.pieces) return {0, int64_t{piece} * kPiece};
    const int row = piece / grid.row_pieces;
    return {row, int64_t{piece - row * grid.row_pieces} * kPiece};
  };
  using Chunks = ThreadChunks<kForm.x, kThreads, kWide>;
  const auto chunks_at = [&](const Place& at) { return Chunks(t.x + at.column * kBytesOf<kForm.x>, t.x_stride, at.row, thread()); };
  const auto columns_at = [&](const Place& at) {
    const int64_t left = t.cols - at.column;
    return static_cast<Column<kRows>>(left < kPiece ? left : kPiece);
  };
  const auto first_of = [](int c) { return static_cast<Column<kRows>>((c * kThreads + thread()) * kWide); };
  const int me = static_cast<int>(block());
  Place at = place_of(me);
  Chunks x = chunks_at(at);
  if (is_early_block(264) && me < grid.pieces) x.prefetch(kChunks, thread(), columns_at(at));
  wait_for_dependencies();

  MeetingRound<kThreads> round(static_cast<Meeting*>(grid.meeting), grid.blocks);
  const auto is_skipped = [&](const Place& p) { return is_padding(t.sorted_ids, grid.num_valid, t.tokens, p.row); };
  Raw<kForm.x, kWide> kept[kChunks] = {};
  const auto keep = [&] {  // all loads before the first use
    const auto columns = columns_at(at);
    for_each_chunk<kChunks>(kChunks, [&](int c) { kept[c] = load_raw_at<kForm.x, kWide, kRows>(x[c], first_of(c), columns); });
  };
  Magnitude seen;  // by the thread, of all its pieces
  float v[kWide];
  int piece = me;
  for (;;) {
    if (piece < grid.pieces && !is_skipped(at)) {
      keep();
      for_each_chunk<kChunks>(kChunks, [&](int c) {
        unpack(kept[c], v);
        seen.add(kept[c], v);
      });
    }
    if (grid.pieces - piece <= grid.blocks) break;
    piece += grid.blocks;
    at = place_of(piece);
    x = chunks_at(at);
  }
  const float largest = round.largest(reduce.largest(seen.largest), reduce, [&](int other) {
    Magnitude magnitude;
    EITRI_ROLL for (int i = other; i < grid.pieces; i += grid.blocks) {
      const Place there = place_of(i);
      if (is_skipped(there)) continue;
      const Chunks from = chunks_at(there);
      const auto columns = columns_at(there);
      EITRI_ROLL for (int c = 0; c < kChunks; ++c) {
        const auto raw = load_raw_at<kForm.x, kWide, kRows>(from[c], first_of(c), columns);
        float w[kWide];
        unpack(raw, w);
        magnitude.add(raw, w);
      }
    }
    return reduce.largest(magnitude.largest);
  });
  const float inverse = store_scale<kForm>(largest, 0, byte_at(static_cast<void*>(t.scale), 0), thread() == 0 && me == 0);
  for (;;) {
    if (piece < grid.pieces && !is_skipped(at)) {
      unsigned char* const q = byte_at(static_cast<void*>(t.q), at.row * t.q_stride + at.column);
      const auto columns = columns_at(at);
      for_each_chunk<kChunks>(kChunks, [&](int c) {
        unpack(kept[c], v);
        store_quantized<kForm, kRows>(v, inverse, seen.all_finite(), true, q, first_of(c), columns);
      });
    }
    piece -= grid.blocks;
    if (piece < 0) break;
    at = place_of(piece);
    x = chunks_at(at);
    if (!is_skipped(at)) keep();
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_ONE_PASS_THREADS)
EITRI_KERNEL_FOR(EITRI_ONE_PASS_THREADS, EITRI_REGISTERS) quantize_one_pass(const eitri::QuantizeOnePassGrid grid) {
  using namespace eitri;
  EITRI_SIMT::quantize_one_pass<
      QuantizeForm{
          .x = DType::EITRI_X, .q = DType::EITRI_Q, .quant = Quant::per_tensor, .threads = EITRI_ONE_PASS_THREADS, .chunks = EITRI_CHUNKS},
      EITRI_SIMT::Rows::EITRI_ROWS>(grid);
}
#endif
