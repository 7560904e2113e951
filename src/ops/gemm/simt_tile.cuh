// The core of the SIMT matrix kernels: a block's tile of sums of products, in fp32 (int32 for i8), each sum in ascending k by one
// chain of fused multiply-adds. So its bits depend neither on the tile's shape nor on the other rows.
//
// Both operands come in steps of 16 words of k (a word is one float, or four i8 codes) and lie in shared memory as rows of four
// chunks of 16 bytes, already as floats: a conversion is made once for all threads that use it. A row takes five chunks, so that eight
// neighbouring rows are in different banks. While a step is multiplied, the next one is on its way in registers; there are two
// buffers, and one barrier a step.
//
//   thread (ty, tx) of 16 x 16 has rows ty + 16 i of a and slots tx + 16 j of b; eight neighbouring lanes share ty
//   slots of b are ordered so that a thread's sums are neighbours in c (and, with a gate, pairs of gate and up): see tile_column
//
// Bound by the fp32 units in large tiles, where a thread's 8 x 8 sums read 16 chunks for 256 multiply-adds.
#pragma once

#include "device/simt.h"  // first: thread() without the bound of rows, which costs stack here

#include "ops/gemm/simt_epilogue.cuh"

namespace eitri::EITRI_SIMT {

template <GemmTileForm kForm> struct Tile {
  static constexpr bool kCodes = kForm.a == DType::i8;
  static constexpr int kChunks = 4, kPitch = 5;
  static constexpr int kElements = kCodes ? 16 : 4;  // of k in a chunk
  static constexpr int kStep = kChunks * kElements;  // of k
  static constexpr int kRows = kForm.tile_m / 16, kColumns = kForm.tile_n / 16;
  static constexpr int kBuffer = (kForm.tile_m + kForm.tile_n) * kPitch;
  static_assert(kForm.tile_m % 16 == 0 && (kColumns == 4 || kColumns == 8));
  static_assert(kForm.wide == 0 || kCodes);

  template <bool kInts, int> struct SumOf { using type = float; };
  template <int kUnused> struct SumOf<true, kUnused> { using type = int32_t; };
  using Sum = typename SumOf<kCodes, 0>::type;
  using Memory = Shared<Words<16>, 2 * kBuffer>;

  static EITRI_INLINE int ty() { return thread() / 8 % 16; }
  static EITRI_INLINE int tx() { return thread() / 128 * 8 + thread() % 8; }
};

/// Columns of c in a tile.
EITRI_INLINE int64_t tile_columns(const GemmFinish& f, int tile_n) { return f.gate == GateLayout::none ? tile_n : tile_n / 2; }

/// The row of b in slot tx + 16 j of a tile whose first column of c is `first`; -1 beyond the end.
template <int kColumns> EITRI_INLINE int64_t tile_weight_row(const GemmFinish& f, int64_t first, int slot) {
  const int x = slot % 16, j = slot / 16;
  if (f.gate == GateLayout::none) {
    const int64_t column = first + j / 4 * 64 + x * 4 + j % 4;
    return column < f.columns ? column : -1;
  }
  const int64_t column = first + x * (kColumns / 2) + j % (kColumns / 2);
  if (column >= f.columns) return -1;
  return j < kColumns / 2 ? weight_row_of(f, column) : up_row_of(f, column);
}

/// The chunks of one operand that a thread carries to shared memory: of rows thread / 4 + 64 i, always the same of the four.
template <GemmTileForm kForm, int kTileRows> class Carrier {
  using T = Tile<kForm>;
  static constexpr int kItems = (kTileRows + 63) / 64;
  static constexpr int kWide = T::kElements;

 public:
  /// row_of(r) is the address of row r, null for one that is not there: it counts as zeros.
  template <class RowOf> EITRI_INLINE Carrier(bool vectors, RowOf&& row_of) : vectors_(vectors) {
    EITRI_UNROLL for (int i = 0; i < kItems; ++i) {
      const int r = row(i);
      rows_[i] = r < kTileRows ? row_of(r) : nullptr;
    }
  }
  EITRI_INLINE void fetch(int64_t first, int64_t k) {
    EITRI_UNROLL for (int i = 0; i < kItems; ++i) raw_[i] =
        load_raw<kForm.a, kWide>(rows_[i], first + thread() % 4 * kWide, rows_[i] == nullptr ? 0 : k, vectors_);
  }
  EITRI_INLINE void put(typename T::Memory& memory, int base) const {
    EITRI_UNROLL for (int i = 0; i < kItems; ++i) {
      if (kTileRows % 64 != 0 && row(i) >= kTileRows) continue;
      Words<16> chunk;
      if constexpr (T::kCodes) {
        EITRI_UNROLL for (int w = 0; w < 4; ++w) chunk.w[w] = raw_[i].w[w];
      } else {
        float x[4];
        unpack(raw_[i], x);
        EITRI_UNROLL for (int w = 0; w < 4; ++w) chunk.w[w] = float_bits(x[w]);
      }
      memory[base + row(i) * T::kPitch + thread() % 4] = chunk;
    }
  }

 private:
  static EITRI_INLINE int row(int i) { return thread() / 4 + i * 64; }
  bool vectors_;
  const void* rows_[kItems];
  Raw<kForm.a, kWide> raw_[kItems];
};

EITRI_INLINE float multiply_add(uint32_t a, uint32_t b, float sum) { return fma(bits_float(a), bits_float(b), sum); }
EITRI_INLINE int32_t multiply_add(uint32_t a, uint32_t b, int32_t sum) { return dot4(a, b, sum); }

/// The sums of a thread.
template <GemmTileForm kForm> struct TileSums {
  using T = Tile<kForm>;
  typename T::Sum sum[T::kRows][T::kColumns];
  int64_t total[kForm.wide != 0 ? T::kRows : 1][T::kColumns];  // wide: of what `sum` held before

  /// Row i as floats; i need not be a constant.
  EITRI_INLINE void row(int i, float (&x)[T::kColumns]) const {
    EITRI_UNROLL for (int j = 0; j < T::kColumns; ++j) {
      x[j] = 0.0f;
      EITRI_UNROLL for (int r = 0; r < T::kRows; ++r) {
        if constexpr (kForm.wide != 0) x[j] = r == i ? static_cast<float>(total[r][j] + sum[r][j]) : x[j];
        else x[j] = r == i ? static_cast<float>(sum[r][j]) : x[j];
      }
    }
  }
};

/// Sums over k of the rows that the carriers bring. Every thread of the block takes part; barriers before and after.
template <GemmTileForm kForm, class A, class B>
EITRI_INLINE void sum_tile(typename Tile<kForm>::Memory& memory, A& a, B& b, int64_t k, TileSums<kForm>& out) {
  using T = Tile<kForm>;
  constexpr int64_t kFlush = 1024;  // steps: 2^16 products of at most 2^14
  constexpr int kB = kForm.tile_m * T::kPitch;
  EITRI_UNROLL for (int i = 0; i < T::kRows; ++i) EITRI_UNROLL for (int j = 0; j < T::kColumns; ++j) {
    out.sum[i][j] = 0;
    if constexpr (kForm.wide != 0) out.total[i][j] = 0;
  }
  const int64_t steps = (k + T::kStep - 1) / T::kStep;
  if (steps == 0) return;
  a.fetch(0, k);
  b.fetch(0, k);
  a.put(memory, 0);
  b.put(memory, kB);
  sync();
  const int a_first = T::ty() * T::kPitch, b_first = kB + T::tx() * T::kPitch;
  EITRI_ROLL for (int64_t step = 0; step < steps; ++step) {
    const int now = step % 2 != 0 ? T::kBuffer : 0;
    const bool more = step + 1 < steps;
    if (more) {
      a.fetch((step + 1) * T::kStep, k);
      b.fetch((step + 1) * T::kStep, k);
    }
    EITRI_ROLL for (int c = 0; c < T::kChunks; ++c) {
      Words<16> rows[T::kRows];
      EITRI_UNROLL for (int i = 0; i < T::kRows; ++i) rows[i] = memory[now + a_first + i * 16 * T::kPitch + c];
      EITRI_UNROLL for (int j = 0; j < T::kColumns; ++j) {
        const Words<16> column = memory[now + b_first + j * 16 * T::kPitch + c];
        EITRI_UNROLL for (int w = 0; w < 4; ++w) EITRI_UNROLL for (int i = 0; i < T::kRows; ++i) out.sum[i][j] =
            multiply_add(rows[i].w[w], column.w[w], out.sum[i][j]);
      }
    }
    if constexpr (kForm.wide != 0) {
      if ((step + 1) % kFlush == 0) {
        EITRI_UNROLL for (int i = 0; i < T::kRows; ++i) EITRI_UNROLL for (int j = 0; j < T::kColumns; ++j) {
          out.total[i][j] += out.sum[i][j];
          out.sum[i][j] = 0;
        }
      }
    }
    if (more) {
      a.put(memory, T::kBuffer - now);
      b.put(memory, T::kBuffer - now + kB);
    }
    sync();
  }
}

/// Writes row i of a thread's sums to a row of c, in a tile whose first column is `first`.
template <GemmTileForm kForm>
EITRI_INLINE void finish_tile_row(const TileSums<kForm>& sums, int i, int64_t first, const GemmFinish& f, const FinishedRow& out) {
  using T = Tile<kForm>;
  constexpr int kColumns = T::kColumns;
  float x[kColumns];
  sums.row(i, x);
  // Two calls of store4 at most; in a loop, so that it is there once.
  const bool gated = f.gate != GateLayout::none;
  const int groups = gated ? 1 : kColumns / 4;
  EITRI_ROLL for (int g = 0; g < groups; ++g) {
    float y[4], up[4];
    EITRI_UNROLL for (int e = 0; e < 4; ++e) {
      y[e] = g == 0 ? x[e] : x[kColumns - 4 + e];
      up[e] = x[(kColumns / 2 + e) % kColumns];
    }
    const int count = gated && kColumns == 4 ? 2 : 4;
    const int64_t column = first + (gated ? T::tx() * (kColumns / 2) : g * 64 + T::tx() * 4);
    if (column < f.columns) out.store4(column, count, y, up);
  }
}

}  // namespace eitri::EITRI_SIMT
