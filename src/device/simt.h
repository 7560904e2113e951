// The vocabulary of SIMT kernels: one source for CUDA (NVRTC or nvcc, no toolkit headers), AMD (clang, no ROCm headers)
// and, in tests, for lanes emulated on the CPU. The back end is chosen by the compiler's own macros; a host compiler gets
// the emulation with EITRI_SIMT_EMULATED lanes a warp (32 or 64). EITRI_SIMT names the namespace of the translation unit.
//
//   places       thread() block() block_size() grid_size() warp_size lane() warp()          all in x
//   order        sync() (block: control and memory), sync_warp()
//   warp         shuffle_xor shuffle_down shuffle_up shuffle_idx ballot any all warp_largest: every lane of the warp takes part
//   memory       EITRI_SHARED Shared<T, kCount> name;   name[i]: bounds and races are checked in emulation
//                load16 load8 load4 store16 store8 store4 (aligned to their size), prefetch, atomic_add
//   words        count_bits, lowest_bit (of a word that is not 0): of ballots
//   numbers      fma root rsqrt reciprocal quotient_by magnitude max_number max_or_nan bounded round_even fast_exp2 fast_reciprocal dot4 max_halves, sums and bounds of two codes (add2_bf16 add2_f16 bounded2_f16), from_*/to_*/pack*_*/unpack4_* conversions with the bits of
//                base/numeric.h, struct F and the functions of device/vec_math.h on it
//                divide, root of doubles: normal numbers (root also 0) with normal results; an ulp off beyond
//   launch       EITRI_KERNEL(threads) entry, EITRI_KERNEL_FOR(threads, registers) for one that makes do with so many registers, so that
//                whole blocks of them share a unit; launch_dependents(), wait_for_dependencies(), settle(p): p is computed before the wait
//   clusters     device/cluster.h: cluster_rank(), ClusterMail, reductions over two blocks; not on every machine
//   grid         device/meeting.h: the largest number of all blocks of a launch
//
// Kernels name neither a warp size nor a vendor. A block is a multiple of the warp; grids and blocks have one dimension.
// Functions are EITRI_INLINE, loops over registers EITRI_UNROLL. Multiplications and additions are never fused unless
// fma() says so; division and root are rounded correctly: arithmetic gives the same bits on every machine.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "device/simt_cuda.h"
#elif defined(__AMDGCN__)
#include "device/simt_amd.h"
#else
#include "device/simt_emulated.h"
#endif

#define EITRI_VEC EITRI_SIMT

namespace eitri::EITRI_SIMT {

/// Two roundings, the same everywhere; for what is computed once a row.
EITRI_INLINE float rsqrt(float x) { return reciprocal(root(x)); }

/// x / divisor, correctly rounded, for normal x and quotients, infinity and NaN, given the correctly rounded `inverse` of the divisor:
/// the remainder is exact, and the quotient off by an ulp at most before it counts (Markstein, 1990).
EITRI_INLINE float quotient_by(float x, float divisor, float inverse) {
  const float q = x * inverse, rest = fma(-q, divisor, x);
  return rest == rest ? fma(rest, inverse, q) : q;
}

}  // namespace eitri::EITRI_SIMT

// One float a thread, under the interface of device/x86/vec.h, so that the functions of vec_math.h and activation.h serve GPU
// kernels as they are.
namespace eitri::EITRI_SIMT {

using M = bool;  // of one lane: &, |, ! are the language's

struct F {
  static constexpr int kLanes = 1;
  float v;
  static EITRI_INLINE F set1(float x) { return {x}; }
  static EITRI_INLINE F zero() { return {0.0f}; }
};

EITRI_INLINE F operator+(F a, F b) { return {a.v + b.v}; }
EITRI_INLINE F operator-(F a, F b) { return {a.v - b.v}; }
EITRI_INLINE F operator*(F a, F b) { return {a.v * b.v}; }
EITRI_INLINE F operator/(F a, F b) { return {a.v / b.v}; }
EITRI_INLINE F operator-(F a) { return {-a.v}; }
EITRI_INLINE M operator<(F a, F b) { return a.v < b.v; }
EITRI_INLINE M operator<=(F a, F b) { return a.v <= b.v; }
EITRI_INLINE M operator>(F a, F b) { return a.v > b.v; }
EITRI_INLINE M operator>=(F a, F b) { return a.v >= b.v; }
EITRI_INLINE M operator==(F a, F b) { return a.v == b.v; }

EITRI_INLINE F fma(F a, F b, F c) { return {fma(a.v, b.v, c.v)}; }
// a when either is NaN.
EITRI_INLINE F min(F a, F b) { return {b.v < a.v ? b.v : a.v}; }
EITRI_INLINE F max(F a, F b) { return {b.v > a.v ? b.v : a.v}; }
EITRI_INLINE F abs(F a) { return {bits_float(float_bits(a.v) & 0x7fffffffu)}; }
EITRI_INLINE F round_even(F a) { return {round_even(a.v)}; }
EITRI_INLINE F select(M m, F yes, F no) { return m ? yes : no; }
EITRI_INLINE M is_nan(F a) { return eitri::is_nan(a.v); }
/// |magnitude| with the sign of `sign`.
EITRI_INLINE F copysign(F magnitude, F sign) {
  return {bits_float((float_bits(magnitude.v) & 0x7fffffffu) | (float_bits(sign.v) & 0x80000000u))};
}
/// x * 2^n for whole n in [-252, 254], subnormal results rounded once (the first factor is exact for x near 1).
EITRI_INLINE F scale2(F x, F n) {
  // A NaN n (from a NaN x) must not reach the conversion to int.
  const int whole = n.v == n.v ? static_cast<int>(n.v) : 0, half = whole >> 1;
  return {x.v * power_of_two(half) * power_of_two(whole - half)};
}

}  // namespace eitri::EITRI_SIMT

#include "device/vec_math.h"
