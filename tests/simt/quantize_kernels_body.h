// quantize's kernel in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/quantize/simt_one_pass.cuh"
#include "simt/form_table.h"
#include "simt/op_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto quantize_forms() {
  using enum Quant;
  FormList<QuantizeForm, 32> list;
  for (const DType x : {DType::f32, DType::bf16, DType::f16}) {
    for (const int chunks : {1, 4}) list.add({.x = x, .threads = kOneChunkThreads, .chunks = chunks});
    list.add({.x = x, .threads = kLongRowThreads, .chunks = 0});
    if (x == DType::f16) continue;  // is read like bf16; the GPU tier runs all forms
    const auto one_chunk = [&](DType q, Quant quant, QuantizePass pass = QuantizePass::codes) {
      list.add({.x = x, .q = q, .quant = quant, .pass = pass, .threads = kOneChunkThreads, .chunks = 1});
    };
    one_chunk(DType::i8, per_tensor, QuantizePass::amax);
    for (const DType q : {DType::i8, DType::f8e4m3, DType::f8e4m3fnuz}) {
      if (x == DType::f32 && q != DType::f8e4m3) continue;
      for (const Quant quant : {per_tensor, per_token, per_1x128}) one_chunk(q, quant);
    }
    if (x == DType::bf16) {  // columns of several chunks, and of rows that are read twice
      for (const Quant quant : {per_tensor, per_1x128}) {
        list.add({.x = x, .q = DType::f8e4m3, .quant = quant, .threads = kOneChunkThreads, .chunks = 4});
        list.add({.x = x, .q = DType::f8e4m3, .quant = quant, .threads = kLongRowThreads, .chunks = 0});
      }
      list.add({.x = x, .quant = per_tensor, .pass = QuantizePass::amax, .threads = kOneChunkThreads, .chunks = 4});
      list.add({.x = x, .quant = per_tensor, .pass = QuantizePass::amax, .threads = kLongRowThreads, .chunks = 0});
    }
    for (const DType q : {DType::i8, DType::f8e4m3, DType::f4e2m1})
      if (x == DType::bf16 || q == DType::f4e2m1) one_chunk(q, per_1x32);
  }
  return list;
}
constexpr auto kQuantizeForms = quantize_forms();

QuantizeLane quantize_lane(const QuantizeForm& form) {
  return find_lane<kQuantizeForms, QuantizeLane>(form, []<QuantizeForm kForm>() -> QuantizeLane {
    return [](const QuantizeGrid& grid) {
      grid.vectors != 0 ? quantize_block_per_row<kForm, Rows::vectors>(grid) : quantize_block_per_row<kForm, Rows::elements>(grid);
    };
  });
}

constexpr auto quantize_one_pass_forms() {
  FormList<QuantizeForm, 16> list;
  for (const DType x : {DType::f32, DType::bf16})
    for (const DType q : {DType::i8, DType::f8e4m3, DType::f8e4m3fnuz})
      for (const int chunks : {1, 4})
        if (x == DType::bf16 || (q == DType::f8e4m3 && chunks == 1))
          list.add({.x = x, .q = q, .quant = Quant::per_tensor, .threads = kOneChunkThreads, .chunks = chunks});
  return list;
}
constexpr auto kQuantizeOnePassForms = quantize_one_pass_forms();

QuantizeOnePassLane quantize_one_pass_lane(const QuantizeForm& form) {
  return find_lane<kQuantizeOnePassForms, QuantizeOnePassLane>(form, []<QuantizeForm kForm>() -> QuantizeOnePassLane {
    return [](const QuantizeOnePassGrid& grid) {
      grid.vectors != 0 ? quantize_one_pass<kForm, Rows::vectors>(grid) : quantize_one_pass<kForm, Rows::elements>(grid);
    };
  });
}

}  // namespace eitri::EITRI_SIMT
