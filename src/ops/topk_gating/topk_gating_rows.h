// Kernel template of topk_gating: one token at a time, everything in doubles in L1.
//
//   logits -> l (NaN is -inf, and -inf is kLowest, so that -inf itself can mean "out")
//   choice keys: l without bias (scores rise with l), score + bias with it; experts of groups that are not kept: -inf
//   top_k times: the largest key, the lowest id among equals; it is then out
//   weights: scores of the chosen ones, one rounding to fp32 at the end
//
// Without bias only the chosen experts' scores are computed, and for softmax the sum over all, if it does not cancel.
// Bound by the top_k passes over the keys: experts * top_k compares a token. No limit on experts, top_k or groups.
#pragma once

#include "base/numeric.h"
#include "ops/topk_gating/double_vec.h"
#include "ops/topk_gating/topk_gating_kernels.h"

namespace eitri::EITRI_VEC {

inline constexpr double kOut = -__builtin_inf();
inline constexpr double kLowest = -__DBL_MAX__;
inline constexpr double kHighestLogit = __FLT_MAX__;

struct GatingArrays {
  double *logits, *scores, *keys, *chosen, *ranks;
  int64_t experts;  // padded
  EITRI_INLINE GatingArrays(const GatingTask& task, std::byte* scratch) : experts(GatingScratch::padded(task.experts)) {
    logits = reinterpret_cast<double*>(scratch);
    scores = logits + experts;
    keys = scores + experts;
    chosen = keys + experts;
    ranks = chosen + GatingScratch::padded(task.top_k);
  }
};

template <DType kType> EITRI_INLINE void load_logits(const GatingTask& task, int64_t token, const GatingArrays& a) {
  const std::byte* row = task.logits + token * task.logits_stride;
  auto* floats = reinterpret_cast<float*>(a.keys);  // free until the keys are made
  int64_t j = 0;
  for (; j + F::kLanes <= task.experts; j += F::kLanes) load_as<kType>(row, j).store(floats + j);
  if (j < task.experts) load_as_partial<kType>(row, j, task.experts - j).store_partial(floats + j, task.experts - j);
  for (j = 0; j < task.experts; ++j) {
    const double x = floats[j];
    const double low = x >= kLowest ? x : kLowest;  // false for NaN
    a.logits[j] = low < kHighestLogit ? low : kHighestLogit;
  }
  for (; j < a.experts; ++j) a.logits[j] = kOut;
}

struct SoftmaxTerms {
  double max = 0, sum = 1;
};
EITRI_INLINE SoftmaxTerms softmax_terms(const GatingArrays& a) {
  D largest = load(a.logits);
  for (int64_t j = kDoubles; j < a.experts; j += kDoubles) {
    const D x = load(a.logits + j);
    largest = x > largest ? x : largest;
  }
  double max = largest[0];
  for (int i = 1; i < kDoubles; ++i) max = largest[i] > max ? largest[i] : max;
  EightSums sums;
  for (int64_t j = 0; j < a.experts; j += 8)
    for (int p = 0; p < EightSums::kParts; ++p) sums.part[p] += exp_negative(load(a.logits + j + p * kDoubles) - max);
  return {max, sums.total()};
}

/// n values (a multiple of kDoubles) of score(x).
EITRI_INLINE void score_all(GatingScore score, SoftmaxTerms terms, const double* x, int64_t n, double* out) {
  for (int64_t j = 0; j < n; j += kDoubles) {
    const D l = load(x + j);
    if (score == GatingScore::softmax) {
      store(out + j, exp_negative(l - terms.max) / terms.sum);
      continue;
    }
    const D e = exp_negative(l < 0.0 ? l : -l);
    if (score == GatingScore::sigmoid) store(out + j, (l < 0.0 ? e : set(1.0)) / (e + 1.0));
    else store(out + j, sqrt((l > 0.0 ? l : D{}) + log1p_unit(e)));
  }
}

/// Best or two best keys of a group.
EITRI_INLINE double group_rank(const double* keys, int64_t n, bool two) {
  D first = set(kOut), second = set(kOut);
  int64_t j = 0;
  for (; j + kDoubles <= n; j += kDoubles) {
    const D x = load(keys + j), lesser = x < first ? x : first;
    second = lesser > second ? lesser : second;
    first = x > first ? x : first;
  }
  double best = kOut, next = kOut;
  const auto see = [&](double x) {
    const double lesser = x < best ? x : best;
    next = lesser > next ? lesser : next;
    best = x > best ? x : best;
  };
  for (int i = 0; i < kDoubles; ++i) see(first[i]), see(second[i]);
  for (; j < n; ++j) see(keys[j]);
  if (!two || n < 2) return best;
  return next > kLowest ? best + next : kLowest;
}

/// Index of the largest of n keys (a multiple of 8), the lowest one among equals; kOut is never chosen while others are left.
EITRI_INLINE int64_t take_largest(double* keys, int64_t n) {
  constexpr int kChains = 8 / kDoubles < 2 ? 2 : 8 / kDoubles;  // independent chains of compares
  D best[kChains];
  I index[kChains], here[kChains];
  for (int c = 0; c < kChains; ++c) {
    best[c] = set(kOut);
    index[c] = I{};
    here[c] = lane_numbers() + c * kDoubles;
  }
  int64_t j = 0;
  for (; j + kChains * kDoubles <= n; j += kChains * kDoubles)
    for (int c = 0; c < kChains; ++c) {
      const D x = load(keys + j + c * kDoubles);
      const I more = x > best[c];
      best[c] = more ? x : best[c];
      index[c] = more ? here[c] : index[c];
      here[c] += kChains * kDoubles;
    }
  for (; j < n; j += kDoubles) {  // at most one vector, when two chains read 16
    const D x = load(keys + j);
    const I more = x > best[0];
    best[0] = more ? x : best[0];
    index[0] = more ? here[0] : index[0];
    here[0] += kDoubles;
  }
  for (int c = 1; c < kChains; ++c) {
    const I more = (best[c] > best[0]) | ((best[c] == best[0]) & (index[c] < index[0]));
    best[0] = more ? best[c] : best[0];
    index[0] = more ? index[c] : index[0];
  }
  double top = best[0][0];
  int64_t at = index[0][0];
  for (int i = 1; i < kDoubles; ++i) {
    const double x = best[0][i];
    const int64_t j_x = index[0][i];
    const bool more = (x > top) | ((x == top) & (j_x < at));
    top = more ? x : top;
    at = more ? j_x : at;
  }
  keys[at] = kOut;
  return at;
}

/// Sets the keys of groups that are not kept to kOut.
EITRI_INLINE void keep_groups(const GatingTask& task, const GatingArrays& a) {
  const int64_t size = task.experts / task.groups, padded = GatingScratch::padded(task.groups);
  for (int64_t g = 0; g < padded; ++g) a.ranks[g] = g < task.groups ? group_rank(a.keys + g * size, size, task.bias != nullptr) : kOut;
  for (int64_t kept = 0; kept < task.topk_groups; ++kept) take_largest(a.ranks, padded);
  for (int64_t g = 0; g < task.groups; ++g) {
    if (a.ranks[g] == kOut) continue;  // taken
    for (int64_t j = g * size; j < (g + 1) * size; ++j) a.keys[j] = kOut;
  }
}

template <DType kType> void gate_typed(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch) {
  const GatingArrays a(task, scratch);
  const int64_t padded_k = GatingScratch::padded(task.top_k);
  // Renormalised softmax weights of unbiased choices need no sum over all experts: it cancels. It is kept where the
  // choice itself needs scores.
  const bool sum_needed = task.score == GatingScore::softmax && (task.bias != nullptr || !task.renormalize);
  for (int64_t t = begin; t < end; ++t) {
    load_logits<kType>(task, t, a);
    SoftmaxTerms terms;
    if (sum_needed) terms = softmax_terms(a);
    if (task.bias != nullptr) {
      score_all(task.score, terms, a.logits, a.experts, a.scores);
      for (int64_t j = 0; j < task.experts; ++j) {
        const double key = a.scores[j] + static_cast<double>(task.bias[j]);
        a.keys[j] = key >= kLowest ? key : kLowest;  // -inf or NaN
      }
      for (int64_t j = task.experts; j < a.experts; ++j) a.keys[j] = kOut;
    } else {
      for (int64_t j = 0; j < a.experts; j += kDoubles) store(a.keys + j, load(a.logits + j));
    }
    if (task.groups > 1) keep_groups(task, a);

    int32_t* ids = task.ids + t * task.ids_stride;
    const double* values = task.bias != nullptr ? a.scores : a.logits;
    for (int64_t s = 0; s < task.top_k; ++s) {
      const int64_t id = take_largest(a.keys, a.experts);
      ids[s] = static_cast<int32_t>(id);
      a.chosen[s] = values[id];
    }
    for (int64_t s = task.top_k; s < padded_k; ++s) a.chosen[s] = kOut;
    if (task.bias == nullptr) {
      if (task.score == GatingScore::softmax && !sum_needed) terms = {a.chosen[0], 1};
      score_all(task.score, terms, a.chosen, padded_k, a.chosen);
    }
    double sum = 1;
    if (task.renormalize) {
      sum = 0;
      for (int64_t s = 0; s < task.top_k; ++s) sum += a.chosen[s];
      if (sum == 0) sum = 1;  // every score is 0, and every weight
    }
    float* weights = task.weights + t * task.weights_stride;
    for (int64_t s = 0; s < task.top_k; ++s) weights[s] = static_cast<float>(a.chosen[s] / sum * static_cast<double>(task.scale));
  }
}

EITRI_INLINE void gate_any(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch) {
  switch (task.dtype) {
    case DType::f32: return gate_typed<DType::f32>(task, begin, end, scratch);
    case DType::bf16: return gate_typed<DType::bf16>(task, begin, end, scratch);
    case DType::f16: return gate_typed<DType::f16>(task, begin, end, scratch);
    default: return;  // refused by check
  }
}

}  // namespace eitri::EITRI_VEC
