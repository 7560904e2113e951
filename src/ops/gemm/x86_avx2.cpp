// gemm.x86_avx2.panel: panels of 32 columns by AVX2 and FMA. Loop structure and memory levels: panel_blocked.h.
//
// Registers: 6 rows x 16 columns of sums (12), 2 of a decoded panel row, 1 broadcast of A. f32, bf16 and f16 become f32
// and use fused multiply-adds; i8 becomes pairs of i16 for vpmaddwd, whose products and sums are exact (vpmaddubsw of
// this level saturates). Bound by the two multiply ports from 12 rows on; by decoding (12 GB/s of f16 weights, 16 of bf16,
// 19 of i8 a core; f32 needs none) or memory below.
#include <immintrin.h>

#include "base/numeric.h"
#include "ops/gemm/panel_blocked.h"

namespace eitri {

namespace {

using namespace eitri::vec256;

constexpr int64_t kCodesAhead = 4096;  // bytes of codes between fetch and use

EITRI_INLINE __m256i load_words(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
EITRI_INLINE void store_words(std::byte* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

struct FloatSums {
  static constexpr int64_t kRows = 6;
  static constexpr bool kFreshSums = false, kCoded = false;
  static constexpr Sums kSums = Sums::f32;
  struct Acc {
    __m256 low, high;
  };
  static EITRI_INLINE Acc zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static EITRI_INLINE Acc load(const std::byte* p) {
    const auto* f = reinterpret_cast<const float*>(p);
    return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
  }
  static EITRI_INLINE void store(const Acc& acc, std::byte* p, bool /*first*/) {
    auto* f = reinterpret_cast<float*>(p);
    _mm256_storeu_ps(f, acc.low);
    _mm256_storeu_ps(f + 8, acc.high);
  }
  static EITRI_INLINE Acc columns(const std::byte* b) { return load(b); }
  static EITRI_INLINE void add(Acc& acc, const std::byte* a, const Acc& b) {
    const __m256 value = _mm256_broadcast_ss(reinterpret_cast<const float*>(a));
    acc.low = _mm256_fmadd_ps(value, b.low, acc.low);
    acc.high = _mm256_fmadd_ps(value, b.high, acc.high);
  }
};

/// Elements of a row as f32, zeros up to `steps` dword steps.
template <DType kType> EITRI_INLINE void widen_row(const std::byte* row, int64_t count, int64_t steps, std::byte* to) {
  for (int64_t k = 0; k < steps * blocked::kStepDwords; k += F::kLanes) {
    const int64_t left = count - k;
    F x = F::zero();
    if (left >= F::kLanes) x = load_as<kType>(row, k);
    else if (left > 0) x = load_as_partial<kType>(row, k, left);
    x.store(to + k * 4);
  }
}

struct UnitF32 : FloatSums {
  static constexpr int64_t kElementBytes = 4, kDwordSteps = 1;
  static constexpr bool kInPlace = true;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<DType::f32>(row, count, steps, to); }
};

struct UnitBf16 : FloatSums {
  static constexpr int64_t kElementBytes = 2, kDwordSteps = 2;
  static constexpr bool kInPlace = false;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) {
    widen_row<DType::bf16>(row, count, steps, to);
  }
  /// A tile row holds, per column, elements 2r (low half) and 2r + 1 of k.
  static void decode(const std::byte* tile, std::byte* to) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (int64_t r = 0; r < 16; ++r) {
      std::byte* out = to + r / 8 * blocked::kStepTiles + r % 8 * 128;
      _mm_prefetch(tile + r * 64 + 2 * kTileBytes, _MM_HINT_T0);
      for (int64_t half = 0; half < 64; half += 32) {
        const __m256i pairs = load_words(tile + r * 64 + half);
        store_words(out + half, _mm256_slli_epi32(pairs, 16));
        store_words(out + 64 + half, _mm256_and_si256(pairs, high));
      }
    }
  }
};

struct UnitF16 : FloatSums {
  static constexpr int64_t kElementBytes = 2, kDwordSteps = 2;
  static constexpr bool kInPlace = false;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<DType::f16>(row, count, steps, to); }
  static void decode(const std::byte* tile, std::byte* to) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    for (int64_t r = 0; r < 16; ++r) {
      std::byte* out = to + r / 8 * blocked::kStepTiles + r % 8 * 128;
      _mm_prefetch(tile + r * 64 + 2 * kTileBytes, _MM_HINT_T0);
      for (int64_t half = 0; half < 64; half += 32) {
        const __m256i pairs = load_words(tile + r * 64 + half);
        const __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(pairs, low), _mm256_srli_epi32(pairs, 16));
        const __m256i sorted = _mm256_permute4x64_epi64(mixed, 0xd8);  // first elements of 8 columns, then second ones
        const __m256 even = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
        const __m256 odd = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
        store_words(out + half, _mm256_castps_si256(even));
        store_words(out + 64 + half, _mm256_castps_si256(odd));
      }
    }
  }
};

/// Dwords are pairs of i16. Of the four elements k, k+1, k+2, k+3 of a packed dword the first pair is (k, k+2), the second
/// (k+1, k+3): what shifting bytes to words gives without a shuffle. A rows are paired alike.
struct UnitI8 {
  static constexpr int64_t kElementBytes = 1, kDwordSteps = 2, kRows = 6;
  static constexpr bool kInPlace = false, kFreshSums = false, kCoded = false;
  static constexpr Sums kSums = Sums::i32;
  struct Acc {
    __m256i low, high;
  };
  static EITRI_INLINE Acc zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static EITRI_INLINE Acc load(const std::byte* p) { return {load_words(p), load_words(p + 32)}; }
  static EITRI_INLINE void store(const Acc& acc, std::byte* p, bool /*first*/) {
    store_words(p, acc.low);
    store_words(p + 32, acc.high);
  }
  static EITRI_INLINE Acc columns(const std::byte* b) { return load(b); }
  static EITRI_INLINE void add(Acc& acc, const std::byte* a, const Acc& b) {
    const __m256i pair = _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(a)));
    acc.low = _mm256_add_epi32(acc.low, _mm256_madd_epi16(pair, b.low));
    acc.high = _mm256_add_epi32(acc.high, _mm256_madd_epi16(pair, b.high));
  }
  static EITRI_INLINE __m256i even_bytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
  static EITRI_INLINE __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }

  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) {
    // 32 elements give 16 dwords; in memory the first and second pair of each packed dword alternate.
    for (int64_t k = 0; k < steps * 32; k += 32, to += 64) {
      __m256i codes;
      if (count - k >= 32) {
        codes = load_words(row + k);
      } else {
        alignas(32) std::byte rest[32] = {};
        if (count > k) std::memcpy(rest, row + k, static_cast<size_t>(count - k));
        codes = load_words(rest);
      }
      const __m256i first = even_bytes(codes), second = odd_bytes(codes);
      const __m256i low = _mm256_unpacklo_epi32(first, second), high = _mm256_unpackhi_epi32(first, second);
      store_words(to, _mm256_permute2x128_si256(low, high, 0x20));
      store_words(to + 32, _mm256_permute2x128_si256(low, high, 0x31));
    }
  }
  static void decode(const std::byte* tile, std::byte* to) {
    for (int64_t r = 0; r < 16; ++r) {
      std::byte* out = to + r / 8 * blocked::kStepTiles + r % 8 * 128;
      _mm_prefetch(tile + r * 64 + 2 * kTileBytes, _MM_HINT_T0);
      for (int64_t half = 0; half < 64; half += 32) {
        const __m256i codes = load_words(tile + r * 64 + half);
        store_words(out + half, even_bytes(codes));
        store_words(out + 64 + half, odd_bytes(codes));
      }
    }
  }
};

// Coded panels: eight columns at a time, to f32. panel_kernels.h has the picture.
EITRI_INLINE __m256 ones() { return _mm256_set1_ps(1.0f); }
EITRI_INLINE __m256i dwords(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

/// Codes in the low byte of dwords. Normal codes: exponent and mantissa moved, the exponent rebased; below them (m + 8) / 8 - 1 eighths of
/// the first normal one, exact.
EITRI_INLINE __m256 f8_values(__m256i codes) {
  constexpr uint32_t kRebase = static_cast<uint32_t>(127 - F8e4m3::bias) << 23;
  const __m256i code = _mm256_and_si256(codes, dwords(0x7f)), moved = _mm256_slli_epi32(code, 20);
  const __m256i rare = _mm256_cmpgt_epi32(dwords(8), code);
  const __m256 first = _mm256_castsi256_ps(dwords(kRebase + (1u << 23)));
  const __m256 small = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_or_si256(moved, _mm256_castps_si256(first))), first);
  const __m256 normal = _mm256_castsi256_ps(_mm256_add_epi32(moved, dwords(kRebase)));
  __m256 x = _mm256_blendv_ps(normal, small, _mm256_castsi256_ps(rare));
  const __m256i nan = _mm256_cmpeq_epi32(code, dwords(0x7f));
  x = _mm256_or_ps(x, _mm256_and_ps(_mm256_castsi256_ps(nan), _mm256_castsi256_ps(dwords(0x7fc00000))));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, dwords(0x80)), 24);
  return _mm256_or_ps(x, _mm256_castsi256_ps(sign));
}

/// The value of k `i` of eight columns' dwords.
template <DType kCode, int i> EITRI_INLINE __m256 code_values(__m256i v) {
  if constexpr (kCode == DType::i8) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24));
  } else if constexpr (kCode == DType::f8e4m3) {
    return f8_values(_mm256_srli_epi32(v, 8 * (i == 1 ? 2 : i == 2 ? 1 : i)));
  } else {
    constexpr int kShift = 4 * (i % 2 * 4 + i / 2);
    if constexpr (kCode == DType::i4) return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 28 - kShift), 28));
    const __m256i code = _mm256_srli_epi32(v, kShift);  // the permutation takes three bits
    const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), code);
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(code, dwords(8)), 28)));
  }
}

EITRI_INLINE __m256 scale_values(DType dtype, const std::byte* p) {
  if (dtype == DType::none) return ones();
  if (dtype == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  if (dtype == DType::f8e8m0) return _mm256_castsi256_ps(_mm256_slli_epi32(codes, 23));  // packing leaves no code 0 or 255
  return f8_values(codes);
}

template <DType kCode> void decode_half(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t column, std::byte* to) {
  constexpr int64_t kPer = kCode == DType::i4 || kCode == DType::f4e2m1 ? 8 : 4;  // k in a dword
  const std::byte* from = panel + coded_tile_offset(codes, step, column / 16) + column % 16 * 4;
  __m256 scale[2] = {ones(), ones()};  // of the lower and the upper 16 k
  if (codes.scale != DType::none) {
    const std::byte* at = panel + coded_scale_offset(codes, step) + column * codes.scale_width();
    scale[0] = scale_values(codes.scale, at);
    scale[1] = codes.group == 16 ? scale_values(codes.scale, at + kPanelColumns * codes.scale_width()) : scale[0];
  }
  for (int64_t row = 0; row < kDecodedSteps / kPer; ++row) {
    const __m256i v = load_words(from + row * 64);
    std::byte* const out = to + row * kPer / 16 * blocked::kStepTiles + row * kPer % 16 * 64;
    const __m256 s = scale[row * kPer / 16];
    const auto put = [&](int k, __m256 x) { store_words(out + k * 64, _mm256_castps_si256(_mm256_mul_ps(x, s))); };
    put(0, code_values<kCode, 0>(v));
    put(1, code_values<kCode, 1>(v));
    put(2, code_values<kCode, 2>(v));
    put(3, code_values<kCode, 3>(v));
    if constexpr (kPer == 8) {
      put(4, code_values<kCode, 4>(v));
      put(5, code_values<kCode, 5>(v));
      put(6, code_values<kCode, 6>(v));
      put(7, code_values<kCode, 7>(v));
    }
  }
}

template <DType kType> struct UnitCoded : FloatSums {
  static constexpr int64_t kElementBytes = kType == DType::f32 ? 4 : 2, kDwordSteps = 2;
  static constexpr bool kInPlace = false, kCoded = true;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<kType>(row, count, steps, to); }
  static void decode_step(const PanelCodes& codes, const std::byte* panel, int64_t step, std::byte* to) {
    const int64_t quarter = span_bytes(codes) / 4;
    for (int64_t i = 0; i < quarter; i += 64) _mm_prefetch(panel + step * quarter + kCodesAhead + i, _MM_HINT_T0);
    for (int64_t column = 0; column < kPanelColumns; column += 8) {
      std::byte* const out = to + column / 16 * kTileBytes + column % 16 * 4;
      switch (codes.dtype) {
        case DType::f8e4m3: decode_half<DType::f8e4m3>(codes, panel, step, column, out); break;
        case DType::i8: decode_half<DType::i8>(codes, panel, step, column, out); break;
        case DType::i4: decode_half<DType::i4>(codes, panel, step, column, out); break;
        default: decode_half<DType::f4e2m1>(codes, panel, step, column, out);
      }
    }
  }
};
template <DType kType> void run_coded(const PanelTask& task) { run_blocked<UnitCoded<kType>>(task); }

}  // namespace

namespace avx2 {
void finish_panels(const PanelTask& task, const void* sums, int64_t stride, bool i32) { finish_side_by_side(task, sums, stride, i32); }
void panel_f32(const PanelTask& task) { run_blocked<UnitF32>(task); }
void panel_bf16(const PanelTask& task) { run_blocked<UnitBf16>(task); }
void panel_f16(const PanelTask& task) { run_blocked<UnitF16>(task); }
void panel_i8(const PanelTask& task) { run_blocked<UnitI8>(task); }
void coded_f32(const PanelTask& task) { run_coded<DType::f32>(task); }
void coded_bf16(const PanelTask& task) { run_coded<DType::bf16>(task); }
void coded_f16(const PanelTask& task) { run_coded<DType::f16>(task); }
void coded_i8(const PanelTask& task) { run_blocked<UnitI4<UnitI8>>(task); }
}  // namespace avx2

}  // namespace eitri
