// topk_gating: the router of a mixture of experts: scores, choice of top_k experts, weights.
//
// Beyond the contract in eitri/ops.hpp: a +inf logit counts as the largest float; when every logit of a row is -inf, softmax
// gives each expert 1 / experts; powers below e^-708 are 0, and a sum of 0 makes renormalised weights 0. A biased score that
// is NaN counts as -inf. Experts outside the kept groups are out, whatever the scores inside. Choice and weights are computed
// in double on every machine, so that all rows of the table choose alike: without bias by the logits themselves (every
// score rises with the logit), with bias by score + bias.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

std::span<const char* const> enum_names(Score);
std::span<const char* const> enum_names(Renormalize);

struct TopkGating {
  static constexpr const char* name = "topk_gating";
  using Args = TopkGatingArgs;
  struct Problem {
    int64_t tokens = 1, experts = 128, top_k = 8;
    int32_t groups = 1, topk_groups = 1;
    DType logits = DType::f32;
    Score score = Score::softmax;
    Renormalize renormalize = Renormalize::no;
    bool bias = false;
    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("experts", experts);
      f("top_k", top_k);
      f("groups", groups);
      f("topk_groups", topk_groups);
      f("logits", logits);
      f("score", score);
      f("renormalize", renormalize);
      f("bias", bias);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.tokens == 0 || p.experts == 0 || p.top_k == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("logits", args.logits);
    f("correction_bias", args.correction_bias);
    f("weights", args.weights);
    f("ids", args.ids);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  /// The call for rows [begin, end) alone, on the same memory: a row's bits do not depend on the others.
  static int64_t row_count(const Args& args) { return args.logits.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
  static std::span<const Kernel<TopkGating>> kernels();
};

}  // namespace eitri
