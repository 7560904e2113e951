// moe_combine's kernel in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/moe_combine/simt.cuh"
#include "simt/form_table.h"
#include "simt/routing_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto moe_combine_forms() {
  FormList<MoeCombineForm, 20> list;
  using enum DType;
  for (const DType y : {f32, bf16, f16})
    for (const DType out : {f32, bf16, f16}) list.add({y, out, kCombineThreads, 8});
  for (const int slots : {1, 2, 4}) list.add({bf16, bf16, kCombineThreads, slots});
  return list;
}
constexpr auto kMoeCombineForms = moe_combine_forms();

MoeCombineLane moe_combine_lane(const MoeCombineForm& form) {
  return find_lane<kMoeCombineForms, MoeCombineLane>(
      form, []<MoeCombineForm kForm>() -> MoeCombineLane { return [](const MoeCombineGrid& grid) { moe_combine_chunks<kForm>(grid); }; });
}

}  // namespace eitri::EITRI_SIMT
