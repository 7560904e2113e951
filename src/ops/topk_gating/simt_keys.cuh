// What both SIMT kernels of topk_gating compute: logits and their scores, keys that choose, ranks of groups.
#pragma once

#include "device/double_math.h"
#include "device/mixed_row.h"
#include "ops/topk_gating/simt_params.h"

namespace eitri::EITRI_SIMT {

namespace gating {

inline constexpr float kInfinity = bits_float(0x7f800000u);
inline constexpr double kWideInfinity = __builtin_bit_cast(double, uint64_t{0x7ff} << 52);
inline constexpr float kHighestLogit = 0x1.fffffep127f;
inline constexpr double kLowest = -0x1.fffffffffffffp1023;

/// NaN is -inf, +inf the largest float.
EITRI_INLINE float clean(float logit) {
  const float low = logit == logit ? logit : -kInfinity;
  return low < kHighestLogit ? low : kHighestLogit;
}
/// -inf is the lowest double, of which differences are numbers.
EITRI_INLINE double widened(float logit) {
  const double wide = logit;
  return wide > kLowest ? wide : kLowest;
}

// Integers ordered as the numbers, NaN as -inf, both zeros equal; never 0, which means "out".
EITRI_INLINE uint32_t ordered(float x) {
  const uint32_t bits = x == 0.0f ? 0u : float_bits(x == x ? x : -kInfinity);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
EITRI_INLINE uint64_t ordered(double x) {
  const uint64_t bits = x == 0.0 ? 0u : __builtin_bit_cast(uint64_t, x == x ? x : -kWideInfinity);
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}
EITRI_INLINE double number_of(uint64_t key) { return __builtin_bit_cast(double, key >> 63 != 0 ? key & ~(uint64_t{1} << 63) : ~key); }

template <bool kBias> struct KeyOf { using Type = uint32_t; };
template <> struct KeyOf<true> { using Type = uint64_t; };

/// Of softmax: the largest logit, and what powers are divided by.
struct Terms {
  double max = 0, sum = 1;
};
EITRI_INLINE double power(double l, double max) { return detail::exp_negative<uint64_t>(l - max); }
template <GatingScore kScore> EITRI_INLINE double score_of(float logit, Terms terms) {
  const double l = widened(logit);
  if constexpr (kScore == GatingScore::softmax) {
    return divide(power(l, terms.max), terms.sum);
  } else {
    const double e = detail::exp_negative<uint64_t>(l < 0.0 ? l : -l);
    if constexpr (kScore == GatingScore::sigmoid) return divide(l < 0.0 ? e : 1.0, e + 1.0);
    else return root((l > 0.0 ? l : 0.0) + detail::log1p_unit(e, [](double a, double b) { return divide(a, b); }));
  }
}
/// Renormalised weights of unbiased choices need no sum over all experts: it cancels.
template <GatingForm kForm> EITRI_INLINE bool needs_sum(const GatingTask& t) {
  return kForm.score == GatingScore::softmax && (kForm.bias || !t.renormalize);
}

template <DType kType> EITRI_INLINE float load_logit(const void* row, int64_t e) {
  if constexpr (kType == DType::f32) return clean(static_cast<const float*>(row)[e]);
  else if constexpr (kType == DType::bf16) return clean(from_bf16(static_cast<const uint16_t*>(row)[e]));
  else return clean(from_f16(static_cast<const uint16_t*>(row)[e]));
}

/// kPer elements from `first` of a row of n, in the widest loads that divide them; 0 beyond the end.
template <DType kType, int kPer> EITRI_INLINE void load_run(const void* row, int64_t first, int64_t n, bool vectors, float (&x)[kPer]) {
  constexpr int kBytes = kPer * kBytesOf<kType>;
  if constexpr (kBytes % 4 == 0) {
    constexpr int kWide = (kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : 4) / kBytesOf<kType>;
    EITRI_UNROLL for (int i = 0; i < kPer; i += kWide) {
      float v[kWide];
      unpack(load_mixed<kType, kWide>(row, first + i, n, vectors), v);
      EITRI_UNROLL for (int k = 0; k < kWide; ++k) x[i + k] = v[k];
    }
  } else {
    const int left = first < n ? static_cast<int>(n - first < kPer ? n - first : kPer) : 0;
    EITRI_UNROLL for (int i = 0; i < kPer; ++i) {
      x[i] = 0.0f;
      if (i >= forgotten(left)) continue;
      if constexpr (kType == DType::f32) x[i] = static_cast<const float*>(row)[first + i];
      else if constexpr (kType == DType::bf16) x[i] = from_bf16(static_cast<const uint16_t*>(row)[first + i]);
      else x[i] = from_f16(static_cast<const uint16_t*>(row)[first + i]);
    }
  }
}

/// The largest key, and the first place that has it.
template <class Key> struct Best {
  Key key;
  int32_t at;
};
template <class Key, int kPer> EITRI_INLINE Best<Key> best_of(const Key (&keys)[kPer]) {
  Best<Key> best = {keys[kPer - 1], kPer - 1};
  EITRI_UNROLL for (int i = kPer - 2; i >= 0; --i) {
    const bool more = keys[i] >= best.key;
    best.key = more ? keys[i] : best.key;
    best.at = more ? i : best.at;
  }
  return best;
}

/// The two largest keys of a group.
template <class Key> struct TopTwo {
  Key first = 0, second = 0;
  EITRI_INLINE void see(Key key) {
    const Key lesser = key < first ? key : first;
    second = lesser > second ? lesser : second;
    first = key > first ? key : first;
  }
  EITRI_INLINE void see_both(Key other_first, Key other_second) {
    see(other_first);
    see(other_second);
  }
};
/// A group's rank: its best logit, or the sum of its two best biased scores.
EITRI_INLINE uint32_t rank_of(TopTwo<uint32_t> top, bool) { return top.first; }
EITRI_INLINE uint64_t rank_of(TopTwo<uint64_t> top, bool two) {
  return two ? ordered(number_of(top.first) + number_of(top.second)) : top.first;
}

/// Of lane `me` (of kLanes): out with its keys unless its group is among the best.
template <GatingForm kForm, class Key, int kPer> EITRI_INLINE void keep_groups(const GatingTask& t, int me, Key (&keys)[kPer]) {
  constexpr int kGroupLanes = kForm.group_lanes;
  TopTwo<Key> top;
  EITRI_UNROLL for (int i = 0; i < kPer; ++i) top.see(keys[i]);
  EITRI_UNROLL for (int mask = kGroupLanes / 2; mask > 0; mask /= 2) {
    const Key first = shuffle_xor(top.first, mask), second = shuffle_xor(top.second, mask);
    top.see_both(first, second);
  }
  const Key rank = rank_of(top, kForm.bias && kPer * kGroupLanes > 1);
  const int group = me / kGroupLanes, first_lane = lane() - me, groups = static_cast<int>(t.groups);
  int better = 0;
  for (int g = 0; g < groups; ++g) {
    const Key other = shuffle_idx(rank, first_lane + g * kGroupLanes);
    better += other > rank || (other == rank && g < group) ? 1 : 0;
  }
  EITRI_UNROLL for (int i = 0; i < kPer; ++i) keys[i] = better < t.topk_groups ? keys[i] : 0;
}

EITRI_INLINE float weight_of(const GatingTask& t, double score, double sum) {
  return static_cast<float>(divide(score, sum) * static_cast<double>(t.scale));
}

}  // namespace gating

}  // namespace eitri::EITRI_SIMT
