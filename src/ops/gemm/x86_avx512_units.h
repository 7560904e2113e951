// What the kernels of the AVX-512 levels are made of: operands as dwords in groups of rows, and the loop that multiplies a group of rows by
// a panel. x86_avx512.cpp has the picture.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/x86/intrinsics.h"
#include "device/x86/vec.h"
#include "ops/gemm/panel_epilogue.h"
#include "ops/gemm/panel_kernels.h"
#include "ops/gemm/x86_transpose.h"

namespace eitri::vec512 {

inline constexpr int kGroupRows = 12;
inline constexpr int64_t kBlockRows = 96;
inline constexpr int64_t kRowBytes = kPanelColumns * 4;  // of sums
inline constexpr int64_t kNear = 2048, kAhead = 6144;    // bytes of weights between use and fetch, to L1 and to L2

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
static void micro(const std::byte* a, const std::byte* b, int64_t steps, std::byte* sums, const int32_t* offsets, bool first) {
  typename Unit::Acc acc[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = Unit::start(sums + r * kRowBytes, offsets, first);
    acc[r][1] = Unit::start(sums + r * kRowBytes + 64, offsets + 16, first);
  }
  for (int64_t step = 0; step < steps; ++step, b += 2 * kTileBytes) {
    for (int64_t r = 0; r < 16; ++r, a += Unit::kDwords * kRows * 4) {
      if constexpr (Unit::kStreams) {
        _mm_prefetch(b + r * 64 + kNear, _MM_HINT_T0);
        _mm_prefetch(b + r * 64 + kNear + kTileBytes, _MM_HINT_T0);
        _mm_prefetch(b + r * 64 + kAhead, _MM_HINT_T1);
        _mm_prefetch(b + r * 64 + kAhead + kTileBytes, _MM_HINT_T1);
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
static constexpr Micro<Unit> kMicro[kGroupRows] = {micro<Unit, 1>, micro<Unit, 2>,  micro<Unit, 3>,  micro<Unit, 4>,
                                                   micro<Unit, 5>, micro<Unit, 6>,  micro<Unit, 7>,  micro<Unit, 8>,
                                                   micro<Unit, 9>, micro<Unit, 10>, micro<Unit, 11>, micro<Unit, 12>};

/// Rows [row_begin, row_begin + rows) of A, k-steps [step_begin, step_begin + steps), to [dword of k][row], zeros behind k.
template <class Unit>
static void pack_group(const PanelTask& task, int64_t row_begin, int64_t rows, int64_t step_begin, int64_t steps, std::byte* to) {
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

}  // namespace eitri::vec512
