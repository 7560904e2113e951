// The vocabulary of simt.h on AMD's CDNA machines (warps of 64), with clang's builtins in HIP mode. Include simt.h.
#pragma once

#if defined(__AMDGCN__)

#include <cstdint>

#include "base/numeric.h"
#include "device/narrow_f8.h"

#define EITRI_SIMT simt
#define EITRI_INLINE __attribute__((device)) inline __attribute__((always_inline))
#define EITRI_KERNEL(threads) extern "C" __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(threads, threads)))
// As many threads on a unit as an NVIDIA multiprocessor holds with so many registers each, in whole blocks: a unit has twice the
// registers, and room for 2048 threads on its four parts.
#define EITRI_BLOCKS(threads, registers) (((registers) < 32 ? 2048 : 65536 / (registers)) / (threads))
#define EITRI_WAVES(threads, registers) \
  (EITRI_BLOCKS(threads, registers) * (threads) < 256 ? 1 : EITRI_BLOCKS(threads, registers) * (threads) / 256)
#define EITRI_KERNEL_FOR(threads, registers) EITRI_KERNEL(threads) __attribute__((amdgpu_waves_per_eu(EITRI_WAVES(threads, registers))))
#define EITRI_SHARED static __attribute__((shared))
#define EITRI_UNROLL _Pragma("unroll")
#define EITRI_ROLL _Pragma("nounroll")

namespace eitri::simt {

inline constexpr int warp_size = 64;

EITRI_INLINE int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
EITRI_INLINE int64_t block() { return __builtin_amdgcn_workgroup_id_x(); }
// Hidden kernel arguments: kernels that know their sizes as constants or arguments do not need them.
EITRI_INLINE int block_size() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }
EITRI_INLINE int64_t grid_size() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
EITRI_INLINE int lane() { return thread() & (warp_size - 1); }
EITRI_INLINE int warp() { return thread() / warp_size; }

EITRI_INLINE void sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
EITRI_INLINE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// The value of lane `from`, which is in the warp.
template <class T> EITRI_INLINE T shuffle_idx(T x, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(from * 4, __builtin_bit_cast(int, x)));
  } else {
    const auto bits = __builtin_bit_cast(uint64_t, x);
    const auto low = static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(from * 4, static_cast<int>(bits)));
    const auto high = static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(from * 4, static_cast<int>(bits >> 32)));
    return __builtin_bit_cast(T, low | static_cast<uint64_t>(high) << 32);
  }
}
template <class T> EITRI_INLINE T shuffle_xor(T x, int mask) { return shuffle_idx(x, lane() ^ mask); }
template <class T> EITRI_INLINE T shuffle_down(T x, int delta) {
  return shuffle_idx(x, lane() + delta < warp_size ? lane() + delta : lane());
}
template <class T> EITRI_INLINE T shuffle_up(T x, int delta) { return shuffle_idx(x, lane() >= delta ? lane() - delta : lane()); }
EITRI_INLINE uint64_t ballot(bool yes) { return __builtin_amdgcn_ballot_w64(yes); }
EITRI_INLINE bool any(bool yes) { return ballot(yes) != 0; }
EITRI_INLINE bool all(bool yes) { return ballot(!yes) == 0; }

EITRI_INLINE int count_bits(uint64_t word) { return __builtin_popcountll(word); }
EITRI_INLINE int lowest_bit(uint64_t word) { return __builtin_ctzll(word); }

template <class T, int kCount> struct Shared {
  T values[kCount];
  EITRI_INLINE T& operator[](int64_t i) { return values[i]; }
};
template <class T, int kCount> EITRI_INLINE T atomic_add(Shared<T, kCount>& array, int64_t i, T value) {
  return __hip_atomic_fetch_add(&array.values[i], value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
EITRI_INLINE int32_t atomic_add(int32_t* p, int32_t value) {
  return __hip_atomic_fetch_add(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
EITRI_INLINE float atomic_add(float* p, float value) {
  return __hip_atomic_fetch_add(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

/// 16, 8 or 4 bytes as 32-bit words, in one load or store.
template <int kBytes> struct alignas(kBytes) Words { uint32_t w[kBytes / 4]; };
using Vector4 = uint32_t __attribute__((ext_vector_type(4)));
using Vector2 = uint32_t __attribute__((ext_vector_type(2)));
EITRI_INLINE Words<16> load16(const void* p) { return __builtin_bit_cast(Words<16>, *static_cast<const Vector4*>(p)); }
EITRI_INLINE Words<8> load8(const void* p) { return __builtin_bit_cast(Words<8>, *static_cast<const Vector2*>(p)); }
EITRI_INLINE Words<4> load4(const void* p) { return {{*static_cast<const uint32_t*>(p)}}; }
EITRI_INLINE void store16(void* p, Words<16> v) { *static_cast<Vector4*>(p) = __builtin_bit_cast(Vector4, v); }
EITRI_INLINE void store8(void* p, Words<8> v) { *static_cast<Vector2*>(p) = __builtin_bit_cast(Vector2, v); }
EITRI_INLINE void store4(void* p, Words<4> v) { *static_cast<uint32_t*>(p) = v.w[0]; }

/// A hint that has no effect here.
EITRI_INLINE void prefetch(const void*) {}
EITRI_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/// sum + the products of four i8 codes in each word.
EITRI_INLINE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
  return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), sum, false);
}
/// The larger of each half, as unsigned numbers.
EITRI_INLINE uint32_t max_halves(uint32_t a, uint32_t b) {
  using Halves = uint16_t __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b)));
}
EITRI_INLINE float magnitude(float x) { return __builtin_fabsf(x); }
/// The larger one; of a number and NaN, the number.
EITRI_INLINE float max_number(float a, float b) { return __builtin_fmaxf(a, b); }
/// The larger one of magnitudes; NaN if one is NaN. The bits of magnitudes are in their order, NaN last.
EITRI_INLINE float max_or_nan(float a, float b) { return float_bits(a) > float_bits(b) ? a : b; }
/// 1 / x, for 0, infinity and magnitudes in [2^-126, 2^126].
EITRI_INLINE float reciprocal(float x) { return 1.0f / x; }
/// The largest x of the warp, NaN if one is; none is negative.
EITRI_INLINE float warp_largest(float x) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) x = max_or_nan(x, shuffle_xor(x, mask));
  return x;
}
/// x within [low, high]; NaN stays.
EITRI_INLINE float bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
EITRI_INLINE float root(float x) { return __builtin_sqrtf(x); }
EITRI_INLINE double root(double x) { return __builtin_sqrt(x); }
EITRI_INLINE double divide(double a, double b) { return a / b; }
EITRI_INLINE float round_even(float x) { return __builtin_rintf(x); }
/// About 2^-21 relative error near 0, growing with |x|; results below 2^-126 may be 0.
EITRI_INLINE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
EITRI_INLINE float fast_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }

EITRI_INLINE float from_bf16(uint16_t code) { return bits_float(static_cast<uint32_t>(code) << 16); }
EITRI_INLINE float from_f16(uint16_t code) { return static_cast<float>(__builtin_bit_cast(_Float16, code)); }
EITRI_INLINE uint16_t to_f16(float x) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x)); }
EITRI_INLINE uint16_t to_bf16(float x) { return __builtin_bit_cast(uint16_t, static_cast<__bf16>(x)); }
/// Two codes in a word, the first one low.
EITRI_INLINE uint32_t pack2_bf16(float a, float b) { return to_bf16(a) | static_cast<uint32_t>(to_bf16(b)) << 16; }
EITRI_INLINE uint32_t pack2_f16(float a, float b) { return to_f16(a) | static_cast<uint32_t>(to_f16(b)) << 16; }
/// Sums of two codes each.
EITRI_INLINE uint32_t add2_bf16(uint32_t a, uint32_t b) {
  return pack2_bf16(bits_float(a << 16) + bits_float(b << 16), bits_float(a & 0xffff0000u) + bits_float(b & 0xffff0000u));
}
EITRI_INLINE uint32_t add2_f16(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t two, int i) { return from_f16(static_cast<uint16_t>(two >> (16 * i))); };
  return pack2_f16(half(a, 0) + half(b, 0), half(a, 1) + half(b, 1));
}
/// Two numbers, no NaN, whose magnitudes are bounded by those of `limits`, which are positive.
EITRI_INLINE uint32_t bounded2_f16(uint32_t two, uint32_t limits) {
  const uint32_t magnitudes = two & 0x7fff7fffu;
  return (~max_halves(~magnitudes, ~limits) & 0x7fff7fffu) | (two & 0x80008000u);
}
EITRI_INLINE int8_t to_i8(float x) { return encode_i8(x); }
// The conversion instruction of gfx942 makes FNUZ codes, that of gfx950 OCP ones; the codec makes what its name says on both.
EITRI_INLINE uint8_t to_f8e4m3(float x) { return narrow_f8<F8e4m3>(x); }
EITRI_INLINE uint8_t to_f8e4m3fnuz(float x) { return narrow_f8<F8e4m3fnuz>(x); }
/// Four codes of to_i8 in a word, the first one low.
EITRI_INLINE uint32_t pack4_i8(float a, float b, float c, float d) {
  const auto byte = [](float x) { return static_cast<uint32_t>(static_cast<uint8_t>(to_i8(x))); };
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}
/// The same of magnitudes below 127.5, faster: the sum has unit 1 and is rounded to it, its low byte is the code.
EITRI_INLINE uint32_t pack4_small(float a, float b, float c, float d) {
  const auto byte = [](float x) { return float_bits(x + 12582912.0f) & 0xffu; };  // 1.5 * 2^23
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}
EITRI_INLINE uint32_t pack4_f8e4m3(float a, float b, float c, float d) {
  return to_f8e4m3(a) | static_cast<uint32_t>(to_f8e4m3(b)) << 8 | static_cast<uint32_t>(to_f8e4m3(c)) << 16 |
         static_cast<uint32_t>(to_f8e4m3(d)) << 24;
}
/// The values of four codes.
EITRI_INLINE void unpack4_f8e4m3(uint32_t codes, float (&x)[4]) {
  EITRI_UNROLL for (int i = 0; i < 4; ++i) x[i] = widen_f8e4m3(codes >> (8 * i) & 0xffu);
}

/// Has what p is made of computed here: for what waits for other kernels.
template <class T> EITRI_INLINE void settle(T*&) {}

/// x, of which the compiler no longer knows where it comes from: comparisons with it are made where they are used, and not
/// kept in registers from an earlier use.
template <class T> EITRI_INLINE T forgotten(T x) {
  asm volatile("" : "+v"(x));
  return x;
}

/// Overlap of dependent launches is a feature of other machines.
EITRI_INLINE void launch_dependents() {}
EITRI_INLINE void wait_for_dependencies() {}

}  // namespace eitri::simt

#endif
