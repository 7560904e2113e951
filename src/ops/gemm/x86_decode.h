// Coded panels on AVX-512: codes to bf16 pairs, and to what the kernels multiply. panel_kernels.h has the picture.
//
// A step is 32 k of 16 columns: 16 rows of 16 bf16 pairs (k, k + 1), exact for every code. 4-bit codes: a shift and a permutation of
// a table of 32 words, of which the fifth index bit chooses nothing. f8e4m3: exponent and mantissa move to their place and the exponent is
// rebased; subnormal codes, zero and NaN come from such a table instead. i8: through f32.
// Bound by: the two vector ports. About 2, 8 and 8 operations for 32 codes (4 bit, f8e4m3, i8), 8 more with scales in bf16, which are
// products of f32 rounded to the nearest bf16: exact where the product has 8 bits (f8e8m0 scales, f4e2m1 x f8e4m3).
#pragma once

#include "base/numeric.h"
#include "device/x86/inline.h"
#include "device/x86/intrinsics.h"
#include "device/x86/vec512.h"
#include "ops/gemm/panel_kernels.h"

namespace eitri::vec512 {

/// Words that a 5-bit index chooses from.
struct WordTable {
  alignas(64) uint16_t word[32] = {};
};
constexpr WordTable table_of_nibbles(DType dtype) {
  WordTable t;
  for (int i = 0; i < 32; ++i) {
    const auto code = static_cast<uint8_t>(i % 16);
    t.word[i] = encode_bf16(dtype == DType::i4 ? decode_i4(code) : decode_f4e2m1(code));
  }
  return t;
}
/// By the low five bits of a code without its sign: those below the first normal one, and NaN (0x7f).
constexpr WordTable table_of_rare_f8() {
  WordTable t;
  for (int i = 0; i < 8; ++i) t.word[i] = encode_bf16(decode_f8e4m3(static_cast<uint8_t>(i)));
  t.word[31] = encode_bf16(kNan);
  return t;
}
static constexpr WordTable kI4Words = table_of_nibbles(DType::i4), kF4Words = table_of_nibbles(DType::f4e2m1),
                           kRareF8Words = table_of_rare_f8();

EITRI_INLINE __m512i words_of(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
EITRI_INLINE __m512i high_half() { return _mm512_set1_epi32(static_cast<int>(0xffff0000u)); }

/// Decoder of one kind of codes. kRows rows of pairs come from 64 bytes.
template <DType kCode> struct Codes;

template <DType kCode> struct NibbleCodes {
  static constexpr int kRows = 4;
  const __m512i table = _mm512_load_si512(kCode == DType::i4 ? kI4Words.word : kF4Words.word);
  EITRI_INLINE void decode(__m512i v, __m512i (&x)[4]) const {
    x[0] = _mm512_permutexvar_epi16(v, table);
    x[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table);
    x[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table);
    x[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table);
  }
};
template <> struct Codes<DType::i4> : NibbleCodes<DType::i4> {};
template <> struct Codes<DType::f4e2m1> : NibbleCodes<DType::f4e2m1> {};

template <> struct Codes<DType::f8e4m3> {
  static constexpr int kRows = 2;
  const __m512i table = _mm512_load_si512(kRareF8Words.word);
  /// `code` in the low seven bits of words, its sign in the top bit of `sign`.
  EITRI_INLINE __m512i pair(__m512i code, __m512i sign) const {
    constexpr int kRebase = 127 - F8e4m3::bias;
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(code, 4), words_of(kRebase << 7));
    // Below 8 (wrapping), or 0x7f.
    const __mmask32 rare = _mm512_cmpge_epu16_mask(_mm512_sub_epi16(code, words_of(8)), words_of(0x77));
    const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, rare, code, table);
    return _mm512_ternarylogic_epi32(magnitude, sign, words_of(0x8000), 0xf8);  // magnitude | (sign & 0x8000)
  }
  EITRI_INLINE void decode(__m512i v, __m512i (&x)[2]) const {
    x[0] = pair(_mm512_and_si512(v, words_of(0x7f)), _mm512_slli_epi16(v, 8));
    x[1] = pair(_mm512_and_si512(_mm512_srli_epi16(v, 8), words_of(0x7f)), v);
  }
};

template <> struct Codes<DType::i8> {
  static constexpr int kRows = 2;
  static EITRI_INLINE __m512i number(__m512i top) { return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24))); }
  static EITRI_INLINE __m512i pair(__m512i even, __m512i odd) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, high_half(), 0xf8);
  }
  EITRI_INLINE void decode(__m512i v, __m512i (&x)[2]) const {
    x[0] = pair(number(_mm512_slli_epi32(v, 24)), number(_mm512_slli_epi32(v, 16)));
    x[1] = pair(number(_mm512_slli_epi32(v, 8)), number(v));
  }
};

EITRI_INLINE __m512 even_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
EITRI_INLINE __m512 odd_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, high_half())); }

/// 16 block scales.
EITRI_INLINE __m512 scales_at(DType dtype, const std::byte* p) {
  if (dtype == DType::f32) return _mm512_loadu_ps(p);
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  if (dtype == DType::f8e8m0) return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 23));  // packing leaves no code 0 or 255
  return even_of(Codes<DType::f8e4m3>().pair(_mm512_and_si512(codes, words_of(0x7f)), _mm512_slli_epi16(codes, 8)));
}

/// Calls put(row, pairs, scale) for the 16 rows of pairs of a step and tile; `scale` is that of the 16 columns, 1 when not kScaled.
template <DType kCode, bool kScaled, class Put>
EITRI_INLINE void decode_tile(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t tile, Put put) {
  const Codes<kCode> decoder;
  constexpr int kRows = Codes<kCode>::kRows;
  const std::byte* from = panel + coded_tile_offset(codes, step, tile);
  __m512 scale[2] = {_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f)};  // of the lower and the upper 16 k
  if constexpr (kScaled) {
    const std::byte* at = panel + coded_scale_offset(codes, step) + tile * 16 * codes.scale_width();
    scale[0] = scales_at(codes.scale, at);
    scale[1] = codes.group == 16 ? scales_at(codes.scale, at + kPanelColumns * codes.scale_width()) : scale[0];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16 / kRows; ++i) {
    __m512i x[kRows];
    decoder.decode(_mm512_load_si512(from + i * 64), x);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) put(i * kRows + j, x[j], scale[(i * kRows + j) / 8]);
  }
}

/// Asks for the quarter of a span that lies `ahead` bytes behind that of `step`.
EITRI_INLINE void fetch_codes(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t ahead) {
  const int64_t quarter = span_bytes(codes) / 4;
  const std::byte* at = panel + step * quarter + ahead;
  for (int64_t i = 0; i < quarter; i += 64) _mm_prefetch(at + i, _MM_HINT_T0);
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
    x[0] = _mm512_ternarylogic_epi32(_mm512_slli_epi32(high, 16), low, _mm512_set1_epi32(0xffff), 0xf8);  // high << 16 | (low & mask)
    x[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, high_half(), 0xf8);
  }
};
/// 64 k of i4 codes, k-step `step` of that length, as the two tiles of an i8 panel. With `sums`: the columns' sums are added to its 32.
static inline void decode_quads(const PanelCodes& codes, const std::byte* panel, int64_t step, std::byte* to, int32_t* sums = nullptr) {
  const NibbleQuads decoder;
  for (int64_t tile = 0; tile < 2; ++tile, to += kTileBytes) {
    __m512i total = sums != nullptr ? _mm512_loadu_si512(sums + tile * 16) : _mm512_setzero_si512();
    const std::byte* const from = panel + coded_tile_offset(codes, 2 * step, tile);
    for (int64_t i = 0; i < 8; ++i) {
      __m512i x[2];
      decoder.decode(_mm512_load_si512(from + i * 64), x);
      for (int64_t j = 0; j < 2; ++j) {
        _mm512_store_si512(to + (2 * i + j) * 64, x[j]);
        if (sums != nullptr) total = _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), x[j]);
      }
    }
    if (sums != nullptr) _mm512_storeu_si512(sums + tile * 16, total);
  }
}

using DecodeFn = void (*)(const PanelCodes&, const std::byte* panel, int64_t step, int64_t steps, std::byte* to);
/// Fn<dtype, scaled>::run for the codes; every dtype has both forms.
template <template <DType, bool> class Fn> DecodeFn decoder_of(const PanelCodes& codes) {
  const bool scaled = codes.scale != DType::none;
  switch (codes.dtype) {
    case DType::f8e4m3: return scaled ? Fn<DType::f8e4m3, true>::run : Fn<DType::f8e4m3, false>::run;
    case DType::i8: return scaled ? Fn<DType::i8, true>::run : Fn<DType::i8, false>::run;
    case DType::i4: return scaled ? Fn<DType::i4, true>::run : Fn<DType::i4, false>::run;
    default: return scaled ? Fn<DType::f4e2m1, true>::run : Fn<DType::f4e2m1, false>::run;
  }
}

}  // namespace eitri::vec512
