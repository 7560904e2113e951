// gemm.x86_amx.panel: rows of A times 32-column panels on AMX tiles; bf16 with f32 sums, i8 with i32 sums.
//
//   for each block of rows and block of k            (A block: at most 880 KiB, in L2)
//     pack A: [chunk of k][group of 32 rows][k-step][2 tiles]
//     for each panel: for each chunk of k            (20 k-steps = 40 KiB of weights: they stay in L1)
//       for each group of rows                       block(): 2 x 2 tiles, 32 rows x 32 columns
//         sums: zero or back from memory; per k-step 2 tiles of A, 2 of weights, 4 tile products; sums to memory
//       the last chunk of the last block of k: epilogue of the group's rows (panel_epilogue.h)
//
// Who loads what: A streams from L2 by loads that leave L1 to the weights (the largest single effect); weights come from
// their panel strictly in memory order, a chunk ahead of use, spread evenly over the k-steps (next chunk to L2; up to 16
// rows: 2 KiB ahead to L1, one chunk, sums in registers over the whole block of k). Sums of a group go to memory and the
// next group's come in between the tile products of the next block's first step, where they cost nothing; a finished
// group's epilogue runs during the steps of the block after it, on the vector ports that tile products leave idle.
// Bound by: weights from memory up to 64 rows, then the feed of tiles from L1 and L2.
// Coded panels (x86_amx_decode.h): the same loops over tiles decoded a chunk at a time into L1, once for each block of rows. Decoding the
// next chunk between the tile products of this one was slower: it takes the room in which loads from L2 wait. Up to 16 rows:
// x86_amx_few.cpp.
// Limits: bf16 subnormals count as 0 (the instruction). K tails: A is packed with zeros behind k, so NaN beyond it cannot
// meet the panel's zero padding. The order of additions depends only on k: a row's bits do not depend on other
// rows, but for coded panels on whether they are more than 16.
#include <cstring>

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
constexpr int64_t kSumsRow = kPanelColumns * 4;        // bytes of a row of sums
constexpr int64_t kSumsTile = 16 * kSumsRow;           // from the upper 16 rows to the lower
constexpr int64_t kSumsGroup = kGroupRows * kSumsRow;  // 4 KiB
constexpr int64_t kStepWeights = 2 * kTileBytes;       // weights of a k-step
constexpr int64_t kMostA = 880 << 10;                  // bytes of an A block
constexpr int64_t kCodesAhead = 8192;                  // bytes of codes between fetch and use
constexpr int64_t kMostCodedChunk = 20;                // k-steps decoded at a time: 40 KiB of L1
constexpr int64_t kStreamBytes = 2 << 20;              // c of this size bypasses the caches

EITRI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
EITRI_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Blocking of a task. Measured defaults by rows; block_m and chunk_k of the task override them.
struct Plan {
  int64_t rows;   // of A packed at a time
  int64_t steps;  // k-steps packed at a time
  int64_t chunk;  // k-steps of a panel that stay in L1
  int64_t ahead;  // weights are prefetched this many bytes ahead; 0: the next chunk
  bool near;      // to L1, else to L2

  Plan(const PanelTask& task, int64_t all_steps) {
    if (task.m <= 16) *this = Plan(16, 640, 640, 2048, true);
    else if (task.m <= 32) *this = Plan(32, 320, 4, 8192, false);
    else if (task.m <= 64) *this = Plan(64, 160, 4, 8192, false);
    else if (task.m <= 160) *this = Plan(160, 64, 8, 16384, false);
    else *this = Plan(352, 40, 20, 0, false);
    if (task.block_m > 0 && task.m > 16) {
      rows = divide_up(least(task.block_m, kScratchRows), kGroupRows) * kGroupRows;
      steps = least(steps, kMostA / (rows * kStepBytes));
    }
    if (task.chunk_k > 0) chunk = task.chunk_k;
    if (task.codes.dtype != DType::none) chunk = least(chunk, kMostCodedChunk);
    // Even shares instead of a small rest.
    if (task.m > 16) rows = divide_up(divide_up(task.m, divide_up(task.m, rows)), kGroupRows) * kGroupRows;
    if (all_steps > 0) steps = divide_up(all_steps, divide_up(all_steps, steps));
    chunk = divide_up(steps, divide_up(steps, chunk));
  }

 private:
  Plan(int64_t r, int64_t s, int64_t c, int64_t a, bool n) : rows(r), steps(s), chunk(c), ahead(a), near(n) {}
};

/// A finished group whose epilogue runs during the next block.
struct Pending {
  const std::byte* sums = nullptr;
  const PanelVectors* vectors = nullptr;
  int64_t panel = 0, row = 0, rows = 0;  // rows: left to do, from task row `row`
};

/// What a block fetches for later, per k-step.
struct Ahead {
  const std::byte* weights;
  int64_t weight_lines;
  bool near;
  const std::byte* sums;
  int64_t sum_lines;
  int64_t c_row, c_row_end, c_rows;  // rows of c to fetch for writing, so many per step
  int64_t c_column;                  // byte in the row
};

/// Whole panels straight to memory: lines of c that nobody reads soon and that fill whole cache lines.
template <Sums kSums> void stream_rows(const PanelTask& task, const PanelVectors& vectors, const Pending& pending, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = pending.row + r;
    const int64_t source = task.row_index != nullptr ? task.row_index[i] & task.row_mask : i;
    float row_factor = task.a_scale != nullptr ? task.sum_scale * task.a_scale[source] : task.sum_scale;
    if (task.row_weight != nullptr) row_factor *= task.row_weight[i];
    const F factor = F::set1(row_factor);
    F x[2];
    for (int64_t half = 0; half < 2; ++half) {
      x[half] = vec512::detail::load_sums<kSums>(pending.sums + r * kSumsRow + half * 64) * factor;
      if (task.b_scale != nullptr) x[half] = x[half] * F::load(vectors.scale + half * 16);
      if (task.bias != nullptr) x[half] = x[half] + F::load(vectors.bias + half * 16);
    }
    std::byte* c = task.c + (task.c_row_index != nullptr ? task.c_row_index[i] : i) * task.c_stride;
    if (task.c_dtype == DType::f32) {
      auto* to = reinterpret_cast<float*>(c + pending.panel * 128);
      _mm512_stream_ps(to, x[0].v);
      _mm512_stream_ps(to + 16, x[1].v);
    } else {
      const bool bf16 = task.c_dtype == DType::bf16;
      const __m256i low = bf16 ? x[0].to_bf16() : x[0].to_f16(), high = bf16 ? x[1].to_bf16() : x[1].to_f16();
      _mm512_stream_si512(reinterpret_cast<__m512i*>(c + pending.panel * 64), _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
  }
}

template <Sums kSums> __attribute__((noinline)) void finish_pending(const PanelTask& task, Pending& pending, int64_t most, bool stream) {
  const int64_t rows = least(most, pending.rows);
  if (stream && (pending.panel + 1) * kPanelColumns <= task.n) stream_rows<kSums>(task, *pending.vectors, pending, rows);
  else finish_rows<kSums>(task, *pending.vectors, pending.panel, pending.sums, kSumsRow, pending.row, rows);
  pending.sums += rows * kSumsRow;
  pending.row += rows;
  pending.rows -= rows;
}

/// PREFETCHW: every machine with AMX has it, but no flag of this file announces it to the compiler.
EITRI_INLINE void fetch_for_write(const std::byte* line) { asm volatile("prefetchw %0" : : "m"(*line)); }

EITRI_INLINE void fetch(Ahead& ahead, const PanelTask& task) {
  if (ahead.near) {
    for (int64_t i = 0; i < ahead.weight_lines; ++i, ahead.weights += 64) _mm_prefetch(ahead.weights, _MM_HINT_T0);
  } else {
    for (int64_t i = 0; i < ahead.weight_lines; ++i, ahead.weights += 64) _mm_prefetch(ahead.weights, _MM_HINT_T2);
  }
  for (int64_t i = 0; i < ahead.sum_lines; ++i, ahead.sums += 64) _mm_prefetch(ahead.sums, _MM_HINT_T1);
  for (int64_t i = 0; i < ahead.c_rows && ahead.c_row < ahead.c_row_end; ++i, ++ahead.c_row) {
    const int64_t row = task.c_row_index != nullptr ? task.c_row_index[ahead.c_row] : ahead.c_row;
    const std::byte* line = task.c + row * task.c_stride + ahead.c_column;
    fetch_for_write(line);
    if (task.c_dtype == DType::f32) fetch_for_write(line + 64);
  }
}

template <Sums kSums, int kC, int kA, int kB> EITRI_INLINE void multiply() {
  if constexpr (kSums == Sums::i32) tiles::dpbssd<kC, kA, kB>();
  else tiles::dpbf16ps<kC, kA, kB>();
}
/// Sums tile kC of the previous block leaves, that of this block comes in.
template <int kC, bool kFirst> EITRI_INLINE void exchange(std::byte* previous, const std::byte* sums) {
  constexpr int64_t kAt = (kC / 2) * kSumsTile + (kC % 2) * 64;
  tiles::store<kC>(previous + kAt, kSumsRow);
  if constexpr (kFirst) tiles::zero<kC>();
  else tiles::load<kC>(sums + kAt, kSumsRow);
}

/// kTiles x 16 rows x 32 columns over `steps` >= 1 k-steps. Tiles 0..3: sums; 4, 5: A; 6, 7: weights. The sums stay in
/// tiles: the next block, or flush(), stores them.
template <Sums kSums, bool kFirst, int kTiles>
void block(const PanelTask& task, const std::byte* a, const std::byte* b, int64_t steps, std::byte* previous, bool previous_has_two,
           const std::byte* sums, Ahead ahead, Pending& pending, bool stream) {
  tiles::load_streaming<4>(a, 64);
  tiles::load<6>(b, 64);
  exchange<0, kFirst>(previous, sums);
  multiply<kSums, 0, 4, 6>();
  tiles::load<7>(b + kTileBytes, 64);
  exchange<1, kFirst>(previous, sums);
  multiply<kSums, 1, 4, 7>();
  if constexpr (kTiles == 2) {
    tiles::load_streaming<5>(a + kTileBytes, 64);
    exchange<2, kFirst>(previous, sums);
    multiply<kSums, 2, 5, 6>();
    exchange<3, kFirst>(previous, sums);
    multiply<kSums, 3, 5, 7>();
  } else if (previous_has_two) {
    tiles::store<2>(previous + kSumsTile, kSumsRow);
    tiles::store<3>(previous + kSumsTile + 64, kSumsRow);
  }
  for (int64_t step = 1;; ++step) {
    fetch(ahead, task);
    if (step >= steps) break;
    a += kTiles * kTileBytes;
    b += kStepWeights;
    tiles::load_streaming<4>(a, 64);
    tiles::load<6>(b, 64);
    multiply<kSums, 0, 4, 6>();
    tiles::load<7>(b + kTileBytes, 64);
    multiply<kSums, 1, 4, 7>();
    if constexpr (kTiles == 2) {
      tiles::load_streaming<5>(a + kTileBytes, 64);
      multiply<kSums, 2, 5, 6>();
      multiply<kSums, 3, 5, 7>();
    }
    // The stores of the pending sums need a few steps to retire before they are read.
    if (pending.rows > 0 && step >= 4) finish_pending<kSums>(task, pending, 4, stream);
  }
  if (pending.rows > 0) finish_pending<kSums>(task, pending, kGroupRows, stream);
}

/// Stores the sums that the last block left in tiles.
EITRI_INLINE void flush(std::byte* previous) {
  tiles::store<0>(previous, kSumsRow);
  tiles::store<1>(previous + 64, kSumsRow);
  tiles::store<2>(previous + kSumsTile, kSumsRow);
  tiles::store<3>(previous + kSumsTile + 64, kSumsRow);
}

/// Rows [row_begin, row_begin + rows) of A, `steps` k-steps from step_begin on, row by row in one pass (chunk by chunk would
/// touch 128 bytes of every row at a time) to [chunk][group][k-step][tiles of the group]; the last group may have one tile.
/// Rows that fill the last tile, and bytes behind k, are zero. Meanwhile `lines` lines of weights are fetched to L2.
void pack_a(const PanelTask& task, int64_t k_bytes, int64_t row_begin, int64_t rows, int64_t step_begin, int64_t steps, int64_t chunk,
            std::byte* to, const std::byte* weights, int64_t lines) {
  const int64_t row_tiles = divide_up(rows, 16);
  const std::byte* next = nullptr;
  for (int64_t r = 0; r < row_tiles * 16; ++r) {
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
      std::byte* out = to + (c * row_tiles + group * 2 * count + tile) * kTileBytes + r % 16 * 64;
      for (int64_t k = 0; k < count; ++k, out += group_tiles * kTileBytes) {
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
  std::memset(task.scratch, 0, kSumsRow);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    PanelVectors vectors;
    gather_vectors(task, panel, vectors);
    finish_rows<kSums>(task, vectors, panel, task.scratch, 0, 0, task.m);
  }
}

bool may_stream(const PanelTask& task) {
  const int64_t width = task.c_dtype == DType::f32 ? 4 : 2;
  return task.m > 64 && task.m * task.n * width >= kStreamBytes && task.gate == GateLayout::none &&
         task.activation.kind == ActivationKind::none && !task.accumulate &&
         (reinterpret_cast<uintptr_t>(task.c) | static_cast<uintptr_t>(task.c_stride)) % 64 == 0;
}

template <Sums kSums, bool kCoded> void run(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kElementBytes = kSums == Sums::i32 ? 1 : 2;
  const int64_t k_bytes = task.k * kElementBytes, steps = divide_up(k_bytes, kStepBytes);
  if (steps == 0) return finish_empty<kSums>(task);
  const Plan plan(task, steps);
  const bool plain = !kCoded && task.b_row_stride != 0, stream = may_stream(task);
  const bool fetches = !plain && !kCoded;  // of weights: decoders fetch codes themselves
  const bool split_k = steps > plan.steps;
  const int64_t weight_panel = kCoded ? coded_panel_bytes(task.codes, task.k) : panel_bytes(task.k, kElementBytes);
  const int64_t outputs = task.gate == GateLayout::none ? kPanelColumns : kPanelColumns / 2;
  const int64_t c_width = task.c_dtype == DType::f32 ? 4 : 2;

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
  tiles::configure();
  tiles::zero<0>();
  tiles::zero<1>();
  tiles::zero<2>();
  tiles::zero<3>();

  for (int64_t m0 = 0; m0 < task.m; m0 += plan.rows) {
    const int64_t rows = least(plan.rows, task.m - m0), row_tiles = divide_up(rows, 16);
    const int64_t groups = divide_up(row_tiles, 2);
    const int64_t lines = divide_up(kStepWeights / 64, groups);  // of weights, per k-step of a group
    for (int64_t k0 = 0; k0 < steps; k0 += plan.steps) {
      const int64_t here = least(plan.steps, steps - k0);
      const bool last = k0 + here == steps;
      const std::byte* const first_weights = task.b + task.panel_begin * weight_panel + k0 * kStepWeights;
      pack_a(task, k_bytes, m0, rows, k0, here, plan.chunk, a_block, first_weights, !fetches || task.m > 160 ? 0 : 1024);
      for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
        const std::byte* b_panel = task.b + panel * weight_panel + k0 * kStepWeights;
        // What is read after this panel: its successor, or the first one again for other rows or another k.
        const std::byte* const next_panel = panel + 1 < task.panel_end ? b_panel + weight_panel
                                            : last                     ? task.b + task.panel_begin * weight_panel
                                                                       : first_weights + here * kStepWeights;
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
          const std::byte* b = b_panel + c0 * kStepWeights;
          if constexpr (kCoded) {
            unpack(task.b + panel * weight_panel, k0 + c0, count, kCodesAhead, plain_panel);
            b = plain_panel;
          }
          const bool first = k0 + c0 == 0, final = last && c0 + count == here;
          const std::byte* const soon = plan.ahead > 0 ? b + plan.ahead : c0 + count < here ? b + count * kStepWeights : next_panel;
          for (int64_t g = 0; g < groups; ++g) {
            const bool two = row_tiles - 2 * g >= 2;
            const int64_t row = m0 + g * kGroupRows, row_end = m0 + least(rows, (g + 1) * kGroupRows);
            std::byte* const c = sums + g * kSumsGroup;
            const std::byte* const a = a_block + (c0 * row_tiles + g * 2 * count) * kTileBytes;
            Ahead ahead = {};
            ahead.weights = soon + g * lines * count * 64;
            ahead.weight_lines = !fetches || g * lines >= kStepWeights / 64 ? 0 : lines;
            ahead.near = plan.near;
            ahead.sum_lines = panel_sums > 0 && panel + 1 < task.panel_end ? divide_up(kSumsGroup / 64, here) : 0;
            ahead.sums = c + panel_sums + c0 * 64 * ahead.sum_lines;
            if (final && !stream && task.m > 64) {
              ahead.c_row = row;
              ahead.c_row_end = row_end;
              ahead.c_rows = divide_up(kGroupRows, count);
              ahead.c_column = panel * outputs * c_width;
            }
            const auto kernel =
                two ? (first ? block<kSums, true, 2> : block<kSums, false, 2>) : (first ? block<kSums, true, 1> : block<kSums, false, 1>);
            kernel(task, a, b, count, previous, previous_has_two, c, ahead, pending, stream);
            previous = c;
            previous_has_two = two;
            if (final) pending = {c, &vectors[slot], panel, row, row_end - row};
          }
        }
      }
    }
  }
  flush(previous);
  tiles::release();
  if (pending.rows > 0) finish_pending<kSums>(task, pending, kGroupRows, stream);
  if (stream) _mm_sfence();
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
  const Plan plan(task, divide_up(task.k * element_bytes, kStepBytes));
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
