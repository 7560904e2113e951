// Vectors of floats at the level a file is compiled for, under one interface, so that one template kernel serves all
// x86 levels. EITRI_VEC names the namespace of this translation unit: vec512 (AVX-512 F, BW, DQ, VL), vec256 (AVX2, FMA,
// F16C) or vec1 (one float, plain C++: the portable rows).
//
//   struct M   the result of a comparison: &, |, !; any(m)
//   struct F   kLanes floats: + - * / unary -, < <= > >= ==
//     set1 zero load load_bf16 load_f16 load_i8 load_i32, each load_* also as load_*partial(p, n): n lanes, 0 elsewhere
//     store store_bf16 store_f16 store_i8, each also as store_*partial(p, n)
//     0 <= n <= kLanes; a partial form touches nothing beyond n elements. No alignment is needed.
//   fma min max abs round_even select is_nan scale2 reduce_add reduce_max
//   exp expm1_positive sigmoid tanh erf normal_cdf            (vec_math.h, errors stated there)
//   load_as<DType> store_as<DType> and their partial forms    (by element index into a row of bytes)
//
// min(a, b) and max(a, b) give a when either is NaN, so that min(x, limit) keeps a NaN x. Conversions follow the numerics
// contract (base/numeric.h): nearest even, NaN kept by f16 and bf16; i8 clamps to +-127, NaN is 0. Everything is forced
// inline: no copy made for a newer machine can end up in older code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/x86/inline.h"
#include "eitri/enums.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define EITRI_VEC vec512
#include "device/x86/vec512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define EITRI_VEC vec256
#include "device/x86/vec256.h"
#else
#define EITRI_VEC vec1
#include "device/x86/vec1.h"
#endif

#include "device/vec_math.h"

namespace eitri::EITRI_VEC {

/// Lanes i .. i + kLanes - 1 of a row of f32, bf16, f16, i8 or i32 (i counts elements).
template <DType kType> EITRI_INLINE F load_as(const void* row, int64_t i) {
  const auto* p = static_cast<const std::byte*>(row);
  if constexpr (kType == DType::f32) return F::load(p + i * 4);
  else if constexpr (kType == DType::bf16) return F::load_bf16(p + i * 2);
  else if constexpr (kType == DType::f16) return F::load_f16(p + i * 2);
  else if constexpr (kType == DType::i32) return F::load_i32(p + i * 4);
  else {
    static_assert(kType == DType::i8);
    return F::load_i8(p + i);
  }
}
template <DType kType> EITRI_INLINE F load_as_partial(const void* row, int64_t i, int64_t n) {
  const auto* p = static_cast<const std::byte*>(row);
  if constexpr (kType == DType::f32) return F::load_partial(p + i * 4, n);
  else if constexpr (kType == DType::bf16) return F::load_bf16_partial(p + i * 2, n);
  else if constexpr (kType == DType::f16) return F::load_f16_partial(p + i * 2, n);
  else if constexpr (kType == DType::i32) return F::load_i32_partial(p + i * 4, n);
  else {
    static_assert(kType == DType::i8);
    return F::load_i8_partial(p + i, n);
  }
}
/// To a row of f32, bf16, f16 or i8.
template <DType kType> EITRI_INLINE void store_as(F x, void* row, int64_t i) {
  auto* p = static_cast<std::byte*>(row);
  if constexpr (kType == DType::f32) x.store(p + i * 4);
  else if constexpr (kType == DType::bf16) x.store_bf16(p + i * 2);
  else if constexpr (kType == DType::f16) x.store_f16(p + i * 2);
  else {
    static_assert(kType == DType::i8);
    x.store_i8(p + i);
  }
}
template <DType kType> EITRI_INLINE void store_as_partial(F x, void* row, int64_t i, int64_t n) {
  auto* p = static_cast<std::byte*>(row);
  if constexpr (kType == DType::f32) x.store_partial(p + i * 4, n);
  else if constexpr (kType == DType::bf16) x.store_bf16_partial(p + i * 2, n);
  else if constexpr (kType == DType::f16) x.store_f16_partial(p + i * 2, n);
  else {
    static_assert(kType == DType::i8);
    x.store_i8_partial(p + i, n);
  }
}

}  // namespace eitri::EITRI_VEC
