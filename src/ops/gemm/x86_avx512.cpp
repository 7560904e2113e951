// gemm.x86_avx512.panel: rows of A times 32-column panels in fp32 FMA (bf16, f16 and codes widened exactly) or VNNI (i8).
//
//   for each block of rows and block of k (A block: at most 768 KiB, in L2)
//     pack the rows to dwords, groups of up to 12 rows: [group][dword of k][row]
//     for each panel: for each group of rows
//       2 x 12 sums in registers; per 64-byte tile row: load, widen, 24 FMA per k with A broadcast from memory
//       last block of k: epilogue of these rows (panel_epilogue.h)
//
// Who loads what: weights straight from their panel, strictly in memory order, prefetched 4 KiB ahead; the first group of
// rows brings a panel's block to L2 where the others find it. Plain weights are packed to scratch a panel at a time.
// Bound by FMA (92 % of the slots at 12 rows; f16 about 80 %), for one row by memory: two chains of sums take 128 bytes of
// weights in 8 cycles, about twice what L3 gives a core.
// The sum of an element is one chain over ascending k, spilled exactly between blocks: a row's bits depend neither on the
// other rows nor on the blocking. i8: A is offset by 128 to be unsigned, and 128 x the column's sum is taken off first;
// 32-bit sums wrap and come back, so they are exact for k <= kMaxI8K.
#include <cstring>

#include "device/x86/intrinsics.h"
#include "device/x86/vec.h"
#include "ops/gemm/panel_epilogue.h"
#include "ops/gemm/panel_kernels.h"
#include "ops/gemm/x86_decode.h"
#include "ops/gemm/x86_transpose.h"

namespace eitri {

namespace {

using namespace eitri::vec512;

constexpr int kGroupRows = 12;
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockBytes = 768 << 10;
constexpr int64_t kRowBytes = kPanelColumns * 4;  // of sums
constexpr int64_t kAhead = 4096;                  // bytes of weights between fetch and use

EITRI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A Unit: kElementBytes; kVectors of 16 dwords that a 64-byte step of a row becomes, made by widen(); kDwords of them per
// tile row; add_row(): one tile row of both tiles times kRows rows.

struct FloatSums {
  using Acc = __m512;
  static constexpr bool kStreams = true;  // the panel comes from memory
  static constexpr Sums kSums = Sums::f32;
  static EITRI_INLINE Acc start(const std::byte* sums, const int32_t* /*offsets*/, bool first) {
    return first ? _mm512_setzero_ps() : _mm512_load_ps(sums);
  }
  static EITRI_INLINE void stop(Acc acc, std::byte* sums) { _mm512_store_ps(sums, acc); }

  template <int kRows> static EITRI_INLINE void add(Acc (&acc)[kRows][2], const std::byte* a, __m512 left, __m512 right) {
    const auto* values = reinterpret_cast<const float*>(a);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_set1_ps(values[r]);
      acc[r][0] = _mm512_fmadd_ps(value, left, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(value, right, acc[r][1]);
    }
  }
};

struct UnitF32 : FloatSums {
  static constexpr int64_t kElementBytes = 4, kVectors = 1, kDwords = 1;
  static EITRI_INLINE __m512i widen(const std::byte* row, int64_t bytes, int /*vector*/) { return load_bytes(row, bytes); }
  template <int kRows> static EITRI_INLINE void add_row(Acc (&acc)[kRows][2], const std::byte* a, const std::byte* b) {
    add<kRows>(acc, a, _mm512_load_ps(b), _mm512_load_ps(b + kTileBytes));
  }
};

/// A decoded chunk of a coded panel: f32, in L1.
struct UnitDecoded : UnitF32 {
  static constexpr bool kStreams = false;
};

struct UnitBf16 : FloatSums {
  static constexpr int64_t kElementBytes = 2, kVectors = 2, kDwords = 2;
  static EITRI_INLINE __m512i widen(const std::byte* row, int64_t bytes, int vector) {
    const int64_t n = (bytes - vector * 32) / 2;
    const F x = n >= 16 ? F::load_bf16(row + vector * 32) : F::load_bf16_partial(row + vector * 32, n < 0 ? 0 : n);
    return _mm512_castps_si512(x.v);
  }
  template <int kRows> static EITRI_INLINE void add_row(Acc (&acc)[kRows][2], const std::byte* a, const std::byte* b) {
    const __m512i left = _mm512_load_si512(b), right = _mm512_load_si512(b + kTileBytes);
    add<kRows>(acc, a, even(left), even(right));
    add<kRows>(acc, a + kRows * 4, odd(left), odd(right));
  }

 private:
  static EITRI_INLINE __m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static EITRI_INLINE __m512 odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

struct UnitF16 : FloatSums {
  static constexpr int64_t kElementBytes = 2, kVectors = 2, kDwords = 2;
  static EITRI_INLINE __m512i widen(const std::byte* row, int64_t bytes, int vector) {
    const int64_t n = (bytes - vector * 32) / 2;
    const F x = n >= 16 ? F::load_f16(row + vector * 32) : F::load_f16_partial(row + vector * 32, n < 0 ? 0 : n);
    return _mm512_castps_si512(x.v);
  }
  template <int kRows> static EITRI_INLINE void add_row(Acc (&acc)[kRows][2], const std::byte* a, const std::byte* b) {
    const Pairs left(b), right(b + kTileBytes);
    add<kRows>(acc, a, left.even, right.even);
    add<kRows>(acc, a + kRows * 4, left.odd, right.odd);
  }

 private:
  struct Pairs {  // 16 columns of two k each
    __m512 even, odd;
    EITRI_INLINE explicit Pairs(const std::byte* b) {
      const __m512 low = F::load_f16(b).v, high = F::load_f16(b + 32).v;  // columns 0..7, 8..15
      const __m512i lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      even = _mm512_permutex2var_ps(low, lanes, high);
      odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(lanes, _mm512_set1_epi32(1)), high);
    }
  };
};

struct UnitI8 {
  using Acc = __m512i;
  static constexpr bool kStreams = true;
  static constexpr Sums kSums = Sums::i32;
  static constexpr int64_t kElementBytes = 1, kVectors = 1, kDwords = 1;
  static EITRI_INLINE __m512i widen(const std::byte* row, int64_t bytes, int /*vector*/) {
    return _mm512_xor_si512(load_bytes(row, bytes), _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static EITRI_INLINE Acc start(const std::byte* sums, const int32_t* offsets, bool first) {
    const __m512i before = first ? _mm512_setzero_si512() : _mm512_load_si512(sums);
    return _mm512_add_epi32(before, _mm512_load_si512(offsets));
  }
  static EITRI_INLINE void stop(Acc acc, std::byte* sums) { _mm512_store_si512(sums, acc); }
  template <int kRows> static EITRI_INLINE void add_row(Acc (&acc)[kRows][2], const std::byte* a, const std::byte* b) {
    const __m512i left = _mm512_load_si512(b), right = _mm512_load_si512(b + kTileBytes);
    const auto* quads = reinterpret_cast<const int32_t*>(a);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i value = _mm512_set1_epi32(quads[r]);
      acc[r][0] = _mm512_dpbusd_epi32(acc[r][0], value, left);
      acc[r][1] = _mm512_dpbusd_epi32(acc[r][1], value, right);
    }
  }
};

/// kRows rows x 32 columns over `steps` k-steps. a: [dword][row]; sums: rows of 32.
template <class Unit, int kRows>
void micro(const std::byte* a, const std::byte* b, int64_t steps, std::byte* sums, const int32_t* offsets, bool first) {
  typename Unit::Acc acc[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = Unit::start(sums + r * kRowBytes, offsets, first);
    acc[r][1] = Unit::start(sums + r * kRowBytes + 64, offsets + 16, first);
  }
  for (int64_t step = 0; step < steps; ++step, b += 2 * kTileBytes) {
    for (int64_t r = 0; r < 16; ++r, a += Unit::kDwords * kRows * 4) {
      if constexpr (Unit::kStreams) {
        _mm_prefetch(b + r * 64 + kAhead, _MM_HINT_T0);
        _mm_prefetch(b + r * 64 + kAhead + kTileBytes, _MM_HINT_T0);
      }
      Unit::template add_row<kRows>(acc, a, b + r * 64);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    Unit::stop(acc[r][0], sums + r * kRowBytes);
    Unit::stop(acc[r][1], sums + r * kRowBytes + 64);
  }
}

template <class Unit> using Micro = void (*)(const std::byte*, const std::byte*, int64_t, std::byte*, const int32_t*, bool);
template <class Unit>
constexpr Micro<Unit> kMicro[kGroupRows] = {micro<Unit, 1>, micro<Unit, 2>,  micro<Unit, 3>,  micro<Unit, 4>,
                                            micro<Unit, 5>, micro<Unit, 6>,  micro<Unit, 7>,  micro<Unit, 8>,
                                            micro<Unit, 9>, micro<Unit, 10>, micro<Unit, 11>, micro<Unit, 12>};

/// Rows [row_begin, row_begin + rows) of A, k-steps [step_begin, step_begin + steps), to [dword of k][row], zeros behind k.
template <class Unit>
void pack_group(const PanelTask& task, int64_t row_begin, int64_t rows, int64_t step_begin, int64_t steps, std::byte* to) {
  const std::byte* row[kGroupRows] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = row_begin + r;
    const int64_t source = task.row_index != nullptr ? task.row_index[i] & task.row_mask : i;
    row[r] = task.a + source * task.a_stride + step_begin * kStepBytes;
  }
  int64_t left = task.k * Unit::kElementBytes - step_begin * kStepBytes;  // bytes of the rows
  const __mmask16 lanes = first_lanes(rows);
  for (int64_t step = 0; step < steps; ++step, left -= kStepBytes) {
    for (int v = 0; v < Unit::kVectors; ++v) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        x[r] = r < rows ? Unit::widen(row[r < kGroupRows ? r : 0] + step * kStepBytes, left, v) : _mm512_setzero_si512();
      if (rows == 1) {
        _mm512_store_si512(to, x[0]);
        to += 64;
        continue;
      }
      transpose16(x);
#pragma GCC unroll 16
      for (int d = 0; d < 16; ++d, to += rows * 4) _mm512_mask_storeu_epi32(to, lanes, x[d]);
    }
  }
}

/// Groups of a block of rows: as few as possible, sizes differing by one.
struct Groups {
  int64_t count, base, larger;  // the first `larger` groups have base + 1 rows
  explicit Groups(int64_t rows) : count((rows + kGroupRows - 1) / kGroupRows), base(rows / count), larger(rows % count) {}
  int64_t rows(int64_t group) const { return base + (group < larger ? 1 : 0); }
};

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

// Coded panels: of each, chunks of 128 k are decoded to f32 in L1 (16 KiB), scales and all, for all groups of the block's rows. Per
// code that is a table look-up or a few integer operations, a product and a store, once for every 96 rows; the sums of a group leave and
// enter registers once a chunk. The order of additions is that of ascending k, as above.
constexpr int64_t kChunkSteps = 4;                     // of kDecodedSteps
constexpr int64_t kCodedBlockBytes = 384 << 10;        // of A
constexpr int64_t kDecodedBytes = 2 * 2 * kTileBytes;  // a step as f32

template <DType kCode, bool kScaled> struct DecodeF32 {
  static void run(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t steps, std::byte* to) {
    for (const int64_t end = step + steps; step < end; ++step, to += kDecodedBytes) {
      fetch_codes(codes, panel, step, kAhead);
      for (int64_t tile = 0; tile < 2; ++tile) {
        std::byte* const out = to + tile * kTileBytes;
        decode_tile<kCode, kScaled>(codes, panel, step, tile, [&](int row, __m512i pairs, __m512 scale) {
          std::byte* const at = out + row / 8 * 2 * kTileBytes + row % 8 * 128;
          __m512 even = even_of(pairs), odd = odd_of(pairs);
          if constexpr (kScaled) {
            even = _mm512_mul_ps(even, scale);
            odd = _mm512_mul_ps(odd, scale);
          }
          _mm512_store_ps(at, even);
          _mm512_store_ps(at + 64, odd);
        });
      }
    }
  }
};

// Up to kStreamRows rows a panel is not worth storing: its codes go from registers into products. Sums of 32 k start at zero, even and odd
// k apart, which is enough chains for one row; their block scale meets them once, not every code.
constexpr int kStreamRows = 3;

/// kRows rows x 32 columns over all of k. a: [k][row].
template <DType kCode, bool kScaled, int kRows>
void stream(const PanelCodes& codes, const std::byte* panel, int64_t steps, const float* a, std::byte* sums) {
  __m512 total[kRows][2];
  for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step, a += kDecodedSteps * kRows) {
    fetch_codes(codes, panel, step, kAhead);
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      __m512 even[kRows], odd[kRows], last_scale = _mm512_setzero_ps();
      for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
      const auto finish = [&](__m512 scale) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512 sum = _mm512_add_ps(even[r], odd[r]);
          total[r][tile] = kScaled ? _mm512_fmadd_ps(scale, sum, total[r][tile]) : _mm512_add_ps(sum, total[r][tile]);
        }
      };
      decode_tile<kCode, kScaled>(codes, panel, step, tile, [&](int row, __m512i pairs, __m512 scale) {
        if (kScaled && row == 8 && codes.group == 16) {
          finish(last_scale);
          for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
        }
        last_scale = scale;
        const __m512 left = even_of(pairs), right = odd_of(pairs);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          even[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[2 * row * kRows + r]), left, even[r]);
          odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[(2 * row + 1) * kRows + r]), right, odd[r]);
        }
      });
      finish(last_scale);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int tile = 0; tile < 2; ++tile) _mm512_store_ps(sums + r * kRowBytes + tile * 64, total[r][tile]);
}

using StreamFn = void (*)(const PanelCodes&, const std::byte*, int64_t, const float*, std::byte*);
template <DType kCode, bool kScaled> StreamFn stream_of(int64_t rows) {
  constexpr StreamFn kByRows[kStreamRows] = {stream<kCode, kScaled, 1>, stream<kCode, kScaled, 2>, stream<kCode, kScaled, 3>};
  return kByRows[rows - 1];
}
StreamFn stream_of(const PanelCodes& codes, int64_t rows) {
  const bool scaled = codes.scale != DType::none;
  switch (codes.dtype) {
    case DType::f8e4m3: return scaled ? stream_of<DType::f8e4m3, true>(rows) : stream_of<DType::f8e4m3, false>(rows);
    case DType::i8: return scaled ? stream_of<DType::i8, true>(rows) : stream_of<DType::i8, false>(rows);
    case DType::i4: return scaled ? stream_of<DType::i4, true>(rows) : stream_of<DType::i4, false>(rows);
    default: return scaled ? stream_of<DType::f4e2m1, true>(rows) : stream_of<DType::f4e2m1, false>(rows);
  }
}

/// A task of few rows, whose A fits as a whole.
template <class Unit> void run_stream(const PanelTask& task, int64_t steps) {
  constexpr int64_t kUnits = kDecodedSteps * Unit::kElementBytes / kStepBytes;
  const int64_t panel_stride = coded_panel_bytes(task.codes, task.k);
  std::byte* const sums = task.scratch;
  std::byte* const a = sums + kStreamRows * kRowBytes;
  pack_group<Unit>(task, 0, task.m, 0, steps * kUnits, a);
  const StreamFn function = stream_of(task.codes, task.m);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel) {
    function(task.codes, task.b + panel * panel_stride, steps, reinterpret_cast<const float*>(a), sums);
    finish_rows<Sums::f32>(task, panel, sums, kRowBytes, 0, task.m);
  }
}

/// Unit: of A.
template <class Unit> void run_coded(const PanelTask& task) {
  if (task.m <= 0 || task.panel_begin >= task.panel_end) return;
  constexpr int64_t kUnits = kDecodedSteps * Unit::kElementBytes / kStepBytes;  // 64-byte steps of a row in a step
  const int64_t steps = (task.k + kDecodedSteps - 1) / kDecodedSteps, panel_stride = coded_panel_bytes(task.codes, task.k);
  if (task.m <= kStreamRows && task.m * steps * kDecodedSteps * 4 <= kCodedBlockBytes) return run_stream<Unit>(task, steps);
  const DecodeFn decode = decoder_of<DecodeF32>(task.codes);

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
          decode(task.codes, task.b + panel * panel_stride, step0 + c, count, decoded);
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
void run_coded_i8(const PanelTask& task) {
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
            fetch_codes(task.codes, b, 2 * (step0 + c + s), kAhead);
            fetch_codes(task.codes, b, 2 * (step0 + c + s) + 1, kAhead);
            decode_quads(task.codes, b, step0 + c + s, decoded + s * 2 * kTileBytes, column_sums);
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

}  // namespace

namespace avx512 {
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
