// The vocabulary of simt.h on CUDA, with the builtins that NVRTC and nvcc know without a header. Include simt.h.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#include <cstdint>

#include "base/numeric.h"
#include "device/narrow_f8.h"

#define EITRI_SIMT simt
#define EITRI_INLINE __device__ __forceinline__
#define EITRI_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// At most `registers` a thread (or as near as whole blocks allow), so that enough blocks share a multiprocessor.
#define EITRI_KERNEL_FOR(threads, registers) \
  extern "C" __global__ void __launch_bounds__(threads, (65536 / (registers) / (threads) < 1 ? 1 : 65536 / (registers) / (threads)))
#define EITRI_SHARED __shared__
#define EITRI_UNROLL _Pragma("unroll")
#define EITRI_ROLL _Pragma("unroll 1")

namespace eitri::simt {

inline constexpr int warp_size = 32;

EITRI_INLINE int thread() {
#ifdef EITRI_BOUNDED_THREADS
  __builtin_assume(threadIdx.x < 1024);
#endif
  return static_cast<int>(threadIdx.x);
}
EITRI_INLINE int64_t block() { return blockIdx.x; }
EITRI_INLINE int block_size() { return static_cast<int>(blockDim.x); }
EITRI_INLINE int64_t grid_size() { return gridDim.x; }
EITRI_INLINE int lane() { return thread() & (warp_size - 1); }
EITRI_INLINE int warp() { return thread() / warp_size; }

EITRI_INLINE void sync() { __syncthreads(); }
EITRI_INLINE void sync_warp() { __syncwarp(); }

template <class T> EITRI_INLINE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T> EITRI_INLINE T shuffle_down(T x, int delta) { return __shfl_down_sync(0xffffffffu, x, static_cast<unsigned>(delta)); }
template <class T> EITRI_INLINE T shuffle_up(T x, int delta) { return __shfl_up_sync(0xffffffffu, x, static_cast<unsigned>(delta)); }
template <class T> EITRI_INLINE T shuffle_idx(T x, int from) { return __shfl_sync(0xffffffffu, x, from); }
EITRI_INLINE uint64_t ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }
EITRI_INLINE bool any(bool yes) { return __any_sync(0xffffffffu, yes) != 0; }
EITRI_INLINE bool all(bool yes) { return __all_sync(0xffffffffu, yes) != 0; }

EITRI_INLINE int count_bits(uint64_t word) { return __popcll(word); }
EITRI_INLINE int lowest_bit(uint64_t word) { return __ffsll(static_cast<long long>(word)) - 1; }

template <class T, int kCount> struct Shared {
  T values[kCount];
  EITRI_INLINE T& operator[](int64_t i) { return values[i]; }
};
template <class T, int kCount> EITRI_INLINE T atomic_add(Shared<T, kCount>& array, int64_t i, T value) {
  return atomicAdd(&array.values[i], value);
}
EITRI_INLINE int32_t atomic_add(int32_t* p, int32_t value) { return atomicAdd(p, value); }
EITRI_INLINE float atomic_add(float* p, float value) { return atomicAdd(p, value); }

/// 16, 8 or 4 bytes as 32-bit words, in one load or store.
template <int kBytes> struct alignas(kBytes) Words { uint32_t w[kBytes / 4]; };
EITRI_INLINE Words<16> load16(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
}
EITRI_INLINE Words<8> load8(const void* p) {
  const uint2 v = *static_cast<const uint2*>(p);
  return {{v.x, v.y}};
}
EITRI_INLINE Words<4> load4(const void* p) { return {{*static_cast<const uint32_t*>(p)}}; }
EITRI_INLINE void store16(void* p, Words<16> v) { *static_cast<uint4*>(p) = uint4{v.w[0], v.w[1], v.w[2], v.w[3]}; }
EITRI_INLINE void store8(void* p, Words<8> v) { *static_cast<uint2*>(p) = uint2{v.w[0], v.w[1]}; }
EITRI_INLINE void store4(void* p, Words<4> v) { *static_cast<uint32_t*>(p) = v.w[0]; }

/// Asks for the cache line of an address, whatever it holds now or later. Allowed before wait_for_dependencies().
EITRI_INLINE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

EITRI_INLINE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// sum + the products of four i8 codes in each word.
EITRI_INLINE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
  int32_t result;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}
/// The larger of each half, as unsigned numbers.
EITRI_INLINE uint32_t max_halves(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
  uint32_t result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const auto larger = [=](uint32_t mask) { return (a & mask) > (b & mask) ? a & mask : b & mask; };
  return larger(0xffff0000u) | larger(0xffffu);
#endif
}
EITRI_INLINE float magnitude(float x) { return fabsf(x); }
/// The larger one; of a number and NaN, the number.
EITRI_INLINE float max_number(float a, float b) { return fmaxf(a, b); }
/// The larger one of magnitudes; NaN if one is NaN.
EITRI_INLINE float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
/// x within [low, high]; NaN stays.
EITRI_INLINE float bounded(float x, float low, float high) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(low));
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(result), "f"(high));
  return result;
}
EITRI_INLINE float root(float x) { return __fsqrt_rn(x); }
/// 1 / x, correctly rounded, for 0, infinity and magnitudes in [2^-126, 2^126]: what the compiler's own division does for these, without
/// its code for all others, which is longer than many a kernel.
EITRI_INLINE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  const float error = __fmaf_rn(y, x, -1.0f);
  return error == error ? __fmaf_rn(y, -error, y) : y;
}
/// The largest x of the warp, NaN if one is; none is negative. The bits of such numbers are in their order.
EITRI_INLINE float warp_largest(float x) {
  uint32_t bits;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(bits) : "r"(float_bits(x)));
  return bits_float(bits);
}
// The compiler's own division and root of doubles call a function for rare operands, around which registers are spilled.
EITRI_INLINE double divide(double a, double b) {
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
  r = __fma_rn(__fma_rn(-b, r, 1.0), r, r);  // 20 bits become 40, then all
  r = __fma_rn(__fma_rn(-b, r, 1.0), r, r);
  const double q = a * r;
  return __fma_rn(__fma_rn(-b, q, a), r, q);
}
EITRI_INLINE double root(double x) {
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  y = __fma_rn(y * 0.5, __fma_rn(-(x * y), y, 1.0), y);
  y = __fma_rn(y * 0.5, __fma_rn(-(x * y), y, 1.0), y);
  const double g = x * y;
  return x == 0.0 ? x : __fma_rn(__fma_rn(-g, g, x), y * 0.5, g);
}
EITRI_INLINE float round_even(float x) { return rintf(x); }
/// Within 2^-22 relative, and 1 ulp; subnormal arguments and results are 0.
EITRI_INLINE float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
EITRI_INLINE float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

EITRI_INLINE float from_bf16(uint16_t code) { return bits_float(static_cast<uint32_t>(code) << 16); }
EITRI_INLINE float from_f16(uint16_t code) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(code));
  return result;
}
EITRI_INLINE uint16_t to_f16(float x) {
  uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
  return code;
}
EITRI_INLINE uint16_t to_bf16(float x) {
  uint16_t code;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(x));
  return code;
}
/// Two codes in a word, the first one low.
EITRI_INLINE uint32_t pack2_bf16(float a, float b) {
  uint32_t codes;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(b), "f"(a));
  return codes;
}
EITRI_INLINE uint32_t pack2_f16(float a, float b) {
  uint32_t codes;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(b), "f"(a));
  return codes;
}
/// Sums of two codes each, rounded once: what fp32 gives and a conversion rounds again has the same bits, since 24 bits are twice those
/// of a code and two more.
EITRI_INLINE uint32_t add2_bf16(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
  uint32_t codes;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(codes) : "r"(a), "r"(b));
  return codes;
#else
  return pack2_bf16(bits_float(a << 16) + bits_float(b << 16), bits_float(a & 0xffff0000u) + bits_float(b & 0xffff0000u));
#endif
}
EITRI_INLINE uint32_t add2_f16(uint32_t a, uint32_t b) {
  uint32_t codes;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(codes) : "r"(a), "r"(b));
  return codes;
}
/// Two numbers, no NaN, whose magnitudes are bounded by those of `limits`, which are positive.
EITRI_INLINE uint32_t bounded2_f16(uint32_t two, uint32_t limits) {
#if __CUDA_ARCH__ >= 860
  uint32_t codes;
  asm("min.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(codes) : "r"(two), "r"(limits));
  return codes;
#else
  const uint32_t magnitudes = two & 0x7fff7fffu;
  return (~max_halves(~magnitudes, ~limits) & 0x7fff7fffu) | (two & 0x80008000u);
#endif
}
/// Conversion to an integer rounds to even, clamps, and takes NaN for 0.
EITRI_INLINE int8_t to_i8(float x) {
  int code;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(code) : "f"(x));
  return static_cast<int8_t>(code < -127 ? -127 : code > 127 ? 127 : code);
}
/// Four codes of to_i8 in a word, the first one low.
EITRI_INLINE uint32_t pack4_i8(float a, float b, float c, float d) {
  const auto whole = [](float x) {
    int code;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(code) : "f"(x));
    return code < -127 ? -127 : code;  // the packing clamps to [-128, 127]
  };
  uint32_t high, codes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(whole(d)), "r"(whole(c)));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(codes) : "r"(whole(b)), "r"(whole(a)), "r"(high));
  return codes;
}
/// The same of magnitudes below 127.5, faster: the sum has unit 1 and is rounded to it, its low byte is the code.
EITRI_INLINE uint32_t pack4_small(float a, float b, float c, float d) {
  constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23
  uint32_t low, high, codes;
  asm("prmt.b32 %0, %1, %2, 0x0040;" : "=r"(low) : "r"(float_bits(a + kShifter)), "r"(float_bits(b + kShifter)));
  asm("prmt.b32 %0, %1, %2, 0x0040;" : "=r"(high) : "r"(float_bits(c + kShifter)), "r"(float_bits(d + kShifter)));
  asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(codes) : "r"(low), "r"(high));
  return codes;
}
EITRI_INLINE uint32_t pack4_f8e4m3(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<uint32_t>(high) << 16;
#else
  return encode_f8e4m3(a) | static_cast<uint32_t>(encode_f8e4m3(b)) << 8 | static_cast<uint32_t>(encode_f8e4m3(c)) << 16 |
         static_cast<uint32_t>(encode_f8e4m3(d)) << 24;
#endif
}
EITRI_INLINE uint8_t to_f8e4m3(float x) { return static_cast<uint8_t>(pack4_f8e4m3(x, 0.0f, 0.0f, 0.0f)); }
/// The values of four codes.
EITRI_INLINE void unpack4_f8e4m3(uint32_t codes, float (&x)[4]) {
#if __CUDA_ARCH__ >= 890
  EITRI_UNROLL for (int i = 0; i < 2; ++i) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes >> (16 * i))));
    x[2 * i] = from_f16(static_cast<uint16_t>(halves));
    x[2 * i + 1] = from_f16(static_cast<uint16_t>(halves >> 16));
  }
#else
  EITRI_UNROLL for (int i = 0; i < 4; ++i) x[i] = widen_f8e4m3(codes >> (8 * i) & 0xffu);
#endif
}
EITRI_INLINE uint8_t to_f8e4m3fnuz(float x) { return narrow_f8<F8e4m3fnuz>(x); }

/// Has what p is made of computed here.
template <class T> EITRI_INLINE void settle(T*& p) {
  asm volatile("mov.b64 %0, %0;" : "+l"(p));
  __builtin_assume(__isGlobal(p));
}

/// x; on other machines the compiler then makes comparisons with it anew, which here it does of itself.
template <class T> EITRI_INLINE T forgotten(T x) { return x; }

/// Lets the next kernel of the stream start its part that depends on nothing, once every block has called this or ended.
EITRI_INLINE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Returns when everything that earlier kernels wrote is visible. Nothing of theirs is read, and nothing written, before.
EITRI_INLINE void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace eitri::simt

#endif
