// rmsnorm: rows divided by their root mean square, times a weight; with a residual added before, and quantised after, in the
// same pass over memory.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

std::span<const char* const> enum_names(NormWeight);

struct RmsNorm {
  static constexpr const char* name = "rmsnorm";
  using Args = RmsNormArgs;
  struct Problem {
    int64_t tokens = 1, hidden = 0;
    DType x = DType::bf16, weight = DType::bf16;  // weight none: absent
    DType residual = DType::none;                 // none: absent
    DType out = DType::bf16;
    Quant quant = Quant::none;
    NormWeight norm_weight = NormWeight::plain;
    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("hidden", hidden);
      f("x", x);
      f("weight", weight);
      f("residual", residual);
      f("out", out);
      f("quant", quant);
      f("norm_weight", norm_weight);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.tokens == 0 || p.hidden == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("weight", args.weight);
    f("residual", args.residual);
    f("residual_out", args.residual_out);
    f("out", args.out);
    f("scale", args.scale);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  /// The call for rows [begin, end) alone, on the same memory.
  static int64_t row_count(const Args& args) { return args.x.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
  static std::span<const Kernel<RmsNorm>> kernels();
};

/// Columns that share a scale: 0 without quantisation, `hidden` per token, else 128.
int64_t columns_of_scale(const RmsNorm::Problem& problem);

}  // namespace eitri
