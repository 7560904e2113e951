// What host and kernels share about the SIMT kernels of topk_gating.
#pragma once

#include "ops/topk_gating/topk_gating_kernels.h"

namespace eitri {

/// What a kernel is compiled for.
struct GatingForm {
  DType logits = DType::f32;
  GatingScore score = GatingScore::softmax;
  bool bias = false;
  int threads = 0;      // of a block
  int lanes = 0;        // of a token, a power of two; 0: topk_gating_block_per_token
  int per_lane = 0;     // consecutive experts of a lane
  int group_lanes = 0;  // consecutive lanes that hold a group's experts, a power of two; 0: one group
  bool operator==(const GatingForm&) const = default;
};

/// The argument of both kernels.
struct GatingGrid {
  GatingTask task = {};
  int64_t tokens = 0;
  int64_t blocks = 0;
  uint64_t* words = nullptr;  // block_per_token: gating_block_words() of every block
  int32_t vectors = 0;        // logits and bias are aligned for vector loads
};

/// What topk_gating_block_per_token keeps of an expert.
struct GatedExpert {
  uint64_t key = 0;  // ordered as the numbers that choose; 0: out
  double score = 0;
};
/// Words that a block of topk_gating_block_per_token keeps: the experts, and a rank and a mark a group.
constexpr int64_t gating_block_words(int64_t experts, int64_t groups) { return 2 * experts + 2 * groups; }

}  // namespace eitri
