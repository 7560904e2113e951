// grouped_gemm.simt.tile: the tiles of gemm.simt.tile (ops/gemm/simt_tile.cuh) over the rows of one expert each. A tile lies within a block
// of moe_sort; tiles of nothing but padding, of experts below 0, and beyond num_valid, which is read here, are skipped. Padding
// rows within a tile count as zeros and are not written. Neighbouring blocks share their rows of b through the L2 cache.
//
// Compiled with EITRI_TILE_M the file has the entry grouped_gemm_tile for the form that the other macros say.
#pragma once

#include "ops/gemm/simt_tile.cuh"
#include "ops/grouped_gemm/simt_params.h"

namespace eitri::EITRI_SIMT {

/// Positions of a tile.
struct TilePositions {
  int64_t first, rows;  // rows == 0: no work
  int64_t expert;
};

/// The row of a at position first + r; -1 for padding.
EITRI_INLINE int64_t grouped_row(const GroupedGemmGrid& grid, const TilePositions& at, int64_t r) {
  if (r >= at.rows) return -1;
  const int64_t token = grid.sorted_ids[at.first + r] & 0xffffff;
  if (token >= grid.tokens) return -1;
  return grid.gather_tokens != 0 ? token : at.first + r;
}

/// Uniform over a block: every warp looks at all rows.
EITRI_INLINE TilePositions tile_positions(const GroupedGemmGrid& grid, int64_t m_tile, int tile_m) {
  const int64_t block = m_tile / grid.tiles_per_block;
  const int64_t first = block * grid.block + m_tile % grid.tiles_per_block * tile_m;
  const int64_t valid = grid.num_valid[0] < grid.capacity ? grid.num_valid[0] : grid.capacity;
  const int64_t block_end = (block + 1) * grid.block, end = block_end < valid ? block_end : valid;
  TilePositions at{.first = first, .rows = end - first < tile_m ? end - first : tile_m, .expert = -1};
  if (at.rows <= 0) return {.first = first, .rows = 0, .expert = -1};
  at.expert = grid.sorted_expert_ids[block];
  bool used = false;
  for (int64_t r = lane(); r < tile_m; r += warp_size) used = used || grouped_row(grid, at, r) >= 0;
  if (!any(used) || at.expert < 0 || at.expert >= grid.experts) at.rows = 0;
  return at;
}

template <GemmTileForm kForm> EITRI_INLINE void grouped_gemm_tile(const GroupedGemmGrid& grid) {
  using T = Tile<kForm>;
  const GemmFinish& f = grid.finish;
  EITRI_SHARED typename T::Memory memory;
  launch_dependents();
  wait_for_dependencies();
  const int64_t tiles = grid.m_tiles * grid.n_tiles;
  EITRI_ROLL for (int64_t tile = block(); tile < tiles; tile += grid.blocks) {
    const TilePositions at = tile_positions(grid, tile % grid.m_tiles, kForm.tile_m);
    if (at.rows == 0) continue;
    const int64_t first = tile / grid.m_tiles * tile_columns(f, kForm.tile_n);
    Carrier<kForm, kForm.tile_m> a(grid.a.vectors != 0, [&](int r) -> const void* {
      const int64_t row = grouped_row(grid, at, r);
      return row >= 0 ? byte_at(grid.a.data, row * grid.a.stride) : nullptr;
    });
    Carrier<kForm, kForm.tile_n> b(grid.b.vectors != 0, [&](int slot) -> const void* {
      const int64_t row = tile_weight_row<T::kColumns>(f, first, slot);
      return row >= 0 ? byte_at(grid.b.data, at.expert * grid.b.matrix + row * grid.b.stride) : nullptr;
    });
    TileSums<kForm> sums;
    sum_tile<kForm>(memory, a, b, grid.k, sums);
    EITRI_ROLL for (int i = 0; i < T::kRows; ++i) {
      const int64_t r = T::ty() + 16 * i, row = grouped_row(grid, at, r);
      if (row >= 0) finish_tile_row(sums, i, first, f, FinishedRow(f, 0, at.expert, row, 0, at.first + r));
    }
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_TILE_M)
EITRI_KERNEL_FOR(eitri::kGemmTileThreads, eitri::gemm_tile_registers(EITRI_TILE_M, EITRI_TILE_N))
grouped_gemm_tile(const eitri::GroupedGemmGrid grid) {
  using namespace eitri;
  EITRI_SIMT::grouped_gemm_tile<GemmTileForm{.a = DType::EITRI_A, .tile_m = EITRI_TILE_M, .tile_n = EITRI_TILE_N}>(grid);
}
#endif
