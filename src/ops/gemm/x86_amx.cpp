// gemm.x86_amx.panel: rows of A times 32-column panels on AMX tiles; bf16 with f32 sums, i8 with i32 sums.
//
//   for each block of rows and block of k            (A block: at most 1 MiB and 512 rows, in L2)
//     pack A: [chunk of k][group of 32 rows][k-step][2 tiles]
//     for each panel: for each chunk of k            (20 k-steps = 40 KiB of weights: they stay in L1)
//       for each group of rows                       block(): 2 x 2 tiles, 32 rows x 32 columns
//         sums: zero or back from memory; per k-step 2 tiles of A, 2 of weights, 4 tile products; sums to memory
//       the last chunk of the last block of k: epilogue of the group's rows
//
// Who loads what: A streams from L2 by loads that leave L1 to the weights (the largest single effect); weights come from
// their panel strictly in memory order, fetched ahead of use, spread evenly over the k-steps: the next chunk to L2; up to 32 rows, whose one
// group keeps its sums in tiles over the whole block of k, 16 KiB ahead to L2 and 4 KiB ahead to L1 (up to 16 rows 8 and 2 KiB). With 17 to 64
// rows a step's fetches lie between its tile instructions. Weights of a task that may lie in L2
// are fetched to L1 alone. Below 16 rows tiles have no more rows than A. Sums of a group, in tile order, go to memory and the next group's
// come in between the tile products of the next block's first step; the last steps of a block fetch the lines that its sums will be
// stored to. A finished group's epilogue runs during the steps of the block after it, on the vector ports that tile products leave idle.
// Coded panels (x86_amx_decode.h): the same loops over tiles decoded a chunk at a time into L1, once for each block of rows; the codes of the
// next chunk are fetched to L2 as weights are. Decoding the next chunk between the tile products of this one was slower: it takes the room
// in which loads from L2 wait. Up to 16 rows: x86_amx_few.cpp.
// Bound by: weights from memory up to 64 rows, then the feed of tiles: a tile load for every product, and the exchange of sums.
// Measured, one core of a Xeon with AMX on a shared host, 2026-11-30, M = 256, 512, 1024, as a share of the peak from registers in the same run
// (2.2 to 2.35 TFLOP/s, 4.3 to 4.7 TOP/s): bf16 0.62 in the geometric mean, 0.52 to 0.74; i8 0.58, 0.46 to 0.70, the lowest at k = 768, where a
// block has 12 k-steps and c is a large part of the work. Weights of f8e4m3 and i8 0.94 of the rate of bf16, i4 and mxfp8 in groups 0.85 to 0.9.
// Some cores of that host throttle tiles for seconds to minutes: products from registers then run at 1.0 to 1.8 TFLOP/s, and at 0.12 to 0.5 when
// loads feed them, whether from L1 or L2. What counts is how dense tile instructions lie: hence eight NOPs behind each where there are many
// rows, 1.14 to 1.30 times the rate where a core throttles (nine shapes in turn on twelve cores) and 0.99 to 1.01 elsewhere; two NOPs 1.05 to
// 1.15, four 1.10 to 1.21, four permutations as much, but 0.98 elsewhere.
// Weights cold, bf16, n = 2048, k = 4096, on those twelve cores at once, in turn with plainly reading as much (9 to 10 GB/s each): 32 rows 1.06
// of that read, 64 rows 0.90; where a core throttles 1.04 and 0.81. With a step's fetches in one burst, 8 and 2 KiB ahead: 1.00 and 0.86,
// 0.88 and 0.70; with NOPs besides no change. Of 64 rows A costs nothing (0.865 with all of it at one place), the products little (0.91 without).
// Tried: blocks of 16 rows x 64 columns (less traffic from L2, but five loads for four products) 0.85 to 0.95 of this; 352 rows and 880 KiB
// of A 0.95; 768 KiB and 1.5 MiB of A, 256 rows, chunks of 16, 18 and 24 k-steps: 0.9 to 1.02; 33 to 64 rows: chunks of 4, 8 and 20 k-steps, 8
// or 16 KiB ahead 0.79 to 1.0, sums in tiles over all of k, once for each 32 rows, 0.70; fetching the next group's sums to L1: no clear change;
// a store of one tile every 2 or 4 k-steps where sums stay in tiles: 0.96 to 1.0.
// Limits: bf16 subnormals count as 0 (the instruction). K tails: A is packed with zeros behind k, so NaN beyond it cannot
// meet the panel's zero padding. The order of additions depends only on k: a row's bits do not depend on other
// rows, but for coded panels on whether they are more than 16, for nvfp4 also on whether there is more than one.
#include <cstring>
#include <type_traits>

#include "device/x86/amx.h"
#include "device/x86/intrinsics.h"
#include "device/x86/vec.h"
#include "ops/gemm/panel_blocking.h"
#include "ops/gemm/panel_epilogue.h"
#include "ops/gemm/panel_kernels.h"
#include "ops/gemm/x86_amx_decode.h"
#include "ops/gemm/x86_transpose.h"

namespace eitri {

namespace {

using namespace eitri::vec512;
namespace tiles = eitri::EITRI_AMX_TILES;

constexpr int64_t kGroupRows = 32;
constexpr int64_t kSumsRow = 64;               // bytes of a row of a tile of sums
constexpr int64_t kSumsHalf = kTileBytes;      // from the left 16 columns to the right
constexpr int64_t kSumsTile = 2 * kTileBytes;  // from the upper 16 rows to the lower
constexpr int64_t kSumsGroup = 4 * kTileBytes;
constexpr int64_t kStepWeights = 2 * kTileBytes;  // weights of a k-step
constexpr int64_t kMostA = 1 << 20;               // bytes of an A block: half of L2
constexpr int64_t kCodesAhead = 2048;             // bytes between a decoder and what it fetches from L2
constexpr int64_t kMostCodedChunk = 20;           // k-steps decoded at a time: 40 KiB of L1
constexpr int64_t kOwnSteps = 8;                  // the last steps of a block, in which it fetches the lines its sums go to
constexpr int64_t kShortChunk = 14;               // k-steps: below, those fetches cost more than they bring
constexpr int64_t kStreamBytes = 2 << 20;         // c of this size goes past the caches, where its rows fill whole lines
constexpr int64_t kInL2 = 3 << 19;  // weights of this size may still be there from the call before: they are fetched to L1 alone

EITRI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
EITRI_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Blocking of a task. Measured defaults by rows; block_m and chunk_k of the task override them.
struct Plan {
  int64_t rows;   // of A packed at a time
  int64_t steps;  // k-steps packed at a time
  int64_t chunk;  // k-steps of a panel that stay in L1
  int64_t far;    // weights are fetched to L2 this many bytes ahead; 0: the next chunk
  int64_t near;   // and to L1 so many; 0: not at all; the same: to L1 alone

  /// `weights`: bytes of the task's.
  Plan(const PanelTask& task, int64_t all_steps, int64_t weights) {
    if (task.m <= 16) *this = Plan(16, 640, 640, 8192, 2048);
    else if (task.m <= 32) *this = Plan(32, 320, 320, 16384, 4096);
    else if (task.m <= 64) *this = Plan(64, 160, 16, 0, 0);
    else if (task.m <= 160) *this = Plan(160, 64, 8, 16384, 0);
    else *this = Plan(kScratchRows, 0, 20, 0, 0);
    const bool coded = task.codes.dtype != DType::none;
    if (coded && task.m <= 16) far = near = 2048;
    else if (coded && task.m <= 64) chunk = 4, far = 8192, near = 0;
    else if (weights <= kInL2 && task.m <= 64) far = near = task.m <= 32 ? 2048 : 8192;
    if (task.block_m > 0 && task.m > 16) {
      rows = divide_up(least(task.block_m, kScratchRows), kGroupRows) * kGroupRows;
      steps = 0;
    }
    if (task.chunk_k > 0) chunk = task.chunk_k;
    if (coded) chunk = least(chunk, kMostCodedChunk);
    // Even shares instead of a small rest.
    if (task.m > 16) rows = divide_up(divide_up(task.m, divide_up(task.m, rows)), kGroupRows) * kGroupRows;
    if (steps == 0) steps = kMostA / (rows * kStepBytes);  // as many as fit
    if (all_steps > 0) steps = divide_up(all_steps, divide_up(all_steps, steps));
    chunk = divide_up(steps, divide_up(steps, chunk));
  }

 private:
  Plan(int64_t r, int64_t s, int64_t c, int64_t f, int64_t n) : rows(r), steps(s), chunk(c), far(f), near(n) {}
};

/// A finished group whose epilogue runs during the next block.
struct Pending {
  const std::byte* sums = nullptr;
  const PanelVectors* vectors = nullptr;
  int64_t panel = 0, row = 0, done = 0, rows = 0;  // rows [done, rows) of the group are left; its first is task row `row`
  bool left() const { return done < rows; }
};

/// What a block fetches for later, per k-step.
struct Ahead {
  const std::byte *far, *near;    // weights, for L2 and for L1
  const std::byte* end;           // of those that are fetched at all
  int64_t far_lines, near_lines;  // of each, so many per step
  const std::byte* sums;
  int64_t sum_lines;
  int64_t c_row, c_row_end, c_rows;  // rows of c to fetch for writing, so many per step
  int64_t c_column;                  // byte in the row
};

/// How finished rows become c.
enum class Finish : uint8_t {
  general,  // panel_epilogue.h
  whole,    // no gate, no activation, c is overwritten: whole panels by the short way below
  stream,   // the same, past the caches: c is large, nobody reads it soon, and a panel's rows fill whole cache lines
};

/// 32 values to bf16, to nearest. The instruction takes subnormals for zeros.
EITRI_INLINE __m512i to_bf16(F low, F high) {
  constexpr int kSubnormal = 0x20;
  if ((_mm512_fpclass_ps_mask(low.v, kSubnormal) | _mm512_fpclass_ps_mask(high.v, kSubnormal)) != 0) [[unlikely]]
    return _mm512_inserti64x4(_mm512_castsi256_si512(low.to_bf16()), high.to_bf16(), 1);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v));
}

/// `rows` rows of a whole panel. What does not change from row to row is read once: stores to c could change the task for all the compiler knows.
template <Sums kSums, bool kStream> EITRI_INLINE void whole_rows(const PanelTask& task, const Pending& pending, int64_t rows) {
  const auto put_line = [](std::byte* to, __m512i line) {
    if constexpr (kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    else _mm512_storeu_si512(to, line);
  };
  const float* const a_scale = task.a_scale;
  const float* const row_weight = task.row_weight;
  const float* const scale = task.b_scale == nullptr ? nullptr : pending.vectors->scale;
  const float* const bias = task.bias == nullptr ? nullptr : pending.vectors->bias;
  const int32_t* const row_index = task.row_index;
  const int32_t* const c_row_index = task.c_row_index;
  const float sum_scale = task.sum_scale;
  const bool bare =
      kSums == Sums::f32 && sum_scale == 1 && a_scale == nullptr && row_weight == nullptr && scale == nullptr && bias == nullptr;
  const DType c_dtype = task.c_dtype;
  const int64_t c_stride = task.c_stride;
  std::byte* const c_panel = task.c + pending.panel * (c_dtype == DType::f32 ? 128 : 64);
  const std::byte* sums = pending.sums + pending.done / 16 * kSumsTile + pending.done % 16 * kSumsRow;
  for (int64_t i = pending.row + pending.done, end = i + rows; i < end; ++i, sums += kSumsRow) {
    F x[2] = {vec512::detail::load_sums<kSums>(sums), vec512::detail::load_sums<kSums>(sums + kSumsHalf)};
    if (!bare) {
      float row_factor = sum_scale;
      if (a_scale != nullptr) row_factor *= a_scale[row_index != nullptr ? row_index[i] & task.row_mask : i];
      if (row_weight != nullptr) row_factor *= row_weight[i];
      const F factor = F::set1(row_factor);
      for (int half = 0; half < 2; ++half) {
        x[half] = x[half] * factor;
        if (scale != nullptr) x[half] = x[half] * F::load(scale + half * 16);
        if (bias != nullptr) x[half] = x[half] + F::load(bias + half * 16);
      }
    }
    std::byte* const c = c_panel + (c_row_index != nullptr ? c_row_index[i] : i) * c_stride;
    if (c_dtype == DType::bf16) {
      put_line(c, to_bf16(x[0], x[1]));
    } else if (c_dtype == DType::f32) {
      put_line(c, _mm512_castps_si512(x[0].v));
      put_line(c + 64, _mm512_castps_si512(x[1].v));
    } else {
      put_line(c, _mm512_inserti64x4(_mm512_castsi256_si512(x[0].to_f16()), x[1].to_f16(), 1));
    }
  }
}

template <Sums kSums> __attribute__((noinline)) void finish_pending(const PanelTask& task, Pending& pending, int64_t most, Finish how) {
  const bool whole = (pending.panel + 1) * kPanelColumns <= task.n;
  while (most > 0 && pending.left()) {
    const int64_t rows = least(least(most, pending.rows - pending.done), 16 - pending.done % 16);  // of one tile
    if (how == Finish::stream && whole) {
      whole_rows<kSums, true>(task, pending, rows);
    } else if (how != Finish::general && whole) {
      whole_rows<kSums, false>(task, pending, rows);
    } else {
      const std::byte* const sums = pending.sums + pending.done / 16 * kSumsTile + pending.done % 16 * kSumsRow;
      finish_rows<kSums>(task, *pending.vectors, pending.panel, sums, kSumsRow, pending.row + pending.done, rows, kSumsHalf);
    }
    pending.done += rows;
    most -= rows;
  }
}

/// PREFETCHW: every machine with AMX has it, but no flag of this file announces it to the compiler.
EITRI_INLINE void fetch_for_write(const std::byte* line) { asm volatile("prefetchw %0" : : "m"(*line)); }

/// What lies between the tile instructions of a step. Where a core throttles them, what counts is how dense they lie.
enum class Room : uint8_t {
  none,
  fetches,  // the step's fetches of weights: in one burst they hold the fill buffers that the next loads from L2 want
  nops,
};

/// A step's room, and what it fetches there and at its end.
template <int kTiles, Room kRoom> struct Pace {
  static constexpr int64_t kPlaces = kTiles == 2 ? 8 : 5;  // tile instructions
  Ahead ahead;
  int64_t far = 0, near = 0;  // lines that are fetched behind each

  EITRI_INLINE void begin_step() {
    if constexpr (kRoom != Room::fetches) return;
    far = ahead.far < ahead.end ? ahead.far_lines / kPlaces : 0;
    near = ahead.near < ahead.end ? ahead.near_lines / kPlaces : 0;
  }
  EITRI_INLINE void room() {
    if constexpr (kRoom == Room::nops) asm volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop");
    if constexpr (kRoom != Room::fetches) return;
    for (int64_t i = 0; i < far; ++i, ahead.far += 64) asm volatile("prefetcht2 %0" : : "m"(*ahead.far));
    for (int64_t i = 0; i < near; ++i, ahead.near += 64) asm volatile("prefetcht0 %0" : : "m"(*ahead.near));
  }
  EITRI_INLINE void end_step(const PanelTask& task) {
    if (ahead.far < ahead.end)
      for (int64_t i = far * kPlaces; i < ahead.far_lines; ++i, ahead.far += 64) _mm_prefetch(ahead.far, _MM_HINT_T2);
    if (ahead.near < ahead.end)
      for (int64_t i = near * kPlaces; i < ahead.near_lines; ++i, ahead.near += 64) _mm_prefetch(ahead.near, _MM_HINT_T0);
    for (int64_t i = 0; i < ahead.sum_lines; ++i, ahead.sums += 64) _mm_prefetch(ahead.sums, _MM_HINT_T1);
    for (int64_t i = 0; i < ahead.c_rows && ahead.c_row < ahead.c_row_end; ++i, ++ahead.c_row) {
      const int64_t row = task.c_row_index != nullptr ? task.c_row_index[ahead.c_row] : ahead.c_row;
      const std::byte* line = task.c + row * task.c_stride + ahead.c_column;
      fetch_for_write(line);
      if (task.c_dtype == DType::f32) fetch_for_write(line + 64);
    }
  }
};

template <int kTile, class Pacing> EITRI_INLINE void load_a(const std::byte* a, Pacing& pace) {
  tiles::load_streaming<kTile>(a, 64);
  pace.room();
}
template <int kTile, class Pacing> EITRI_INLINE void load_b(const std::byte* b, Pacing& pace) {
  tiles::load<kTile>(b, 64);
  pace.room();
}
template <Sums kSums, int kC, int kA, int kB, class Pacing> EITRI_INLINE void multiply(Pacing& pace) {
  if constexpr (kSums == Sums::i32) tiles::dpbssd<kC, kA, kB>();
  else tiles::dpbf16ps<kC, kA, kB>();
  pace.room();
}
/// Sums tile kC of the previous block leaves, that of this block comes in.
template <int kC, bool kFirst> EITRI_INLINE void exchange(std::byte* previous, const std::byte* sums) {
  constexpr int64_t kAt = (kC / 2) * kSumsTile + (kC % 2) * kSumsHalf;
  tiles::store<kC>(previous + kAt, kSumsRow);
  if constexpr (kFirst) tiles::zero<kC>();
  else tiles::load<kC>(sums + kAt, kSumsRow);
}

/// kTiles x 16 rows x 32 columns over `steps` >= 1 k-steps; of A they are a_step bytes apart. Tiles 0..3: sums; 4, 5: A; 6, 7: weights. The
/// sums stay in tiles: the next block, or flush(), stores them.
template <Sums kSums, bool kFirst, int kTiles, Room kRoom>
void block(const PanelTask& task, const std::byte* a, int64_t a_step, const std::byte* b, int64_t steps, std::byte* previous,
           bool previous_has_two, std::byte* sums, Ahead ahead, Pending& pending, Finish how) {
  Pace<kTiles, kRoom> pace{ahead};
  pace.begin_step();
  load_a<4>(a, pace);
  load_b<6>(b, pace);
  exchange<0, kFirst>(previous, sums);
  multiply<kSums, 0, 4, 6>(pace);
  load_b<7>(b + kTileBytes, pace);
  exchange<1, kFirst>(previous, sums);
  multiply<kSums, 1, 4, 7>(pace);
  if constexpr (kTiles == 2) {
    load_a<5>(a + kTileBytes, pace);
    exchange<2, kFirst>(previous, sums);
    multiply<kSums, 2, 5, 6>(pace);
    exchange<3, kFirst>(previous, sums);
    multiply<kSums, 3, 5, 7>(pace);
  } else if (previous_has_two) {
    tiles::store<2>(previous + kSumsTile, kSumsRow);
    tiles::store<3>(previous + kSumsTile + kSumsHalf, kSumsRow);
  }
  const int64_t own_lines = steps < kShortChunk ? 0 : kTiles * kSumsTile / 64 / kOwnSteps;
  for (int64_t step = 1;; ++step) {
    pace.end_step(task);
    if (own_lines > 0 && step < steps && step >= steps - kOwnSteps) {
      const std::byte* const at = sums + (step - (steps - kOwnSteps)) * own_lines * 64;
      for (int64_t i = 0; i < own_lines; ++i) fetch_for_write(at + i * 64);
    }
    if (step >= steps) break;
    pace.begin_step();
    a += kTiles == 2 ? 2 * kTileBytes : a_step;
    b += kStepWeights;
    load_a<4>(a, pace);
    load_b<6>(b, pace);
    multiply<kSums, 0, 4, 6>(pace);
    load_b<7>(b + kTileBytes, pace);
    multiply<kSums, 1, 4, 7>(pace);
    if constexpr (kTiles == 2) {
      load_a<5>(a + kTileBytes, pace);
      multiply<kSums, 2, 5, 6>(pace);
      multiply<kSums, 3, 5, 7>(pace);
    }
    // The stores of the pending sums need a few steps to retire before they are read.
    if (pending.left() && step >= 4) finish_pending<kSums>(task, pending, 4, how);
  }
  if (pending.left()) finish_pending<kSums>(task, pending, kGroupRows, how);
}

template <Sums kSums> EITRI_INLINE auto block_of(Room room, bool two, bool first) {
  const auto of = [&]<Room kRoom>(std::integral_constant<Room, kRoom>) {
    if (two) return first ? block<kSums, true, 2, kRoom> : block<kSums, false, 2, kRoom>;
    return first ? block<kSums, true, 1, kRoom> : block<kSums, false, 1, kRoom>;
  };
  if (room == Room::nops) return of(std::integral_constant<Room, Room::nops>());
  if (room == Room::fetches) return of(std::integral_constant<Room, Room::fetches>());
  return of(std::integral_constant<Room, Room::none>());
}

/// Stores the sums that the last block left in tiles.
EITRI_INLINE void flush(std::byte* previous) {
  tiles::store<0>(previous, kSumsRow);
  tiles::store<1>(previous + kSumsHalf, kSumsRow);
  tiles::store<2>(previous + kSumsTile, kSumsRow);
  tiles::store<3>(previous + kSumsTile + kSumsHalf, kSumsRow);
}

/// Rows [row_begin, row_begin + rows) of A, `steps` k-steps from step_begin on, row by row in one pass (chunk by chunk would
/// touch 128 bytes of every row at a time) to [chunk][group][k-step][tiles of the group]; the last group may have one tile.
/// Rows that fill the last tile, and bytes behind k, are zero; one tile of few rows has only those (tile_rows). Meanwhile `lines` lines of
/// weights are fetched to L2.
void pack_a(const PanelTask& task, int64_t k_bytes, int64_t row_begin, int64_t rows, int64_t tile_rows, int64_t step_begin, int64_t steps,
            int64_t chunk, std::byte* to, const std::byte* weights, int64_t lines) {
  const int64_t row_tiles = divide_up(rows, 16), tile_bytes = tile_rows * kStepBytes;
  const std::byte* next = nullptr;
  for (int64_t r = 0; r < row_tiles * tile_rows; ++r) {
    const std::byte* from = next;
    if (r == 0 || r + 1 < rows) {
      const auto at = [&](int64_t i) {
        const int64_t source = task.row_index != nullptr ? task.row_index[i] & task.row_mask : i;
        return task.a + source * task.a_stride + step_begin * kStepBytes;
      };
      if (r == 0) from = at(row_begin);
      if (r + 1 < rows) next = at(row_begin + r + 1);
    }
    const int64_t group = r / kGroupRows, tile = r % kGroupRows / 16;
    const int64_t group_tiles = least(2, row_tiles - group * 2);
    int64_t left = k_bytes - step_begin * kStepBytes;
    for (int64_t c = 0; c < steps; c += chunk) {
      const int64_t count = least(chunk, steps - c);
      std::byte* out = to + (c * row_tiles + group * 2 * count + tile) * tile_bytes + r % 16 * 64;
      for (int64_t k = 0; k < count; ++k, out += group_tiles * tile_bytes) {
        if (r >= rows) {
          _mm512_store_si512(out, _mm512_setzero_si512());
          continue;
        }
        const int64_t at = (c + k) * kStepBytes;
        _mm_prefetch(next + at, _MM_HINT_T0);
        _mm512_store_si512(out, load_bytes(from + at, left));
        left -= kStepBytes;
        if (lines > 0) {
          _mm_prefetch(weights, _MM_HINT_T2);
          weights += 64;
          --lines;
        }
      }
    }
  }
}

/// The task has no k: every sum is zero, and the epilogue still runs.
template <Sums kSums> void finish_empty(const PanelTask& task) {
  std::memset(task.scratch, 0, kPanelColumns * 4);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    PanelVectors vectors;
    gather_vectors(task, panel, vectors);
    finish_rows<kSums>(task, vectors, panel, task.scratch, 0, 0, task.m);
  }
}

Finish finish_of(const PanelTask& task) {
  if (task.gate != GateLayout::none || task.activation.kind != ActivationKind::none || task.accumulate) return Finish::general;
  const int64_t width = task.c_dtype == DType::f32 ? 4 : 2;
  const bool lines = (reinterpret_cast<uintptr_t>(task.c) | static_cast<uintptr_t>(task.c_stride)) % 64 == 0;
  const bool large = task.c_bytes >= kStreamBytes || task.m * task.n * width >= kStreamBytes;
  return task.m > 64 && large && lines ? Finish::stream : Finish::whole;
}

template <Sums kSums, bool kCoded> void run(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kElementBytes = kSums == Sums::i32 ? 1 : 2;
  const int64_t k_bytes = task.k * kElementBytes, steps = divide_up(k_bytes, kStepBytes);
  if (steps == 0) return finish_empty<kSums>(task);
  const int64_t weight_panel = kCoded ? coded_panel_bytes(task.codes, task.k) : panel_bytes(task.k, kElementBytes);
  const Plan plan(task, steps, (task.panel_end - task.panel_begin) * weight_panel);
  const bool plain = !kCoded && task.b_row_stride != 0;
  const Finish how = finish_of(task);
  const bool fetches = !plain;
  const Room room = task.m > 64 ? Room::nops : task.m > 16 && fetches && !kCoded ? Room::fetches : Room::none;
  const bool split_k = steps > plan.steps;
  // Bytes of a k-step's weights in memory. Codes lie span by span, so that those of a step are only about here.
  const int64_t step_bytes = !kCoded ? kStepWeights : span_bytes(task.codes) / (kSums == Sums::i32 ? kSpan / 64 : kSpan / kDecodedSteps);
  const std::byte* const weights_end = task.b + task.panel_end * weight_panel;
  const int64_t outputs = task.gate == GateLayout::none ? kPanelColumns : kPanelColumns / 2;
  const int64_t c_width = task.c_dtype == DType::f32 ? 4 : 2;
  const int64_t tile_rows = least(task.m, 16), a_tile = tile_rows * kStepBytes;

  // Scratch: where the first block "returns" the sums of no block; A; sums of a block of rows, of all panels when blocks of
  // k follow each other; a packed panel, or a decoded chunk of one.
  const int64_t block_groups = divide_up(plan.rows, kGroupRows);
  std::byte* const nowhere = task.scratch;
  std::byte* const a_block = nowhere + kSumsGroup;
  std::byte* const all_sums = a_block + divide_up(plan.rows, 16) * plan.steps * kTileBytes;
  const int64_t panel_sums = split_k ? block_groups * kSumsGroup : 0;
  std::byte* const plain_panel = all_sums + block_groups * kSumsGroup * (split_k ? task.panel_end - task.panel_begin : 1);

  PanelVectors vectors[2];  // alternating: a pending group may belong to the panel before
  int64_t slot = 0;
  Pending pending;
  const UnpackFn unpack = !kCoded ? nullptr : kSums == Sums::i32 ? unpack_quads : unpack_of(task.codes);
  std::byte* previous = nowhere;
  bool previous_has_two = false;
  tiles::configure(tile_rows);
  tiles::zero<0>();
  tiles::zero<1>();
  tiles::zero<2>();
  tiles::zero<3>();

  for (int64_t m0 = 0; m0 < task.m; m0 += plan.rows) {
    const int64_t rows = least(plan.rows, task.m - m0), row_tiles = divide_up(rows, 16);
    const int64_t groups = divide_up(row_tiles, 2);
    const int64_t lines = divide_up(divide_up(step_bytes, 64), groups);  // of weights, per k-step of a group
    for (int64_t k0 = 0; k0 < steps; k0 += plan.steps) {
      const int64_t here = least(plan.steps, steps - k0);
      const bool last = k0 + here == steps;
      const std::byte* const first_weights = task.b + task.panel_begin * weight_panel + k0 * step_bytes;
      pack_a(task, k_bytes, m0, rows, tile_rows, k0, here, plan.chunk, a_block, first_weights, !fetches || task.m > 160 ? 0 : 1024);
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        const std::byte* b_panel = task.b + panel * weight_panel + k0 * step_bytes;
        // What is read after this panel: its successor, or the first one again for other rows or another k.
        const std::byte* const next_panel = panel + 1 < task.panel_end ? b_panel + weight_panel
                                            : last                     ? task.b + task.panel_begin * weight_panel
                                                                       : first_weights + here * step_bytes;
        if (plain) {
          pack_panel_steps(task, panel, kElementBytes, k0, here, plain_panel);
          b_panel = plain_panel;
        }
        if (last) {
          slot ^= 1;
          gather_vectors(task, panel, vectors[slot]);
        }
        std::byte* const sums = all_sums + (panel - task.panel_begin) * panel_sums;
        for (int64_t c0 = 0; c0 < here; c0 += plan.chunk) {
          const int64_t count = least(plan.chunk, here - c0);
          const std::byte* b = b_panel + c0 * step_bytes;
          const std::byte* const soon = plan.far > 0 ? b + plan.far : c0 + count < here ? b + count * step_bytes : next_panel;
          const std::byte* const sooner = b + plan.near;
          if constexpr (kCoded) {
            unpack(task.b + panel * weight_panel, k0 + c0, count, kCodesAhead, plain_panel);
            b = plain_panel;
          }
          const bool first = k0 + c0 == 0, final = last && c0 + count == here;
          for (int64_t g = 0; g < groups; ++g) {
            const bool two = row_tiles - 2 * g >= 2;
            const int64_t row = m0 + g * kGroupRows, row_end = m0 + least(rows, (g + 1) * kGroupRows);
            std::byte* const c = sums + g * kSumsGroup;
            const std::byte* const a = a_block + (c0 * row_tiles + g * 2 * count) * a_tile;
            Ahead ahead = {};
            const int64_t own_lines = !fetches || g * lines * 64 >= step_bytes ? 0 : lines;
            ahead.far = soon + g * lines * count * 64;
            ahead.near = sooner + g * lines * count * 64;
            ahead.end = plan.far > 0 ? weights_end : ahead.far + own_lines * count * 64;
            ahead.far_lines = plan.near > 0 && plan.far == plan.near ? 0 : own_lines;
            ahead.near_lines = plan.near > 0 ? own_lines : 0;
            ahead.sum_lines = panel_sums > 0 && panel + 1 < task.panel_end ? divide_up(kSumsGroup / 64, here) : 0;
            ahead.sums = c + panel_sums + c0 * 64 * ahead.sum_lines;
            if (final && how != Finish::stream && task.m > 64) {
              ahead.c_row = row;
              ahead.c_row_end = row_end;
              ahead.c_rows = divide_up(kGroupRows, count);
              ahead.c_column = panel * outputs * c_width;
            }
            const auto kernel = block_of<kSums>(room, two, first);
            kernel(task, a, a_tile, b, count, previous, previous_has_two, c, ahead, pending, how);
            previous = c;
            previous_has_two = two;
            if (final) pending = {c, &vectors[slot], panel, row, 0, row_end - row};
          }
        }
      }
    }
  }
  flush(previous);
  tiles::release();
  if (pending.left()) finish_pending<kSums>(task, pending, kGroupRows, how);
  if (how == Finish::stream) _mm_sfence();
}

}  // namespace

#if defined(EITRI_AMX_EMULATED)
namespace amx_emulated {
#else
namespace amx {
#endif
PanelBlocking blocking(const PanelTask& task, int element_bytes) {
  // Few rows meet codes in coded_few_bf16, which has no such choice.
  if (task.codes.dtype != DType::none && element_bytes == 2 && task.m <= kFewRows && task.k > 0 && task.k <= kFewK) return {};
  const Plan plan(task, divide_up(task.k * element_bytes, kStepBytes), 0);
  return {.rows = plan.rows, .steps = plan.steps, .chunk = plan.chunk};
}
void panel_bf16(const PanelTask& task) { run<Sums::f32, false>(task); }
void panel_i8(const PanelTask& task) { run<Sums::i32, false>(task); }
void coded_bf16(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  if (task.m <= kFewRows && task.k > 0 && task.k <= kFewK) return coded_few_bf16(task);
  run<Sums::f32, true>(task);
}
void coded_i8(const PanelTask& task) { run<Sums::i32, true>(task); }
}  // namespace amx or amx_emulated

}  // namespace eitri
