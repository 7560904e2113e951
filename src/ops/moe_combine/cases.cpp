// Problems of moe_combine, and how their tensors are made.
#include <algorithm>
#include <cmath>

#include "ops/moe_combine/moe_combine.h"

namespace eitri {

Cases<MoeCombine::Problem> MoeCombine::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, Problem p) { out.test.push_back({p, note}); };
  add("B15 no tokens", {.tokens = 0, .hidden = 64});
  add("no columns", {.tokens = 3, .hidden = 0});
  add("no slots: zeros", {.tokens = 3, .hidden = 17, .top_k = 0});
  add("no slots: the shared rows", {.tokens = 3, .hidden = 17, .top_k = 0, .shared = true});
  add("one element", {.tokens = 1, .hidden = 1, .top_k = 1});
  for (int64_t tile : {8, 16, 32, 64, 128})
    for (int64_t hidden : {tile - 1, tile, tile + 1})
      add("around a vector", {.tokens = 3, .hidden = hidden, .top_k = 2, .weights = true, .shared = true});
  for (DType y : {DType::f32, DType::bf16, DType::f16})
    for (DType o : {DType::f32, DType::bf16, DType::f16}) {
      add("dtypes", {.tokens = 7, .hidden = 251, .top_k = 5, .y = y, .out = o});
      add("dtypes, weights and shared", {.tokens = 7, .hidden = 251, .top_k = 5, .y = y, .out = o, .weights = true, .shared = true});
    }
  add("odd hidden size", {.tokens = 11, .hidden = 769, .top_k = 3, .weights = true});
  add("704 columns", {.tokens = 11, .hidden = 704, .top_k = 6, .weights = true});
  add("pieces of a row", {.tokens = 1, .hidden = 7168, .top_k = 8, .weights = true});
  add("a piece and one column", {.tokens = 2, .hidden = 1025, .top_k = 8, .weights = true, .shared = true});
  add("many tokens", {.tokens = 513, .hidden = 320, .top_k = 4, .weights = true});
  for (int64_t tokens : {1, 5, 64})
    add("local tokens", {.tokens = tokens, .hidden = 1056, .top_k = 3, .weights = true, .shared = true, .local = true});
  add("local tokens, no slots", {.tokens = 3, .hidden = 17, .top_k = 0, .shared = true, .local = true});
  add("many slots", {.tokens = 2, .hidden = 33, .top_k = 127, .weights = true});
  for (int64_t tokens : {1, 64, 1024}) {
    out.bench.push_back({{.tokens = tokens, .hidden = 2048, .top_k = 8, .weights = true}, "Qwen3-30B-A3B"});
    out.bench.push_back({{.tokens = tokens, .hidden = 7168, .top_k = 8, .weights = true}, "DeepSeek-V3"});
  }
  return out;
}

MoeCombine::Args MoeCombine::make(const Problem& p, Maker& maker) {
  Args args;
  const int64_t rows = std::max<int64_t>(1, p.tokens * p.top_k + p.tokens);  // some rows belong to no slot
  args.y = maker.input("y", p.y, {rows, p.hidden}, Fill::normal);
  args.reverse = maker.input("reverse", DType::i32, {p.tokens, p.top_k}, Fill::zero);
  auto& rng = maker.rng();
  for (int64_t t = 0; t < p.tokens; ++t)
    for (int64_t s = 0; s < p.top_k; ++s) {
      const uint64_t dice = rng() % 16;  // 1 in 16 has no row, 1 in 16 an index that is out of range
      const double r = dice == 0 ? -1 : dice == 1 ? static_cast<double>(rows) : static_cast<double>(rng() % static_cast<uint64_t>(rows));
      store(args.reverse, {t, s}, r);
    }
  if (p.weights) args.weights = maker.input("weights", DType::f32, {p.tokens, p.top_k}, Fill::probability);
  if (p.shared) args.shared = maker.input("shared", p.y, {p.tokens, p.hidden}, Fill::normal);
  if (p.local) {
    args.num_local_tokens = maker.dense("num_local_tokens", DType::i32, {1}, Fill::zero);
    store(args.num_local_tokens, {0}, std::ceil(static_cast<double>(p.tokens) * 0.6));
  }
  args.out = maker.output("out", p.out, {p.tokens, p.hidden});
  return args;
}

}  // namespace eitri
