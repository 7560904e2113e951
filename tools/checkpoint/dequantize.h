// Copies a checkpoint's matrices into the dtype of a layer, whatever they were stored as.
#pragma once

#include <cstdint>

#include "checkpoint/safetensors.h"
#include "eitri/types.hpp"

namespace eitri::checkpoint {

/// A matrix inside a tensor: rows x cols at `offset` elements, row-major without gaps.
struct MatrixSource {
  const Tensor* values = nullptr;
  int64_t offset = 0;
  /// fp8 only: one f32 factor per block_rows x block_cols block ("weight_scale_inv"); the last blocks may be partial.
  const Tensor* block_scale = nullptr;
  int64_t block_rows = 128, block_cols = 128;
};

/// out[r * out_stride + c] = source[r, c] in `dtype` (bf16, f16 or f32): exact for equal types, else rounded to nearest.
/// Sources: BF16, F16, F32, F8_E4M3 and F8_E5M2 (with or without block scales).
void copy_matrix(const MatrixSource& source, int64_t rows, int64_t cols, void* out, DType dtype, int64_t out_stride);

/// The same with the source read as [cols, rows].
void copy_transposed(const MatrixSource& source, int64_t rows, int64_t cols, void* out, DType dtype);

/// MXFP4: `blocks` holds 16 bytes (32 elements, low nibble first) per block, `scales` one E8M0 byte per block; cols is a
/// multiple of 32. `first_block` is where the matrix starts.
void copy_mxfp4(const Tensor& blocks, const Tensor& scales, int64_t first_block, int64_t rows, int64_t cols, void* out, DType dtype);

}  // namespace eitri::checkpoint
