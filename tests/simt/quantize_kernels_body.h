// quantize's kernel in the forms that its cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/quantize/simt.cuh"
#include "simt/form_table.h"
#include "simt/op_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto quantize_forms() {
  FormList<QuantizeForm, 20> list;
  for (const DType x : {DType::f32, DType::bf16, DType::f16}) {
    for (const int chunks : {1, 4}) list.add({x, DType::i8, kOneChunkThreads, chunks});
    list.add({x, DType::i8, kLongRowThreads, 0});
    for (const DType q : {DType::f8e4m3, DType::f8e4m3fnuz}) list.add({x, q, kOneChunkThreads, 1});
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

}  // namespace eitri::EITRI_SIMT
