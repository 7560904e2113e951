// The reference of moe_sort: a list of pairs for each expert, then the lists one after the other.
#include <algorithm>

#include "ops/moe_sort/moe_sort.h"

namespace eitri {

namespace {

/// Writes the values to a tensor and, unless null, to the oracle.
void put(const View& view, const std::vector<double>& values, Oracle* oracle) {
  const int64_t columns = view.rank == 2 ? view.shape[1] : 1;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (view.rank == 2) store(view, {at / columns, at % columns}, values[i]);
    else store(view, {at}, values[i]);
  }
  if (oracle != nullptr) oracle->push_back({.value = values, .bound = {}, .any = {}});
}

}  // namespace

void MoeSort::reference(const Args& args, Oracle* oracle) {
  const int64_t tokens = args.topk_ids.shape[0], top_k = args.topk_ids.shape[1], experts = args.experts;
  const auto padded = static_cast<size_t>(args.sorted_ids.shape[0]);
  int64_t considered = tokens;
  if (args.num_local_tokens.given()) considered = std::clamp<int64_t>(static_cast<int64_t>(load(args.num_local_tokens, {0})), 0, tokens);

  struct Pair {
    int64_t token, slot;
  };
  std::vector<std::vector<Pair>> pairs(static_cast<size_t>(experts));
  for (int64_t t = 0; t < considered; ++t)
    for (int64_t s = 0; s < top_k; ++s) {
      const auto e = static_cast<int64_t>(load(args.topk_ids, {t, s}));
      if (e >= 0 && e < experts) pairs[static_cast<size_t>(e)].push_back({t, s});
    }

  std::vector<double> ids, weights, expert_ids;
  std::vector<double> reverse(static_cast<size_t>(tokens * top_k), -1);
  const auto padding = static_cast<double>((top_k << kSortedSlotShift) + tokens);
  int64_t local = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (args.expert_mask.given() && load(args.expert_mask, {e}) == 0) continue;
    for (const Pair& pair : pairs[static_cast<size_t>(e)]) {
      reverse[static_cast<size_t>(pair.token * top_k + pair.slot)] = static_cast<double>(ids.size());
      ids.push_back(static_cast<double>((pair.slot << kSortedSlotShift) + pair.token));
      weights.push_back(load(args.topk_weights, {pair.token, pair.slot}));
    }
    while (ids.size() % static_cast<size_t>(args.block) != 0) {
      ids.push_back(padding);
      weights.push_back(0);
    }
    expert_ids.resize(ids.size() / static_cast<size_t>(args.block), static_cast<double>(local));
    ++local;
  }
  const auto used = static_cast<double>(ids.size());
  ids.resize(padded, padding);
  weights.resize(padded, 0);
  expert_ids.resize(static_cast<size_t>(args.sorted_expert_ids.shape[0]), -1);

  if (oracle != nullptr) oracle->clear();
  put(args.sorted_ids, ids, oracle);
  put(args.sorted_weights, weights, oracle);
  put(args.sorted_expert_ids, expert_ids, oracle);
  put(args.num_valid, {used, static_cast<double>(considered)}, oracle);
  if (args.reverse.given()) put(args.reverse, reverse, oracle);
}

}  // namespace eitri
