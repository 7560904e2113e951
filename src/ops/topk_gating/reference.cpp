// The reference of topk_gating: scores, a stable sort, weights, in double with the C library's functions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/topk_gating/topk_gating.h"

namespace eitri {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double clean(double x) { return std::isnan(x) ? -kInfinity : x; }
double power(double x) { return x < -708 ? 0 : std::exp(x); }

std::vector<double> scores_of(const std::vector<double>& logits, Score score) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out;
  double sum = 0;
  for (double l : logits) {
    double value = 0;
    if (score == Score::softmax) value = l == max ? 1 : power(l - max);
    if (score == Score::sigmoid) value = l < 0 ? power(l) / (1 + power(l)) : 1 / (1 + power(-l));
    if (score == Score::sqrt_softplus) value = std::sqrt(std::max(l, 0.0) + std::log1p(power(-std::fabs(l))));
    out.push_back(value);
    sum += value;
  }
  if (score == Score::softmax)
    for (double& value : out) value /= sum;
  return out;
}

/// Indices by descending value, equal ones ascending.
std::vector<size_t> ranking(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

/// Two biased scores that double arithmetic cannot order: neighbours closer than its error of a few ulp.
bool too_close(double a, double b) { return a != b && std::fabs(a - b) <= 1e-14 * (1 + std::fabs(a) + std::fabs(b)); }

struct Choice {
  std::vector<size_t> ids;
  std::vector<bool> open;  // per slot: the order of this slot and a neighbour is below double's error
};

/// `exact`: keys are logits, not computed.
Choice choose(const std::vector<double>& keys, const TopkGatingArgs& args, size_t top_k, bool exact) {
  const size_t experts = keys.size(), groups = static_cast<size_t>(args.groups), size = experts / groups;
  Choice out;
  std::vector<double> ranks;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> group(keys.begin() + static_cast<int64_t>(g * size), keys.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(group.begin(), group.end(), std::greater<>());
    ranks.push_back(clean(args.correction_bias.given() && size > 1 ? group[0] + group[1] : group[0]));
  }
  const std::vector<size_t> group_order = ranking(ranks);
  std::vector<bool> kept(groups);
  const auto keep = static_cast<size_t>(args.topk_groups);
  for (size_t i = 0; i < keep; ++i) kept[group_order[i]] = true;
  const bool groups_open = !exact && keep < groups && too_close(ranks[group_order[keep - 1]], ranks[group_order[keep]]);

  std::vector<size_t> order;
  for (size_t e : ranking(keys))
    if (kept[e / size]) order.push_back(e);
  for (size_t s = 0; s < top_k; ++s) {
    const auto close_to = [&](size_t other) { return other < order.size() && too_close(keys[order[s]], keys[order[other]]); };
    out.ids.push_back(order[s]);
    out.open.push_back(groups_open || (!exact && (close_to(s + 1) || (s > 0 && close_to(s - 1)))));
  }
  return out;
}

}  // namespace

void TopkGating::reference(const Args& args, Oracle* oracle) {
  const int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const auto top_k = static_cast<size_t>(args.ids.shape[1]);
  const bool biased = args.correction_bias.given();
  Expected weights, ids;
  for (int64_t t = 0; t < tokens && top_k > 0; ++t) {
    std::vector<double> logits;
    for (int64_t e = 0; e < experts; ++e)
      logits.push_back(std::min<double>(clean(eitri::load(args.logits, {t, e})), std::numeric_limits<float>::max()));
    const std::vector<double> scores = scores_of(logits, args.score);
    std::vector<double> keys = logits;
    if (biased)
      for (int64_t e = 0; e < experts; ++e)
        keys[static_cast<size_t>(e)] = clean(scores[static_cast<size_t>(e)] + eitri::load(args.correction_bias, {e}));

    const Choice choice = choose(keys, args, top_k, !biased);
    double sum = 0;
    for (size_t id : choice.ids) sum += scores[id];
    if (args.renormalize == Renormalize::no || sum == 0) sum = 1;
    for (size_t s = 0; s < top_k; ++s) {
      const auto slot = static_cast<int64_t>(s);
      const double weight = scores[choice.ids[s]] / sum * static_cast<double>(args.scale);
      const auto id = static_cast<double>(choice.ids[s]);
      eitri::store(args.weights, {t, slot}, weight);
      eitri::store(args.ids, {t, slot}, id);
      weights.value.push_back(weight);
      weights.bound.push_back(0);
      weights.any.push_back(choice.open[s]);
      ids.value.push_back(id);
      ids.any.push_back(choice.open[s]);
    }
  }
  if (oracle != nullptr) *oracle = {std::move(weights), std::move(ids)};
}

}  // namespace eitri
