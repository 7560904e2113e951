// Problems of moe_sort, and how their tensors are made.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/moe_sort/moe_sort.h"

namespace eitri {

Cases<MoeSort::Problem> MoeSort::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, Problem p) { out.test.push_back({p, note}); };
  add("B15 no tokens", {.tokens = 0, .experts = 8, .top_k = 2, .reverse = true});
  add("no slots", {.tokens = 3, .experts = 8, .top_k = 0, .reverse = true});
  add("no experts", {.tokens = 3, .experts = 0, .top_k = 0});
  add("one of everything", {.tokens = 1, .experts = 1, .top_k = 1, .block = 1, .reverse = true});
  add("B17 few experts", {.tokens = 9, .experts = 4, .top_k = 3, .block = 4, .reverse = true});
  add("B18 experts no multiple of the block", {.tokens = 37, .experts = 5, .top_k = 3, .block = 4, .reverse = true});
  add("every expert chosen", {.tokens = 13, .experts = 5, .top_k = 5, .block = 3, .reverse = true});
  add("one expert gets all", {.tokens = 65, .experts = 1, .top_k = 1, .block = 32, .reverse = true});
  for (int64_t block : {1, 8, 16, 32, 64})
    for (int64_t tokens : {block - 1, block, block + 1})
      if (tokens > 0) add("around a block", {.tokens = tokens, .experts = 3, .top_k = 1, .block = block, .reverse = true});
  add("decode", {.tokens = 1, .experts = 256, .top_k = 8});
  add("decode, reverse", {.tokens = 1, .experts = 128, .top_k = 8, .reverse = true});
  for (bool local : {false, true}) {
    add("expert mask", {.tokens = 61, .experts = 33, .top_k = 4, .block = 16, .mask = true, .local = local, .reverse = true});
    add("no mask", {.tokens = 61, .experts = 33, .top_k = 4, .block = 16, .local = local, .reverse = true});
    add("many tokens", {.tokens = 4099, .experts = 64, .top_k = 6, .mask = true, .local = local, .reverse = true});
  }
  add("many slots", {.tokens = 5, .experts = 300, .top_k = 127, .block = 7, .reverse = true});
  for (int64_t tokens : {1, 64, 1024, 16384}) {
    out.bench.push_back({{.tokens = tokens, .experts = 128, .top_k = 8, .reverse = true}, "Qwen3-30B-A3B"});
    out.bench.push_back({{.tokens = tokens, .experts = 256, .top_k = 8, .reverse = true}, "DeepSeek-V3"});
  }
  return out;
}

namespace {

/// Distinct experts in each row; then one row in eight gets an id of -1, of `experts`, or a repeated one. `skew`: of MakerOptions.
void fill_ids(const View& ids, int64_t experts, double skew, std::mt19937_64& rng) {
  const int64_t tokens = ids.shape[0], top_k = ids.shape[1];
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> rate(order.size());  // by expert
  if (skew > 0) std::shuffle(order.begin(), order.end(), rng);
  for (size_t place = 0; place < order.size(); ++place)
    rate[static_cast<size_t>(order[place])] = std::pow(static_cast<double>(place + 1), -skew);
  std::vector<double> clock(order.size());
  for (int64_t t = 0; t < tokens; ++t) {
    if (skew > 0) {
      // Exponential clocks at the rates of the loads: the first to ring are a draw by load without repeats.
      for (size_t e = 0; e < clock.size(); ++e) clock[e] = -std::log1p(-static_cast<double>(rng() >> 11) * 0x1p-53) / rate[e];
      std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(std::min(top_k, experts)), {},
                                [&](int64_t e) { return clock[static_cast<size_t>(e)]; });
    }
    for (int64_t s = 0; s < top_k; ++s) {
      if (skew > 0) {
        store(ids, {t, s}, static_cast<double>(order[static_cast<size_t>(s)]));
        continue;
      }
      const auto other = static_cast<size_t>(s) + rng() % static_cast<uint64_t>(experts - s);
      std::swap(order[static_cast<size_t>(s)], order[other]);
      store(ids, {t, s}, static_cast<double>(order[static_cast<size_t>(s)]));
    }
    if (top_k == 0) continue;
    const auto slot = static_cast<int64_t>(rng() % static_cast<uint64_t>(top_k));
    const uint64_t dice = rng() % 24;
    if (dice == 0) store(ids, {t, slot}, -1);
    if (dice == 1) store(ids, {t, slot}, static_cast<double>(experts));
    if (dice == 2) store(ids, {t, slot}, load(ids, {t, 0}));
  }
}

}  // namespace

MoeSort::Args MoeSort::make(const Problem& p, Maker& maker) {
  Args args;
  auto& rng = maker.rng();
  args.experts = p.experts;
  args.block = p.block;
  args.topk_ids = maker.input("topk_ids", DType::i32, {p.tokens, p.top_k}, Fill::zero);
  fill_ids(args.topk_ids, p.experts, maker.options().skew, rng);
  args.topk_weights = maker.input("topk_weights", DType::f32, {p.tokens, p.top_k}, Fill::probability);
  if (p.mask) {
    args.expert_mask = maker.dense("expert_mask", DType::i32, {p.experts}, Fill::zero);
    for (int64_t e = 0; e < p.experts; ++e) store(args.expert_mask, {e}, static_cast<double>(rng() % 2));
  }
  if (p.local) {
    args.num_local_tokens = maker.dense("num_local_tokens", DType::i32, {1}, Fill::zero);
    store(args.num_local_tokens, {0}, static_cast<double>(rng() % static_cast<uint64_t>(p.tokens + 2)));  // tokens + 1: all
  }
  const int64_t padded = max_padded(p.tokens, p.top_k, p.experts, p.block);
  args.sorted_ids = maker.output("sorted_ids", DType::i32, {padded});
  args.sorted_weights = maker.output("sorted_weights", DType::f32, {padded});
  args.sorted_expert_ids = maker.output("sorted_expert_ids", DType::i32, {max_blocks(padded, p.block)});
  args.num_valid = maker.output("num_valid", DType::i32, {2});
  if (p.reverse) args.reverse = maker.output("reverse", DType::i32, {p.tokens, p.top_k});
  return args;
}

}  // namespace eitri
