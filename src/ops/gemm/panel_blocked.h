// The panel kernel of the AVX2 and portable levels: one blocked loop, templated on a Unit that knows one operand type.
//
//   for each block of rows (A block, in L2) and block of k
//     convert the rows to dwords: f32, or pairs of i16                   scratch.a    [row][dword of k]
//     for each panel
//       for each chunk of k (16 KiB, in L1)
//         decode the panel's chunk to the same dwords                    scratch.b    [step][tile][16 k-dwords][16 columns]
//         for each group of Unit::kRows rows and each tile of 16 columns
//           sums in registers += broadcast(a dword) x 16 columns         scratch.sums [row][32]
//       epilogue of the panel (panel_epilogue.h)
//
// Coded panels are decoded to f32, scales and all, in the place of "decode the panel's chunk".
// A dword step is 16 rows of 16 dwords (1 KiB) per tile, the layout of a packed f32 tile: f32 panels are used in place.
// Bound by the multiply-add units from about 12 rows on, by decoding or memory below. K tails: rows of A are padded with
// zeros in scratch, panels when packed, so nothing beyond k is read.
#pragma once

#include <cstring>

#include "ops/gemm/panel_epilogue.h"
#include "ops/gemm/panel_kernels.h"

namespace eitri::EITRI_VEC {

namespace blocked {

inline constexpr int64_t kStepDwords = 16;
inline constexpr int64_t kStepTiles = 2 * kTileBytes;  // bytes of a dword step of both tiles
inline constexpr int64_t kBlockRows = 96;              // x 4 KiB of k: 384 KiB of A in L2
inline constexpr int64_t kBlockSteps = 64;             // dword steps: 1024 dwords of k
inline constexpr int64_t kChunkSteps = 8;              // dword steps: 16 KiB of a panel in L1

EITRI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// Dword r of row c, rows 64 bytes apart, to dword c of row r. Written out, not left to the vectoriser: gcc 12 at -O3
/// turns the two nested loops into wrong code for AVX2.
static inline void transpose_tile(const std::byte* from, std::byte* to) {
#if defined(__AVX2__)
  const auto load = [&](int64_t row, int64_t half) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from + row * 64 + half * 32)); };
  for (int64_t half = 0; half < 2; ++half) {  // of the dwords, thus of the rows of `to`
    for (int64_t rows = 0; rows < 16; rows += 8) {
      __m256 pairs[8], quads[8];
      for (int64_t i = 0; i < 8; i += 2) {
        const __m256 a = load(rows + i, half), b = load(rows + i + 1, half);
        pairs[i] = _mm256_unpacklo_ps(a, b);
        pairs[i + 1] = _mm256_unpackhi_ps(a, b);
      }
      for (int64_t i = 0; i < 8; i += 4) {  // quads[i + j]: dword j of each 128-bit lane of four rows
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
      }
      std::byte* out = to + half * 8 * 64 + rows * 4;
      for (int64_t j = 0; j < 4; ++j) {
        _mm256_storeu_ps(reinterpret_cast<float*>(out + j * 64), _mm256_permute2f128_ps(quads[j], quads[j + 4], 0x20));
        _mm256_storeu_ps(reinterpret_cast<float*>(out + (j + 4) * 64), _mm256_permute2f128_ps(quads[j], quads[j + 4], 0x31));
      }
    }
  }
#else
  for (int64_t row = 0; row < 16; ++row)
    for (int64_t dword = 0; dword < 16; ++dword) std::memcpy(to + dword * 64 + row * 4, from + row * 64 + dword * 4, 4);
#endif
}

/// The 16 x 64 byte block of plain rows behind packed tile `tile` of k-step `step`, as that tile.
static inline void pack_tile(const PanelTask& task, int64_t panel, int64_t tile, int64_t step, int64_t element_bytes, std::byte* to) {
  alignas(64) std::byte rows[16 * kStepBytes];
  const int64_t k_bytes = task.k * element_bytes;
  const int64_t begin = step * kStepBytes, count = least(kStepBytes, k_bytes - begin);
  for (int64_t column = 0; column < 16; ++column) {
    const int64_t row = weight_row(task.n, task.gate, panel, tile * 16 + column);
    std::byte* const at = rows + column * kStepBytes;
    if (row >= 0 && count == kStepBytes) {
      std::memcpy(at, task.b + row * task.b_row_stride + begin, kStepBytes);
      continue;
    }
    std::memset(at, 0, kStepBytes);
    if (row >= 0) std::memcpy(at, task.b + row * task.b_row_stride + begin, static_cast<size_t>(count));
  }
  transpose_tile(rows, to);
}

/// i4 codes of 64 k and 16 columns, k-step `step` of that length, as a tile of an i8 panel.
static inline void expand_nibbles(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t tile, std::byte* to) {
  const std::byte* const from = panel + coded_tile_offset(codes, 2 * step, tile);
  for (int64_t row = 0; row < 8; ++row) {
    for (int64_t column = 0; column < 16; ++column) {
      uint32_t x;
      std::memcpy(&x, from + row * 64 + column * 4, sizeof x);
      // Nibbles k, k + 2, k + 4, k + 6, k + 1, ...: quads of sign-extended bytes.
      const auto value = [&](int nibble) { return static_cast<uint32_t>((static_cast<int32_t>(x << (28 - 4 * nibble)) >> 28) & 0xff); };
      const uint32_t first = value(0) | value(4) << 8 | value(1) << 16 | value(5) << 24;
      const uint32_t second = value(2) | value(6) << 8 | value(3) << 16 | value(7) << 24;
      std::memcpy(to + 2 * row * 64 + column * 4, &first, sizeof first);
      std::memcpy(to + (2 * row + 1) * 64 + column * 4, &second, sizeof second);
    }
  }
}

/// kRows rows x 16 columns over `steps` dword steps; sums rows are 32 dwords apart.
template <class Unit, int kRows>
static inline void micro(const std::byte* a, int64_t a_stride, const std::byte* b, int64_t steps, std::byte* sums, bool first) {
  typename Unit::Acc acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = first || Unit::kFreshSums ? Unit::zero() : Unit::load(sums + r * kPanelColumns * 4);
  for (int64_t step = 0; step < steps; ++step, b += kStepTiles) {
    for (int64_t k = 0; k < kStepDwords; ++k, a += 4) {
      __builtin_prefetch(b + k * 64 + kStepTiles);
      const auto columns = Unit::columns(b + k * 64);
      for (int r = 0; r < kRows; ++r) Unit::add(acc[r], a + r * a_stride, columns);
    }
  }
  for (int r = 0; r < kRows; ++r) Unit::store(acc[r], sums + r * kPanelColumns * 4, first);
}

template <class Unit, int kRows>
static inline void rows_of(const std::byte* a, int64_t a_stride, const std::byte* b, int64_t steps, std::byte* sums, bool first) {
  micro<Unit, kRows>(a, a_stride, b, steps, sums, first);
  micro<Unit, kRows>(a, a_stride, b + kTileBytes, steps, sums + 64, first);
}

/// A group of 1 <= rows <= Unit::kRows.
template <class Unit>
static inline void group(int64_t rows, const std::byte* a, int64_t a_stride, const std::byte* b, int64_t steps, std::byte* sums,
                         bool first) {
  static_assert(Unit::kRows == 6 || Unit::kRows == 2);
  if constexpr (Unit::kRows == 6) {
    switch (rows) {
      case 6: return rows_of<Unit, 6>(a, a_stride, b, steps, sums, first);
      case 5: return rows_of<Unit, 5>(a, a_stride, b, steps, sums, first);
      case 4: return rows_of<Unit, 4>(a, a_stride, b, steps, sums, first);
      case 3: return rows_of<Unit, 3>(a, a_stride, b, steps, sums, first);
      default: break;
    }
  }
  if (rows == 2) rows_of<Unit, 2>(a, a_stride, b, steps, sums, first);
  else rows_of<Unit, 1>(a, a_stride, b, steps, sums, first);
}

}  // namespace blocked

/// i8 by i4: nibbles become the tiles of i8 that `UnitI8` decodes.
template <class UnitI8> struct UnitI4 : UnitI8 {
  static constexpr bool kCoded = true;
  static void decode_step(const PanelCodes& codes, const std::byte* panel, int64_t step, std::byte* to) {
    alignas(64) std::byte tile_of_i8[kTileBytes];
    for (int64_t tile = 0; tile < 2; ++tile) {
      blocked::expand_nibbles(codes, panel, step, tile, tile_of_i8);
      UnitI8::decode(tile_of_i8, to + tile * kTileBytes);
    }
  }
};

/// Unit: kElementBytes, kDwordSteps (per 64-byte k-step), kRows, kFreshSums, kSums, Acc, Columns zero load store columns
/// add; convert_a(row, elements, to): whole dword steps, zero padded; decode(tile, to): a packed tile into kDwordSteps
/// tiles kStepTiles apart (kInPlace: packed tiles are used as they are). Of a coded Unit (kCoded) kElementBytes is a's, a packed step is
/// one of kDecodedSteps (i8: 64 k), and decode_step(codes, panel, step, to) makes both tiles of it.
template <class Unit> static void run_blocked(const PanelTask& task) {
  using namespace blocked;
  // Elements of k in a packed step. i8 has as many in coded panels as in others.
  constexpr int64_t kPerStep = Unit::kCoded && Unit::kElementBytes > 1 ? kDecodedSteps : kStepBytes / Unit::kElementBytes;
  const int64_t packed_steps = (task.k + kPerStep - 1) / kPerStep;
  const int64_t steps = packed_steps * Unit::kDwordSteps;
  const bool plain = !Unit::kCoded && task.b_row_stride != 0;
  const int64_t block_rows = least(task.block_m > 0 ? task.block_m : kBlockRows, kScratchRows);
  const int64_t block_steps = steps < kBlockSteps ? steps : kBlockSteps;
  const int64_t asked = task.chunk_k > 0 ? least(task.chunk_k, 4 * kChunkSteps) : kChunkSteps;
  const int64_t chunk_steps = asked < 4 ? 4 : asked / 4 * 4;  // whole packed steps
  const int64_t a_stride = block_steps * kStepDwords * 4;

  std::byte* const decoded = task.scratch;                                // at most 64 KiB
  std::byte* const tile_buffer = decoded + 4 * kChunkSteps * kStepTiles;  // 1 KiB
  std::byte* const a_block = tile_buffer + kTileBytes;
  const int64_t a_rows = least(block_rows, task.m);
  std::byte* const sums_block = a_block + a_rows * a_stride;

  for (int64_t m0 = 0; m0 < task.m; m0 += block_rows) {
    const int64_t rows = least(block_rows, task.m - m0);
    int64_t step0 = 0;
    do {  // at least once: k == 0 still has an epilogue
      const int64_t here = least(block_steps, steps - step0);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t i = m0 + r;
        const int64_t source = task.row_index != nullptr ? task.row_index[i] & task.row_mask : i;
        const int64_t begin = step0 / Unit::kDwordSteps * kPerStep;
        const int64_t count = least(here / Unit::kDwordSteps * kPerStep, task.k - begin);
        Unit::convert_a(task.a + source * task.a_stride + begin * Unit::kElementBytes, count, here, a_block + r * a_stride);
      }
      const bool last = step0 + here >= steps;
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        // Sums of a panel outlive the block of k only when there are several.
        std::byte* const sums = sums_block + (steps > block_steps ? panel - task.panel_begin : 0) * rows * kPanelColumns * 4;
        const std::byte* packed =
            task.b + panel * (Unit::kCoded ? coded_panel_bytes(task.codes, task.k) : panel_bytes(task.k, Unit::kElementBytes));
        for (int64_t chunk = 0; chunk < here; chunk += chunk_steps) {
          const int64_t count = least(chunk_steps, here - chunk);
          const int64_t first_step = (step0 + chunk) / Unit::kDwordSteps;
          const std::byte* b = packed + first_step * kStepTiles;
          if constexpr (Unit::kCoded) {
            for (int64_t s = 0; s < count / Unit::kDwordSteps; ++s)
              Unit::decode_step(task.codes, packed, first_step + s, decoded + s * Unit::kDwordSteps * kStepTiles);
            b = decoded;
          } else if (plain || !Unit::kInPlace) {
            for (int64_t s = 0; s < count / Unit::kDwordSteps; ++s) {
              for (int64_t tile = 0; tile < 2; ++tile) {
                std::byte* to = decoded + s * Unit::kDwordSteps * kStepTiles + tile * kTileBytes;
                const std::byte* from = b + s * kStepTiles + tile * kTileBytes;
                if (plain) {
                  from = Unit::kInPlace ? to : tile_buffer;
                  pack_tile(task, panel, tile, first_step + s, Unit::kElementBytes, const_cast<std::byte*>(from));
                }
                if constexpr (!Unit::kInPlace && !Unit::kCoded) Unit::decode(from, to);
              }
            }
            b = decoded;
          }
          for (int64_t r = 0; r < rows; r += Unit::kRows)
            group<Unit>(least(Unit::kRows, rows - r), a_block + r * a_stride + chunk * kStepDwords * 4, a_stride, b, count,
                        sums + r * kPanelColumns * 4, step0 + chunk == 0);
        }
        if (steps == 0) std::memset(sums, 0, static_cast<size_t>(rows * kPanelColumns * 4));
        if (last) finish_rows<Unit::kSums>(task, panel, sums, kPanelColumns * 4, m0, rows);
      }
      step0 += here;
    } while (step0 < steps);
  }
}

}  // namespace eitri::EITRI_VEC
