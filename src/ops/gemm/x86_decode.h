// Coded panels on AVX-512: codes to what the kernels multiply, exactly. panel_kernels.h has the picture.
//
// A line of 64 bytes is a few rows of 16 columns: as bf16 pairs (k, k + 1) for tiles, or as f32 for FMA.
//
//   4 bit    a shift and a permutation of 32 words, of which the fifth index bit chooses nothing
//   i8       the byte, made unsigned, is set into the mantissa of a float whose unit it then counts; less the float and the offset
//   f8e4m3   VBMI: the high and the low byte of the bf16 from tables by the low seven bits, then the sign; without: exponent and mantissa
//            move to their place and the exponent is rebased, while subnormal codes, zero and NaN come from a small table
//
// f32 are the halves of pairs, of i8 they come first.
// Bound by: the two vector ports. Operations for a line as pairs: 4 bit 7, i8 14, f8e4m3 11 (without VBMI 18); as f32: 15, 10, 15 (22).
#pragma once

#include "base/numeric.h"
#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"
#include "device/x86/vec512.h"
#include "ops/gemm/panel_kernels.h"

// The same names with and without VBMI: files of both kinds are linked into one program.
#if defined(__AVX512VBMI__)
#define EITRI_CODES codes_vbmi
#else
#define EITRI_CODES codes_bw
#endif

namespace eitri::vec512 {
inline namespace EITRI_CODES {

/// Words that a 5-bit index chooses from.
struct WordTable {
  alignas(64) uint16_t word[32] = {};
};
constexpr WordTable words_of_nibbles(DType dtype) {
  WordTable t;
  for (int i = 0; i < 32; ++i) {
    const auto code = static_cast<uint8_t>(i % 16);
    t.word[i] = encode_bf16(dtype == DType::i4 ? decode_i4(code) : decode_f4e2m1(code));
  }
  return t;
}
static constexpr WordTable kI4Words = words_of_nibbles(DType::i4), kF4Words = words_of_nibbles(DType::f4e2m1);

EITRI_INLINE __m512i words_of(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
EITRI_INLINE __m512i dwords_of(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
EITRI_INLINE __m512i high_half() { return dwords_of(0xffff0000u); }
EITRI_INLINE __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
EITRI_INLINE __m512 odd_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, high_half())); }
/// a ^ (b & mask)
EITRI_INLINE __m512i toggle(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0x78); }
/// a | (b & mask)
EITRI_INLINE __m512i merge(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }

/// A kind of coded panels, known when compiling: places in a panel are then constants.
template <DType kCodes, DType kScales, int kElements> struct Format {
  static constexpr DType kCode = kCodes, kScale = kScales;
  static constexpr PanelCodes kPanel{.dtype = kCodes, .scale = kScales, .group = kElements};
  static constexpr bool kScaled = kScale != DType::none;
  static constexpr bool kRounds = kScale == DType::f32;  // products with scales have more than 8 bits
};
/// Calls run(Format) for the codes.
template <class Run> EITRI_INLINE auto with_format(const PanelCodes& codes, Run run) {
  switch (codes.dtype) {
    case DType::f8e4m3:
      if (codes.scale == DType::none) return run(Format<DType::f8e4m3, DType::none, 0>{});
      return codes.group == 32 ? run(Format<DType::f8e4m3, DType::f8e8m0, 32>{}) : run(Format<DType::f8e4m3, DType::f32, 128>{});
    case DType::i8:
      if (codes.scale == DType::none) return run(Format<DType::i8, DType::none, 0>{});
      return codes.group == 32 ? run(Format<DType::i8, DType::f32, 32>{}) : run(Format<DType::i8, DType::f32, 128>{});
    case DType::i4:
      if (codes.scale == DType::none) return run(Format<DType::i4, DType::none, 0>{});
      return codes.group == 32 ? run(Format<DType::i4, DType::f32, 32>{}) : run(Format<DType::i4, DType::f32, 128>{});
    default: return codes.group == 32 ? run(Format<DType::f4e2m1, DType::f8e8m0, 32>{}) : run(Format<DType::f4e2m1, DType::f8e4m3, 16>{});
  }
}

/// Decoder of one kind of codes: a line is kRows rows of pairs, pairs() makes them; values() calls put(k, f32) for the line's k.
template <DType kCode> struct Codes;

template <class Decoder, class Put> EITRI_INLINE void values_of_pairs(const Decoder& decoder, __m512i v, Put put) {
  __m512i x[Decoder::kRows];
  decoder.pairs(v, x);
#pragma GCC unroll 4
  for (int i = 0; i < Decoder::kRows; ++i) {
    put(2 * i, even_of(x[i]));
    put(2 * i + 1, odd_of(x[i]));
  }
}

template <DType kCode> struct NibbleCodes {
  static constexpr int kRows = 4;
  __m512i words = _mm512_load_si512(kCode == DType::i4 ? kI4Words.word : kF4Words.word);
  EITRI_INLINE void pairs(__m512i v, __m512i (&x)[4]) const {
    x[0] = _mm512_permutexvar_epi16(v, words);
    x[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), words);
    x[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), words);
    x[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), words);
  }
  template <class Put> EITRI_INLINE void values(__m512i v, Put put) const { values_of_pairs(*this, v, put); }
};
template <> struct Codes<DType::i4> : NibbleCodes<DType::i4> {};
template <> struct Codes<DType::f4e2m1> : NibbleCodes<DType::f4e2m1> {};

#if defined(__AVX512VBMI__)
/// High and low bytes of the bf16 of codes without their sign.
struct F8Bytes {
  alignas(64) uint8_t high[128] = {}, low[128] = {};
};
constexpr F8Bytes bytes_of_f8() {
  F8Bytes t;
  for (int i = 0; i < 128; ++i) {
    const uint16_t word = encode_bf16(decode_f8e4m3(static_cast<uint8_t>(i)));
    t.high[i] = static_cast<uint8_t>(word >> 8);
    t.low[i] = static_cast<uint8_t>(word);
  }
  return t;
}
static constexpr F8Bytes kF8Bytes = bytes_of_f8();

template <> struct Codes<DType::f8e4m3> {
  static constexpr int kRows = 2;
  __m512i high[2] = {_mm512_load_si512(kF8Bytes.high), _mm512_load_si512(kF8Bytes.high + 64)};
  __m512i low[2] = {_mm512_load_si512(kF8Bytes.low), _mm512_load_si512(kF8Bytes.low + 64)};
  EITRI_INLINE void pairs(__m512i v, __m512i (&x)[2]) const {
    const __m512i h = toggle(_mm512_permutex2var_epi8(high[0], v, high[1]), v, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i l = _mm512_permutex2var_epi8(low[0], v, low[1]);
    x[0] = merge(_mm512_slli_epi16(h, 8), l, words_of(0x00ff));
    x[1] = merge(_mm512_srli_epi16(l, 8), h, words_of(0xff00));
  }
#else
/// By the low five bits of a code without its sign: those below the first normal one, and NaN (0x7f).
constexpr WordTable table_of_rare_f8() {
  WordTable t;
  for (int i = 0; i < 8; ++i) t.word[i] = encode_bf16(decode_f8e4m3(static_cast<uint8_t>(i)));
  t.word[31] = encode_bf16(kNan);
  return t;
}
static constexpr WordTable kRareF8Words = table_of_rare_f8();

template <> struct Codes<DType::f8e4m3> {
  static constexpr int kRows = 2;
  const __m512i table = _mm512_load_si512(kRareF8Words.word);
  /// `code` in the low seven bits of words, its sign in the top bit of `sign`.
  EITRI_INLINE __m512i pair(__m512i code, __m512i sign) const {
    constexpr int kRebase = 127 - F8e4m3::bias;
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(code, 4), words_of(kRebase << 7));
    // Below 8 (wrapping), or 0x7f.
    const __mmask32 rare = _mm512_cmpge_epu16_mask(_mm512_sub_epi16(code, words_of(8)), words_of(0x77));
    return merge(_mm512_mask_permutexvar_epi16(normal, rare, code, table), sign, words_of(0x8000));
  }
  EITRI_INLINE void pairs(__m512i v, __m512i (&x)[2]) const {
    x[0] = pair(_mm512_and_si512(v, words_of(0x7f)), _mm512_slli_epi16(v, 8));
    x[1] = pair(_mm512_and_si512(_mm512_srli_epi16(v, 8), words_of(0x7f)), v);
  }
#endif
  template <class Put> EITRI_INLINE void values(__m512i v, Put put) const { values_of_pairs(*this, v, put); }
};

template <> struct Codes<DType::i8> {
  static constexpr int kRows = 2;
  /// Byte kByte (0, 1) of dwords of codes that are 128 too large.
  template <int kByte> static EITRI_INLINE __m512 number(__m512i v) {
    constexpr float kUnits = kByte == 0 ? 0x1p23f : 0x1p15f;  // its unit is the byte's lowest bit
    const __m512i digits = _mm512_castps_si512(_mm512_set1_ps(kUnits));
    return _mm512_sub_ps(_mm512_castsi512_ps(merge(digits, v, dwords_of(kByte == 0 ? 0xffu : 0xff00u))), _mm512_set1_ps(kUnits + 128));
  }
  template <class Put> EITRI_INLINE void values(__m512i v, Put put) const {
    const __m512i low = _mm512_xor_si512(v, dwords_of(0x80808080u)), high = _mm512_srli_epi32(low, 16);
    put(0, number<0>(low));
    put(1, number<1>(low));
    put(2, number<0>(high));
    put(3, number<1>(high));
  }
  EITRI_INLINE void pairs(__m512i v, __m512i (&x)[2]) const {
    __m512i number[4];
    values(v, [&](int k, __m512 value) { number[k] = _mm512_castps_si512(value); });
    for (int i = 0; i < 2; ++i) x[i] = _mm512_or_si512(_mm512_srli_epi32(number[2 * i], 16), number[2 * i + 1]);
  }
};

/// 16 block scales.
EITRI_INLINE __m512 scales_at(DType dtype, const std::byte* p) {
  if (dtype == DType::f32) return _mm512_loadu_ps(p);
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if (dtype == DType::f8e8m0) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23));  // no code 0 or 255
  // As f16, whose exponents are based 8 higher. No NaN.
  const __m256i words =
      _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  return _mm512_mul_ps(_mm512_cvtph_ps(words), _mm512_set1_ps(256));
}
/// Those of `tile` in the 32 k of `step`: of the lower and of the upper 16 k.
template <class Kind> EITRI_INLINE void scales_of(const std::byte* panel, int64_t step, int64_t tile, __m512 (&scale)[2]) {
  constexpr int64_t kWidth = Kind::kPanel.scale_width();
  const std::byte* const at = panel + coded_scale_offset(Kind::kPanel, step) + tile * 16 * kWidth;
  scale[0] = scales_at(Kind::kScale, at);
  scale[1] = Kind::kPanel.group == 16 ? scales_at(Kind::kScale, at + kPanelColumns * kWidth) : scale[0];
}

/// Codes at `from`; the line at `later` is fetched to L2, when they have come: compilers put builtin prefetches, which depend on nothing,
/// side by side, and a burst of them waits for fill buffers in front of everything behind it.
EITRI_INLINE __m512i load_and_fetch(const std::byte* from, const std::byte* later) {
  __m512i codes = _mm512_load_si512(from);
  asm volatile("prefetcht1 %1" : "+v"(codes) : "m"(*later));
  return codes;
}
/// Calls line(i, codes) for the lines of a step and tile. Spread over them, half of what the same step of the panel `ahead` bytes
/// behind needs is fetched.
template <class Kind, class Line>
EITRI_INLINE void for_each_line(const std::byte* panel, int64_t step, int64_t tile, int64_t ahead, Line line) {
  constexpr int kLines = Kind::kPanel.bits() == 4 ? 4 : 8;
  constexpr int64_t kQuarter = span_bytes(Kind::kPanel) / 4;
  const std::byte* const from = panel + coded_tile_offset(Kind::kPanel, step, tile);
  const std::byte* const later = panel + step * kQuarter + tile * kLines * 64 + ahead;
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
    line(i, load_and_fetch(from + i * 64, later + i * 64));
  }
  if (tile == 1)  // scales make a span longer
    for (int64_t i = kLines * 64; i < kQuarter - kLines * 64; i += 64) _mm_prefetch(later + i, _MM_HINT_T1);
}
/// Calls put(row, pairs) for the 16 rows of pairs of a step and tile.
template <class Kind, class Put>
EITRI_INLINE void decode_pairs(const Codes<Kind::kCode>& decoder, const std::byte* panel, int64_t step, int64_t tile, int64_t ahead,
                               Put put) {
  constexpr int kRows = Codes<Kind::kCode>::kRows;
  for_each_line<Kind>(panel, step, tile, ahead, [&](int i, __m512i line) {
    __m512i x[kRows];
    decoder.pairs(line, x);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) put(i * kRows + j, x[j]);
  });
}
/// Calls put(k, values) for the 32 k of a step and tile, all of the lower 16 first.
template <class Kind, class Put>
EITRI_INLINE void decode_values(const std::byte* panel, int64_t step, int64_t tile, int64_t ahead, Put put) {
  const Codes<Kind::kCode> decoder;
  constexpr int kRows = Codes<Kind::kCode>::kRows;
  for_each_line<Kind>(panel, step, tile, ahead,
                      [&](int i, __m512i line) { decoder.values(line, [&](int k, __m512 value) { put(i * 2 * kRows + k, value); }); });
}

/// Rows of i4 codes as rows of i8 quads: of each dword, k .. k + 3 and k + 4 .. k + 7.
struct NibbleQuads {
  const __m512i values = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
  // Low nibbles are k, k + 4, k + 1, k + 5, high ones k + 2, k + 6, k + 3, k + 7: the ones of a quad side by side.
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  EITRI_INLINE void decode(__m512i v, __m512i (&x)[2]) const {
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const auto bytes = [&](__m512i codes) {
      return _mm512_shuffle_epi8(_mm512_shuffle_epi8(values, _mm512_and_si512(codes, nibble)), order);
    };
    const __m512i low = bytes(v), high = bytes(_mm512_srli_epi16(v, 4));
    x[0] = merge(_mm512_slli_epi32(high, 16), low, dwords_of(0xffff));
    x[1] = merge(_mm512_srli_epi32(low, 16), high, high_half());
  }
};
/// 64 k of i4 codes, k-step `step` of that length, as the two tiles of an i8 panel; what lies `ahead` bytes behind them is fetched. With
/// `sums`: the columns' sums are added to its 32.
static inline void decode_quads(const std::byte* panel, int64_t step, int64_t ahead, std::byte* to, int32_t* sums = nullptr) {
  const NibbleQuads decoder;
  for (int64_t tile = 0; tile < 2; ++tile) {
    std::byte* out = to + tile * kTileBytes;
    __m512i total = sums != nullptr ? _mm512_loadu_si512(sums + tile * 16) : _mm512_setzero_si512();
    for (int64_t half = 0; half < 2; ++half) {
      for_each_line<Format<DType::i4, DType::none, 0>>(panel, 2 * step + half, tile, ahead, [&](int, __m512i line) {
        __m512i x[2];
        decoder.decode(line, x);
        for (int64_t j = 0; j < 2; ++j, out += 64) {
          _mm512_store_si512(out, x[j]);
          if (sums != nullptr) total = _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), x[j]);
        }
      });
    }
    if (sums != nullptr) _mm512_storeu_si512(sums + tile * 16, total);
  }
}

}  // namespace EITRI_CODES
}  // namespace eitri::vec512
