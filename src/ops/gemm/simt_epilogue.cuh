// The end of every SIMT matrix kernel: from sums of products to elements of c. What differs between calls (activation, gate, bias, dtype
// of c) is decided at run time, uniformly for a grid: these branches cost little beside the sums, and one binary serves all
// epilogues of a shape.
#pragma once

#include "device/row.h"  // first: it decides what F is

#include "device/activation.h"
#include "ops/gemm/simt_params.h"

namespace eitri::EITRI_SIMT {

/// The row of b that belongs to a column of c, and the one with its `up` value.
EITRI_INLINE int64_t weight_row_of(const GemmFinish& f, int64_t column) { return f.gate == GateLayout::interleaved ? 2 * column : column; }
EITRI_INLINE int64_t up_row_of(const GemmFinish& f, int64_t column) {
  return f.gate == GateLayout::interleaved ? 2 * column + 1 : column + f.columns;
}

EITRI_INLINE float load_number(const void* p, DType dtype, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(p)[i];
  const uint16_t code = static_cast<const uint16_t*>(p)[i];
  return dtype == DType::bf16 ? from_bf16(code) : from_f16(code);
}
EITRI_INLINE void store_number(void* p, DType dtype, int64_t i, float x) {
  if (dtype == DType::f32) static_cast<float*>(p)[i] = x;
  else static_cast<uint16_t*>(p)[i] = dtype == DType::bf16 ? to_bf16(x) : to_f16(x);
}

/// One row of c.
class FinishedRow {
 public:
  /// Row `row` of matrix `a_matrix` of a; c's row is `c_row` of matrix `c_matrix`; `b_matrix` is b's.
  EITRI_INLINE FinishedRow(const GemmFinish& f, int64_t a_matrix, int64_t b_matrix, int64_t row, int64_t c_matrix, int64_t c_row)
      : f_(f),
        b_scale_(f.b_scale == nullptr ? nullptr : f.b_scale + b_matrix * f.b_scale_matrix),
        bias_(f.bias == nullptr ? nullptr : byte_at(f.bias, b_matrix * f.bias_matrix)),
        c_(byte_at(f.c, c_matrix * f.c_matrix + c_row * f.c_stride)),
        a_scale_(f.a_scale == nullptr ? 1.0f : f.a_scale[a_matrix * f.a_scale_matrix + row * f.a_scale_step]),
        weight_(f.row_weight == nullptr ? 1.0f : f.row_weight[c_row]) {}

  /// Element `column`; `up` matters with a gate only.
  EITRI_INLINE void store(int64_t column, float sum, float up) const { store_number(c_, f_.c_dtype, column, value(column, sum, up)); }

  /// Elements [column, column + count), at most four, as far as c has them.
  EITRI_INLINE void store4(int64_t column, int count, float (&sum)[4], const float (&up)[4]) const {
    const int64_t left = f_.columns - column;
    count = left < count ? static_cast<int>(left) : count;
    if (f_.activation.kind == ActivationKind::none && f_.gate == GateLayout::none) {
      EITRI_UNROLL for (int e = 0; e < 4; ++e) {
        if (e < count) sum[e] = scaled(weight_row_of(f_, column + e), sum[e]);
      }
    } else {
      // Rolled, so that the functions are there once; elements are picked by comparison to stay in registers.
      EITRI_ROLL for (int i = 0; i < count; ++i) {
        float x = 0.0f, u = 0.0f;
        EITRI_UNROLL for (int e = 0; e < 4; ++e) {
          x = e == i ? sum[e] : x;
          u = e == i ? up[e] : u;
        }
        const float y = value(column + i, x, u);
        EITRI_UNROLL for (int e = 0; e < 4; ++e) sum[e] = e == i ? y : sum[e];
      }
    }
    if (count == 4 && f_.c_vectors != 0 && column % 4 == 0) {
      if (f_.c_dtype == DType::f32)
        store16(c_ + column * 4, {{float_bits(sum[0]), float_bits(sum[1]), float_bits(sum[2]), float_bits(sum[3])}});
      else if (f_.c_dtype == DType::bf16) store8(c_ + column * 2, {{pack2_bf16(sum[0], sum[1]), pack2_bf16(sum[2], sum[3])}});
      else store8(c_ + column * 2, {{pack2_f16(sum[0], sum[1]), pack2_f16(sum[2], sum[3])}});
      return;
    }
    EITRI_UNROLL for (int e = 0; e < 4; ++e) {
      if (e < count) store_number(c_, f_.c_dtype, column + e, sum[e]);
    }
  }

 private:
  /// The argument of the activation.
  EITRI_INLINE float scaled(int64_t weight_row, float sum) const {
    if (b_scale_ != nullptr) sum = sum * a_scale_ * b_scale_[weight_row * f_.b_scale_step];
    if (f_.row_weight != nullptr) sum *= weight_;
    return bias_ == nullptr ? sum : sum + load_number(bias_, f_.bias_dtype, weight_row);
  }
  EITRI_INLINE float value(int64_t column, float sum, float up) const {
    const F x{scaled(weight_row_of(f_, column), sum)};
    F y = x;
    if (f_.gate == GateLayout::none) {
      with_activation(f_.activation.kind, [&](auto kind) {
        constexpr ActivationKind kKind = decltype(kind)::value;
        if constexpr (kKind != ActivationKind::swiglu && kKind != ActivationKind::situv2) y = activate<kKind>(f_.activation, x);
      });
    } else {
      const F u{scaled(up_row_of(f_, column), up)};
      with_activation(f_.activation.kind, [&](auto kind) { y = activate<decltype(kind)::value>(f_.activation, x, u); });
    }
    return y.v;
  }

  const GemmFinish& f_;
  const float* b_scale_;
  const unsigned char* bias_;
  unsigned char* c_;
  float a_scale_, weight_;
};

/// gemm_epilogue: a thread takes four columns of a row of c. Bound by memory.
template <DType kSums> EITRI_INLINE void gemm_epilogue(const GemmEpilogueGrid& grid) {
  const GemmFinish& f = grid.finish;
  const bool gated = f.gate != GateLayout::none, vectors = grid.vectors != 0;
  const auto read = [&](const void* row, int64_t first, int64_t n, float(&x)[4]) {
    const auto raw = load_raw<DType::f32, 4>(row, first, n, vectors);
    EITRI_UNROLL for (int e = 0; e < 4; ++e) x[e] =
        kSums == DType::f32 ? bits_float(raw.w[e]) : static_cast<float>(static_cast<int32_t>(raw.w[e]));
  };
  launch_dependents();
  wait_for_dependencies();
  const int64_t total = grid.batch * grid.m * grid.quads;
  for (int64_t i = block() * kGemmEpilogueThreads + thread(); i < total; i += grid.blocks * kGemmEpilogueThreads) {
    const int64_t column = i % grid.quads * 4, row = i / grid.quads % grid.m, matrix = i / grid.quads / grid.m;
    const void* const sums = byte_at(grid.sums, matrix * grid.matrix + row * grid.stride);
    float x[4], up[4] = {};
    if (f.gate == GateLayout::interleaved) {
      float low[4], high[4];
      read(sums, 2 * column, grid.n, low);
      read(sums, 2 * column + 4, grid.n, high);
      EITRI_UNROLL for (int e = 0; e < 2; ++e) {
        x[e] = low[2 * e], up[e] = low[2 * e + 1];
        x[e + 2] = high[2 * e], up[e + 2] = high[2 * e + 1];
      }
    } else {
      read(sums, column, f.columns, x);
      if (gated) read(byte_at(sums, f.columns * 4), column, f.columns, up);
    }
    FinishedRow(f, matrix, matrix, row, matrix, row).store4(column, 4, x, up);
  }
}

}  // namespace eitri::EITRI_SIMT
