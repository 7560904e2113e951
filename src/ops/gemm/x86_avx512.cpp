// gemm.x86_avx512.panel: rows of A times 32-column panels in fp32 FMA (bf16, f16 and codes widened exactly) or VNNI (i8).
//
//   for each block of rows and block of k (A block: at most 768 KiB, in L2)
//     pack the rows to dwords, groups of up to 12 rows: [group][dword of k][row]
//     for each panel: for each group of rows
//       2 x 12 sums in registers; per 64-byte tile row: load, widen, 24 FMA per k with A broadcast from memory
//       last block of k: epilogue of these rows (panel_epilogue.h)
//
// Who loads what: weights straight from their panel, strictly in memory order, fetched 6 KiB ahead to L2 and 2 KiB ahead to L1; the first group of
// rows brings a panel's block to L2 where the others find it. Plain weights are packed to scratch a panel at a time.
// Bound by FMA (92 % of the slots at 12 rows; f16 about 80 %), for one row by memory: two chains of sums take 128 bytes of
// weights in 8 cycles, about twice what L3 gives a core.
// The sum of an element is one chain over ascending k, spilled exactly between blocks: a row's bits depend neither on the
// other rows nor on the blocking. i8: A is offset by 128 to be unsigned, and 128 x the column's sum is taken off first;
// 32-bit sums wrap and come back, so they are exact for k <= kMaxI8K.
#include <cstring>

#include "ops/gemm/panel_blocking.h"
#include "ops/gemm/x86_avx512_coded.h"
#include "ops/gemm/x86_avx512_units.h"

namespace eitri {

namespace {

using namespace eitri::vec512;

constexpr int64_t kBlockBytes = 768 << 10;

template <class Unit> void run(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kPerStep = kStepBytes / Unit::kElementBytes;
  constexpr int64_t kStepDwords = 16 * Unit::kVectors;
  const int64_t steps = (task.k + kPerStep - 1) / kPerStep;
  const bool plain = task.b_row_stride != 0;

  const int64_t most_rows = least(task.block_m > 0 ? task.block_m : kBlockRows, kScratchRows);
  const int64_t row_blocks = (task.m + most_rows - 1) / most_rows;
  const int64_t even_rows = (task.m + row_blocks - 1) / row_blocks;
  const int64_t block_rows = least((even_rows + kGroupRows - 1) / kGroupRows * kGroupRows, least(most_rows, task.m));
  const int64_t fit = kBlockBytes / (block_rows * kStepDwords * 4);
  const int64_t block_steps = least(steps, fit < 1 ? 1 : fit);
  const bool split_k = steps > block_steps;

  std::byte* const a_block = task.scratch;
  std::byte* const sums_block = a_block + (block_rows * block_steps * kStepDwords * 4 + 63) / 64 * 64;
  std::byte* const plain_panel = sums_block + block_rows * kRowBytes * (split_k ? task.panel_end - task.panel_begin : 1);
  alignas(64) int32_t offsets[kPanelColumns] = {};

  for (int64_t m0 = 0; m0 < task.m; m0 += block_rows) {
    const int64_t rows = least(block_rows, task.m - m0);
    const Groups groups(rows);
    int64_t step0 = 0;
    do {  // at least once: k == 0 still has an epilogue
      const int64_t here = least(block_steps, steps - step0);
      for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++))
        pack_group<Unit>(task, m0 + r, groups.rows(g), step0, here, a_block + r * here * kStepDwords * 4);
      const bool last = step0 + here >= steps;
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        const std::byte* b = task.b + panel * panel_bytes(task.k, Unit::kElementBytes);
        if constexpr (Unit::kSums == Sums::i32) {
          // What the offset of A by 128 adds: to be taken off once per column, or per block where it is packed here.
          alignas(64) int32_t column_sums[kPanelColumns] = {};
          if (plain) pack_panel_steps(task, panel, 1, step0, here, plain_panel, column_sums);
          else if (step0 == 0) std::memcpy(column_sums, b + steps * 2 * kTileBytes, sizeof column_sums);
          for (int64_t column = 0; column < kPanelColumns; ++column) offsets[column] = -128 * column_sums[column];
        } else if (plain) {
          pack_panel_steps(task, panel, Unit::kElementBytes, step0, here, plain_panel);
        }
        b = plain ? plain_panel : b + step0 * 2 * kTileBytes;
        std::byte* const sums = sums_block + (split_k ? (panel - task.panel_begin) * block_rows * kRowBytes : 0);
        for (int64_t g = 0, r = 0; g < groups.count; r += groups.rows(g++))
          kMicro<Unit>[groups.rows(g) - 1](a_block + r * here * kStepDwords * 4, b, here, sums + r * kRowBytes, offsets, step0 == 0);
        if (last) finish_rows<Unit::kSums>(task, panel, sums, kRowBytes, m0, rows);
      }
      step0 += here;
    } while (step0 < steps);
  }
}

}  // namespace

namespace avx512 {
PanelBlocking blocking(const PanelTask& task) {
  const int64_t most_rows = least(task.block_m > 0 ? task.block_m : kBlockRows, kScratchRows),
                blocks = (task.m + most_rows - 1) / most_rows;
  return {.rows = least(most_rows, task.m), .steps = blocks};  // run() evens blocks out, within the most rows
}
void panel_f32(const PanelTask& task) { run<UnitF32>(task); }
void panel_bf16(const PanelTask& task) { run<UnitBf16>(task); }
void panel_f16(const PanelTask& task) { run<UnitF16>(task); }
void panel_i8(const PanelTask& task) { run<UnitI8>(task); }
void coded_f32(const PanelTask& task) { run_coded<UnitF32>(task); }
void coded_bf16(const PanelTask& task) { run_coded<UnitBf16>(task); }
void coded_f16(const PanelTask& task) { run_coded<UnitF16>(task); }
void coded_i8(const PanelTask& task) { run_coded_i8(task); }
}  // namespace avx512

}  // namespace eitri
