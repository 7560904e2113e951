// Coded panels on AVX-512, for a level with VBMI and one without.
//
// Up to kStreamRows rows: stream(), codes from registers into products.
// More: chunks of 128 k are decoded to f32 in L1 (16 KiB), scales and all, for all groups of the block's rows: per code a table look-up
// or a few integer operations, a product and a store, once for every 96 rows; the sums of a group leave and enter registers once a
// chunk. The order of additions is that of ascending k, as in x86_avx512.cpp.
#pragma once

#include <cstring>

#include "ops/gemm/x86_avx512_units.h"
#include "ops/gemm/x86_decode.h"

namespace eitri::vec512 {
inline namespace EITRI_CODES {

inline constexpr int64_t kChunkSteps = 4;                     // of kDecodedSteps
inline constexpr int64_t kCodedBlockBytes = 384 << 10;        // of A
inline constexpr int64_t kCodesAhead = 8192;                  // bytes of codes between fetch and use
inline constexpr int64_t kDecodedBytes = 2 * 2 * kTileBytes;  // a step as f32

template <class Kind> static void decode_f32(const std::byte* panel, int64_t step, int64_t steps, std::byte* to) {
  for (const int64_t end = step + steps; step < end; ++step, to += kDecodedBytes) {
    for (int64_t tile = 0; tile < 2; ++tile) {
      std::byte* const out = to + tile * kTileBytes;
      __m512 scale[2];
      if constexpr (Kind::kScaled) scales_of<Kind>(panel, step, tile, scale);
      decode_values<Kind>(panel, step, tile, kCodesAhead, [&](int k, __m512 value) {
        if constexpr (Kind::kScaled) value = _mm512_mul_ps(value, scale[k / 16]);
        _mm512_store_ps(out + k / 16 * 2 * kTileBytes + k % 16 * 64, value);
      });
    }
  }
}

// Up to kStreamRows rows a panel is not worth storing: its codes go from registers into products. Sums of 32 k start at zero, even and odd
// k apart, which is enough chains for one row; their block scale meets them once, not every code.
inline constexpr int kStreamRows = 3;

/// kRows rows x 32 columns over all of k. a: [k][row]. What lies kCodesAhead bytes behind is fetched, but not behind `left` bytes.
template <class Kind, int kRows> static void stream(const std::byte* panel, int64_t steps, int64_t left, const float* a, std::byte* sums) {
  const int64_t fetching = (left - kCodesAhead) / (span_bytes(Kind::kPanel) / (kSpan / kDecodedSteps));  // k-steps
  __m512 total[kRows][2];
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step, a += kDecodedSteps * kRows) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      __m512 part[kRows][2], scale[2];  // of even and of odd k
      if constexpr (Kind::kScaled) scales_of<Kind>(panel, step, tile, scale);
      for (int r = 0; r < kRows; ++r) part[r][0] = part[r][1] = _mm512_setzero_ps();
      const auto finish = [&](int half) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512 sum = _mm512_add_ps(part[r][0], part[r][1]);
          if constexpr (Kind::kScaled) total[r][tile] = _mm512_fmadd_ps(scale[half], sum, total[r][tile]);
          else total[r][tile] = _mm512_add_ps(sum, total[r][tile]);
        }
      };
      decode_values<Kind>(panel, step, tile, step < fetching ? kCodesAhead : 0, [&](int k, __m512 value) {
        if (Kind::kPanel.group == 16 && k == 16) {
          finish(0);
          for (int r = 0; r < kRows; ++r) part[r][0] = part[r][1] = _mm512_setzero_ps();
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) part[r][k % 2] = _mm512_fmadd_ps(_mm512_set1_ps(a[k * kRows + r]), value, part[r][k % 2]);
      });
      finish(1);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int tile = 0; tile < 2; ++tile) _mm512_store_ps(sums + r * kRowBytes + tile * 64, total[r][tile]);
}

using StreamFn = void (*)(const std::byte* panel, int64_t steps, int64_t left, const float* a, std::byte* sums);
static inline StreamFn stream_of(const PanelCodes& codes, int64_t rows) {
  return with_format(codes, [&]<class Kind>(Kind) -> StreamFn {
    constexpr StreamFn kByRows[kStreamRows] = {stream<Kind, 1>, stream<Kind, 2>, stream<Kind, 3>};
    return kByRows[rows - 1];
  });
}

/// A task of few rows, whose A fits as a whole.
template <class Unit> static void run_stream(const PanelTask& task, int64_t steps) {
  constexpr int64_t kUnits = kDecodedSteps * Unit::kElementBytes / kStepBytes;
  const int64_t panel_stride = coded_panel_bytes(task.codes, task.k);
  std::byte* const sums = task.scratch;
  std::byte* const a = sums + kStreamRows * kRowBytes;
  pack_group<Unit>(task, 0, task.m, 0, steps * kUnits, a);
  const StreamFn function = stream_of(task.codes, task.m);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    const int64_t left = (task.panel_end - panel) * panel_stride;
    function(task.b + panel * panel_stride, steps, left, reinterpret_cast<const float*>(a), sums);
    finish_rows<Sums::f32>(task, panel, sums, kRowBytes, 0, task.m);
  }
}

/// Unit: of A.
template <class Unit> static void run_coded(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kUnits = kDecodedSteps * Unit::kElementBytes / kStepBytes;  // 64-byte steps of a row in a step
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps, panel_stride = coded_panel_bytes(task.codes, task.k);
  if (task.m <= kStreamRows && task.m * steps * kDecodedSteps * 4 <= kCodedBlockBytes) return run_stream<Unit>(task, steps);
  using DecodeFn = void (*)(const std::byte* panel, int64_t step, int64_t steps, std::byte* to);
  const auto decode = with_format(task.codes, []<class Kind>(Kind) -> DecodeFn { return decode_f32<Kind>; });

  const int64_t most_rows = least(task.block_m > 0 ? task.block_m : kBlockRows, kScratchRows);
  const int64_t row_blocks = (task.m + most_rows - 1) / most_rows;
  const int64_t even_rows = (task.m + row_blocks - 1) / row_blocks;
  const int64_t block_rows = least((even_rows + kGroupRows - 1) / kGroupRows * kGroupRows, least(most_rows, task.m));
  const int64_t fit = kCodedBlockBytes / (block_rows * kDecodedSteps * 4) / kChunkSteps * kChunkSteps;
  const int64_t block_steps = least(steps, fit < kChunkSteps ? kChunkSteps : fit);
  const bool split_k = steps > block_steps;

  std::byte* const decoded = task.scratch;
  std::byte* const a_block = decoded + kChunkSteps * kDecodedBytes;
  std::byte* const sums_block = a_block + (block_rows * block_steps * kDecodedSteps * 4 + 63) / 64 * 64;
  alignas(64) static constexpr int32_t kNoOffsets[kPanelColumns] = {};

  for (int64_t m0 = 0; m0 < task.m; m0 += block_rows) {
    const int64_t rows = least(block_rows, task.m - m0);
    const Groups groups(rows);
    int64_t step0 = 0;
    do {  // at least once: k == 0 still has an epilogue
      const int64_t here = least(block_steps, steps - step0);
      for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++))
        pack_group<Unit>(task, m0 + r, groups.rows(g), step0 * kUnits, here * kUnits, a_block + r * here * kDecodedSteps * 4);
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        std::byte* const sums = sums_block + (split_k ? (panel - task.panel_begin) * block_rows * kRowBytes : 0);
        if (steps == 0) std::memset(sums, 0, static_cast<size_t>(rows * kRowBytes));
        for (int64_t c = 0; c < here; c += kChunkSteps) {
          const int64_t count = least(kChunkSteps, here - c);
          decode(task.b + panel * panel_stride, step0 + c, count, decoded);
          for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++)) {
            const std::byte* const a = a_block + (r * here + groups.rows(g) * c) * kDecodedSteps * 4;
            kMicro<UnitDecoded>[groups.rows(g) - 1](a, decoded, 2 * count, sums + r * kRowBytes, kNoOffsets, step0 + c == 0);
          }
        }
        if (step0 + here >= steps) finish_rows<Sums::f32>(task, panel, sums, kRowBytes, m0, rows);
      }
      step0 += here;
    } while (step0 < steps);
  }
}

/// i4 codes times i8: chunks are decoded to i8 panels, with the columns' sums of the chunk for the offset of A.
struct UnitI8Decoded : UnitI8 {
  static constexpr bool kStreams = false;
};
static inline void run_coded_i8(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kChunk = 8;  // k-steps of 64: 16 KiB
  const int64_t steps = (task.k + kStepBytes - 1) / kStepBytes, panel_stride = coded_panel_bytes(task.codes, task.k);
  const int64_t most_rows = least(task.block_m > 0 ? task.block_m : kBlockRows, kScratchRows);
  const int64_t row_blocks = (task.m + most_rows - 1) / most_rows;
  const int64_t even_rows = (task.m + row_blocks - 1) / row_blocks;
  const int64_t block_rows = least((even_rows + kGroupRows - 1) / kGroupRows * kGroupRows, least(most_rows, task.m));
  const int64_t fit = kCodedBlockBytes / (block_rows * kStepBytes) / kChunk * kChunk;
  const int64_t block_steps = least(steps, fit < kChunk ? kChunk : fit);
  const bool split_k = steps > block_steps;

  std::byte* const decoded = task.scratch;
  std::byte* const a_block = decoded + kChunk * 2 * kTileBytes;
  std::byte* const sums_block = a_block + block_rows * block_steps * kStepBytes;
  for (int64_t m0 = 0; m0 < task.m; m0 += block_rows) {
    const int64_t rows = least(block_rows, task.m - m0);
    const Groups groups(rows);
    int64_t step0 = 0;
    do {  // at least once: k == 0 still has an epilogue
      const int64_t here = least(block_steps, steps - step0);
      for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++))
        pack_group<UnitI8>(task, m0 + r, groups.rows(g), step0, here, a_block + r * here * kStepBytes);
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        const std::byte* const b = task.b + panel * panel_stride;
        std::byte* const sums = sums_block + (split_k ? (panel - task.panel_begin) * block_rows * kRowBytes : 0);
        if (steps == 0) std::memset(sums, 0, static_cast<size_t>(rows * kRowBytes));
        for (int64_t c = 0; c < here; c += kChunk) {
          const int64_t count = least(kChunk, here - c);
          alignas(64) int32_t column_sums[kPanelColumns] = {}, offsets[kPanelColumns];
          for (int64_t s = 0; s < count; ++s) {
            decode_quads(b, step0 + c + s, kCodesAhead, decoded + s * 2 * kTileBytes, column_sums);
          }
          for (int64_t column = 0; column < kPanelColumns; ++column) offsets[column] = -128 * column_sums[column];
          for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++)) {
            const std::byte* const a = a_block + (r * here + groups.rows(g) * c) * kStepBytes;
            kMicro<UnitI8Decoded>[groups.rows(g) - 1](a, decoded, count, sums + r * kRowBytes, offsets, step0 + c == 0);
          }
        }
        if (step0 + here >= steps) finish_rows<Sums::i32>(task, panel, sums, kRowBytes, m0, rows);
      }
      step0 += here;
    } while (step0 < steps);
  }
}

}  // namespace EITRI_CODES
}  // namespace eitri::vec512
