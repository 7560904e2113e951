// rmsnorm's kernel in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/rmsnorm/simt.cuh"
#include "simt/form_table.h"
#include "simt/op_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto rmsnorm_forms() {
  FormList<RmsNormForm, 460> list;
  using enum DType;
  const auto add = [&](RmsNormForm form) {
    // As has_early_weights() and has_products() have them.
    const bool products = form.quant != Quant::none && form.chunks > 0 && (form.chunks == 1 || form.residual != f32 || form.x == f32);
    form.early_weights = form.chunks > 0;
    form.products = products;
    list.add(form);
    form.early_weights = false;
    form.products = products && form.weight == none;
    if (form.chunks > 1) list.add(form);
  };
  const auto quant_of = [](DType out) { return out == f32 || out == bf16 || out == f16 ? Quant::none : Quant::per_token; };
  for (const DType x : {f32, bf16, f16}) {
    for (const DType out : {f32, bf16, f16, i8, f8e4m3, f8e4m3fnuz}) {
      for (const DType weight : {none, f32, x}) {
        for (const DType residual : {none, f32, x}) add({x, weight, residual, out, quant_of(out), NormWeight::plain, kOneChunkThreads, 1});
        if (weight != none) add({x, weight, none, out, quant_of(out), NormWeight::plus_one, kOneChunkThreads, 1});
      }
      if (quant_of(out) == Quant::none) continue;
      for (const DType residual : {none, x})
        for (const int chunks : {1, 4}) add({x, x, residual, out, Quant::per_1x128, NormWeight::plain, kOneChunkThreads, chunks});
    }
    add({x, x, none, x, Quant::none, NormWeight::plain, kOneChunkThreads, 4});
    add({x, x, none, x, Quant::none, NormWeight::plain, kLongRowThreads, 0});
  }
  // Rows that two blocks share; a block of half the threads is one warp at least.
  for (const DType out : {bf16, i8, f8e4m3})
    for (const Quant quant : {Quant::none, Quant::per_token, Quant::per_1x128}) {
      if ((out == bf16) != (quant == Quant::none)) continue;
      for (const DType residual : {none, bf16})
        for (const int chunks : {1, 4})
          list.add({.x = bf16,
                    .weight = bf16,
                    .residual = residual,
                    .out = out,
                    .quant = quant,
                    .threads = kOneChunkThreads / 2,
                    .chunks = chunks,
                    .early_weights = true,
                    .products = quant != Quant::none,
                    .row_blocks = 2});
    }
  add({bf16, bf16, bf16, bf16, Quant::none, NormWeight::plain, kLongRowThreads, 0});
  add({bf16, bf16, none, f8e4m3, Quant::per_token, NormWeight::plain, kLongRowThreads, 0});
  add({bf16, bf16, bf16, i8, Quant::per_token, NormWeight::plain, kOneChunkThreads, 4});
  add({bf16, bf16, bf16, i8, Quant::per_1x128, NormWeight::plain, kLongRowThreads, 0});
  return list;
}
constexpr auto kRmsNormForms = rmsnorm_forms();

RmsNormLane rmsnorm_lane(const RmsNormForm& form) {
  return find_lane<kRmsNormForms, RmsNormLane>(form, []<RmsNormForm kForm>() -> RmsNormLane {
    return [](const RmsNormGrid& grid) {
      grid.vectors != 0 ? rmsnorm_block_per_row<kForm, Rows::vectors>(grid) : rmsnorm_block_per_row<kForm, Rows::elements>(grid);
    };
  });
}

}  // namespace eitri::EITRI_SIMT
