// fused_moe: a mixture-of-experts feed-forward block. See FusedMoeArgs in eitri/ops.hpp.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"
#include "ops/gemm/pack.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

std::span<const char* const> enum_names(WeightStage);

struct FusedMoe {
  static constexpr const char* name = "fused_moe";
  using Args = FusedMoeArgs;

  /// Quantisation is written as (x, w, a_quant, w_quant). i8 weights without a w_quant, or with an a_quant of per_token, meet activations
  /// quantised to i8, and so do i4 weights with an a_quant of per_token; f8e4m3 and f4e2m1 weights with an a_quant meet activations quantised
  /// to f8e4m3. w_quant without a_quant is weight-only: codes (see GemmArgs) times x. An x of codes is quantised already.
  struct Problem {
    int64_t tokens = 1;
    int64_t hidden = 2048, inter = 768;
    int64_t local_experts = 128;  // whose weights are here
    int64_t experts = 128;        // that ids may name
    int64_t top_k = 8;
    DType x = DType::bf16;
    DType w = DType::bf16;
    DType out = DType::bf16;
    Quant a_quant = Quant::none;  // of both stages' activations
    Quant w_quant = Quant::none;
    WeightFormat w1_format = WeightFormat::panel32;
    WeightFormat w2_format = WeightFormat::panel32;
    ActivationKind activation = ActivationKind::silu;
    GateLayout gate = GateLayout::separated;
    WeightStage weight_stage = WeightStage::second;
    bool bias1 = false, bias2 = false;
    bool expert_mask = false, local_tokens = false;
    int64_t shared_inter = 0;  // 0: no shared expert
    WeightFormat shared_w1_format = WeightFormat::panel32;
    WeightFormat shared_w2_format = WeightFormat::panel32;

    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("hidden", hidden);
      f("inter", inter);
      f("local_experts", local_experts);
      f("experts", experts);
      f("top_k", top_k);
      f("x", x);
      f("w", w);
      f("out", out);
      f("a_quant", a_quant);
      f("w_quant", w_quant);
      f("w1_format", w1_format);
      f("w2_format", w2_format);
      f("activation", activation);
      f("gate", gate);
      f("weight_stage", weight_stage);
      f("bias1", bias1);
      f("bias2", bias2);
      f("expert_mask", expert_mask);
      f("local_tokens", local_tokens);
      f("shared_inter", shared_inter);
      f("shared_w1_format", shared_w1_format);
      f("shared_w2_format", shared_w2_format);
    }
    bool operator==(const Problem&) const = default;
    /// Rows of a w1 with `columns` outputs.
    int64_t w1_rows(int64_t columns) const { return gate == GateLayout::none ? columns : 2 * columns; }
    int64_t pairs() const { return tokens * top_k; }
    /// Weights of few bits times activations as they are.
    bool coded() const { return w != x && a_quant == Quant::none && w_quant != Quant::none; }
    /// Activations are quantised.
    bool quantised() const { return a_quant != Quant::none || (w == DType::i8 && !coded()); }
    /// To what, and what shares a scale.
    DType codes() const { return w == DType::i8 || w == DType::i4 ? DType::i8 : DType::f8e4m3; }
    Quant codes_quant() const { return a_quant == Quant::none ? Quant::per_token : a_quant; }
    /// x has to be quantised: it is not of codes yet.
    bool quantises_x() const { return quantised() && x != codes(); }
    /// The weights' scales are those of a b of GemmArgs, not one for each row.
    bool scaled_as_codes() const { return coded() || (quantised() && codes() == DType::f8e4m3); }
    /// Kernels decode the weights.
    bool decodes() const { return coded() || (quantised() && w != DType::i8); }
    /// What the weights are multiplied by.
    DType multiplied() const { return quantised() ? codes() : x; }
    /// Distinct local experts that the pairs touch when the router chooses evenly.
    double expected_experts() const;
    /// Bytes of weights of these many experts.
    double weight_bytes(double touched) const;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& problem);
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("w1", args.w1);
    f("w2", args.w2);
    f("topk_weights", args.topk_weights);
    f("topk_ids", args.topk_ids);
    f("out", args.out);
    f("w1_scale", args.w1_scale);
    f("w2_scale", args.w2_scale);
    f("x_scale", args.x_scale);
    f("bias1", args.bias1);
    f("bias2", args.bias2);
    f("expert_mask", args.expert_mask);
    f("num_local_tokens", args.num_local_tokens);
    f("shared_w1", args.shared_w1);
    f("shared_w2", args.shared_w2);
    f("shared_w1_scale", args.shared_w1_scale);
    f("shared_w2_scale", args.shared_w2_scale);
    f("w1_global_scale", args.w1_global_scale);
    f("w2_global_scale", args.w2_global_scale);
    f("shared_w1_global_scale", args.shared_w1_global_scale);
    f("shared_w2_global_scale", args.shared_w2_global_scale);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<FusedMoe>> kernels();
};

}  // namespace eitri
