// gemm.x86_amx.panel, coded panels times at most 16 rows of bf16: codes stream from memory through registers into tiles.
//
//   pack A: [k-step of 32][one tile]                               (in L2)
//   for each panel: for each k-step
//     decode the k-step three behind this one to two tiles of bf16  scratch.ring (8 KiB, in L1), between the tile products of this one
//     sums (two tiles) += A x weights
//     end of a group of k: the sums leave; those of two groups before, times their block scales, are added to scratch.totals
//     end of the panel: epilogue of its totals (panel_epilogue.h)
//
// Codes enter tiles without their block scales, exactly; the scale meets the sum of a group of k, in f32. Without block scales the sums stay
// in tiles for the whole panel. For more than 8 rows fp4 codes are scaled on their way into tiles, exactly as well. Groups of 16 (nvfp4)
// are half a k-step; up to 4 rows four of them share tiles, up to 8 rows two: A then has 16 rows, each group's k in its own and
// zeros elsewhere, so that one product and one store serve them all. Otherwise tiles have as many rows as A has, so that A stays small.
// Fetching: one line to L2 for each line decoded, 8 KiB ahead, tied to it (x86_decode.h), and nothing behind the end of a task.
// Bound by: memory, when decoding (x86_decode.h has the operations), 32 stores and two tile products of 16 cycles, on a unit of their own,
// fit into the time that the lines of a k-step take to come: 12 cycles each at 13 GB/s and 2.5 GHz.
// Measured on one core of a Xeon with AMX (2.5 GHz), 2026-11-30, n = k = 4096, weights cold, by a loop over these functions as in
// bench/panel_bench.cpp (`eitri_bench --benchmark_filter='amx/(f8|mxf|i8_|i4|nvf).*/n4096/k4096/m(1|4|8|16)/cold'`), as a share of
// plainly reading the same bytes in turn with it while other cores read too (9 to 12 GB/s), at m = 1, 4, 8, 16: f8 1.12, 1.09, 1.05, 0.94;
// with 128 x 128 scales 1.09, 1.06, 1.02, 0.88; mxfp8 0.89, 0.89, 0.96, 0.90; i8 1.10, 1.07, 1.01, 0.93; i4 in groups of 32 1.02, 1.03, 0.93,
// 0.68, of 128 1.10, 1.02, 0.94, 0.79; mxfp4 0.93, 0.94, 0.85, 0.72; nvfp4 0.84, 0.80, 0.71, 0.45 (the AVX-512 row at m = 1: 0.87).
// Where other cores are quiet and a read gets 13 to 15 GB/s the work weighs more: an earlier form of this with the same fetching, but
// sums that left every 128 k, had 0.82, 0.80, 0.75, 0.70 with 128 x 128 scales, 0.76, 0.71, 0.65, 0.61 for mxfp4. Two threads, as calls:
// bench/results/cpu-few-amx.json.
// What does not overlap for more rows: A from L2 (4 ns of a k-step's 75), tile stores (12) and adding (6), for which reading the tiles
// and their products leave no room: alone these take 16 to 35 ns, and decoding 25 (4 bit) to 45 (8 bit). Tried without gain: 6 and 12
// k-steps of lead (they take room in L1: 5 to 40 % slower), storing sums one k-step later from a second pair of tiles, slots for groups
// of 32 (A grows), two panels in turn for each tile of A, high halves of products in place of shifts.
// Limits: a sum of products that meets its scale afterwards is in f32 before it: activations near 2^120 with scales near 2^-100 give infinity
// where more rows, whose weights are scaled first, do not.
// Tiles are stored every 8 k-steps at the least also where no sums leave: a tile store that comes later than 700 ns costs 1000 cycles.
#include <cstring>
#include <type_traits>

#include "device/x86/amx.h"
#include "device/x86/intrinsics.h"
#include "device/x86/vec.h"
#include "ops/gemm/panel_epilogue.h"
#include "ops/gemm/panel_kernels.h"
#include "ops/gemm/x86_amx_decode.h"
#include "ops/gemm/x86_transpose.h"

namespace eitri {

namespace {

using namespace eitri::vec512;
namespace tiles = eitri::EITRI_AMX_TILES;

constexpr int64_t kRowBytes = kPanelColumns * 4;  // of sums
constexpr int64_t kSumsBytes = 16 * kRowBytes;    // of 16 rows
constexpr int64_t kStepTiles = 2 * kTileBytes;    // a decoded k-step
constexpr int64_t kRing = 4, kLead = 3;           // k-steps in the ring; decoded so many before they are used
#ifndef FEW_BATCH
#define FEW_BATCH 2
#endif
constexpr int kBatch = FEW_BATCH;                             // groups added together
constexpr int64_t kDelay = 2, kGroups = kBatch == 4 ? 8 : 4;  // groups between leaving tiles and being added; slots for them
constexpr int64_t kAhead = 8192;                              // bytes of codes between fetch and use
constexpr int64_t kStoreSteps = 8;                            // k-steps between tile stores where no sums leave

/// Sums of a group of k, or of the groups in slots, that have left the tiles.
struct Group {
  const std::byte* scales;  // of 32 columns, group after group
  int64_t panel;
  bool last;  // of its panel
};

const std::byte* row_of(const PanelTask& task, int64_t row) {
  const int64_t source = task.row_index != nullptr ? task.row_index[row] & task.row_mask : row;
  return task.a + source * task.a_stride;
}

/// Row `row` of A in tiles of kSlots groups of 16 k: the k of a group in the rows of its slot, zeros in the others'.
template <int64_t kSlots> void spread_row(const std::byte* row, int64_t bytes, int64_t steps, std::byte* to) {
  constexpr int64_t kSlotBytes = kTileBytes / kSlots;
  for (int64_t step = 0; step < steps; ++step, to += kTileBytes) {
    const __m512i x = load_bytes(row + step * kStepBytes, bytes - step * kStepBytes);
    std::byte* const slot = to + 2 * step % kSlots * kSlotBytes;
    _mm512_store_si512(slot, _mm512_maskz_mov_epi64(0x0f, x));
    _mm512_store_si512(slot + kSlotBytes, _mm512_maskz_mov_epi64(0xf0, x));
  }
}

/// Rows of A as tiles of `rows` rows, k-step after k-step.
void pack_rows(const PanelTask& task, int64_t steps, std::byte* to) {
  for (int64_t r = 0; r < task.m; ++r) {
    const std::byte* const row = row_of(task, r);
    for (int64_t step = 0; step < steps; ++step)
      _mm512_store_si512(to + (step * task.m + r) * kStepBytes, load_bytes(row + step * kStepBytes, task.k * 2 - step * kStepBytes));
  }
}

/// Codes enter tiles with their block scales, or have none: two panels at a time, which share the tiles of A.
template <class Kind> void run_pairs(const PanelTask& task) {
  constexpr PanelCodes kCodes = Kind::kPanel;
  const Codes<Kind::kCode> decoder = decoder_of<Kind>();
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps;
  const int64_t panel_stride = coded_panel_bytes(kCodes, task.k);
  const int64_t a_step = task.m * kStepBytes;

  std::byte* const ring = task.scratch;
  std::byte* const sums = ring + kRing * kStepTiles;  // of two pairs in turn
  std::byte* const nowhere = sums + 4 * kSumsBytes;
  std::byte* const a_tiles = nowhere + kStepBytes;
  pack_rows(task, steps, a_tiles);

  // What is decoded next: a k-step of one panel, then of the other.
  constexpr int64_t kStepsAhead = kAhead / (span_bytes(kCodes) / (kSpan / kDecodedSteps));
  int64_t panel = task.panel_begin, step = 0, decoded = 0;
  const auto decode = [&](int64_t tile) __attribute__((always_inline)) {
    if (panel >= task.panel_end) return;
    // Behind the end of a panel that of the next pair is fetched, nothing behind the end of the task.
    int64_t ahead = kAhead;
    if (step + kStepsAhead >= steps) ahead = panel + 2 < task.panel_end ? kAhead + panel_stride : 0;
    unpack_tile<Kind>(decoder, task.b + panel * panel_stride, step, tile, ahead, ring + decoded % kRing * kStepTiles + tile * kTileBytes);
  };
  const auto advance = [&]() __attribute__((always_inline)) {
    ++decoded;
    const bool left = (panel - task.panel_begin) % 2 == 0;
    if (left && panel + 1 < task.panel_end) {
      ++panel;
    } else if (++step < steps) {
      if (!left) --panel;
    } else {
      step = 0;
      ++panel;
    }
  };
  for (; decoded < kLead; advance()) decode(0), decode(1);

  tiles::configure(task.m);
  tiles::zero<0>();
  tiles::zero<1>();
  tiles::zero<2>();
  tiles::zero<3>();
  const auto sums_of = [&](int64_t p) { return sums + (p - task.panel_begin) % 4 * kSumsBytes; };
  const auto finish = [&](int64_t p) { finish_rows<Sums::f32>(task, p, sums_of(p), kRowBytes, 0, task.m); };
  int64_t used = 0, finished = task.panel_begin;
  for (int64_t p = task.panel_begin; p < task.panel_end; p += 2) {
    const bool two = p + 1 < task.panel_end;
    for (int64_t s = 0; s < steps; ++s) {
      const std::byte* b = ring + used++ % kRing * kStepTiles;
      tiles::load<4>(a_tiles + s * a_step, kStepBytes);
      tiles::load<6>(b, kStepBytes);
      tiles::dpbf16ps<0, 4, 6>();
      decode(0);
      tiles::load<7>(b + kTileBytes, kStepBytes);
      tiles::dpbf16ps<1, 4, 7>();
      decode(1);
      advance();
      if (two) {
        b = ring + used++ % kRing * kStepTiles;
        tiles::load<6>(b, kStepBytes);
        tiles::dpbf16ps<2, 4, 6>();
        decode(0);
        tiles::load<7>(b + kTileBytes, kStepBytes);
        tiles::dpbf16ps<3, 4, 7>();
        decode(1);
        advance();
      }
      if (s % (kStoreSteps / 2) == 0) tiles::store<4>(nowhere, 0);  // to one line
    }
    std::byte* const to = sums_of(p);
    tiles::store<0>(to, kRowBytes);
    tiles::zero<0>();
    tiles::store<1>(to + 64, kRowBytes);
    tiles::zero<1>();
    tiles::store<2>(to + kSumsBytes, kRowBytes);
    tiles::zero<2>();
    tiles::store<3>(to + kSumsBytes + 64, kRowBytes);
    tiles::zero<3>();
    // Those of the pair before have long been stored.
    for (; finished < p; ++finished) finish(finished);
  }
  tiles::release();
  for (; finished < task.panel_end; ++finished) finish(finished);
}

/// The sums of a group of k meet its scales. kSlots: groups of 16 k that share tiles; 1: none.
template <class Kind, int64_t kSlots = 1> void run_groups(const PanelTask& task) {
  constexpr PanelCodes kCodes = Kind::kPanel;
  constexpr int64_t kLeaveSteps = kSlots * kCodes.group / kDecodedSteps;
  static_assert(kLeaveSteps > 0);
  using Tiled = Tiles<Kind, false>;
  const Codes<Kind::kCode> decoder;
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps, panels = task.panel_end - task.panel_begin;
  const int64_t panel_stride = coded_panel_bytes(kCodes, task.k);
  const int64_t rows = kSlots > 1 ? 16 : task.m;  // of tiles
  const int64_t a_step = rows * kStepBytes;

  std::byte* const ring = task.scratch;
  std::byte* const group_sums = ring + kRing * kStepTiles;
  std::byte* const totals = group_sums + kGroups * kSumsBytes;
  std::byte* const a_tiles = totals + kSumsBytes;
  if constexpr (kSlots > 1) std::memset(a_tiles, 0, static_cast<size_t>(steps * a_step));
  if constexpr (kSlots > 1) {
    for (int64_t r = 0; r < task.m; ++r) spread_row<kSlots>(row_of(task, r), task.k * 2, steps, a_tiles + r * kStepBytes);
  } else {
    pack_rows(task, steps, a_tiles);
  }
  std::memset(totals, 0, static_cast<size_t>(task.m * kRowBytes));

  Group groups[kGroups] = {};
  int64_t stored = 0, added = 0;
  // Adds the next kCount groups, which are of one panel.
  const auto add_groups = [&]<int kCount>(std::integral_constant<int, kCount>) __attribute__((always_inline)) {
    constexpr int64_t kParts = kCount * kSlots;
    const std::byte* sums[kCount];
    __m512 scale[kParts][2];
    const int64_t last = added + kCount - 1;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const int64_t at_slot = (added + i) % kGroups;
      sums[i] = group_sums + at_slot * kSumsBytes;
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        const std::byte* const at = groups[at_slot].scales + slot * kPanelColumns * kCodes.scale_width();
        scale[i * kSlots + slot][0] = scales_at(kCodes.scale, at);
        scale[i * kSlots + slot][1] = scales_at(kCodes.scale, at + 16 * kCodes.scale_width());
      }
    }
    added += kCount;
    for (int64_t r = 0; r < task.m; ++r) {
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        const int64_t at = r * kRowBytes + tile * 64;
        __m512 total = _mm512_load_ps(totals + at);
#pragma GCC unroll 8
        for (int64_t part = 0; part < kParts; ++part)
          total =
              _mm512_fmadd_ps(scale[part][tile], _mm512_load_ps(sums[part / kSlots] + part % kSlots * (kSumsBytes / kSlots) + at), total);
        _mm512_store_ps(totals + at, total);
      }
    }
    const Group& group = groups[last % kGroups];
    if (!group.last) return;
    finish_rows<Sums::f32>(task, group.panel, totals, kRowBytes, 0, task.m);
    std::memset(totals, 0, static_cast<size_t>(task.m * kRowBytes));
  };
  // Several at once: less traffic of totals.
  const auto add_some = [&]() __attribute__((always_inline)) {
    bool together = added + kBatch <= stored;
    for (int64_t i = 0; i + 1 < kBatch; ++i) together &= !groups[(added + i) % kGroups].last;
    if (together) add_groups(std::integral_constant<int, kBatch>());
    else add_groups(std::integral_constant<int, 1>());
  };

  // The k-step that is decoded next.
  const std::byte* panel = task.b + task.panel_begin * panel_stride;
  int64_t step = 0, decoded = 0;
  const int64_t all = steps * panels;
  constexpr int64_t kStepsAhead = kAhead / (span_bytes(kCodes) / (kSpan / kDecodedSteps));
  const auto decode = [&](int64_t tile) {
    // What lies behind the task is not fetched: short tasks would read much more than their share.
    const int64_t ahead = decoded + kStepsAhead < all ? kAhead : 0;
    if (decoded < all) unpack_tile<Tiled>(decoder, panel, step, tile, ahead, ring + decoded % kRing * kStepTiles + tile * kTileBytes);
  };
  const auto advance = [&] {
    ++decoded;
    if (++step == steps) step = 0, panel += panel_stride;
  };
  for (; decoded < kLead; advance()) decode(0), decode(1);

  tiles::configure(rows);
  tiles::zero<0>();
  tiles::zero<1>();
  int64_t used = 0;
  for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
    for (int64_t s = 0; s < steps; ++s, ++used) {
      const std::byte *const a = a_tiles + s * a_step, *const b = ring + used % kRing * kStepTiles;
      tiles::load<4>(a, kStepBytes);
      tiles::load<6>(b, kStepBytes);
      tiles::dpbf16ps<0, 4, 6>();
      decode(0);
      tiles::load<7>(b + kTileBytes, kStepBytes);
      tiles::dpbf16ps<1, 4, 7>();
      decode(1);
      advance();
      const bool last = s + 1 == steps;
      if (last || (s + 1) % kLeaveSteps == 0) {
        std::byte* const sums = group_sums + stored % kGroups * kSumsBytes;
        tiles::store<0>(sums, kRowBytes);
        tiles::zero<0>();
        tiles::store<1>(sums + 64, kRowBytes);
        tiles::zero<1>();
        groups[stored++ % kGroups] = {task.b + p * panel_stride + coded_scale_offset(kCodes, s - s % kLeaveSteps), p, last};
        if (stored - added >= kDelay + kBatch) add_some();
      }
    }
  }
  tiles::release();
  while (added < stored) add_some();
}

template <class Kind> void run_kind(const PanelTask& task) {
  if constexpr (Kind::kPanel.group == 16) {
    if (task.m <= 4) return run_groups<Kind, 4>(task);
    if (task.m <= 8) return run_groups<Kind, 2>(task);
    run_pairs<Kind>(task);
  } else if constexpr (Kind::kScale == DType::f32) {
    run_groups<Kind>(task);
  } else if constexpr (Kind::kCode == DType::f4e2m1) {
    // The scales cost less than the sums of more than a few rows.
    constexpr int64_t kRowsOfSums = 8;
    if (task.m > kRowsOfSums) return run_pairs<Kind>(task);
    run_groups<Kind>(task);
  } else {
    run_pairs<Kind>(task);
  }
}

}  // namespace

#if defined(EITRI_AMX_EMULATED)
namespace amx_emulated {
#else
namespace amx {
#endif
void coded_few_bf16(const PanelTask& task) {
  with_format(task.codes, [&]<class Kind>(Kind) { run_kind<Kind>(task); });
}
}  // namespace amx or amx_emulated

}  // namespace eitri
