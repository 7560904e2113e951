// moe_sort: groups (token, slot) pairs by expert, each expert's run padded to a multiple of `block`, so that a grouped
// gemm sees whole blocks of one expert:
//
//   sorted_ids         [e0 e0 e0 pad][e2 pad pad pad][e2' ...]   block = 4; experts without a pair have no block
//   sorted_expert_ids   0             1                          local ids: masked experts are not counted
//
// Inside a run (token, slot) ascends. Beyond num_valid[0] everything is padding. Ids outside [0, experts) and masked
// experts are left out; a pair of the same token and expert twice is kept twice.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

inline constexpr int32_t kSortedTokenMask = 0xffffff;  // of a sorted id; the slot is above
inline constexpr int kSortedSlotShift = 24;

struct MoeSort {
  static constexpr const char* name = "moe_sort";
  using Args = MoeSortArgs;
  struct Problem {
    int64_t tokens = 1, experts = 128, top_k = 8, block = 32;
    bool mask = false;     // expert_mask
    bool local = false;    // num_local_tokens
    bool reverse = false;  // the optional output
    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("experts", experts);
      f("top_k", top_k);
      f("block", block);
      f("mask", mask);
      f("local", local);
      f("reverse", reverse);
    }
    bool operator==(const Problem&) const = default;
  };
  /// Length of sorted_ids and sorted_weights; enough for any ids as long as top_k <= experts.
  static constexpr int64_t max_padded(int64_t tokens, int64_t top_k, int64_t experts, int64_t block) {
    return std::max<int64_t>(0, tokens * top_k + experts * block - top_k);
  }
  /// Length of sorted_expert_ids.
  static constexpr int64_t max_blocks(int64_t padded, int64_t block) { return (padded + block - 1) / block; }

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.tokens == 0 || p.experts == 0 || p.top_k == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("topk_ids", args.topk_ids);
    f("topk_weights", args.topk_weights);
    f("expert_mask", args.expert_mask);
    f("num_local_tokens", args.num_local_tokens);
    f("sorted_ids", args.sorted_ids);
    f("sorted_weights", args.sorted_weights);
    f("sorted_expert_ids", args.sorted_expert_ids);
    f("num_valid", args.num_valid);
    f("reverse", args.reverse);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<MoeSort>> kernels();
};

}  // namespace eitri
