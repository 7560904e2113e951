// moe_sort.simt.*: a stable counting sort of (token, slot) pairs by expert, the layout of moe_sort.h bit for bit.
//
//   count   pairs of each expert in each part; a part is a run of consecutive pairs
//   layout  experts in order: first position, blocks, local ids; counters become next free positions of (part, expert)
//   place   a warp takes a part, warp_size pairs at a time in order: lanes of the same expert find each other by ballots over
//           the bits of the id, and each adds the number of those before it to the next free position
//
// one_block: all of it in one block, counters in shared memory, a part a warp: few pairs, bound by latency.
// count, layout, place: three launches for many pairs. A part of the first two is what a block places; it splits its part among
// its warps, which it counts again. With counters == 0 (experts that do not fit into shared memory) a part is what a warp places.
//
// Padding is written before the pairs: the whole length, in 16-byte stores. Counts are integers, so the order in which they are
// added changes nothing.
//
// Compiled with EITRI_THREADS the file has the entry EITRI_ENTRY for the form that the other macros say.
#pragma once

#include "ops/moe_sort/simt_steps.cuh"

namespace eitri::EITRI_SIMT {

template <MoeSortForm kForm> EITRI_INLINE void moe_sort_one_block(const MoeSortGrid& grid) {
  using namespace moe_sort;
  constexpr int kThreads = kForm.threads;
  EITRI_SHARED Shared<int32_t, kForm.counters> values;
  EITRI_SHARED Shared<int32_t, kThreads> sums;
  EITRI_SHARED Shared<int32_t, kThreads> firsts;
  EITRI_SHARED Shared<uint64_t, kThreads / warp_size> warp_totals;
  const SharedCounters<kForm.counters> counters{values};
  const int warps = warps_with_counters<kForm>(grid);
  const auto experts = static_cast<int32_t>(grid.experts);
  const Run run = part_of(all_pairs(grid), warp(), warps);
  launch_dependents();
  wait_for_dependencies();

  zero<kForm>(counters, warps * experts);
  fill(grid, thread(), kThreads);
  sync();
  if (warp() < warps) count(grid, counters, warp() * experts, run, lane(), warp_size);
  sync();
  lay_out<kThreads>(grid, counters, warps, LayoutArrays<kThreads>{sums, firsts, warp_totals});
  sync();
  if (warp() < warps) place(grid, counters, warp() * experts, run);
}

template <MoeSortForm kForm> EITRI_INLINE void moe_sort_count(const MoeSortGrid& grid) {
  using namespace moe_sort;
  constexpr int kThreads = kForm.threads;
  launch_dependents();
  wait_for_dependencies();
  fill(grid, block() * kThreads + thread(), grid.blocks * kThreads);
  if constexpr (kForm.counters > 0) {
    EITRI_SHARED Shared<int32_t, kForm.counters> values;
    const SharedCounters<kForm.counters> counters{values};
    zero<kForm>(counters, static_cast<int32_t>(grid.experts));
    sync();
    count(grid, counters, 0, part_of(all_pairs(grid), block(), grid.parts), thread(), kThreads);
    sync();
    for (int32_t e = thread(); e < grid.experts; e += kThreads) grid.counters[block() * grid.experts + e] = counters.get(e);
  } else {
    const int64_t part = block() * (kThreads / warp_size) + warp();
    const GlobalCounters counters{grid.counters + part * grid.experts};
    for (int32_t e = lane(); e < grid.experts; e += warp_size) counters.set(e, 0);
    sync_warp();
    count(grid, counters, 0, part_of(all_pairs(grid), part, grid.parts), lane(), warp_size);
  }
}

template <MoeSortForm kForm> EITRI_INLINE void moe_sort_layout(const MoeSortGrid& grid) {
  using namespace moe_sort;
  constexpr int kThreads = kForm.threads;
  EITRI_SHARED Shared<int32_t, kThreads> sums;
  EITRI_SHARED Shared<int32_t, kThreads> firsts;
  EITRI_SHARED Shared<uint64_t, kThreads / warp_size> warp_totals;
  launch_dependents();
  wait_for_dependencies();
  lay_out<kThreads>(grid, GlobalCounters{grid.counters}, static_cast<int>(grid.parts), LayoutArrays<kThreads>{sums, firsts, warp_totals});
}

template <MoeSortForm kForm> EITRI_INLINE void moe_sort_place(const MoeSortGrid& grid) {
  using namespace moe_sort;
  launch_dependents();
  wait_for_dependencies();
  if constexpr (kForm.counters > 0) {
    EITRI_SHARED Shared<int32_t, kForm.counters> values;
    const SharedCounters<kForm.counters> counters{values};
    const int warps = warps_with_counters<kForm>(grid);
    const auto experts = static_cast<int32_t>(grid.experts);
    const Run run = part_of(part_of(all_pairs(grid), block(), grid.parts), warp(), warps);
    zero<kForm>(counters, warps * experts);
    sync();
    if (warp() < warps) count(grid, counters, warp() * experts, run, lane(), warp_size);
    sync();
    for (int32_t e = thread(); e < experts; e += kForm.threads) {
      int32_t position = grid.counters[block() * grid.experts + e];
      const bool masked = position == kMasked;
      EITRI_ROLL for (int w = 0; w < warps; ++w) {
        const int32_t n = masked ? 0 : counters.get(w * experts + e);
        counters.set(w * experts + e, position);
        position += n;
      }
    }
    sync();
    if (warp() < warps) place(grid, counters, warp() * experts, run);
  } else {
    const int64_t part = block() * (kForm.threads / warp_size) + warp();
    place(grid, GlobalCounters{grid.counters + part * grid.experts}, 0, part_of(all_pairs(grid), part, grid.parts));
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
#if !defined(EITRI_ENTRY)
#error "EITRI_ENTRY is moe_sort_one_block, moe_sort_count, moe_sort_layout or moe_sort_place"
#endif
EITRI_KERNEL(EITRI_THREADS) EITRI_ENTRY(const eitri::MoeSortGrid grid) {
  using namespace eitri;
  EITRI_SIMT::EITRI_ENTRY<MoeSortForm{.threads = EITRI_THREADS, .counters = EITRI_COUNTERS}>(grid);
}
#endif
