// What host and kernels share about the SIMT kernels of gemm and grouped_gemm.
#pragma once

#include "eitri/enums.hpp"

namespace eitri {

/// What becomes of a sum of products: act(sum * a_scale * b_scale * row_weight + bias), written to c. Absent tensors are null.
/// Matrices, rows and elements are counted; only strides of c and bias are bytes.
struct GemmFinish {
  const float* a_scale = nullptr;  // by row of a
  int64_t a_scale_matrix = 0;      // elements from one matrix of the batch to the next
  int64_t a_scale_step = 1;        // 0: one for all rows
  const float* b_scale = nullptr;  // by row of b
  int64_t b_scale_matrix = 0;
  int64_t b_scale_step = 1;
  const float* row_weight = nullptr;  // by row of c
  const void* bias = nullptr;         // by row of b
  int64_t bias_matrix = 0;            // bytes
  void* c = nullptr;
  int64_t c_matrix = 0, c_stride = 0;  // bytes
  int64_t columns = 0;                 // of c
  ActivationParams activation = {};
  DType bias_dtype = DType::none, c_dtype = DType::bf16;
  GateLayout gate = GateLayout::none;
  int32_t c_vectors = 0;  // four elements of c from a multiple of four on may be written at once
};

/// Rows of operands, one matrix after the other.
struct GemmOperand {
  const void* data = nullptr;
  int64_t matrix = 0, stride = 0;  // bytes
  int32_t vectors = 0;             // every row is aligned for the accesses of the kernel
};

/// What gemm_tile and grouped_gemm_tile are compiled for. A block of 256 threads makes tile_m x tile_n sums.
struct GemmTileForm {
  DType a = DType::bf16;
  int tile_m = 64;  // 16, 32, 64 or 128
  int tile_n = 64;  // rows of b: 64 or 128
  int wide = 0;     // i8 with so long a k that sums need 64 bits
  bool operator==(const GemmTileForm&) const = default;
};
inline constexpr int kGemmTileThreads = 256;
/// Blocks that a unit should have registers for. The largest tile keeps too much in registers to share a unit.
constexpr int gemm_tile_room(int tile_m, int tile_n) { return tile_m * tile_n > 8192 ? 1 : 2; }
/// Registers of a thread that leave that room.
constexpr int gemm_tile_registers(int tile_m, int tile_n) { return 65536 / kGemmTileThreads / gemm_tile_room(tile_m, tile_n); }

/// What gemm_decode is compiled for. A block of 128 threads makes rows x 4 sums.
struct GemmDecodeForm {
  DType a = DType::bf16;
  int rows = 1;  // of a: 1, 2, 4 or 8
  bool operator==(const GemmDecodeForm&) const = default;
};
inline constexpr int kGemmDecodeThreads = 128, kGemmDecodeColumns = 4;

/// The argument of gemm_tile and gemm_decode.
struct GemmGrid {
  GemmOperand a = {}, b = {};
  GemmFinish finish = {};
  int64_t batch = 0, m = 0, n = 0, k = 0;  // n counts rows of b
  int64_t m_tiles = 0, n_tiles = 0;        // of one matrix
  int64_t blocks = 0;
};

/// The argument of gemm_epilogue, which finishes sums that another kernel has left in memory.
struct GemmEpilogueGrid {
  GemmFinish finish = {};
  const void* sums = nullptr;       // [batch, m, n] of i32 or f32
  int64_t matrix = 0, stride = 0;   // bytes
  int64_t batch = 0, m = 0, n = 0;  // n counts rows of b
  int64_t quads = 0;                // groups of four columns of c in a row
  int64_t blocks = 0;
  int32_t vectors = 0;  // rows of sums, and their second half, are aligned to 16 bytes
};
inline constexpr int kGemmEpilogueThreads = 256;

}  // namespace eitri
