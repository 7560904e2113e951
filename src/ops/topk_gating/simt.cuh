// topk_gating.simt.lanes_per_token: a few lanes take a token, each a run of consecutive experts in registers. Choices are made by
// integers that are ordered as the keys are: 32 bits for logits, 64 for biased scores in double, 0 for what is out. top_k times:
// a maximum over the lanes, a ballot for the lowest lane (and so the lowest expert) that has it, which drops it. Scores of the
// chosen ones are then computed side by side, a slot a lane, in double, with the operations of every other row of the table.
//
// topk_gating.simt.block_per_token: the same for any number of experts and any groups, keys in the workspace.
//
// Logits are read once and bound many tokens; few tokens are bound by the latency of top_k rounds.
//
// Compiled with EITRI_THREADS the file has the entry EITRI_ENTRY for the form that the other macros say.
#pragma once

#include "ops/topk_gating/simt_keys.cuh"

namespace eitri::EITRI_SIMT {

template <GatingForm kForm> EITRI_INLINE void topk_gating_lanes_per_token(const GatingGrid& grid) {
  using namespace gating;
  using Key = typename KeyOf<kForm.bias>::Type;
  constexpr int kLanes = kForm.lanes, kPer = kForm.per_lane, kTokens = kForm.threads / kLanes;
  static_assert(kLanes <= warp_size && kForm.threads % warp_size == 0);
  const GatingTask& t = grid.task;
  const bool vectors = grid.vectors != 0;
  const int me = lane() % kLanes, first_lane = lane() - me;
  const int64_t first_expert = me * kPer;
  const int run = static_cast<int>(first_expert >= t.experts ? 0 : t.experts - first_expert < kPer ? t.experts - first_expert : kPer);

  launch_dependents();
  wait_for_dependencies();
  for (int64_t first = block() * kTokens; first < grid.tokens; first += grid.blocks * kTokens) {
    const int64_t wanted = first + thread() / kLanes;
    const bool real = wanted < grid.tokens;  // lanes without a token do as the last one's, for the warp's sake
    const int64_t token = real ? wanted : grid.tokens - 1;
    const void* const row = byte_at(static_cast<const void*>(t.logits), token * t.logits_stride);
    float x[kPer];
    load_run<kForm.logits>(row, first_expert, t.experts, vectors, x);
    EITRI_UNROLL for (int i = 0; i < kPer; ++i) x[i] = i < forgotten(run) ? clean(x[i]) : -kInfinity;

    Terms terms;
    double powers[kPer];
    if constexpr (kForm.score == GatingScore::softmax) {
      float max = x[0];
      EITRI_UNROLL for (int i = 1; i < kPer; ++i) max = x[i] > max ? x[i] : max;
      terms.max = widened(group_reduce<kLanes>(max, Largest{}));
      if (needs_sum<kForm>(t)) {
        double sum = 0;
        EITRI_UNROLL for (int i = 0; i < kPer; ++i) {
          powers[i] = i < forgotten(run) ? power(widened(x[i]), terms.max) : 0.0;
          sum += powers[i];
        }
        terms.sum = group_reduce<kLanes>(sum, Sum{});
      }
    }
    Key keys[kPer];
    if constexpr (kForm.bias) {
      float bias[kPer];
      load_run<DType::f32>(t.bias, first_expert, t.experts, vectors, bias);
      EITRI_UNROLL for (int i = 0; i < kPer; ++i) {
        double score;
        if constexpr (kForm.score == GatingScore::softmax) score = divide(powers[i], terms.sum);
        else score = score_of<kForm.score>(x[i], terms);
        keys[i] = i < forgotten(run) ? ordered(score + static_cast<double>(bias[i])) : 0;
      }
    } else {
      EITRI_UNROLL for (int i = 0; i < kPer; ++i) keys[i] = i < forgotten(run) ? ordered(x[i]) : 0;
    }
    if constexpr (kForm.group_lanes > 0) keep_groups<kForm>(t, me, keys);

    const int top_k = static_cast<int>(t.top_k);  // at most the experts
    int32_t* const ids = t.ids + token * t.ids_stride;
    float* const weights = t.weights + token * t.weights_stride;
    int32_t chosen = 0;  // the last one of this lane
    Best<Key> best = best_of(keys);
    EITRI_ROLL for (int s = 0; s < top_k; ++s) {
      const Key top = group_reduce<kLanes>(best.key, Largest{});
      const uint64_t winners = ballot(best.key == top) >> first_lane & (~uint64_t{0} >> (64 - kLanes));
      const int owner = lowest_bit(winners);
      const int32_t id = shuffle_idx(static_cast<int32_t>(first_expert) + best.at, first_lane + owner);
      if (s % kLanes == me) {
        chosen = id;
        if (real) ids[s] = id;
      }
      if (me == owner) {
        EITRI_UNROLL for (int i = 0; i < kPer; ++i) keys[i] = i == best.at ? 0 : keys[i];
        best = best_of(keys);
      }
    }

    // Slots of this lane: the scores of what it chose. Beyond one slot a lane, ids come back from where this lane wrote them.
    double score = 0, sum = 0;
    EITRI_ROLL for (int s = me; s < top_k; s += kLanes) {
      if (top_k > kLanes && real) chosen = ids[s];
      score = score_of<kForm.score>(load_logit<kForm.logits>(row, chosen), terms);
      sum += score;
    }
    if (t.renormalize) {
      sum = group_reduce<kLanes>(sum, Sum{});
      sum = sum == 0 ? 1.0 : sum;  // every score is 0, and every weight
    } else {
      sum = 1;
    }
    if (!real) continue;  // no warp function follows
    EITRI_ROLL for (int s = me; s < top_k; s += kLanes) {
      if (top_k > kLanes) score = score_of<kForm.score>(load_logit<kForm.logits>(row, ids[s]), terms);
      weights[s] = weight_of(t, score, sum);
    }
  }
}

namespace gating {

/// The largest key of a block and the lowest expert that has it, by halves of an array in turn as in BlockReduce.
template <int kThreads> class BestOfBlock {
 public:
  static constexpr int kWarps = kThreads / warp_size;
  using Keys = Shared<uint64_t, 2 * kWarps>;
  using Ids = Shared<int32_t, 2 * kWarps>;
  EITRI_INLINE BestOfBlock(Keys& keys, Ids& ids) : keys_(keys), ids_(ids) {}
  EITRI_INLINE Best<uint64_t> operator()(Best<uint64_t> best) {
    best = over_lanes<warp_size>(best);
    if (lane() == 0) {
      keys_[half_ * kWarps + warp()] = best.key;
      ids_[half_ * kWarps + warp()] = best.at;
    }
    sync();
    constexpr int kGroup = next_power_of_two(kWarps);
    const int from = lane() % kGroup;
    best = {0, 0x7fffffff};
    if (from < kWarps) best = {keys_[half_ * kWarps + from], ids_[half_ * kWarps + from]};
    half_ ^= 1;
    return over_lanes<kGroup>(best);
  }

 private:
  template <int kLanes> static EITRI_INLINE Best<uint64_t> over_lanes(Best<uint64_t> best) {
    EITRI_UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      const uint64_t key = shuffle_xor(best.key, mask);
      const int32_t at = shuffle_xor(best.at, mask);
      if (key > best.key || (key == best.key && at < best.at)) best = {key, at};
    }
    return best;
  }
  Keys& keys_;
  Ids& ids_;
  int half_ = 0;
};

struct LargestLogit : Largest {
  static constexpr float kNeutral = -kInfinity;
};

/// Takes the keys of experts out that are in no kept group. The keys are complete for the block afterwards.
template <int kThreads> EITRI_INLINE void keep_groups_of_block(const GatingTask& t, GatedExpert* all, bool bias) {
  // Less than 2^31: 32-bit divisions.
  const auto experts = static_cast<uint32_t>(t.experts), groups = static_cast<uint32_t>(t.groups), size = experts / groups;
  auto* const ranks = reinterpret_cast<uint64_t*>(all + t.experts);
  uint64_t* const kept = ranks + t.groups;
  sync();
  EITRI_ROLL for (uint32_t g = static_cast<uint32_t>(warp()); g < groups; g += kThreads / warp_size) {
    TopTwo<uint64_t> top;
    EITRI_ROLL for (uint32_t i = static_cast<uint32_t>(lane()); i < size; i += warp_size) top.see(all[g * size + i].key);
    EITRI_UNROLL for (int mask = warp_size / 2; mask > 0; mask /= 2) {
      const uint64_t first = shuffle_xor(top.first, mask), second = shuffle_xor(top.second, mask);
      top.see_both(first, second);
    }
    if (lane() == 0) ranks[g] = rank_of(top, bias && size > 1);
  }
  sync();
  EITRI_ROLL for (uint32_t g = static_cast<uint32_t>(thread()); g < groups; g += kThreads) {
    uint32_t better = 0;
    EITRI_ROLL for (uint32_t other = 0; other < groups; ++other) better +=
        ranks[other] > ranks[g] || (ranks[other] == ranks[g] && other < g) ? 1 : 0;
    kept[g] = better < t.topk_groups ? 1 : 0;
  }
  sync();
  EITRI_ROLL for (uint32_t e = static_cast<uint32_t>(thread()); e < experts; e += kThreads) all[e].key =
      kept[e / size] != 0 ? all[e].key : 0;
}

}  // namespace gating

template <GatingForm kForm> EITRI_INLINE void topk_gating_block_per_token(const GatingGrid& grid) {
  using namespace gating;
  constexpr int kThreads = kForm.threads;
  EITRI_SHARED typename BlockReduce<kThreads>::Partials maxima;
  EITRI_SHARED typename BlockReduce<kThreads, double>::Partials sums;
  EITRI_SHARED typename BestOfBlock<kThreads>::Keys best_keys;
  EITRI_SHARED typename BestOfBlock<kThreads>::Ids best_ids;
  BlockReduce<kThreads> reduce_max(maxima);
  BlockReduce<kThreads, double> reduce_sum(sums);
  BestOfBlock<kThreads> best_of_block(best_keys, best_ids);
  const GatingTask& t = grid.task;
  const auto experts = static_cast<uint32_t>(t.experts), top_k = static_cast<uint32_t>(t.top_k), first = static_cast<uint32_t>(thread());
  auto* const all = reinterpret_cast<GatedExpert*>(grid.words + block() * gating_block_words(t.experts, t.groups));

  launch_dependents();
  wait_for_dependencies();
  EITRI_ROLL for (int64_t token = block(); token < grid.tokens; token += grid.blocks) {
    const void* const row = byte_at(static_cast<const void*>(t.logits), token * t.logits_stride);
    Terms terms;
    if constexpr (kForm.score == GatingScore::softmax) {
      float max = LargestLogit::kNeutral;
      EITRI_ROLL for (uint32_t e = first; e < experts; e += kThreads) max = Largest{}(load_logit<kForm.logits>(row, e), max);
      terms.max = widened(reduce_max(max, LargestLogit{}));
      if (needs_sum<kForm>(t)) {
        double sum = 0;
        EITRI_ROLL for (uint32_t e = first; e < experts; e += kThreads) sum += power(widened(load_logit<kForm.logits>(row, e)), terms.max);
        terms.sum = reduce_sum.sum(sum);
      }
    }
    EITRI_ROLL for (uint32_t e = first; e < experts; e += kThreads) {
      const float logit = load_logit<kForm.logits>(row, e);
      if constexpr (kForm.bias) {
        const double score = score_of<kForm.score>(logit, terms);
        all[e] = {ordered(score + static_cast<double>(t.bias[e])), score};
      } else {
        all[e].key = ordered(static_cast<double>(logit));
      }
    }
    if (t.groups > 1) keep_groups_of_block<kThreads>(t, all, kForm.bias);

    // From here on a thread sees its own keys alone, but scores of all.
    const auto best_of_mine = [&] {
      Best<uint64_t> best = {0, 0x7fffffff};
      EITRI_ROLL for (uint32_t e = first; e < experts; e += kThreads) if (const uint64_t key = all[e].key; key > best.key)
          best = {key, static_cast<int32_t>(e)};
      return best;
    };
    int32_t* const ids = t.ids + token * t.ids_stride;
    float* const weights = t.weights + token * t.weights_stride;
    Best<uint64_t> best = best_of_mine();
    double sum = 0;
    EITRI_ROLL for (uint32_t s = 0; s < top_k; ++s) {
      const int32_t id = best_of_block(best).at;
      if (s % kThreads == first) {
        ids[s] = id;
        if constexpr (!kForm.bias) all[id].score = score_of<kForm.score>(load_logit<kForm.logits>(row, id), terms);
        sum += all[id].score;
      }
      if (id == best.at) {
        all[id].key = 0;
        best = best_of_mine();
      }
    }
    if (t.renormalize) {
      sum = reduce_sum.sum(sum);
      sum = sum == 0 ? 1.0 : sum;
    } else {
      sum = 1;
    }
    EITRI_ROLL for (uint32_t s = first; s < top_k; s += kThreads) weights[s] = weight_of(t, all[ids[s]].score, sum);
    sync();  // others' scores are read before the next token's are written
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_THREADS)
#if !defined(EITRI_ENTRY)
#error "EITRI_ENTRY is topk_gating_lanes_per_token or topk_gating_block_per_token"
#endif
EITRI_KERNEL(EITRI_THREADS) EITRI_ENTRY(const eitri::GatingGrid grid) {
  using namespace eitri;
  EITRI_SIMT::EITRI_ENTRY<GatingForm{.logits = DType::EITRI_LOGITS,
                                     .score = GatingScore::EITRI_SCORE,
                                     .bias = EITRI_BIAS,
                                     .threads = EITRI_THREADS,
                                     .lanes = EITRI_LANES,
                                     .per_lane = EITRI_PER_LANE,
                                     .group_lanes = EITRI_GROUP_LANES}>(grid);
}
#endif
