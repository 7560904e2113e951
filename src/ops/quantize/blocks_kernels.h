// Quantisation to any codes, with a scale for a block of a row, a row, or the tensor: one function per instruction level, pointers
// and sizes only. i8 codes per token have functions of their own (quantize_kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/numeric.h"
#include "eitri/enums.hpp"

namespace eitri {

struct QuantizeBlocksTask {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  // bytes, as all strides here
  DType x_dtype = DType::bf16;
  std::byte* q = nullptr;
  int64_t q_stride = 0;
  DType q_dtype = DType::f8e4m3;  // i8, f8e4m3, f8e4m3fnuz, f4e2m1
  std::byte* scale = nullptr;     // of row 0, block 0
  int64_t scale_row_stride = 0, scale_block_stride = 0;
  DType scale_dtype = DType::f32;  // or f8e8m0, with f8e4m3 and f4e2m1
  ScaleRounding rounding = ScaleRounding::up;
  int64_t cols = 0;
  int64_t blocks = 1, block_cols = 0;  // of a row; the last block may be shorter
  /// All blocks have this scale, which the caller writes.
  const float* tensor_scale = nullptr;
  // Rows whose sorted id names no token are skipped; null: none is.
  const int32_t* sorted_ids = nullptr;
  int64_t tokens = 0;
};

/// quantize_amax: the largest finite magnitude in rows [begin, end).
namespace portable {
void quantize_blocks(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
float quantize_amax(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
}  // namespace portable
namespace avx2 {
void quantize_blocks(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
float quantize_amax(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
}  // namespace avx2
namespace avx512 {
void quantize_blocks(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
float quantize_amax(const QuantizeBlocksTask& task, int64_t begin, int64_t end);
}  // namespace avx512

}  // namespace eitri
