// The parameters of each operator, once: the reader of calls, torch's schemas and the stubs walk them. Names are those of the
// public arguments (eitri/ops.hpp), but for an output that Python calls `out`.
#pragma once

#include "ops/ops.h"

namespace eitri::python {

/// `run` is the public function; `walk` visits the arguments in the order in which Python passes them.
template <class Op> struct Parameters {
  static_assert(sizeof(Op) == 0, "list the operator's arguments here, in python/native/parameters.h");
};

template <> struct Parameters<Gemm> {
  static constexpr auto run = eitri::gemm;
  static void walk(auto& f, GemmArgs& a) {
    f.tensor("a", a.a);
    f.weight("b", a.b);
    f.output("out", a.c, "c");
    f.optional("bias", a.bias);
    f.optional("a_scale", a.a_scale);
    f.optional("b_scale", a.b_scale);
    f.activation(a.activation);
    f.choice("gate", a.gate);
    f.optional("b_global_scale", a.b_global_scale);
    f.choice("a_quant", a.a_quant);
    f.choice("b_quant", a.b_quant);
  }
};

template <> struct Parameters<GroupedGemm> {
  static constexpr auto run = eitri::grouped_gemm;
  static void walk(auto& f, GroupedGemmArgs& a) {
    f.tensor("a", a.a);
    f.weight("b", a.b);
    f.output("out", a.c, "c");
    f.tensor("sorted_ids", a.sorted_ids);
    f.tensor("sorted_expert_ids", a.sorted_expert_ids);
    f.tensor("num_valid", a.num_valid);
    f.number("tokens", a.tokens);
    f.number("block", a.block);
    f.choice("gather", a.gather);
    f.optional("bias", a.bias);
    f.optional("a_scale", a.a_scale);
    f.optional("b_scale", a.b_scale);
    f.optional("row_weight", a.row_weight);
    f.activation(a.activation);
    f.choice("gate", a.gate);
    f.optional("b_global_scale", a.b_global_scale);
    f.choice("a_quant", a.a_quant);
    f.choice("b_quant", a.b_quant);
  }
};

template <> struct Parameters<Quantize> {
  static constexpr auto run = eitri::quantize;
  static void walk(auto& f, QuantizeArgs& a) {
    f.tensor("x", a.x);
    f.output("out", a.q, "q");
    f.output("scale", a.scale);
    f.choice("quant", a.quant);
    f.optional("sorted_ids", a.sorted_ids);
    f.optional("num_valid", a.num_valid);
    f.number("tokens", a.tokens);
    f.choice("scale_rounding", a.scale_rounding);
  }
};

template <> struct Parameters<Activation> {
  static constexpr auto run = eitri::activation;
  static void walk(auto& f, ActivationArgs& a) {
    f.tensor("x", a.x);
    f.output("out", a.out);
    f.optional_output("scale", a.scale);
    f.activation(a.activation);
    f.choice("gate", a.gate);
    f.optional("sorted_ids", a.sorted_ids);
    f.optional("num_valid", a.num_valid);
    f.number("tokens", a.tokens);
  }
};

template <> struct Parameters<RmsNorm> {
  static constexpr auto run = eitri::rmsnorm;
  static void walk(auto& f, RmsNormArgs& a) {
    f.tensor("x", a.x);
    f.output("out", a.out);
    f.optional("weight", a.weight);
    f.optional("residual", a.residual);
    f.optional_output("residual_out", a.residual_out);
    f.optional_output("scale", a.scale);
    f.number("eps", a.eps);
    f.choice("norm_weight", a.norm_weight);
    f.choice("quant", a.quant);
  }
};

template <> struct Parameters<TopkGating> {
  static constexpr auto run = eitri::topk_gating;
  static void walk(auto& f, TopkGatingArgs& a) {
    f.tensor("logits", a.logits);
    f.output("weights", a.weights);
    f.output("ids", a.ids);
    f.optional("correction_bias", a.correction_bias);
    f.choice("score", a.score);
    f.choice("renormalize", a.renormalize);
    f.number("scale", a.scale);
    f.number("groups", a.groups);
    f.number("topk_groups", a.topk_groups);
  }
};

template <> struct Parameters<MoeSort> {
  static constexpr auto run = eitri::moe_sort;
  static void walk(auto& f, MoeSortArgs& a) {
    f.tensor("topk_ids", a.topk_ids);
    f.tensor("topk_weights", a.topk_weights);
    f.output("sorted_ids", a.sorted_ids);
    f.output("sorted_weights", a.sorted_weights);
    f.output("sorted_expert_ids", a.sorted_expert_ids);
    f.output("num_valid", a.num_valid);
    f.number("experts", a.experts);
    f.number("block", a.block);
    f.optional_output("reverse", a.reverse);
    f.optional("expert_mask", a.expert_mask);
    f.optional("num_local_tokens", a.num_local_tokens);
  }
};

template <> struct Parameters<MoeCombine> {
  static constexpr auto run = eitri::moe_combine;
  static void walk(auto& f, MoeCombineArgs& a) {
    f.tensor("y", a.y);
    f.tensor("reverse", a.reverse);
    f.output("out", a.out);
    f.optional("weights", a.weights);
    f.optional("shared", a.shared);
    f.optional("num_local_tokens", a.num_local_tokens);
  }
};

template <> struct Parameters<FusedMoe> {
  static constexpr auto run = eitri::fused_moe;
  static void walk(auto& f, FusedMoeArgs& a) {
    f.tensor("x", a.x);
    f.weight("w1", a.w1);
    f.weight("w2", a.w2);
    f.tensor("topk_weights", a.topk_weights);
    f.tensor("topk_ids", a.topk_ids);
    f.output("out", a.out);
    f.optional("w1_scale", a.w1_scale);
    f.optional("w2_scale", a.w2_scale);
    f.optional("x_scale", a.x_scale);
    f.optional("bias1", a.bias1);
    f.optional("bias2", a.bias2);
    f.optional("expert_mask", a.expert_mask);
    f.optional("num_local_tokens", a.num_local_tokens);
    f.optional_weight("shared_w1", a.shared_w1);
    f.optional_weight("shared_w2", a.shared_w2);
    f.optional("shared_w1_scale", a.shared_w1_scale);
    f.optional("shared_w2_scale", a.shared_w2_scale);
    f.activation(a.activation);
    f.choice("gate", a.gate);
    f.choice("weight_stage", a.weight_stage);
    f.optional("w1_global_scale", a.w1_global_scale);
    f.optional("w2_global_scale", a.w2_global_scale);
    f.optional("shared_w1_global_scale", a.shared_w1_global_scale);
    f.optional("shared_w2_global_scale", a.shared_w2_global_scale);
    f.choice("a_quant", a.a_quant);
    f.choice("w_quant", a.w_quant);
  }
};

}  // namespace eitri::python
