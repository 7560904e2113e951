// The kernels of gemm and grouped_gemm in the forms that their cases need, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/gemm/simt.cuh"
#include "ops/grouped_gemm/simt.cuh"
#include "simt/form_table.h"
#include "simt/gemm_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr auto gemm_tile_forms() {
  FormList<GemmTileForm, 50> list;
  using enum DType;
  for (const DType a : {f32, bf16, f16, i8, f8e4m3})
    for (const int tile_n : {64, 128})
      for (const int tile_m : {16, 32, 64, 128})
        if (tile_n == 64 || tile_m >= 64 || a == bf16) list.add({a, tile_m, tile_n, 0});
  for (const int tile_m : {16, 32, 64}) list.add({i8, tile_m, 64, 1});
  return list;
}
constexpr auto kGemmTileForms = gemm_tile_forms();

constexpr auto gemm_decode_forms() {
  FormList<GemmDecodeForm, 20> list;
  using enum DType;
  for (const DType a : {f32, bf16, f16, i8, f8e4m3})
    for (const int rows : {1, 2, 4, 8}) list.add({a, rows});
  return list;
}
constexpr auto kGemmDecodeForms = gemm_decode_forms();

constexpr auto grouped_gemm_forms() {
  FormList<GemmTileForm, 20> list;
  using enum DType;
  for (const DType a : {f32, bf16, f16, i8}) {
    list.add({a, 16, 64, 0});
    list.add({a, 32, 128, 0});
    list.add({a, 64, 64, 0});
  }
  return list;
}
constexpr auto kGroupedGemmForms = grouped_gemm_forms();

GemmLane gemm_tile_lane(const GemmTileForm& form) {
  return find_lane<kGemmTileForms, GemmLane>(
      form, []<GemmTileForm kForm>() -> GemmLane { return [](const GemmGrid& grid) { gemm_tile<kForm>(grid); }; });
}
GemmLane gemm_decode_lane(const GemmDecodeForm& form) {
  return find_lane<kGemmDecodeForms, GemmLane>(
      form, []<GemmDecodeForm kForm>() -> GemmLane { return [](const GemmGrid& grid) { gemm_decode<kForm>(grid); }; });
}
GemmEpilogueLane gemm_epilogue_lane(DType sums) {
  if (sums == DType::i32) return [](const GemmEpilogueGrid& grid) { gemm_epilogue<DType::i32>(grid); };
  return [](const GemmEpilogueGrid& grid) { gemm_epilogue<DType::f32>(grid); };
}
GroupedGemmLane grouped_gemm_lane(const GemmTileForm& form) {
  return find_lane<kGroupedGemmForms, GroupedGemmLane>(
      form, []<GemmTileForm kForm>() -> GroupedGemmLane { return [](const GroupedGemmGrid& grid) { grouped_gemm_tile<kForm>(grid); }; });
}

}  // namespace eitri::EITRI_SIMT
