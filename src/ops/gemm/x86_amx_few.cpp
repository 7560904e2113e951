// gemm.x86_amx.panel, coded panels times at most 16 rows of bf16: codes stream from memory through registers into tiles.
//
//   pack A: [k-step of 32][one tile]                               (in L2)
//   for each pair of panels: for each k-step of the one, then of its neighbour
//     decode what comes three k-steps later to two tiles of bf16    scratch.ring (8 KiB, in L1), between the tile products of this one
//     sums (two tiles a panel) += A x weights; both panels use the tile of A
//     f32 scales, end of a group of k: the sums leave; those of groups before, two at a time, times their block scales, are added to totals
//     end of the pair: epilogue (panel_epilogue.h)
//
// Codes with f32 scales enter tiles without them, exactly; the scale meets the sum of a group of k, in f32. Scales that are powers of two,
// and those of nvfp4, go into the tiles with their codes, exactly as well. Tiles have as many rows as A has, so that A stays small.
// One row of nvfp4 does without tiles: dot_panel().
// Fetching: one line to L2 for each line decoded, 8 KiB ahead, tied to it (x86_decode.h); behind the end of a task the first of PanelTask::next,
// or nothing.
// Bound by: memory, when decoding (x86_amx_decode.h has the operations), 32 stores and two tile products of 16 cycles, on a unit of their own,
// fit into the time that the lines of a k-step take to come: 12 cycles each at 13 GB/s and 2.5 GHz.
// Measured on twelve cores of a Xeon with AMX at once (2.2 GHz, tiles not throttled), 2026-11-30, n = 2048, k = 4096, weights cold, in turn with
// plainly reading the same bytes (10 to 11 GB/s a core), at m = 1, 2, 4, 8, as a share of that read: i8 0.98, 0.98, 0.97, 0.94; f8 with
// 128 x 128 scales 0.96, 0.95, 0.95, 0.92; mxfp8 0.99, 0.99, 0.97, 0.94; i4 in groups of 32 0.94, 0.96, 0.94, 0.88, of 128 0.98, 0.97, 0.94,
// 0.90; mxfp4 0.97, 0.96, 0.95, 0.90; nvfp4, with a slower decoding, 0.83, 0.77, 0.74, 0.75, and 0.88 by dot_panel().
// Two threads, as calls: bench/results/cpu-gemm-amx.json.
// One row as short tasks (eight panels, k = 768, 32 tasks in a row), with the start of the next task fetched in a burst before each and with
// PanelTask::next: i8 0.89 and 0.97, f8 0.85 and 0.89, mxfp8 0.87 and 0.93, mxfp4 0.81 and 0.94, nvfp4 0.66 and 0.74, by dot_panel() 0.85.
// Products of AVX-512 (VDPBF16PS, which that Xeon begins only every 1.7 cycles) for other codes: 0.88 to 0.93 for one row, 0.65 to 0.84 for two.
// What does not overlap: decoding alone takes 0.73 to 0.78 of the read for 8-bit codes and the tiles alone 0.77 of it at 16 rows; scales of f32
// for 32 k add four tile stores and their addition for every k-step of a pair. Where the host throttles tiles (x86_amx.cpp): 0.91 to 1.0 of this
// (m <= 8).
// Tried without gain: 6 and 12 k-steps of lead (they take room in L1: 5 to 40 % slower), storing sums one k-step later from a second pair of
// tiles, four groups added at once, groups of 16 k in rows of their own of A (nvfp4: 4 % better with 4 rows, 8 % worse with 8), 4 and 16 KiB of
// fetching, streaming loads of A.
// Next: nvfp4 is bound by its 150 operations a k-step and those of its scales; nibbles laid out so that one permutation serves a row of each panel.
// Limits: with f32 scales, and for one row of nvfp4, a sum of products meets its scale in f32: activations near 2^120 with scales near 2^-100
// give infinity where more rows, whose weights are scaled first, do not. A row's bits of nvfp4 depend on whether it is alone.
// Tiles are stored every few k-steps also where no sums leave: a tile store that comes later than 700 ns costs 1000 cycles.
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

EITRI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kRowBytes = kPanelColumns * 4;  // of sums
constexpr int64_t kSumsBytes = 16 * kRowBytes;    // of 16 rows of a panel
constexpr int64_t kStepTiles = 2 * kTileBytes;    // a decoded k-step
constexpr int64_t kRing = 4, kLead = 3;           // k-steps in the ring; decoded so many before they are used
constexpr int64_t kDelay = 1, kGroups = 4;        // groups between leaving tiles and being added; slots for them
constexpr int kTogether = 2;                      // groups that are added at once: less traffic of totals
constexpr int64_t kAhead = 8192;                  // bytes of codes between fetch and use
constexpr int64_t kStoreSteps = 4;                // k-steps of two panels between tile stores where no sums leave

/// Sums of a pair of panels that have left the tiles: of a group of k, or of the whole of it.
struct Group {
  const std::byte* scales;  // of the first panel's 32 columns
  int64_t panel;            // the first; its neighbour's sums are kSumsBytes behind
  bool last;                // of the pair
};

/// From what lies kAhead bytes before the end of a task's weights to the first of the next ones; 0 where these are not known.
int64_t bytes_to_next(const PanelTask& task, int64_t panel_stride) {
  if (task.next == nullptr) return 0;
  return reinterpret_cast<intptr_t>(task.next) - reinterpret_cast<intptr_t>(task.b + task.panel_end * panel_stride) + kAhead;
}

/// One row x 32 columns over all of k, codes in groups of 16 k: from registers into products of pairs, whose sums meet the scales. In a tile
/// every code would have to. a: the row. What lies kAhead bytes behind is fetched; behind the task's weights, of which `left` bytes are left,
/// what is to_next bytes farther.
template <class Kind>
void dot_panel(const std::byte* panel, int64_t steps, int64_t left, int64_t to_next, const std::byte* a, std::byte* sums) {
  static_assert(Kind::kPanel.group == 16);
  constexpr int kSpanSteps = kSpan / kDecodedSteps;
  const int64_t fetching = (left - kAhead) / (span_bytes(Kind::kPanel) / kSpanSteps);
  const Codes<Kind::kCode> decoder;
  __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t span = 0; span < steps; span += kSpanSteps) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      for (int64_t step = span; step < least(span + kSpanSteps, steps); ++step) {
        __m512 scale[2], sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        scales_of<Kind>(panel, step, tile, scale);
        const auto add_group = [&](int group) {
          total[tile] = _mm512_fmadd_ps(scale[group], _mm512_add_ps(sum[0], sum[1]), total[tile]);
          sum[0] = sum[1] = _mm512_setzero_ps();
        };
        decode_pairs<Tiles<Kind, false>>(decoder, panel, step, tile, step < fetching ? kAhead : to_next, [&](int i, __m512i pairs) {
          if (i == 8) add_group(0);
          int32_t pair;
          std::memcpy(&pair, a + step * kStepBytes + i * 4, sizeof pair);
          const auto left_pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
          sum[i % 2] = _mm512_dpbf16_ps(sum[i % 2], left_pair, reinterpret_cast<__m512bh>(pairs));
        });
        add_group(1);
      }
    }
  }
  _mm512_store_ps(sums, total[0]);
  _mm512_store_ps(sums + 64, total[1]);
}

/// Scales of f32 meet the sums of their group of k, others enter tiles with their codes.
template <class Kind> void run(const PanelTask& task) {
  constexpr PanelCodes kCodes = Kind::kPanel;
  constexpr bool kScalesSums = Kind::kScale == DType::f32;
  constexpr int64_t kLeaveSteps = kScalesSums ? kCodes.group / kDecodedSteps : 0;  // 0: at the end of a panel
  static_assert(!kScalesSums || kLeaveSteps > 0);
  using Tiled = Tiles<Kind, Kind::kScaled && !kScalesSums>;
  const Codes<Kind::kCode> decoder = decoder_of<Tiled>();
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps;
  const int64_t panel_stride = coded_panel_bytes(kCodes, task.k);
  const int64_t a_step = task.m * kStepBytes, to_next = bytes_to_next(task, panel_stride);

  std::byte* const ring = task.scratch;
  std::byte* const group_sums = ring + kRing * kStepTiles;
  std::byte* const totals = group_sums + kGroups * 2 * kSumsBytes;
  std::byte* const nowhere = totals + 2 * kSumsBytes;
  std::byte* const a_tiles = nowhere + kStepBytes;
  for (int64_t r = 0; r < task.m; ++r) {
    const int64_t source = task.row_index != nullptr ? task.row_index[r] & task.row_mask : r;
    const std::byte* const row = task.a + source * task.a_stride;
    for (int64_t step = 0; step < steps; ++step)
      _mm512_store_si512(a_tiles + step * a_step + r * kStepBytes, load_bytes(row + step * kStepBytes, task.k * 2 - step * kStepBytes));
  }
  if constexpr (kCodes.group == 16) {
    if (task.m == 1) {
      for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
        dot_panel<Kind>(task.b + p * panel_stride, steps, (task.panel_end - p) * panel_stride, to_next, a_tiles, totals);
        finish_rows<Sums::f32>(task, p, totals, kRowBytes, 0, 1);
      }
      return;
    }
  }
  std::memset(totals, 0, 2 * kSumsBytes);

  Group groups[kGroups] = {};
  int64_t stored = 0, added = 0;
  const auto finish = [&](int64_t panel, const std::byte* sums) {
    for (const int64_t end = least(panel + 2, task.panel_end); panel < end; ++panel, sums += kSumsBytes)
      finish_rows<Sums::f32>(task, panel, sums, kRowBytes, 0, task.m);
  };
  // Adds the next kCount groups, which are of one pair.
  const auto add_groups = [&]<int kCount>(std::integral_constant<int, kCount>) __attribute__((always_inline)) {
    const int64_t first = added, panels = least(2, task.panel_end - groups[first % kGroups].panel);
    added += kCount;
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* sums[kCount];
      __m512 scale[kCount][2];
#pragma GCC unroll 2
      for (int i = 0; i < kCount; ++i) {
        sums[i] = group_sums + ((first + i) % kGroups * 2 + p) * kSumsBytes;
        const std::byte* const at = groups[(first + i) % kGroups].scales + p * panel_stride;
        scale[i][0] = scales_at(kCodes.scale, at);
        scale[i][1] = scales_at(kCodes.scale, at + 16 * kCodes.scale_width());
      }
      std::byte* total = totals + p * kSumsBytes;
      for (int64_t r = 0; r < task.m; ++r, total += kRowBytes) {
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
          __m512 x = _mm512_load_ps(total + tile * 64);
#pragma GCC unroll 2
          for (int i = 0; i < kCount; ++i) x = _mm512_fmadd_ps(scale[i][tile], _mm512_load_ps(sums[i] + r * kRowBytes + tile * 64), x);
          _mm512_store_ps(total + tile * 64, x);
        }
      }
    }
    const Group& group = groups[(added - 1) % kGroups];
    if (!group.last) return;
    finish(group.panel, totals);
    std::memset(totals, 0, 2 * kSumsBytes);
  };
  const auto add_some = [&]() __attribute__((always_inline)) {
    if constexpr (!kScalesSums) {
      finish(groups[added % kGroups].panel, group_sums + added % kGroups * 2 * kSumsBytes);
      ++added;
    } else if (added + 1 < stored && !groups[added % kGroups].last) {
      add_groups(std::integral_constant<int, kTogether>());
    } else {
      add_groups(std::integral_constant<int, 1>());
    }
  };

  // What is decoded next: a k-step of one panel, then of its neighbour.
  constexpr int64_t kStepsAhead = kAhead / (span_bytes(kCodes) / (kSpan / kDecodedSteps));
  int64_t panel = task.panel_begin, step = 0, decoded = 0;
  const auto decode = [&](int64_t tile) __attribute__((always_inline)) {
    if (panel >= task.panel_end) return;
    // Behind the end of a panel that of the next pair is fetched, behind the end of the task what the thread reads next.
    int64_t ahead = kAhead;
    if (step + kStepsAhead >= steps) {
      const bool of_two = (panel - task.panel_begin) % 2 == 1 || panel + 1 < task.panel_end;
      ahead = panel + 2 < task.panel_end ? kAhead + panel_stride : to_next == 0 ? 0 : to_next + (of_two ? panel_stride : 0);
    }
    unpack_tile<Tiled>(decoder, task.b + panel * panel_stride, step, tile, ahead, ring + decoded % kRing * kStepTiles + tile * kTileBytes);
  };
  const auto advance = [&]() __attribute__((always_inline)) {
    ++decoded;
    const bool first = (panel - task.panel_begin) % 2 == 0;
    if (first && panel + 1 < task.panel_end) {
      ++panel;
    } else if (++step < steps) {
      if (!first) --panel;
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
  int64_t used = 0;
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
      const bool last = s + 1 == steps;
      if (last || (kScalesSums && (s + 1) % kLeaveSteps == 0)) {
        std::byte* const sums = group_sums + stored % kGroups * 2 * kSumsBytes;
        tiles::store<0>(sums, kRowBytes);
        tiles::zero<0>();
        tiles::store<1>(sums + 64, kRowBytes);
        tiles::zero<1>();
        if (two) {
          tiles::store<2>(sums + kSumsBytes, kRowBytes);
          tiles::zero<2>();
          tiles::store<3>(sums + kSumsBytes + 64, kRowBytes);
          tiles::zero<3>();
        }
        const std::byte* scales = nullptr;
        if constexpr (kScalesSums) scales = task.b + p * panel_stride + coded_scale_offset(kCodes, s - s % kLeaveSteps);
        groups[stored++ % kGroups] = {scales, p, last};
        if (stored - added >= kDelay + (kScalesSums ? kTogether : 1)) add_some();
      } else if (!kScalesSums && s % kStoreSteps == 0) {
        tiles::store<4>(nowhere, 0);  // to one line
      }
    }
  }
  tiles::release();
  while (added < stored) add_some();
}

}  // namespace

#if defined(EITRI_AMX_EMULATED)
namespace amx_emulated {
#else
namespace amx {
#endif
void coded_few_bf16(const PanelTask& task) {
  with_format(task.codes, [&]<class Kind>(Kind) { run<Kind>(task); });
}
}  // namespace amx or amx_emulated

}  // namespace eitri
