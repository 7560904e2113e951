// The SIMT kernels of gemm: they take every problem with plain rows, whatever its strides, dtypes and epilogue.
//
//   gemm.simt.tile    a block of 256 threads makes a tile of c; simt_tile.cuh says how. Bound by the fp32 units (4-way integer dot
//                     products for i8): for calls that no matrix unit takes
//   gemm.simt.decode  a block of 128 threads makes up to 8 rows x 4 sums; thread t has chunks t, t + 128, ... of k, 16 bytes of each row,
//                     and the block adds up the threads in a fixed order. Bound by reading b: for few rows
//   gemm_epilogue     finishes sums that a library left in memory
//
// Bits: a row of c depends on k and the machine's warp alone (tile: on k alone), not on m, n, the tile or the other rows.
//
// Compiled with EITRI_TILE_M, EITRI_ROWS or EITRI_SUMS the file has the entry gemm_tile, gemm_decode or gemm_epilogue for the form
// that the macros say.
#pragma once

#include "ops/gemm/simt_tile.cuh"

namespace eitri::EITRI_SIMT {

template <GemmTileForm kForm> EITRI_INLINE void gemm_tile(const GemmGrid& grid) {
  using T = Tile<kForm>;
  const GemmFinish& f = grid.finish;
  EITRI_SHARED typename T::Memory memory;
  launch_dependents();
  wait_for_dependencies();
  const int64_t tiles = grid.batch * grid.m_tiles * grid.n_tiles;
  EITRI_ROLL for (int64_t tile = block(); tile < tiles; tile += grid.blocks) {
    const int64_t matrix = tile / (grid.m_tiles * grid.n_tiles);
    const int64_t m_first = tile % grid.m_tiles * kForm.tile_m, first = tile / grid.m_tiles % grid.n_tiles * tile_columns(f, kForm.tile_n);
    Carrier<kForm, kForm.tile_m> a(grid.a.vectors != 0, [&](int r) -> const void* {
      return m_first + r < grid.m ? byte_at(grid.a.data, matrix * grid.a.matrix + (m_first + r) * grid.a.stride) : nullptr;
    });
    Carrier<kForm, kForm.tile_n> b(grid.b.vectors != 0, [&](int slot) -> const void* {
      const int64_t row = tile_weight_row<T::kColumns>(f, first, slot);
      return row >= 0 ? byte_at(grid.b.data, matrix * grid.b.matrix + row * grid.b.stride) : nullptr;
    });
    TileSums<kForm> sums;
    sum_tile<kForm>(memory, a, b, grid.k, sums);
    EITRI_ROLL for (int i = 0; i < T::kRows; ++i) {
      const int64_t row = m_first + T::ty() + 16 * i;
      if (row < grid.m) finish_tile_row(sums, i, first, f, FinishedRow(f, matrix, matrix, row, matrix, row));
    }
  }
}

/// Adds up the lanes of a warp: afterwards x[0] of lane l is the total of element l / (warp_size / kSums). A lane gives away half of what
/// it has in each step; every element is added up by the same tree, whatever kSums is.
template <int kCount, int kMask, class T, int kSums> EITRI_INLINE void scatter_sums(T (&x)[kSums]) {
  static_assert((kCount & (kCount - 1)) == 0 && kCount <= 2 * kMask);
  if constexpr (kCount > 1) {
    const bool upper = (lane() & kMask) != 0;
    EITRI_UNROLL for (int i = 0; i < kCount / 2; ++i) {
      const T given = upper ? x[i] : x[i + kCount / 2], kept = upper ? x[i + kCount / 2] : x[i];
      x[i] = kept + shuffle_xor(given, kMask);
    }
    if constexpr (kMask > 1) scatter_sums<kCount / 2, kMask / 2>(x);
  } else {
    x[0] += shuffle_xor(x[0], kMask);
    if constexpr (kMask > 1) scatter_sums<1, kMask / 2>(x);
  }
}

template <GemmDecodeForm kForm> EITRI_INLINE void gemm_decode(const GemmGrid& grid) {
  constexpr bool kCodes = kForm.a == DType::i8;
  constexpr int kThreads = kGemmDecodeThreads, kColumns = kGemmDecodeColumns, kRows = kForm.rows;
  constexpr int kWide = kWideOf<kForm.a>, kWarps = kThreads / warp_size, kSums = kRows * kColumns;
  using Sum = typename Tile<GemmTileForm{.a = kForm.a}>::Sum;
  const GemmFinish& f = grid.finish;
  const bool gated = f.gate != GateLayout::none;
  const int outputs = gated ? kColumns / 2 : kColumns;
  EITRI_SHARED Shared<Sum, kWarps * kSums> partials;
  launch_dependents();
  wait_for_dependencies();
  const int64_t tiles = grid.batch * grid.m_tiles * grid.n_tiles;
  EITRI_ROLL for (int64_t tile = block(); tile < tiles; tile += grid.blocks) {
    const int64_t matrix = tile / (grid.m_tiles * grid.n_tiles);
    const int64_t m_first = tile % grid.m_tiles * kRows, first = tile / grid.m_tiles % grid.n_tiles * outputs;
    // Rows and columns beyond the end are read as empty ones.
    const void *a[kRows], *b[kColumns];
    EITRI_UNROLL for (int r = 0; r < kRows; ++r) a[r] =
        m_first + r < grid.m ? byte_at(grid.a.data, matrix * grid.a.matrix + (m_first + r) * grid.a.stride) : nullptr;
    EITRI_UNROLL for (int j = 0; j < kColumns; ++j) {
      const int64_t column = first + (gated ? j % (kColumns / 2) : j);
      const int64_t row = gated && j >= kColumns / 2 ? up_row_of(f, column) : weight_row_of(f, column);
      b[j] = column < f.columns ? byte_at(grid.b.data, matrix * grid.b.matrix + row * grid.b.stride) : nullptr;
    }
    Sum sum[kSums] = {};
    EITRI_ROLL for (int64_t k = int64_t{thread()} * kWide; k < grid.k; k += int64_t{kThreads} * kWide) {
      Raw<kForm.a, kWide> weights[kColumns];
      EITRI_UNROLL for (int j = 0; j < kColumns; ++j) weights[j] =
          load_raw<kForm.a, kWide>(b[j], k, b[j] == nullptr ? 0 : grid.k, grid.b.vectors != 0);
      if constexpr (kCodes) {
        EITRI_UNROLL for (int r = 0; r < kRows; ++r) {
          const auto row = load_raw<kForm.a, kWide>(a[r], k, a[r] == nullptr ? 0 : grid.k, grid.a.vectors != 0);
          EITRI_UNROLL for (int j = 0; j < kColumns; ++j) EITRI_UNROLL for (int w = 0; w < 4; ++w) sum[r * kColumns + j] =
              dot4(row.w[w], weights[j].w[w], sum[r * kColumns + j]);
        }
      } else {
        float y[kColumns][kWide];
        EITRI_UNROLL for (int j = 0; j < kColumns; ++j) unpack(weights[j], y[j]);
        EITRI_UNROLL for (int r = 0; r < kRows; ++r) {
          float x[kWide];
          unpack(load_raw<kForm.a, kWide>(a[r], k, a[r] == nullptr ? 0 : grid.k, grid.a.vectors != 0), x);
          EITRI_UNROLL for (int j = 0; j < kColumns; ++j) EITRI_UNROLL for (int e = 0; e < kWide; ++e) sum[r * kColumns + j] =
              fma(x[e], y[j][e], sum[r * kColumns + j]);
        }
      }
    }
    scatter_sums<kSums, warp_size / 2>(sum);
    if (lane() % (warp_size / kSums) == 0) partials[warp() * kSums + lane() / (warp_size / kSums)] = sum[0];
    sync();
    if (thread() < kRows * outputs) {
      const int r = thread() / outputs, j = thread() % outputs;
      const int64_t row = m_first + r, column = first + j;
      if (row < grid.m && column < f.columns) {
        Sum x = 0, up = 0;
        EITRI_UNROLL for (int w = 0; w < kWarps; ++w) {
          x += partials[w * kSums + r * kColumns + j];
          if (gated) up += partials[w * kSums + r * kColumns + kColumns / 2 + j];
        }
        FinishedRow(f, matrix, matrix, row, matrix, row).store(column, static_cast<float>(x), static_cast<float>(up));
      }
    }
    sync();
  }
}

}  // namespace eitri::EITRI_SIMT

#if defined(EITRI_TILE_M)
EITRI_KERNEL_FOR(eitri::kGemmTileThreads, eitri::gemm_tile_registers(EITRI_TILE_M, EITRI_TILE_N)) gemm_tile(const eitri::GemmGrid grid) {
  using namespace eitri;
  EITRI_SIMT::gemm_tile<GemmTileForm{.a = DType::EITRI_A, .tile_m = EITRI_TILE_M, .tile_n = EITRI_TILE_N, .wide = EITRI_WIDE}>(grid);
}
#elif defined(EITRI_ROWS)
EITRI_KERNEL(eitri::kGemmDecodeThreads) gemm_decode(const eitri::GemmGrid grid) {
  using namespace eitri;
  EITRI_SIMT::gemm_decode<GemmDecodeForm{.a = DType::EITRI_A, .rows = EITRI_ROWS}>(grid);
}
#elif defined(EITRI_SUMS)
EITRI_KERNEL(eitri::kGemmEpilogueThreads) gemm_epilogue(const eitri::GemmEpilogueGrid grid) {
  using namespace eitri;
  EITRI_SIMT::gemm_epilogue<DType::EITRI_SUMS>(grid);
}
#endif
