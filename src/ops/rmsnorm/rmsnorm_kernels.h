// Norms of rows, one function per instruction level: pointers and sizes only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

struct RmsNormTask {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  // bytes, as the other row strides
  DType x_dtype = DType::bf16;
  const std::byte* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  std::byte* residual_out = nullptr;
  int64_t residual_out_stride = 0;
  DType residual_dtype = DType::none;
  const std::byte* weight = nullptr;  // null: 1
  DType weight_dtype = DType::none;
  NormWeight norm_weight = NormWeight::plain;
  std::byte* out = nullptr;
  int64_t out_stride = 0;
  DType out_dtype = DType::bf16;
  float* scale = nullptr;                                // with an i8 or f8 out
  int64_t scale_row_stride = 0, scale_group_stride = 0;  // elements
  int64_t group = 0;                                     // columns that share a scale
  int64_t hidden = 0;
  float eps = 0;
};

/// `scratch`: hidden floats, each thread its own.
namespace portable {
void rmsnorm_rows(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch);
}
namespace avx2 {
void rmsnorm_rows(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch);
}
namespace avx512 {
void rmsnorm_rows(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch);
}

}  // namespace eitri
