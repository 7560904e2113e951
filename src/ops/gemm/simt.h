// The host side of the SIMT kernels of gemm: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/gemm/gemm.h"
#include "ops/gemm/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// Sums that a block of the tile kernels makes.
struct GemmTileShape {
  int tile_m = 64, tile_n = 64;
  bool operator==(const GemmTileShape&) const = default;
};
/// The knobs' values.
inline constexpr int kGemmTileM[] = {16, 32, 64, 128}, kGemmTileN[] = {64, 128};

/// What becomes of the sums of a checked call. A kernel that applies scales or bias itself takes them out.
GemmFinish gemm_finish(const GemmArgs& args, const Gemm::Problem& problem);

GemmTileForm gemm_tile_form(const Gemm::Problem& problem, GemmTileShape shape);
SimtEntry gemm_tile_entry(const Gemm::Problem& problem, GemmTileShape shape);
GemmGrid gemm_tile_grid(const GemmArgs& args, const Gemm::Problem& problem, GemmTileShape shape);
/// The shape without tuning: the least time by the model of gemm_tile_us.
GemmTileShape gemm_tile_shape(const Gemm::Problem& problem, const SimtMachine& machine);

/// Rows of a that a block of the decode kernel takes.
int gemm_decode_rows(const Gemm::Problem& problem);
GemmDecodeForm gemm_decode_form(const Gemm::Problem& problem);
SimtEntry gemm_decode_entry(const Gemm::Problem& problem);
GemmGrid gemm_decode_grid(const GemmArgs& args, const Gemm::Problem& problem);

/// Finishes `sums`: i32 (of i8 operands) or f32, [batch, m, n] with n rows of b, `matrix` and `stride` elements apart.
SimtEntry gemm_epilogue_entry(const Gemm::Problem& problem, DType sums);
GemmEpilogueGrid gemm_epilogue_grid(const GemmFinish& finish, const Gemm::Problem& problem, const void* sums, int64_t matrix,
                                    int64_t stride);

/// Is every row of the tensor, of rank 2 or 3, aligned to `bytes`?
bool are_rows_aligned(const View& view, int64_t bytes);
/// An operand whose rows are read `bytes` at a time where they are aligned to that.
GemmOperand gemm_operand(const View& view, int64_t bytes);
/// Bytes that the tile kernels read of a row at once.
inline int64_t gemm_tile_bytes(DType a) { return a == DType::i8 ? 16 : bits(a) / 2; }
/// Tiles of `shape` that cover m rows and n rows of b, in a batch.
struct GemmTiles {
  int64_t m, n;
};
GemmTiles gemm_tiles(int64_t m, int64_t n_out, GateLayout gate, GemmTileShape shape);

/// Expected microseconds of tiles: the model behind gemm_tile_shape, in whole waves over the units. `tiles` is their number.
double gemm_tile_us(double tiles, int64_t k, DType a, GemmTileShape shape, const Device& device);
inline constexpr Knob kGemmTileKnobs[] = {{"tile_m", kGemmTileM}, {"tile_n", kGemmTileN}};

/// gemm.simt.tile and gemm.simt.decode.
Kernel<Gemm> gemm_simt_tile();
Kernel<Gemm> gemm_simt_decode();

}  // namespace eitri
