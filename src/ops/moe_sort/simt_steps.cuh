// The steps of the SIMT kernels of moe_sort, and the parts of the pairs; simt.cuh says how they fit together.
#pragma once

#include "device/reduce.h"
#include "ops/moe_sort/simt_params.h"

namespace eitri::EITRI_SIMT {

namespace moe_sort {

inline constexpr int32_t kMasked = -1;  // instead of a next free position

/// Counters of experts, by part and expert.
template <int kCount> struct SharedCounters {
  Shared<int32_t, kCount>& values;
  EITRI_INLINE int32_t get(int32_t i) const { return values[i]; }
  EITRI_INLINE void set(int32_t i, int32_t value) const { values[i] = value; }
  EITRI_INLINE void add_one(int32_t i) const { atomic_add(values, i, 1); }
};
struct GlobalCounters {
  int32_t* values;
  EITRI_INLINE int32_t get(int32_t i) const { return values[i]; }
  EITRI_INLINE void set(int32_t i, int32_t value) const { values[i] = value; }
  EITRI_INLINE void add_one(int32_t i) const { atomic_add(values + i, 1); }
};

/// Tokens that count.
EITRI_INLINE int64_t considered(const MoeSortGrid& g) {
  const int64_t wanted = g.local == nullptr ? g.tokens : g.local[0];
  return wanted < 0 ? 0 : wanted < g.tokens ? wanted : g.tokens;
}

/// Pairs in (token, slot) order; there are less than 2^32.
struct Pair {
  uint32_t token, slot;
  int32_t expert;  // -1: none
};
EITRI_INLINE Pair pair_at(const MoeSortGrid& g, int64_t i, int64_t tokens_that_count) {
  const auto index = static_cast<uint32_t>(i), top_k = static_cast<uint32_t>(g.top_k);
  Pair pair = {index / top_k, 0, -1};
  pair.slot = index - pair.token * top_k;
  if (pair.token >= tokens_that_count) return pair;
  const int32_t id = g.ids[pair.token * g.ids_stride + pair.slot];
  if (static_cast<uint32_t>(id) < static_cast<uint32_t>(g.experts)) pair.expert = id;
  return pair;
}

/// Part `index` of `parts` of [begin, end), in whole warps.
struct Run {
  int64_t begin, end;
};
EITRI_INLINE Run part_of(Run all, int64_t index, int64_t parts) {
  const int64_t each = ((all.end - all.begin + parts - 1) / parts + warp_size - 1) / warp_size * warp_size;
  const int64_t begin = all.begin + index * each, end = begin + each;
  return {begin < all.end ? begin : all.end, end < all.end ? end : all.end};
}
EITRI_INLINE Run all_pairs(const MoeSortGrid& g) { return {0, g.tokens * g.top_k}; }

/// Counts the pairs of a run, its threads being `me` of `threads`.
template <class Counters>
EITRI_INLINE void count(const MoeSortGrid& g, const Counters& counters, int32_t base, Run run, int me, int threads) {
  const int64_t tokens = considered(g);
  EITRI_ROLL for (int64_t i = run.begin + me; i < run.end; i += threads) {
    const int32_t expert = pair_at(g, i, tokens).expert;
    if (expert >= 0) counters.add_one(base + expert);
  }
}

/// A warp writes the pairs of its run; counters from `base` on are its next free positions.
template <class Counters> EITRI_INLINE void place(const MoeSortGrid& g, const Counters& counters, int32_t base, Run run) {
  const int64_t tokens = considered(g);
  EITRI_ROLL for (int64_t first = run.begin; first < run.end; first += warp_size) {
    const int64_t i = first + lane();
    Pair pair = {0, 0, -1};
    if (i < run.end) pair = pair_at(g, i, tokens);
    uint64_t peers = ballot(pair.expert >= 0);
    EITRI_ROLL for (int bit = 0; bit < g.id_bits; ++bit) {
      const bool mine = (pair.expert >> bit & 1) != 0;
      const uint64_t set = ballot(mine);
      peers &= mine ? set : ~set;
    }
    const uint64_t before = peers & ((uint64_t{1} << lane()) - 1);
    const int32_t next = pair.expert >= 0 ? counters.get(base + pair.expert) : kMasked;
    const int32_t position = next == kMasked ? -1 : next + count_bits(before);
    sync_warp();  // all have read
    if (next != kMasked && peers >> lane() == 1) counters.set(base + pair.expert, position + 1);
    sync_warp();
    if (i >= run.end) continue;
    if (g.reverse != nullptr) g.reverse[pair.token * g.reverse_stride + pair.slot] = position;
    if (position < 0) continue;
    g.sorted_ids[position] = static_cast<int32_t>(pair.slot << 24 | pair.token);
    g.sorted_weights[position] = g.weights[pair.token * g.weights_stride + pair.slot];
  }
}

/// Everything padding, by thread `me` of `threads`.
EITRI_INLINE void fill(const MoeSortGrid& g, int64_t me, int64_t threads) {
  const auto padding = static_cast<uint32_t>(g.top_k << 24 | g.tokens);
  int64_t done = 0;
  if (g.vectors != 0) {
    done = g.padded / 4 * 4;
    EITRI_ROLL for (int64_t i = me * 4; i < done; i += threads * 4) {
      store16(g.sorted_ids + i, {{padding, padding, padding, padding}});
      store16(g.sorted_weights + i, {{0, 0, 0, 0}});
    }
  }
  EITRI_ROLL for (int64_t i = done + me; i < g.padded; i += threads) {
    g.sorted_ids[i] = static_cast<int32_t>(padding);
    g.sorted_weights[i] = 0.0f;
  }
  EITRI_ROLL for (int64_t i = me; i < g.sorted_blocks; i += threads) g.sorted_expert_ids[i] = -1;
}

/// Writes `value` to [begin, begin + n) of each lane: short runs by the lane, long ones by the whole warp.
EITRI_INLINE void write_runs(int32_t* out, int64_t begin, int32_t n, int32_t value) {
  constexpr int32_t kShort = 2;
  EITRI_UNROLL for (int i = 0; i < kShort; ++i) if (i < n) out[begin + i] = value;
  EITRI_ROLL for (uint64_t left = ballot(n > kShort); left != 0; left &= left - 1) {
    const int from = lowest_bit(left);
    const int64_t start = shuffle_idx(begin, from);
    const int32_t length = shuffle_idx(n, from), what = shuffle_idx(value, from);
    EITRI_ROLL for (int32_t i = kShort + lane(); i < length; i += warp_size) out[start + i] = what;
  }
}

/// What lay_out shares among its threads.
template <int kThreads> struct LayoutArrays {
  Shared<int32_t, kThreads>& sums;
  Shared<int32_t, kThreads>& firsts;
  Shared<uint64_t, kThreads / warp_size>& warp_totals;
};

/// By one block: counters of `parts` parts become next free positions; blocks get their experts, num_valid is written. A tile of
/// experts at a time, with several threads an expert (each for some of the parts) where there are more threads than experts.
template <int kThreads, class Counters>
EITRI_INLINE void lay_out(const MoeSortGrid& g, const Counters& counters, int parts, const LayoutArrays<kThreads>& arrays) {
  const int columns = static_cast<int>(g.experts < 1 ? 1 : g.experts < kThreads ? g.experts : kThreads);
  const int threads_each = kThreads / columns, slices = threads_each < parts ? threads_each : parts, slice = thread() / columns,
            column = thread() % columns;
  const int each = (parts + slices - 1) / slices;
  const int begin = slice * each < parts ? slice * each : parts, end = begin + each < parts ? begin + each : parts;
  const auto experts = static_cast<int32_t>(g.experts);  // times parts it is below 2^31: the host sees to that
  constexpr int kAtOnce = 4;                             // counters of a thread on their way
  const auto block_size = static_cast<int32_t>(g.block);
  uint64_t carry = 0;  // blocks in use below, experts of this machine above, before the tile
  EITRI_ROLL for (int32_t tile = 0; tile < experts; tile += columns) {
    const int32_t e = tile + column;
    const bool real = slice < slices && e < experts;
    int32_t sum = 0;
    if (real) EITRI_ROLL for (int p = begin; p < end; p += kAtOnce) {
        EITRI_UNROLL for (int i = 0; i < kAtOnce; ++i) sum += p + i < end ? counters.get((p + i) * experts + e) : 0;
      }
    arrays.sums[thread()] = sum;
    sync();

    // The first `columns` threads have an expert each, in order.
    const bool first = real && slice == 0;
    const bool here = first && (g.mask == nullptr || g.mask[e] != 0);
    int32_t blocks = 0;
    if (here) {
      int32_t total = 0;
      EITRI_ROLL for (int s = 0; s < slices; ++s) total += arrays.sums[s * columns + column];
      blocks = total / block_size + (total % block_size != 0 ? 1 : 0);
    }
    const uint64_t mine = here ? uint64_t{1} << 32 | static_cast<uint32_t>(blocks) : 0;
    uint64_t before = mine;  // and with it, until the end of the scan
    EITRI_UNROLL for (int delta = 1; delta < warp_size; delta *= 2) {
      const uint64_t other = shuffle_up(before, delta);
      before += lane() >= delta ? other : 0;
    }
    if (lane() == warp_size - 1) arrays.warp_totals[warp()] = before;
    sync();
    before = before - mine + carry;
    EITRI_ROLL for (int w = 0; w * warp_size < columns; ++w) {
      const uint64_t total = arrays.warp_totals[w];
      before += w < warp() ? total : 0;
      carry += total;
    }
    const auto first_block = static_cast<int64_t>(before & 0xffffffffu);
    if (first) arrays.firsts[column] = here ? static_cast<int32_t>(first_block * g.block) : kMasked;
    write_runs(g.sorted_expert_ids, first_block, blocks, static_cast<int32_t>(before >> 32));
    sync();

    if (real) {
      int32_t position = arrays.firsts[column];
      const bool masked = position == kMasked;
      EITRI_ROLL for (int s = 0; s < slice && !masked; ++s) position += arrays.sums[s * columns + column];
      EITRI_ROLL for (int p = begin; p < end; p += kAtOnce) {
        int32_t n[kAtOnce];
        EITRI_UNROLL for (int i = 0; i < kAtOnce; ++i) n[i] = p + i < end && !masked ? counters.get((p + i) * experts + e) : 0;
        EITRI_UNROLL for (int i = 0; i < kAtOnce; ++i) {
          if (p + i < end) counters.set((p + i) * experts + e, position);
          position += n[i];
        }
      }
    }
    sync();  // the arrays are used again
  }
  if (thread() == 0) {
    g.num_valid[0] = static_cast<int32_t>(static_cast<int64_t>(carry & 0xffffffffu) * g.block);
    g.num_valid[1] = static_cast<int32_t>(considered(g));
  }
}

/// Warps of a block for which there are counters.
template <MoeSortForm kForm> EITRI_INLINE int warps_with_counters(const MoeSortGrid& g) {
  constexpr int kWarps = kForm.threads / warp_size;
  const int64_t room = g.experts < 1 ? kWarps : kForm.counters / g.experts;
  return static_cast<int>(room < kWarps ? room : kWarps);
}
template <MoeSortForm kForm, class Counters> EITRI_INLINE void zero(const Counters& counters, int32_t n) {
  EITRI_ROLL for (int32_t i = thread(); i < n; i += kForm.threads) counters.set(i, 0);
}

}  // namespace moe_sort

}  // namespace eitri::EITRI_SIMT
