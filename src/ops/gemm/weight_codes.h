// Quantised weights: which codes go with which scales, and how their panels lie. For gemm, grouped_gemm and fused_moe.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "eitri/eitri.hpp"
#include "ops/gemm/panel_kernels.h"

namespace eitri {

/// Scales that belong to stretches of k, not to whole rows or tensors.
constexpr bool is_block(Quant quant) {
  return quant == Quant::per_1x16 || quant == Quant::per_1x32 || quant == Quant::per_1x128 || quant == Quant::per_128x128;
}
/// Elements of k, and rows, that share a block scale.
constexpr int64_t block_k(Quant quant) { return quant == Quant::per_1x16 ? 16 : quant == Quant::per_1x32 ? 32 : 128; }
constexpr int64_t block_rows(Quant quant) { return quant == Quant::per_128x128 ? 128 : 1; }
constexpr int64_t blocks_of(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

/// The dtype of the block scales of weights of `dtype`; none: the two do not go together.
constexpr DType block_scale_dtype(DType dtype, Quant quant) {
  const bool whole = dtype == DType::i8 || dtype == DType::i4;
  switch (quant) {
    case Quant::per_1x16: return dtype == DType::f4e2m1 ? DType::f8e4m3 : DType::none;
    case Quant::per_1x32: return whole ? DType::f32 : dtype == DType::f4e2m1 || dtype == DType::f8e4m3 ? DType::f8e8m0 : DType::none;
    case Quant::per_1x128: return whole || dtype == DType::f8e4m3 ? DType::f32 : DType::none;
    case Quant::per_128x128: return dtype == DType::f8e4m3 ? DType::f32 : DType::none;
    default: return DType::none;
  }
}
/// Products of a code and its block scale have more than the 8 bits of a bf16.
constexpr bool rounds_in_bf16(DType dtype, Quant quant) { return is_block(quant) && block_scale_dtype(dtype, quant) == DType::f32; }
/// Bytes of the block scales of a weight; 0 without.
constexpr double block_scale_bytes(DType dtype, Quant quant, int64_t n, int64_t k) {
  if (!is_block(quant)) return 0;
  const double width = block_scale_dtype(dtype, quant) == DType::f32 ? 4 : 1;
  return width * static_cast<double>(blocks_of(n, block_rows(quant))) * static_cast<double>(blocks_of(k, block_k(quant)));
}
/// Elements that a panel kernel has to decode: codes, when a is not of the same integer type.
constexpr bool is_code(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::i8 || dtype == DType::i4 || dtype == DType::f4e2m1; }

/// Is there a kernel for a times such weights?
constexpr bool goes_with(DType a, DType b) {
  if (a == b) return true;
  if (a == DType::f8e4m3) return b == DType::f4e2m1;
  if (a == DType::i8) return b == DType::i4;
  return (a == DType::f32 || a == DType::bf16 || a == DType::f16) && is_code(b);
}
/// Rows and blocks that scales of f8e4m3 activations go with, by what the weights' scales belong to.
constexpr bool quants_go_together(Quant a, Quant b) {
  if (a == Quant::per_1x128) return b == Quant::per_128x128;
  if (a == Quant::per_1x32) return b == Quant::per_1x32;
  return !is_block(a) && !is_block(b);
}

/// How panels of such weights lie. i8 without block scales has no form of its own.
constexpr PanelCodes panel_codes(DType dtype, Quant quant) {
  PanelCodes codes{.dtype = dtype};
  if (is_block(quant)) {
    codes.scale = block_scale_dtype(dtype, quant);
    codes.group = static_cast<int32_t>(block_k(quant));
  }
  return codes;
}
/// Packing makes coded panels of it.
constexpr bool packs_as_codes(DType dtype, Quant quant) { return is_code(dtype) && (dtype != DType::i8 || is_block(quant)); }

/// Why `scale` ([.., rows, ceil(k / block)]) is not what weights of these extents need, for messages: "f32[4, 2]". Throws Error naming
/// op and argument. A batch below 0: no batch dimension.
void check_block_scale(const View& scale, const char* op, const char* arg, DType dtype, Quant quant, int64_t batch, int64_t n, int64_t k);
/// What a weight's scales are called in messages.
struct ScaleNames {
  const char *op, *weight, *scale, *quant;
};
/// How the codes of a weight ([batch, n, k], or [n, k] with a batch below 0) are scaled: `asked`, or what it was packed with. Block scales
/// are checked; of the others none is said which, and nothing is looked at. Throws Error on what does not fit.
Quant check_block_quant(const ScaleNames& names, const View& weight, const View& scale, Quant asked, int64_t batch, int64_t n, int64_t k);
/// The same, and scales that are not of blocks are per_tensor ([1], [batch, 1]) or per_token ([n], [batch, n]): if not asked for, by
/// extents.
Quant check_weight_scale(const ScaleNames& names, const View& weight, const View& scale, Quant asked, int64_t batch, int64_t n, int64_t k);
/// The scale of row n and element k of matrix b.
double block_scale_at(const View& scale, Quant quant, int64_t b, int64_t n, int64_t k);

/// One matrix of codes to be packed.
struct CodedRows {
  const std::byte* first = nullptr;                // element (0, 0)
  int64_t row_stride = 0, element_stride = 1;      // elements
  int64_t n = 0, k = 0;                            // n: rows of the weight
  const std::byte* scale = nullptr;                // block (0, 0), null without block scales
  int64_t scale_row_stride = 0, scale_stride = 0;  // elements
  DType dtype = DType::none;
  Quant quant = Quant::none;
};
/// Matrix `index` of plain weights ([n, k] or [batch, n, k]) and of their block scales, which may not be given.
CodedRows coded_rows(const View& weights, const View& scale, Quant quant, int64_t index);
/// Throws Error when a block scale is not finite, too large, or (f8e8m0) too small: kernels fold scales into bf16 and f32.
void check_scale_values(const CodedRows& rows, const char* op);
/// Panel `panel` of a weight that yields `outputs` columns. The scales must have passed check_scale_values.
void pack_coded_panel(const CodedRows& rows, int64_t outputs, GateLayout gate, int64_t panel, std::byte* to);
/// Element k of `column` of a coded panel, times its block scale.
double coded_value(const PanelCodes& codes, const std::byte* panel, int64_t column, int64_t k);

}  // namespace eitri
