// What host and kernel share about the SIMT kernels of quantize.
#pragma once

#include "ops/quantize/blocks_kernels.h"

namespace eitri {

/// The passes of a call: one, or with a scale for the tensor two.
enum class QuantizePass : uint8_t { amax, codes };

/// What the kernel is compiled for.
struct QuantizeForm {
  DType x = DType::bf16, q = DType::i8;
  Quant quant = Quant::per_token;
  QuantizePass pass = QuantizePass::codes;
  int threads = 0;  // of a block
  int chunks = 0;   // kept by a thread; 0: rows are read again
  bool operator==(const QuantizeForm&) const = default;
};

/// Elements that a thread takes at once: 16 bytes of x, and whole words of codes.
EITRI_HD constexpr int quantize_wide(DType x, DType q) { return x == DType::f32 && q != DType::f4e2m1 ? 4 : 8; }

/// The argument of the kernel.
struct QuantizeGrid {
  QuantizeBlocksTask task = {};
  const int32_t* num_valid = nullptr;  // with sorted_ids
  float* partials = nullptr;           // the largest magnitude that each of `parts` blocks of the first pass saw
  int64_t parts = 0;
  int64_t rows = 0;
  int64_t blocks = 0;
  int32_t vectors = 0;  // every row of every tensor is aligned for vector accesses
};

/// The argument of the kernel that needs one pass for a scale of the tensor. Tensors without gaps are one row here.
struct QuantizeOnePassGrid {
  QuantizeBlocksTask task = {};
  const int32_t* num_valid = nullptr;  // with sorted_ids
  void* meeting = nullptr;             // kOnePassBytes that are kept from launch to launch; see device/meeting.h; null for one block
  int32_t pieces = 0, row_pieces = 1;  // of the tensor and of a row; a piece is what a block keeps
  int32_t blocks = 0;                  // at most kOnePassBlocks
  int32_t vectors = 0;                 // every piece of every tensor is aligned for vector accesses
};
inline constexpr int kOnePassBytes = 16 << 10, kOnePassBlocks = 1024;

}  // namespace eitri
