// activation's kernels in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/activation/simt.cuh"
#include "simt/form_table.h"
#include "simt/op_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto activation_forms() {
  FormList<ActivationForm, 500> list;
  using enum DType;
  const auto add = [&](ActivationKind kind, GateLayout gate) {
    for (const DType x : {f32, bf16, f16})
      for (const DType out : {f32, bf16, f16, i8})
        list.add({.x = x, .out = out, .kind = kind, .gate = gate, .threads = kOneChunkThreads, .chunks = 1});
  };
  for (const ActivationKind kind :
       {ActivationKind::none, ActivationKind::relu, ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh})
    add(kind, GateLayout::none);
  for (const ActivationKind kind :
       {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu, ActivationKind::situv2})
    for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved}) add(kind, gate);
  ActivationForm row = {
      .x = bf16, .out = i8, .kind = ActivationKind::silu, .gate = GateLayout::separated, .threads = kOneChunkThreads, .chunks = 4};
  list.add(row);
  row.threads = kLongRowThreads, row.chunks = 0;
  list.add(row);
  // What the cases with a limit need.
  for (size_t i = 0, count = list.count; i < count; ++i) {
    ActivationForm form = list.forms[i];
    form.limited = true;
    if (form.chunks == 1 && (form.x == f32 || form.out == i8) && (form.kind == ActivationKind::silu || form.kind == ActivationKind::swiglu))
      list.add(form);
  }
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
