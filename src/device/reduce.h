// Sums and maxima over a warp, a part of a warp, or a block. The order is fixed by the block's size: same call, same bits.
// Every lane gets the result.
#pragma once

#include "device/simt.h"

namespace eitri::EITRI_SIMT {

struct Sum {
  static constexpr float kNeutral = 0.0f;
  template <class T> EITRI_INLINE T operator()(T a, T b) const { return a + b; }
};
/// Of numbers that are not NaN and not negative: magnitudes.
struct Largest {
  static constexpr float kNeutral = 0.0f;
  template <class T> EITRI_INLINE T operator()(T a, T b) const { return a > b ? a : b; }
  EITRI_INLINE float operator()(float a, float b) const { return max_number(a, b); }
};

/// Of magnitudes; NaN if one is.
struct LargestOrNan {
  static constexpr float kNeutral = 0.0f;
  EITRI_INLINE float operator()(float a, float b) const { return max_or_nan(a, b); }
};

/// Of each half of a word.
struct LargestHalves {
  static constexpr uint32_t kNeutral = 0;
  EITRI_INLINE uint32_t operator()(uint32_t a, uint32_t b) const { return max_halves(a, b); }
};

/// Over aligned groups of kLanes lanes, a power of two up to warp_size.
template <int kLanes, class T, class Op> EITRI_INLINE T group_reduce(T x, Op op) {
  static_assert(kLanes >= 1 && kLanes <= warp_size && (kLanes & (kLanes - 1)) == 0);
  EITRI_UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) x = op(x, shuffle_xor(x, mask));
  return x;
}
EITRI_INLINE float warp_sum(float x) { return group_reduce<warp_size>(x, Sum{}); }

constexpr EITRI_HD int next_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

/// Reductions of T over a block of kThreads, one barrier each. The array has two halves in turn, so that the next reduction may write
/// while late lanes still read: between two uses of a half lies the barrier of the other one. A half has room for two numbers a warp.
template <int kThreads, class T = float> class BlockReduce {
 public:
  static_assert(kThreads % warp_size == 0 && kThreads <= 1024);
  static constexpr int kWarps = kThreads / warp_size;
  using Partials = Shared<T, 4 * kWarps>;
  explicit EITRI_INLINE BlockReduce(Partials& partials) : partials_(partials) {}

  template <class Op> EITRI_INLINE T operator()(T x, Op op) {
    x = group_reduce<warp_size>(x, op);
    if constexpr (kWarps == 1) return x;
    constexpr int kGroup = next_power_of_two(kWarps);
    return group_reduce<kGroup>(of_warp(lane() % kGroup, x, Op::kNeutral), op);
  }
  EITRI_INLINE T sum(T x) { return (*this)(x, Sum{}); }
  /// Of numbers that are neither NaN nor negative.
  EITRI_INLINE float largest(float x) {
    x = warp_largest(x);
    if constexpr (kWarps == 1) return x;
    return warp_largest(of_warp(lane(), x, 0.0f));
  }
  /// Both behind one barrier: x becomes the sum of x, y the largest y.
  EITRI_INLINE void sum_and_largest(float& x, float& y) {
    x = group_reduce<warp_size>(x, Sum{});
    y = warp_largest(y);
    if constexpr (kWarps == 1) return;
    if (lane() == 0) partials_[slot(1, warp())] = y;
    constexpr int kGroup = next_power_of_two(kWarps);
    const int at = slot(1, lane());
    x = of_warp(lane() % kGroup, x, 0.0f);
    y = lane() < kWarps ? static_cast<float>(partials_[at]) : 0.0f;
    x = group_reduce<kGroup>(x, Sum{});
    y = warp_largest(y);
  }

 private:
  EITRI_INLINE int slot(int number, int of) const { return (2 * half_ + number) * kWarps + of; }
  /// x of warp `wanted`, where each warp brings its own; `neutral` where there is no such warp.
  EITRI_INLINE T of_warp(int wanted, T x, T neutral) {
    if (lane() == 0) partials_[slot(0, warp())] = x;
    sync();
    const T partial = wanted < kWarps ? static_cast<T>(partials_[slot(0, wanted)]) : neutral;
    half_ ^= 1;
    return partial;
  }
  Partials& partials_;
  int half_ = 0;
};

}  // namespace eitri::EITRI_SIMT
