// Coded panels as tiles of bf16 and i8, a chunk of k-steps at a time.
//
// A scaled code is rounded to bf16, to nearest: by at most 2^-8 of itself, and not at all where the product has 8 bits (f8e8m0 scales;
// f4e2m1 x f8e4m3). f8e4m3 with one scale for all columns of a span (128 x 128 blocks): the scale goes into the tables, once a span.
// Measured on one core of a Xeon with AMX, 2026-11-30, n = k = 4096, m = 256, in turn with bf16 weights, as a share of their rate: f8 and i8
// 0.94, mxfp8 0.85, i4 in groups 0.90, mxfp4 1.0. Not arithmetic but codes that came from L3 while they were decoded had made it 0.80 to 0.90.
// Operations for a k-step of 1024 codes: 4 bit 56, i8 224, f8e4m3 176; f32 scales 256 more, in tables 25, f8e8m0 64, of mxfp4 40, f8e4m3 (nvfp4)
// 160; two a cycle, beside 32 stores.
#pragma once

#include "ops/gemm/x86_decode.h"

namespace eitri::vec512 {
inline namespace EITRI_CODES {

/// pairs times the f32 scales of their columns, rounded to nearest.
EITRI_INLINE __m512i scaled_pairs(__m512i pairs, __m512 scale) {
  const auto rounded = [](__m512 x) { return _mm512_add_epi32(_mm512_castps_si512(x), dwords_of(0x8000)); };
  const __m512i even = rounded(_mm512_mul_ps(even_of(pairs), scale)), odd = rounded(_mm512_mul_ps(odd_of(pairs), scale));
  return merge(_mm512_srli_epi32(even, 16), odd, high_half());
}

/// What becomes of a kind of panels: the codes alone, or times their scales.
template <class Kind, bool kWithScales> struct Tiles : Kind { static constexpr bool kScaled = kWithScales; };

/// Ordinary numbers of f8e4m3, neither zero nor NaN, as pairs have this bit set, which no exact one needs.
constexpr int kF8Mark = 1;
constexpr F8Bytes marked_bytes_of_f8() {
  F8Bytes t = bytes_of_f8();
  for (int i = 1; i < 127; ++i) t.low[i] |= kF8Mark;
  return t;
}
static constexpr F8Bytes kMarkedF8Bytes = marked_bytes_of_f8();

/// By code of f4e2m1: how far it lies below 8 as a bf16, 0x8000 where it has no sign; zeros have more than there is to subtract from.
constexpr WordTable below_eight_of_f4() {
  WordTable t;
  for (int i = 0; i < 32; ++i) {
    const float value = decode_f4e2m1(static_cast<uint8_t>(i % 8));
    const int below = value == 0 ? 0xffff : encode_bf16(8.0f) - encode_bf16(value) + (i % 16 < 8 ? 0x8000 : 0);
    t.word[i] = static_cast<uint16_t>(below);
  }
  return t;
}
static constexpr WordTable kF4BelowEight = below_eight_of_f4();

/// What unpack_tile() decodes a kind with.
template <class Kind> EITRI_INLINE Codes<Kind::kCode> decoder_of() {
  Codes<Kind::kCode> decoder;
  if constexpr (Kind::kCode == DType::f4e2m1 && Kind::kScaled && Kind::kScale == DType::f8e8m0)
    decoder.words = _mm512_load_si512(kF4BelowEight.word);
  if constexpr (Kind::kCode == DType::f8e4m3 && Kind::kScaled && Kind::kScale == DType::f8e8m0)
    for (int half = 0; half < 2; ++half) decoder.low[half] = _mm512_load_si512(kMarkedF8Bytes.low + half * 64);
  return decoder;
}

/// By code of f4e2m1: how far the exponent of code x scale lies below that of 4 x scale, or, marked, of 1.5, 3 and 6 below that of 6 x scale;
/// 0x8000 where the code has no sign; zeros have more than there is to subtract from.
constexpr uint16_t kOddMark = 1;
constexpr WordTable steps_of_f4() {
  WordTable t;
  constexpr uint16_t kSteps[8] = {0xffff, 3 << 7, 2 << 7, 2 << 7 | kOddMark, 1 << 7, 1 << 7 | kOddMark, 0, kOddMark};
  for (int i = 0; i < 32; ++i) t.word[i] = static_cast<uint16_t>(kSteps[i % 8] | (i % 16 < 8 ? 0x8000 : 0));
  return t;
}
static constexpr WordTable kF4Steps = steps_of_f4();

/// f4e2m1 by f8e4m3, exactly, in words: 4 or 6 times the scale, with 0x8000, less what the table says, or 0. A scale of 0 is one without 0x8000.
template <class Kind>
EITRI_INLINE void unpack_nvfp4_tile(const std::byte* panel, int64_t step, int64_t tile, int64_t ahead, std::byte* to) {
  const __m512i steps = _mm512_load_si512(kF4Steps.word);
  __m512 scale[2];
  scales_of<Kind>(panel, step, tile, scale);
  __m512i even[2], odd[2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const auto pairs = [&](float factor, int mark) {
      const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(scale[half], _mm512_set1_ps(factor)));
      constexpr int kBothWithoutSign = 0xa8;  // (a | b) & c
      const __m512i pair = _mm512_ternarylogic_epi32(bits, _mm512_srli_epi32(bits, 16), words_of(0x7fff), kBothWithoutSign);
      return _mm512_maskz_add_epi16(_mm512_test_epi16_mask(pair, words_of(0x7f80)), pair, words_of(0x8000 + mark));
    };
    even[half] = pairs(4, 0);
    odd[half] = pairs(6, kOddMark);
  }
  const __mmask16 negative[2] = {_mm512_movepi32_mask(_mm512_castps_si512(scale[0])), _mm512_movepi32_mask(_mm512_castps_si512(scale[1]))};
  for_each_line<Kind>(panel, step, tile, ahead, [&](int i, __m512i v) {
    const int half = i / 2;
    if ((negative[0] | negative[1]) != 0) [[unlikely]]
      v = _mm512_mask_xor_epi32(v, negative[half], v, dwords_of(0x88888888u));
    const auto put = [&](int j, __m512i nibbles) {
      const __m512i below = _mm512_permutexvar_epi16(nibbles, steps);
      const __m512i x = _mm512_subs_epu16(even[half], below);
      const __mmask32 is_odd = _mm512_test_epi16_mask(below, words_of(kOddMark));
      _mm512_store_si512(to + (i * 4 + j) * 64, _mm512_mask_subs_epu16(x, is_odd, odd[half], below));
    };
    put(0, v);
    put(1, _mm512_srli_epi16(v, 4));
    put(2, _mm512_srli_epi16(v, 8));
    put(3, _mm512_srli_epi16(v, 12));
  });
}

template <class Kind>
EITRI_INLINE void unpack_tile(const Codes<Kind::kCode>& decoder, const std::byte* panel, int64_t step, int64_t tile, int64_t ahead,
                              std::byte* to) {
  if constexpr (!Kind::kScaled) {
    decode_pairs<Kind>(decoder, panel, step, tile, ahead, [&](int row, __m512i pairs) { _mm512_store_si512(to + row * 64, pairs); });
  } else if constexpr (Kind::kScale == DType::f8e8m0) {
    // A power of two moves the exponents of all but zeros and NaN.
    const auto* const at = reinterpret_cast<const __m128i*>(panel + coded_scale_offset(Kind::kPanel, step) + tile * 16);
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(at));
    const __m512i pair = _mm512_or_si512(code, _mm512_slli_epi32(code, 16));
    if constexpr (Kind::kCode == DType::f4e2m1) {
      const __m512i eight = _mm512_add_epi16(_mm512_slli_epi16(pair, 7), words_of(0x8000 | 3 << 7));  // times the scale, with 0x8000
      decode_pairs<Kind>(decoder, panel, step, tile, ahead,
                         [&](int row, __m512i below) { _mm512_store_si512(to + row * 64, _mm512_subs_epu16(eight, below)); });
    } else {  // the marks go on the way
      const __m512i moved = _mm512_sub_epi16(_mm512_slli_epi16(_mm512_sub_epi16(pair, words_of(127)), 7), words_of(kF8Mark));
      decode_pairs<Kind>(decoder, panel, step, tile, ahead, [&](int row, __m512i pairs) {
        const __mmask32 some = _mm512_test_epi16_mask(pairs, words_of(kF8Mark));
        _mm512_store_si512(to + row * 64, _mm512_mask_add_epi16(pairs, some, pairs, moved));
      });
    }
  } else if constexpr (Kind::kCode == DType::f4e2m1 && Kind::kScale == DType::f8e4m3) {
    unpack_nvfp4_tile<Kind>(panel, step, tile, ahead, to);
  } else {
    static_assert(Kind::kScale == DType::f32 && Kind::kPanel.group >= kDecodedSteps);
    const __m512 scale = scales_at(DType::f32, panel + coded_scale_offset(Kind::kPanel, step) + tile * 64);
    decode_pairs<Kind>(decoder, panel, step, tile, ahead,
                       [&](int row, __m512i pairs) { _mm512_store_si512(to + row * 64, scaled_pairs(pairs, scale)); });
  }
}

struct F8Values {
  alignas(64) float value[128] = {};
};
constexpr F8Values values_of_f8() {
  F8Values t;
  for (int i = 0; i < 128; ++i) t.value[i] = decode_f8e4m3(static_cast<uint8_t>(i));
  return t;
}
static constexpr F8Values kF8Values = values_of_f8();

/// f8e4m3 codes times `scale`, as a decoder of unscaled ones.
static inline Codes<DType::f8e4m3> scaled_decoder(__m512 scale) {
  Codes<DType::f8e4m3> decoder;
  for (int half = 0; half < 2; ++half) {
    __m512i words[2];  // of 32 codes
    for (int i = 0; i < 2; ++i) {
      const float* const from = kF8Values.value + half * 64 + i * 32;
      const auto word = [&](int j) {
        const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(from + j * 16), scale));
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, dwords_of(0x8000)), 16));
      };
      words[i] = _mm512_inserti64x4(_mm512_castsi256_si512(word(0)), word(1), 1);
    }
    const auto bytes = [&](__m512i first, __m512i second) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(first)), _mm512_cvtepi16_epi8(second), 1);
    };
    decoder.low[half] = bytes(words[0], words[1]);
    decoder.high[half] = bytes(_mm512_srli_epi16(words[0], 8), _mm512_srli_epi16(words[1], 8));
  }
  return decoder;
}

/// K-steps [step, step + steps) of a panel as tiles; what lies `ahead` bytes behind their codes is fetched.
using UnpackFn = void (*)(const std::byte* panel, int64_t step, int64_t steps, int64_t ahead, std::byte* to);

template <class Kind> static void unpack_steps(const std::byte* panel, int64_t step, int64_t steps, int64_t ahead, std::byte* to) {
  const Codes<Kind::kCode> decoder = decoder_of<Kind>();
  for (const int64_t end = step + steps; step < end; ++step, to += 2 * kTileBytes) {
    unpack_tile<Kind>(decoder, panel, step, 0, ahead, to);
    unpack_tile<Kind>(decoder, panel, step, 1, ahead, to + kTileBytes);
  }
}
/// f8e4m3 with f32 scales of 128 k: a span at a time.
static inline void unpack_f8_spans(const std::byte* panel, int64_t step, int64_t steps, int64_t ahead, std::byte* to) {
  using Scaled = Format<DType::f8e4m3, DType::f32, 128>;
  for (const int64_t end = step + steps; step < end;) {
    const int64_t in_span = kSpan / kDecodedSteps - step % (kSpan / kDecodedSteps), count = in_span < end - step ? in_span : end - step;
    const std::byte* const scales = panel + coded_scale_offset(Scaled::kPanel, step);
    const __m512 left = _mm512_loadu_ps(scales), right = _mm512_loadu_ps(scales + 64);
    const __m512 first = _mm512_broadcastss_ps(_mm512_castps512_ps128(left));
    if ((_mm512_cmp_ps_mask(left, first, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(right, first, _CMP_NEQ_UQ)) != 0) {
      unpack_steps<Scaled>(panel, step, count, ahead, to);
      step += count;
      to += count * 2 * kTileBytes;
      continue;
    }
    const Codes<DType::f8e4m3> decoder = scaled_decoder(first);
    for (const int64_t stop = step + count; step < stop; ++step, to += 2 * kTileBytes)
      for (int64_t tile = 0; tile < 2; ++tile) unpack_tile<Tiles<Scaled, false>>(decoder, panel, step, tile, ahead, to + tile * kTileBytes);
  }
}
/// i4 as i8: k-steps of 64 k.
static inline void unpack_quads(const std::byte* panel, int64_t step, int64_t steps, int64_t ahead, std::byte* to) {
  for (const int64_t end = step + steps; step < end; ++step, to += 2 * kTileBytes) decode_quads(panel, step, ahead, to);
}

/// To bf16.
static inline UnpackFn unpack_of(const PanelCodes& codes) {
  if (codes.dtype == DType::f8e4m3 && codes.scale == DType::f32) return unpack_f8_spans;
  return with_format(codes, []<class Kind>(Kind) -> UnpackFn { return unpack_steps<Kind>; });
}

}  // namespace EITRI_CODES
}  // namespace eitri::vec512
