// Rows of a tensor spread over the threads of a block: thread t of chunk c has the kWide elements from (c * threads + t) * kWide
// on, kept as they lie in memory (a bf16 pair is one register). With 16-byte elements' worth per thread a warp reads whole
// cache lines; rows that are not aligned to that are read element by element, by the same threads.
//
// Elements beyond the end of a row count as 0 and are neither read nor written.
#pragma once

// Divisions of thread() by powers of two are shifts then. Kernels that fill all registers get stack of it: they do without. Files of rows
// include this one first.
#define EITRI_BOUNDED_THREADS

#include "device/reduce.h"
#include "device/simt.h"
#include "eitri/enums.hpp"

namespace eitri::EITRI_SIMT {

template <DType kType> inline constexpr int kBytesOf = kType == DType::f32 ? 4 : kType == DType::bf16 || kType == DType::f16 ? 2 : 1;

/// Elements that a thread takes at once: 16 bytes of the input.
template <DType kIn> inline constexpr int kWideOf = 16 / kBytesOf<kIn>;

template <DType kType, int kWide> struct Raw {
  static constexpr int kBytes = kWide * kBytesOf<kType>;
  static_assert(kBytes == 4 || kBytes % 8 == 0);
  uint32_t w[kBytes / 4];
};

/// Calls body(c) for every chunk: kKept of them, unrolled so that what they keep stays in registers, or with kKept == 0 `chunks`.
template <int kKept, class Body> EITRI_INLINE void for_each_chunk(int64_t chunks, Body&& body) {
  if constexpr (kKept > 0) {
    EITRI_UNROLL for (int c = 0; c < kKept; ++c) body(c);
  } else {
    EITRI_ROLL for (int64_t c = 0; c < chunks; ++c) body(c);
  }
}

EITRI_INLINE const unsigned char* byte_at(const void* p, int64_t offset) { return static_cast<const unsigned char*>(p) + offset; }
EITRI_INLINE unsigned char* byte_at(void* p, int64_t offset) { return static_cast<unsigned char*>(p) + offset; }

/// How a kernel is compiled to reach rows: `vectors` for rows that begin at a multiple of 16 bytes (or of kWide elements) and are
/// whole chunks of kWide elements long, below 2^28; `elements` for all others.
enum class Rows : uint8_t { elements, vectors };
/// Counts columns: 32 bits are enough in rows of vectors, and take half of the registers.
template <Rows kRows> struct ColumnOf { using type = int64_t; };
template <> struct ColumnOf<Rows::vectors> { using type = int32_t; };
template <Rows kRows> using Column = typename ColumnOf<kRows>::type;

/// Blocks that are there when the kernel starts. They ask for their cache lines before wait_for_dependencies(): what comes from memory
/// is then on its way while the kernel before this one ends.
EITRI_INLINE bool is_early_block(int64_t early = 2048) { return block() < early; }
/// Asks for the cache lines of a row.
template <int kThreads> EITRI_INLINE void prefetch_row(const void* row, int64_t bytes, int me = thread()) {
  constexpr int kLine = 128;
  EITRI_ROLL for (int64_t at = int64_t{me} * kLine; at < bytes; at += kThreads * kLine) prefetch(byte_at(row, at));
}

/// Elements [first, first + kWide) of a row of n, given where the first of them is.
template <DType kType, int kWide, Rows kRows>
EITRI_INLINE Raw<kType, kWide> load_raw_at(const unsigned char* p, Column<kRows> first, Column<kRows> n) {
  constexpr int kBytes = Raw<kType, kWide>::kBytes;
  Raw<kType, kWide> raw = {};
  if constexpr (kRows == Rows::vectors) {
    if (first >= n) return raw;
    if constexpr (kBytes >= 16) {
      EITRI_UNROLL for (int i = 0; i < kBytes / 16; ++i) {
        const Words<16> v = load16(p + i * 16);
        EITRI_UNROLL for (int k = 0; k < 4; ++k) raw.w[i * 4 + k] = v.w[k];
      }
    } else if constexpr (kBytes == 8) {
      const Words<8> v = load8(p);
      raw.w[0] = v.w[0];
      raw.w[1] = v.w[1];
    } else {
      raw.w[0] = load4(p).w[0];
    }
    return raw;
  } else {
    const int left = forgotten(first < n ? static_cast<int>(n - first < kWide ? n - first : kWide) : 0);
    if constexpr (kBytesOf<kType> == 1) {
      // Rolled: sixteen loads of a byte for every row of a kernel would be most of its code.
      EITRI_ROLL for (int e = 0; e < left; ++e) {
        const uint32_t code = static_cast<uint32_t>(p[e]) << (e % 4 * 8);
        EITRI_UNROLL for (int w = 0; w < kBytes / 4; ++w) raw.w[w] |= e / 4 == w ? code : 0u;
      }
    } else {
      EITRI_UNROLL for (int e = 0; e < kWide; ++e) {
        if (e >= left) continue;
        if constexpr (kBytesOf<kType> == 4)
          raw.w[e] = forgotten(reinterpret_cast<const uint32_t*>(p)[e]);  // or the wide load is split to share it
        else raw.w[e / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(p)[e]) << (e % 2 * 16);
      }
    }
    return raw;
  }
}
template <DType kType, int kWide, Rows kRows>
EITRI_INLINE Raw<kType, kWide> load_raw(const void* row, Column<kRows> first, Column<kRows> n) {
  return load_raw_at<kType, kWide, kRows>(byte_at(row, first * kBytesOf<kType>), first, n);
}

/// Where a thread's first chunk is in the rows that its block takes. The first address is known before the kernel waits, because lines
/// are asked for by it, so that the loads after the wait need no arithmetic.
template <DType kType, int kThreads, int kWide = kWideOf<kType>> class ThreadChunks {
 public:
  static constexpr int kBytes = kWide * kBytesOf<kType>, kStep = kThreads * kBytes;  // of a chunk, and from chunk to chunk
  /// `me` is the thread's number among the kThreads of its row.
  EITRI_INLINE ThreadChunks(const void* data, int64_t stride, int64_t row, int me) : at_(byte_at(data, row * stride) + me * kBytes) {}
  EITRI_INLINE void prefetch(int chunks, int me, int64_t columns) const {
    if (me % (128 / kBytes) != 0) return;  // as many share a line
    EITRI_UNROLL for (int c = 0; c < chunks; ++c) if ((int64_t{c} * kThreads + me) * kWide < columns) EITRI_SIMT::prefetch(at_ + c * kStep);
  }
  EITRI_INLINE const unsigned char* operator[](int64_t chunk) const { return at_ + chunk * kStep; }
  EITRI_INLINE void settle() { EITRI_SIMT::settle(at_); }
  EITRI_INLINE void next(int64_t bytes) { at_ += bytes; }

 private:
  const unsigned char* at_;
};

/// The same where it is known at run time only: `vectors` says that the row begins at a multiple of 16 bytes, or of kWide elements.
template <DType kType, int kWide> EITRI_INLINE Raw<kType, kWide> load_raw(const void* row, int64_t first, int64_t n, bool vectors) {
  if (vectors && first + kWide <= n) return load_raw<kType, kWide, Rows::vectors>(byte_at(row, first * kBytesOf<kType>), 0, kWide);
  return load_raw<kType, kWide, Rows::elements>(row, first, n);
}

template <DType kType, int kWide, Rows kRows>
EITRI_INLINE void store_raw(const Raw<kType, kWide>& raw, void* row, Column<kRows> first, Column<kRows> n) {
  constexpr int kBytes = Raw<kType, kWide>::kBytes;
  if constexpr (kRows == Rows::vectors) {
    if (first >= n) return;
    unsigned char* p = byte_at(row, first * kBytesOf<kType>);
    if constexpr (kBytes >= 16) {
      EITRI_UNROLL for (int i = 0; i < kBytes / 16; ++i)
          store16(p + i * 16, {{raw.w[i * 4], raw.w[i * 4 + 1], raw.w[i * 4 + 2], raw.w[i * 4 + 3]}});
    } else if constexpr (kBytes == 8) {
      store8(p, {{raw.w[0], raw.w[1]}});
    } else {
      store4(p, {{raw.w[0]}});
    }
  } else {
    const int left = forgotten(first < n ? static_cast<int>(n - first < kWide ? n - first : kWide) : 0);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) {
      if (e >= left) continue;
      if constexpr (kBytesOf<kType> == 4) static_cast<uint32_t*>(row)[first + e] = raw.w[e];
      else if constexpr (kBytesOf<kType> == 2) static_cast<uint16_t*>(row)[first + e] = static_cast<uint16_t>(raw.w[e / 2] >> (e % 2 * 16));
      else byte_at(row, first)[e] = static_cast<unsigned char>(raw.w[e / 4] >> (e % 4 * 8));
    }
  }
}

template <DType kType, int kWide> EITRI_INLINE void unpack(const Raw<kType, kWide>& raw, float (&x)[kWide]) {
  if constexpr (kType == DType::f8e4m3) {
    EITRI_UNROLL for (int i = 0; i < kWide / 4; ++i) {
      float four[4];
      unpack4_f8e4m3(raw.w[i], four);
      EITRI_UNROLL for (int e = 0; e < 4; ++e) x[4 * i + e] = four[e];
    }
  } else {
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) {
      if constexpr (kType == DType::f32) x[e] = bits_float(raw.w[e]);
      else if constexpr (kType == DType::bf16) x[e] = bits_float(e % 2 == 0 ? raw.w[e / 2] << 16 : raw.w[e / 2] & 0xffff0000u);
      else {
        static_assert(kType == DType::f16);
        x[e] = from_f16(static_cast<uint16_t>(raw.w[e / 2] >> (e % 2 * 16)));
      }
    }
  }
}

/// Rounds and, for 8-bit types, clamps, by the numerics contract.
template <DType kType, int kWide> EITRI_INLINE Raw<kType, kWide> pack(const float (&x)[kWide]) {
  Raw<kType, kWide> raw = {};
  if constexpr (kType == DType::f32) {
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) raw.w[e] = float_bits(x[e]);
  } else if constexpr (kType == DType::bf16 || kType == DType::f16) {
    EITRI_UNROLL for (int i = 0; i < kWide / 2; ++i) raw.w[i] =
        kType == DType::bf16 ? pack2_bf16(x[2 * i], x[2 * i + 1]) : pack2_f16(x[2 * i], x[2 * i + 1]);
  } else if constexpr (kType == DType::f8e4m3) {
    EITRI_UNROLL for (int i = 0; i < kWide / 4; ++i) raw.w[i] = pack4_f8e4m3(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  } else if constexpr (kType == DType::i8) {
    EITRI_UNROLL for (int i = 0; i < kWide / 4; ++i) raw.w[i] = pack4_i8(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  } else {
    static_assert(kType == DType::f8e4m3fnuz);
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) raw.w[e / 4] |= static_cast<uint32_t>(to_f8e4m3fnuz(x[e])) << (e % 4 * 8);
  }
  return raw;
}

/// a + b, rounded to their type.
template <DType kType, int kWide> EITRI_INLINE Raw<kType, kWide> added(const Raw<kType, kWide>& a, const Raw<kType, kWide>& b) {
  Raw<kType, kWide> sum;
  EITRI_UNROLL for (int i = 0; i < Raw<kType, kWide>::kBytes / 4; ++i) {
    if constexpr (kType == DType::bf16) sum.w[i] = add2_bf16(a.w[i], b.w[i]);
    else if constexpr (kType == DType::f16) sum.w[i] = add2_f16(a.w[i], b.w[i]);
    else sum.w[i] = float_bits(bits_float(a.w[i]) + bits_float(b.w[i]));
  }
  return sum;
}

/// The largest magnitude that a quantised type stores.
template <DType kType> constexpr EITRI_HD float largest_of() {
  return kType == DType::i8 ? kI8Max : kType == DType::f8e4m3 ? F8e4m3::max : F8e4m3fnuz::max;
}

/// The scale of a block of codes of kType, and its inverse: the bits of scale_from_amax() and inverse_scale(), by products. What is below
/// the floor of scales in the end may be rounded in any way; all else is scaled up first so that no remainder is subnormal.
struct Scale {
  float value, inverse;
};
template <DType kType> EITRI_INLINE Scale scale_of(float amax) {
  constexpr float kMax = largest_of<kType>(), kInverse = 1.0f / kMax;
  const bool small = amax < 1.0f;
  const float quotient = quotient_by(small ? amax * power_of_two(64) : amax, kMax, kInverse);
  const float scale = max_number(small ? quotient * power_of_two(-64) : quotient, power_of_two(-126));
  return amax == 0.0f ? Scale{0.0f, 0.0f} : Scale{scale, reciprocal(scale)};
}

/// What mx_scale_code adds to the bits of a magnitude, so that the exponent is rounded up by a carry out of the fraction.
template <class Format> EITRI_INLINE uint32_t scale_carries(ScaleRounding rounding) {
  constexpr uint32_t kMaxFraction = float_bits(Format::max) & 0x7fffffu;
  return rounding == ScaleRounding::up     ? 0x7fffffu - kMaxFraction
         : rounding == ScaleRounding::even ? 1u << (22 - Format::mantissa_bits)
                                           : 0u;
}
/// mx_scale_code of a finite magnitude: at most 253.
template <class Format> EITRI_INLINE uint32_t code_of_scale(float amax, uint32_t carries) {
  const int code = static_cast<int>((float_bits(amax) + carries) >> 23) - Format::max_exponent;
  return static_cast<uint32_t>(code < 0 ? 0 : code);
}

/// Of 16-bit types.
template <DType kType> inline constexpr uint32_t kInfinityOf = kType == DType::bf16 ? 0x7f80u : 0x7c00u;
template <DType kType> EITRI_INLINE float value_of(uint32_t code) {
  return kType == DType::bf16 ? bits_float(code << 16) : from_f16(static_cast<uint16_t>(code));
}
/// The largest magnitude of the first elements of words and that of the second ones, as codes: infinity and NaN come last.
template <DType kType, int kWide> EITRI_INLINE uint32_t largest_halves(const Raw<kType, kWide>& raw) {
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  uint32_t two = raw.w[0] & kMagnitudes;
  EITRI_UNROLL for (int i = 1; i < kWide / 2; ++i) two = max_halves(two, raw.w[i] & kMagnitudes);
  return two;
}
EITRI_INLINE uint32_t larger_half(uint32_t two) { return two >> 16 > (two & 0xffffu) ? two >> 16 : two & 0xffffu; }

/// What a block maximum counts of elements: the largest finite magnitude.
struct Magnitude {
  float largest = 0.0f;
  float zero = 0.0f;  // NaN as soon as one element is not finite
  EITRI_INLINE bool all_finite() const { return zero == 0.0f; }

  template <int kWide> EITRI_INLINE void add(const float (&x)[kWide]) {
    EITRI_UNROLL for (int e = 0; e < kWide; ++e) {
      largest = max_number(largest, magnitude(fma(x[e], 0.0f, x[e])));  // x, or NaN, which is no number
      zero = fma(x[e], 0.0f, zero);
    }
  }
  /// The same of elements as they lie in memory, of which x are the values: magnitudes of 16 bits are compared two at a time, in the order
  /// of their bits, where infinity and NaN come last.
  template <DType kType, int kWide> EITRI_INLINE void add(const Raw<kType, kWide>& raw, const float (&x)[kWide]) {
    if constexpr (kBytesOf<kType> == 2) {
      const uint32_t code = larger_half(largest_halves(raw));
      if (code < kInfinityOf<kType>) {
        largest = max_number(largest, value_of<kType>(code));
        return;
      }
    }
    add(x);
  }
};

/// Codes of the elements to a row, for a scale whose inverse is given. With `all_finite` the scale is of these elements, none of
/// which is infinite or NaN: then no product is beyond the largest code.
template <DType kOut, Rows kRows, int kWide>
EITRI_INLINE void store_codes(const float (&x)[kWide], float inverse, bool all_finite, void* row, Column<kRows> first, Column<kRows> n) {
  float scaled[kWide];
  EITRI_UNROLL for (int e = 0; e < kWide; ++e) scaled[e] = x[e] * inverse;
  if constexpr (kOut == DType::i8) {
    if (all_finite) {
      Raw<kOut, kWide> raw;
      EITRI_UNROLL for (int i = 0; i < kWide / 4; ++i) raw.w[i] =
          pack4_small(scaled[4 * i], scaled[4 * i + 1], scaled[4 * i + 2], scaled[4 * i + 3]);
      store_raw<kOut, kWide, kRows>(raw, row, first, n);
      return;
    }
  }
  store_raw<kOut, kWide, kRows>(pack<kOut>(scaled), row, first, n);
}

/// Rows at positions of moe_sort that name no token are skipped. Uniform over a block.
EITRI_INLINE bool is_padding(const int32_t* sorted_ids, const int32_t* num_valid, int64_t tokens, int64_t row) {
  return sorted_ids != nullptr && (row >= num_valid[0] || (sorted_ids[row] & 0xffffff) >= tokens);
}

}  // namespace eitri::EITRI_SIMT
