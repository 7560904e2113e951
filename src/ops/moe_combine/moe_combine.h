// moe_combine: each token's expert outputs, weighted and added in fp32 in ascending slot order, plus the shared expert's.
// A reverse index outside [0, rows of y) adds nothing: moe_sort writes -1 there, and an index is data that is not trusted.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

struct MoeCombine {
  static constexpr const char* name = "moe_combine";
  using Args = MoeCombineArgs;
  struct Problem {
    int64_t tokens = 1, hidden = 0, top_k = 8;
    DType y = DType::bf16, out = DType::bf16;
    bool weights = false, shared = false, local = false;  // local: with num_local_tokens
    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("hidden", hidden);
      f("top_k", top_k);
      f("y", y);
      f("out", out);
      f("weights", weights);
      f("shared", shared);
      f("local", local);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.tokens == 0 || p.hidden == 0 || p.top_k == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("y", args.y);
    f("reverse", args.reverse);
    f("weights", args.weights);
    f("shared", args.shared);
    f("out", args.out);
    f("num_local_tokens", args.num_local_tokens);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  /// The call for rows [begin, end) alone, on the same memory: a row's bits do not depend on the others.
  static int64_t row_count(const Args& args) { return args.num_local_tokens.given() ? 1 : args.out.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
  static std::span<const Kernel<MoeCombine>> kernels();
};

}  // namespace eitri
