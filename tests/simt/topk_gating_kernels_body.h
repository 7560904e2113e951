// topk_gating's kernels in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/topk_gating/simt.cuh"
#include "ops/topk_gating/simt.h"
#include "simt/form_table.h"
#include "simt/routing_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto gating_forms() {
  FormList<GatingForm, 160> list;
  using enum DType;
  const auto add = [&](DType logits, GatingScore score, bool bias, int64_t experts, int64_t groups) {
    const GatingShape shape = gating_shape(experts, groups, warp_size);
    if (shape.lanes > 0) list.add({logits, score, bias, shape.threads, shape.lanes, shape.per_lane, shape.group_lanes});
    list.add({.logits = logits, .score = score, .bias = bias, .threads = kBlockGatingThreads});
  };
  for (const GatingScore score : {GatingScore::softmax, GatingScore::sigmoid, GatingScore::sqrt_softplus})
    for (const bool bias : {false, true}) {
      for (const int experts : {64, 23}) add(f32, score, bias, experts, 1);
      add(f32, score, bias, 96, 8);
      if (!bias) continue;
      add(bf16, score, bias, 64, 1);
      add(f16, score, bias, 64, 1);
    }
  for (const int experts : {7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1031}) add(f32, GatingScore::sigmoid, true, experts, 1);
  add(f32, GatingScore::softmax, false, 1, 1);
  add(f32, GatingScore::softmax, false, 0, 1);
  add(f32, GatingScore::softmax, false, 16, 1);
  add(f32, GatingScore::sigmoid, true, 7, 7);
  add(f32, GatingScore::sigmoid, true, 35, 5);
  add(f32, GatingScore::sigmoid, true, 256, 8);
  add(bf16, GatingScore::softmax, false, 512, 1);
  add(f32, GatingScore::softmax, false, 1024, 1);
  add(bf16, GatingScore::softmax, false, 128, 1);
  add(f32, GatingScore::softmax, false, 128, 1);
  return list;
}
constexpr auto kGatingForms = gating_forms();

GatingLane gating_lane(const GatingForm& form) {
  return find_lane<kGatingForms, GatingLane>(form, []<GatingForm kForm>() -> GatingLane {
    if constexpr (kForm.lanes > 0) return [](const GatingGrid& grid) { topk_gating_lanes_per_token<kForm>(grid); };
    else return [](const GatingGrid& grid) { topk_gating_block_per_token<kForm>(grid); };
  });
}

}  // namespace eitri::EITRI_SIMT
