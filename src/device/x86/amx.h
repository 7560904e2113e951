// AMX tiles: eight registers of 16 rows x 64 bytes, named by template arguments. The same functions exist twice:
//
//   eitri::amx_tiles            the instructions. Own assembly: the loads and stores are ordered with ordinary memory by a
//                               clobber, and LDTILECFG has its whole 64-byte operand (the intrinsic of g++ 12 names 8 of
//                               them, and the stores of a local configuration were dropped)
//   eitri::amx_emulated_tiles   plain C++ and AVX-512 on a thread's own 8 KiB, when EITRI_AMX_EMULATED is defined
//
// EITRI_AMX_TILES is the one of this translation unit. Tiles 0..3 are for sums, 4 and 5 for A, 6 and 7 for B, 16 x 64 bytes or less:
// configure() once per thread and kernel, release() at the end (configured tiles cost power and context-switch time).
//
// Arithmetic of the instructions, as emulated:
//   dpbf16ps  c[m][n] += sum over even k of a[m][k] b[k][n]  +  sum over odd k. Both sums run over ascending k from 0, fp32
//             round to nearest even; then even + odd is rounded, then the addition to c. Subnormal inputs count as 0, and
//             subnormal results become 0. (Products of bf16 are exact in fp32 unless they underflow.)
//   dpbssd    exact 32-bit integers, wrapping
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"

#if defined(EITRI_AMX_EMULATED)
#define EITRI_AMX_TILES amx_emulated_tiles
#else
#define EITRI_AMX_TILES amx_tiles
#endif

namespace eitri::EITRI_AMX_TILES {

inline constexpr int64_t kRows = 16, kRowBytes = 64;

#if !defined(EITRI_AMX_EMULATED)

/// Palette 1, eight full tiles.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// By rows, 1 to 16.
struct TileConfigs {
  TileConfig of[kRows + 1];
};
constexpr TileConfigs tile_configs() {
  TileConfigs all;
  for (int64_t rows = 1; rows <= kRows; ++rows)
    for (int tile = 0; tile < 6; ++tile) all.of[rows].rows[tile] = static_cast<uint8_t>(rows);
  return all;
}
static constexpr TileConfigs kTileConfigs = tile_configs();

/// Sums and A have 1 <= rows <= 16.
EITRI_INLINE void configure(int64_t rows = kRows) { asm volatile("ldtilecfg %0" : : "m"(kTileConfigs.of[rows])); }
EITRI_INLINE void release() { asm volatile("tilerelease"); }

template <int kTile> EITRI_INLINE void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(kTile)); }
template <int kTile> EITRI_INLINE void load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
/// A load that hints at data used once: it does not push other lines out of L1.
template <int kTile> EITRI_INLINE void load_streaming(const void* p, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile> EITRI_INLINE void store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
/// c (16 x 16 f32) += a (16 x 32 bf16) x b (16 rows of 16 columns x 2 k).
template <int kC, int kA, int kB> EITRI_INLINE void dpbf16ps() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
/// c (16 x 16 i32) += a (16 x 64 i8) x b (16 rows of 16 columns x 4 k), both signed.
template <int kC, int kA, int kB> EITRI_INLINE void dpbssd() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

#else

struct alignas(64) Tile {
  std::byte row[kRows][kRowBytes];
};
inline thread_local Tile tiles[8];
inline thread_local int64_t configured = 0;  // rows; using tiles without configure() traps here as it would there

EITRI_INLINE void configure(int64_t rows = kRows) {
  std::memset(tiles, 0, sizeof tiles);
  configured = rows;
}
EITRI_INLINE void release() { configured = 0; }
EITRI_INLINE int64_t rows_of(int number) { return number < 6 ? configured : kRows; }

EITRI_INLINE Tile& tile(int number) {
  if (configured == 0) __builtin_trap();
  return tiles[number];
}

template <int kTile> EITRI_INLINE void zero() { std::memset(&tile(kTile), 0, sizeof(Tile)); }
template <int kTile> EITRI_INLINE void load(const void* p, int64_t stride) {
  for (int64_t r = 0; r < rows_of(kTile); ++r)
    std::memcpy(tile(kTile).row[r], static_cast<const std::byte*>(p) + r * stride, static_cast<size_t>(kRowBytes));
}
template <int kTile> EITRI_INLINE void load_streaming(const void* p, int64_t stride) { load<kTile>(p, stride); }
template <int kTile> EITRI_INLINE void store(void* p, int64_t stride) {
  for (int64_t r = 0; r < rows_of(kTile); ++r)
    std::memcpy(static_cast<std::byte*>(p) + r * stride, tile(kTile).row[r], static_cast<size_t>(kRowBytes));
}

/// Subnormal lanes become zeros of their sign.
static inline __m512 flush(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(sign, normal, bits));
}
/// The k with the lower address, or the higher one, of pairs of bf16.
static inline __m512 even_bf16(__m512i pairs) { return flush(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))); }
static inline __m512 odd_bf16(__m512i pairs) {
  return flush(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))));
}

static inline void multiply_bf16(Tile& c, const Tile& a, const Tile& b) {
  for (int64_t m = 0; m < kRows; ++m) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int64_t k = 0; k < kRows; ++k) {
      int32_t pair;
      std::memcpy(&pair, a.row[m] + k * 4, sizeof pair);
      const __m512i left = _mm512_set1_epi32(pair), right = _mm512_load_si512(b.row[k]);
      even = flush(_mm512_fmadd_ps(even_bf16(left), even_bf16(right), even));
      odd = flush(_mm512_fmadd_ps(odd_bf16(left), odd_bf16(right), odd));
    }
    const __m512 sum = flush(_mm512_add_ps(even, odd));
    _mm512_store_ps(c.row[m], flush(_mm512_add_ps(flush(_mm512_load_ps(c.row[m])), sum)));
  }
}
static inline void multiply_i8(Tile& c, const Tile& a, const Tile& b) {
  for (int64_t m = 0; m < kRows; ++m) {
    __m512i sum = _mm512_load_si512(c.row[m]);
    for (int64_t k = 0; k < kRows; ++k) {
      int32_t quad;
      std::memcpy(&quad, a.row[m] + k * 4, sizeof quad);
      const __m512i left = _mm512_set1_epi32(quad), right = _mm512_load_si512(b.row[k]);
      // Bytes as 16-bit words, low and high ones; pairs of products fit 32 bits.
      const auto low = [](__m512i x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); };
      const auto high = [](__m512i x) { return _mm512_srai_epi16(x, 8); };
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(low(left), low(right)));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(high(left), high(right)));
    }
    _mm512_store_si512(c.row[m], sum);
  }
}

template <int kC, int kA, int kB> EITRI_INLINE void dpbf16ps() { multiply_bf16(tile(kC), tile(kA), tile(kB)); }
template <int kC, int kA, int kB> EITRI_INLINE void dpbssd() { multiply_i8(tile(kC), tile(kA), tile(kB)); }

#endif

}  // namespace eitri::EITRI_AMX_TILES
