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
constexpr int64_t kDelay = 2, kGroups = 4;        // groups between leaving tiles and being added; slots for them
constexpr int64_t kAhead = 8192;                  // bytes of codes between fetch and use
constexpr int64_t kStoreSteps = 8;                // k-steps between tile stores where no sums leave

/// Sums of a group of k, or of the groups in slots, that have left the tiles.
struct Group {
  const std::byte* scales;  // of 32 columns, group after group
  int64_t panel;
  bool last;  // of its panel
};

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

/// kScalesSums: the sums of a group meet its scales, else the codes in the tiles. kSlots: groups of 16 k that share tiles; 1: none.
template <class Kind, bool kScalesSums, int64_t kSlots = 1> void run(const PanelTask& task) {
  constexpr PanelCodes kCodes = Kind::kPanel;
  constexpr int64_t kLeaveSteps = !kScalesSums ? 0 : kSlots * kCodes.group / kDecodedSteps;  // 0: at the end of the panel
  static_assert(!kScalesSums || kLeaveSteps > 0);
  using Tiled = Tiles<Kind, Kind::kScaled && !kScalesSums>;
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
  for (int64_t r = 0; r < task.m; ++r) {
    const int64_t source = task.row_index != nullptr ? task.row_index[r] & task.row_mask : r;
    const std::byte* const row = task.a + source * task.a_stride;
    if constexpr (kSlots > 1) {
      spread_row<kSlots>(row, task.k * 2, steps, a_tiles + r * kStepBytes);
    } else {
      for (int64_t step = 0; step < steps; ++step)
        _mm512_store_si512(a_tiles + step * a_step + r * kStepBytes, load_bytes(row + step * kStepBytes, task.k * 2 - step * kStepBytes));
    }
  }
  std::memset(totals, 0, static_cast<size_t>(task.m * kRowBytes));

  Group groups[kGroups] = {};
  int64_t stored = 0, added = 0;
  const auto add_group = [&] {
    const Group& group = groups[added % kGroups];
    const std::byte* const sums = group_sums + added++ % kGroups * kSumsBytes;
    if constexpr (!kScalesSums) {
      finish_rows<Sums::f32>(task, group.panel, sums, kRowBytes, 0, task.m);
      return;
    }
    __m512 scale[kSlots][2];
#pragma GCC unroll 4
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const std::byte* const at = group.scales + slot * kPanelColumns * kCodes.scale_width();
      scale[slot][0] = scales_at(kCodes.scale, at);
      scale[slot][1] = scales_at(kCodes.scale, at + 16 * kCodes.scale_width());
    }
    for (int64_t r = 0; r < task.m; ++r) {
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        const int64_t at = r * kRowBytes + tile * 64;
        __m512 total = _mm512_load_ps(totals + at);
#pragma GCC unroll 4
        for (int64_t slot = 0; slot < kSlots; ++slot)
          total = _mm512_fmadd_ps(scale[slot][tile], _mm512_load_ps(sums + slot * (kSumsBytes / kSlots) + at), total);
        _mm512_store_ps(totals + at, total);
      }
    }
    if (!group.last) return;
    finish_rows<Sums::f32>(task, group.panel, totals, kRowBytes, 0, task.m);
    std::memset(totals, 0, static_cast<size_t>(task.m * kRowBytes));
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
      if (last || (kScalesSums && (s + 1) % kLeaveSteps == 0)) {
        std::byte* const sums = group_sums + stored % kGroups * kSumsBytes;
        tiles::store<0>(sums, kRowBytes);
        tiles::zero<0>();
        tiles::store<1>(sums + 64, kRowBytes);
        tiles::zero<1>();
        const int64_t first = kScalesSums ? s - s % kLeaveSteps : 0;
        groups[stored++ % kGroups] = {kScalesSums ? task.b + p * panel_stride + coded_scale_offset(kCodes, first) : nullptr, p, last};
        if (stored > kDelay) add_group();
      } else if (!kScalesSums && s % kStoreSteps == 0) {
        tiles::store<4>(totals, 0);  // to one line, which nothing reads
      }
    }
  }
  tiles::release();
  while (added < stored) add_group();
}

template <class Kind> void run_kind(const PanelTask& task) {
  if constexpr (Kind::kPanel.group == 16) {
    if (task.m <= 4) return run<Kind, true, 4>(task);
    if (task.m <= 8) return run<Kind, true, 2>(task);
    run<Kind, false>(task);
  } else {
    // Of fp4 codes the scales cost less than the sums of more than a few rows.
    constexpr int64_t kRowsOfSums = 8;
    if constexpr (Kind::kCode == DType::f4e2m1) {
      if (task.m > kRowsOfSums) return run<Kind, false>(task);
    }
    run<Kind, Kind::kScaled>(task);
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
