// gemm.x86_amx.panel, coded panels times at most 16 rows of bf16: codes stream from memory through registers into tiles.
//
//   pack A: [k-step of 32][one tile]                               (in L2)
//   for each panel: for each k-step
//     decode the k-step three behind this one to two tiles of bf16  scratch.ring (8 KiB, in L1), between the tile products of this one
//     sums (two tiles) += A x weights
//     end of a group of k: the sums leave; those of two groups before, times their block scales, are added to scratch.totals
//     end of the panel: epilogue of its totals (panel_epilogue.h)
//
// Codes enter tiles without their block scales, exactly; the scale meets the sum of a group of k, in f32. Groups of 16 (nvfp4) are half a
// k-step: tiles of 8 rows of weights. For more than 8 rows fp4 codes are scaled on their way into tiles, exactly as well. Tiles have as
// many rows as A has, so that A stays small.
// Bound by: memory, when decoding (x86_decode.h has the operations), 32 stores and two tile products of 16 cycles, on a unit of their own,
// fit into the time that the lines of a k-step take to come: 12 cycles each at 13 GB/s and 2.5 GHz.
// Measured on one core of a Xeon with AMX (2.5 GHz, 14.8 GB/s from memory), 2026-11-30, n = k = 4096, weights cold, by a loop over these
// functions as in bench/panel_bench.cpp (`eitri_bench --benchmark_filter='amx/(f8|mxf|i8_|i4|nvf).*/n4096/k4096/m(1|4|16)/cold'`), as a
// share of plainly reading the same bytes in turn with it, at m = 1, 4, 16: f8 with 128 x 128 scales 0.84, 0.83, 0.75; mxfp8 0.83, 0.80,
// 0.69; i8 0.84, 0.83, 0.73; i4 in groups of 32 0.82, 0.78, 0.56; mxfp4 0.79, 0.72, 0.60; nvfp4 0.61, 0.59, 0.37 (the AVX-512 row at m = 1:
// 0.70). What does not overlap for more rows: A from L2, and in short groups the sums of the rows. Two panels in turn for each tile of A and
// four groups added at a time were slower: they take room in L1.
// Limits: a sum of products that meets its scale afterwards is in f32 before it: activations near 2^120 with scales near 2^-100 give infinity
// where more rows, whose weights are scaled first, do not.
// Tiles are stored every 128 k at the least also where nothing is scaled: a tile store that comes later than 700 ns costs 1000 cycles.
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

template <int kValue> struct Constant {};

/// Sums of a group of k that have left the tiles.
struct Group {
  const std::byte* scales;  // of 32 columns
  int64_t panel;
  bool last;  // of its panel
};

/// kScalesSums: the sums of a group meet its scales, else the codes in the tiles.
template <class Kind, bool kScalesSums> void run(const PanelTask& task) {
  constexpr PanelCodes kCodes = Kind::kPanel;
  constexpr bool kHalves = kScalesSums && kCodes.group == 16;  // tile products of half a k-step
  constexpr int64_t kGroupSteps = (kScalesSums && !kHalves ? kCodes.group : kHalves ? kDecodedSteps : kSpan) / kDecodedSteps;
  using Tiled = Tiles<Kind, Kind::kScaled && !kScalesSums>;
  const Codes<Kind::kCode> decoder;
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps, panels = task.panel_end - task.panel_begin;
  const int64_t panel_stride = coded_panel_bytes(kCodes, task.k);
  const int64_t a_step = task.m * kStepBytes;

  std::byte* const ring = task.scratch;
  std::byte* const group_sums = ring + kRing * kStepTiles;
  std::byte* const totals = group_sums + kGroups * kSumsBytes;
  std::byte* const a_tiles = totals + kSumsBytes;
  for (int64_t r = 0; r < task.m; ++r) {
    const int64_t source = task.row_index != nullptr ? task.row_index[r] & task.row_mask : r;
    const std::byte* const row = task.a + source * task.a_stride;
    for (int64_t step = 0; step < steps; ++step)
      _mm512_store_si512(a_tiles + step * a_step + r * 64, load_bytes(row + step * kStepBytes, task.k * 2 - step * kStepBytes));
  }
  std::memset(totals, 0, static_cast<size_t>(task.m * kRowBytes));

  Group groups[kGroups] = {};
  int64_t stored = 0, added = 0;
  const auto add_group = [&] {
    const Group& group = groups[added % kGroups];
    const std::byte* const sums = group_sums + added++ % kGroups * kSumsBytes;
    __m512 scale[2];
    if constexpr (kScalesSums) {
      scale[0] = scales_at(kCodes.scale, group.scales);
      scale[1] = scales_at(kCodes.scale, group.scales + 16 * kCodes.scale_width());
    }
    for (int64_t r = 0; r < task.m; ++r) {
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        const int64_t at = r * kRowBytes + tile * 64;
        const __m512 sum = _mm512_load_ps(sums + at), before = _mm512_load_ps(totals + at);
        _mm512_store_ps(totals + at, kScalesSums ? _mm512_fmadd_ps(scale[tile], sum, before) : _mm512_add_ps(sum, before));
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
  const auto decode = [&](int64_t tile) {
    if (decoded < all) unpack_tile<Tiled>(decoder, panel, step, tile, kAhead, ring + decoded % kRing * kStepTiles + tile * kTileBytes);
  };
  const auto advance = [&] {
    ++decoded;
    if (++step == steps) step = 0, panel += panel_stride;
  };
  for (; decoded < kLead; advance()) decode(0), decode(1);

  tiles::configure(task.m, kHalves ? 8 : 16);
  tiles::zero<0>();
  tiles::zero<1>();
  tiles::zero<2>();
  tiles::zero<3>();
  // Sums in tiles kC and kC + 1 leave.
  const auto leave = [&]<int kC>(Constant<kC>, const std::byte* scales, int64_t p, bool last) {
    std::byte* const sums = group_sums + stored % kGroups * kSumsBytes;
    tiles::store<kC>(sums, kRowBytes);
    tiles::zero<kC>();
    tiles::store<kC + 1>(sums + 64, kRowBytes);
    tiles::zero<kC + 1>();
    groups[stored++ % kGroups] = {scales, p, last};
    if (stored > kDelay) add_group();
  };
  int64_t used = 0;
  for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
    for (int64_t s = 0; s < steps; ++s, ++used) {
      const std::byte *const a = a_tiles + s * a_step, *const b = ring + used % kRing * kStepTiles;
      const bool last = s + 1 == steps;
      const std::byte* scales = nullptr;
      if constexpr (kScalesSums) scales = task.b + p * panel_stride + coded_scale_offset(kCodes, s);
      tiles::load<4>(a, 64);
      tiles::load<6>(b, 64);
      tiles::dpbf16ps<0, 4, 6>();
      decode(0);
      tiles::load<7>(b + kTileBytes, 64);
      tiles::dpbf16ps<1, 4, 7>();
      if constexpr (kHalves) {
        tiles::load<5>(a + 32, 64);
        tiles::load<6>(b + 512, 64);
        tiles::dpbf16ps<2, 5, 6>();
        leave(Constant<0>{}, scales, p, false);
        decode(1);
        tiles::load<7>(b + kTileBytes + 512, 64);
        tiles::dpbf16ps<3, 5, 7>();
        leave(Constant<2>{}, scales + kPanelColumns * kCodes.scale_width(), p, last);
      } else {
        decode(1);
        if (last || (s + 1) % kGroupSteps == 0) leave(Constant<0>{}, scales, p, last);
      }
      advance();
    }
  }
  tiles::release();
  while (added < stored) add_group();
}

/// Of fp4 codes the scales cost less than the sums of more than a few rows.
template <class Kind> void run_kind(const PanelTask& task) {
  constexpr int64_t kRowsOfSums = 8;
  if constexpr (Kind::kCode == DType::f4e2m1) {
    if (task.m > kRowsOfSums) return run<Kind, false>(task);
  }
  run<Kind, Kind::kScaled>(task);
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
