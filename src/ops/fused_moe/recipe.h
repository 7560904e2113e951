// The calls that fused_moe.recipe.sorted makes, as the arguments of its children.
#pragma once

#include "ops/fused_moe/fused_moe.h"

namespace eitri {

/// Where the recipe keeps its intermediates. `bytes` is the whole; views of parts that a problem does not need are empty.
struct RecipeBuffers {
  View sorted_ids, sorted_weights, sorted_expert_ids, num_valid, reverse;  // of moe_sort
  View x_codes, x_scale;                                                   // quantised activations and a float x
  View h, h_codes, h_scale;  // stage 1's result by sorted position; f32 when it is quantised next
  View y;                    // stage 2's result by sorted position, in out's dtype
  View shared_h, shared_h_codes, shared_h_scale, shared_y;
  size_t bytes = 0;
};
RecipeBuffers recipe_buffers(const FusedMoe::Problem& problem, int64_t tile_m, std::byte* workspace, DeviceId where = {});

/// Every child call in order, each handed to `visit` as its Args. The same list serves launch (visit calls the op) and
/// explain (visit asks the op's check for the Problem).
template <class Visit>
void recipe_calls(const FusedMoeArgs& args, const FusedMoe::Problem& p, int64_t tile_m, const RecipeBuffers& w, Visit&& visit) {
  const bool quantised = p.quantised();
  const Quant b_quant = p.decodes() ? p.w_quant : Quant::none, codes_quant = p.codes_quant();
  const Quant a_quant = quantised && p.codes() != DType::i8 ? codes_quant : Quant::none;
  visit(MoeSortArgs{.topk_ids = args.topk_ids,
                    .topk_weights = args.topk_weights,
                    .expert_mask = args.expert_mask,
                    .num_local_tokens = args.num_local_tokens,
                    .sorted_ids = w.sorted_ids,
                    .sorted_weights = w.sorted_weights,
                    .sorted_expert_ids = w.sorted_expert_ids,
                    .num_valid = w.num_valid,
                    .reverse = w.reverse,
                    .experts = p.experts,
                    .block = tile_m});
  const View x = p.quantises_x() ? w.x_codes : args.x;
  const View x_scale = p.quantises_x() ? w.x_scale : args.x_scale;
  if (p.quantises_x())
    visit(QuantizeArgs{
        .x = args.x, .q = w.x_codes, .scale = w.x_scale, .quant = codes_quant, .sorted_ids = {}, .num_valid = {}, .tokens = 0});

  // The lists cover max_padded positions; so few pairs may fill only the first part, which is what buffers are made for.
  const int64_t positions = w.y.shape[0];
  View ids = w.sorted_ids, weights = w.sorted_weights;
  ids.shape[0] = weights.shape[0] = positions;
  GroupedGemmArgs gemm{.a = x,
                       .b = args.w1,
                       .c = w.h,
                       .bias = args.bias1,
                       .a_scale = x_scale,
                       .b_scale = args.w1_scale,
                       .row_weight = p.weight_stage == WeightStage::first ? weights : View{},
                       .sorted_ids = ids,
                       .sorted_expert_ids = w.sorted_expert_ids,
                       .num_valid = w.num_valid,
                       .tokens = p.tokens,
                       .block = tile_m,
                       .gather = Gather::token,
                       .activation = args.activation,
                       .gate = args.gate,
                       .b_global_scale = args.w1_global_scale,
                       .a_quant = a_quant,
                       .b_quant = b_quant};
  visit(gemm);
  if (quantised)
    visit(QuantizeArgs{.x = w.h,
                       .q = w.h_codes,
                       .scale = w.h_scale,
                       .quant = codes_quant,
                       .sorted_ids = ids,
                       .num_valid = w.num_valid,
                       .tokens = p.tokens});
  gemm.a = quantised ? w.h_codes : w.h;
  gemm.a_scale = w.h_scale;
  gemm.b = args.w2;
  gemm.b_scale = args.w2_scale;
  gemm.bias = args.bias2;
  gemm.c = w.y;
  gemm.row_weight = {};
  gemm.gather = Gather::position;
  gemm.activation = {};
  gemm.gate = GateLayout::none;
  gemm.b_global_scale = args.w2_global_scale;
  visit(gemm);

  if (p.shared_inter > 0) {
    visit(GemmArgs{.a = x,
                   .b = args.shared_w1,
                   .c = w.shared_h,
                   .bias = {},
                   .a_scale = x_scale,
                   .b_scale = args.shared_w1_scale,
                   .activation = args.activation,
                   .gate = args.gate,
                   .b_global_scale = args.shared_w1_global_scale,
                   .a_quant = a_quant,
                   .b_quant = b_quant});
    if (quantised)
      visit(QuantizeArgs{.x = w.shared_h,
                         .q = w.shared_h_codes,
                         .scale = w.shared_h_scale,
                         .quant = codes_quant,
                         .sorted_ids = {},
                         .num_valid = {},
                         .tokens = 0});
    visit(GemmArgs{.a = quantised ? w.shared_h_codes : w.shared_h,
                   .b = args.shared_w2,
                   .c = w.shared_y,
                   .bias = {},
                   .a_scale = w.shared_h_scale,
                   .b_scale = args.shared_w2_scale,
                   .activation = {},
                   .gate = GateLayout::none,
                   .b_global_scale = args.shared_w2_global_scale,
                   .a_quant = a_quant,
                   .b_quant = b_quant});
  }
  visit(MoeCombineArgs{.y = w.y,
                       .reverse = w.reverse,
                       .weights = p.weight_stage == WeightStage::second ? args.topk_weights : View{},
                       .shared = w.shared_y,
                       .out = args.out,
                       // moe_sort leaves out their slots; only the shared expert would reach the rows behind.
                       .num_local_tokens = p.shared_inter > 0 ? args.num_local_tokens : View{}});
}

/// Arguments of this problem's shapes at addresses that nothing reads: for check() alone. Weights are plain ones,
/// because a packed buffer would be looked into.
FusedMoeArgs shapes_of(const FusedMoe::Problem& problem);

}  // namespace eitri
