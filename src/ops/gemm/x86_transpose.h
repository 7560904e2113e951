// Packing on AVX-512: 16 x 16 dword transposes in registers, and plain weight rows into panel tiles with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"
#include "device/x86/vec512.h"
#include "ops/gemm/panel_kernels.h"

namespace eitri::vec512 {

/// Dword c of row r goes to dword r of row c: pairs, then quads, then 128-bit lanes; 64 shuffles.
EITRI_INLINE void transpose16(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  // x[4 q + j]: dword j of each 128-bit lane of rows 4 q .. 4 q + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(x[j], x[j + 4], 0x88);   // lanes 0, 2 of both
    const __m512i high = _mm512_shuffle_i32x4(x[j], x[j + 4], 0xdd);  // lanes 1, 3
    const __m512i low2 = _mm512_shuffle_i32x4(x[j + 8], x[j + 12], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(x[j + 8], x[j + 12], 0xdd);
    y[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    y[j + 8] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    y[j + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
    y[j + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

/// The first `count` (0 .. 64) bytes at p, zeros behind them; nothing else is read.
EITRI_INLINE __m512i load_bytes(const std::byte* p, int64_t count) {
  if (count >= kStepBytes) return _mm512_loadu_si512(p);
  if (count <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi8((uint64_t{1} << static_cast<unsigned>(count)) - 1, p);
}

/// Packs k-steps [step_begin, step_begin + steps) of a panel of plain rows to `to`, both tiles of a step together. With
/// `sums` (i8): adds the columns' sums of these steps to its 32 values.
static inline void pack_panel_steps(const PanelTask& task, int64_t panel, int64_t element_bytes, int64_t step_begin, int64_t steps,
                                    std::byte* to, int32_t* sums = nullptr) {
  const int64_t k_bytes = task.k * element_bytes;
  for (int64_t tile = 0; tile < 2; ++tile) {
    const std::byte* rows[16];  // null: padding
    for (int64_t column = 0; column < 16; ++column) {
      const int64_t row = weight_row(task.n, task.gate, panel, tile * 16 + column);
      rows[column] = row < 0 ? nullptr : task.b + row * task.b_row_stride;
    }
    __m512i total = sums != nullptr ? _mm512_loadu_si512(sums + tile * 16) : _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t begin = (step_begin + step) * kStepBytes, count = k_bytes - begin;
      __m512i x[16];
#pragma GCC unroll 16
      for (int column = 0; column < 16; ++column)
        x[column] = rows[column] == nullptr ? _mm512_setzero_si512() : load_bytes(rows[column] + begin, count);
      transpose16(x);
      std::byte* out = to + step * 2 * kTileBytes + tile * kTileBytes;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        _mm512_store_si512(out + r * 64, x[r]);
        if (sums != nullptr) total = _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), x[r]);
      }
    }
    if (sums != nullptr) _mm512_storeu_si512(sums + tile * 16, total);
  }
}

}  // namespace eitri::vec512
