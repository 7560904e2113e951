// activation's kernels in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/activation/simt.cuh"
#include "simt/form_table.h"
#include "simt/op_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto activation_forms() {
  FormList<ActivationForm, 400> list;
  using enum DType;
  const auto add = [&](ActivationKind kind, GateLayout gate) {
    for (const DType x : {f32, bf16, f16})
      for (const DType out : {f32, bf16, f16, i8}) list.add({x, out, kind, gate, kOneChunkThreads, 1});
  };
  for (const ActivationKind kind :
       {ActivationKind::none, ActivationKind::relu, ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh})
    add(kind, GateLayout::none);
  for (const ActivationKind kind :
       {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu, ActivationKind::situv2})
    for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved}) add(kind, gate);
  list.add({bf16, i8, ActivationKind::silu, GateLayout::separated, kOneChunkThreads, 4});
  list.add({bf16, i8, ActivationKind::silu, GateLayout::separated, kLongRowThreads, 0});
  return list;
}
constexpr auto kActivationForms = activation_forms();

ActivationLane activation_lane(const ActivationForm& form) {
  return find_lane<kActivationForms, ActivationLane>(form, []<ActivationForm kForm>() -> ActivationLane {
    return [](const ActivationGrid& grid) {
      const bool vectors = grid.vectors != 0;
      if constexpr (kForm.out == DType::i8)
        vectors ? activation_block_per_row<kForm, Rows::vectors>(grid) : activation_block_per_row<kForm, Rows::elements>(grid);
      else vectors ? activation_tiles<kForm, Rows::vectors>(grid) : activation_tiles<kForm, Rows::elements>(grid);
    };
  });
}

}  // namespace eitri::EITRI_SIMT
