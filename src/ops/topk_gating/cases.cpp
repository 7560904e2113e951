// Problems of topk_gating, and how their tensors are made.
#include <cmath>
#include <limits>

#include "ops/topk_gating/topk_gating.h"

namespace eitri {

Cases<TopkGating::Problem> TopkGating::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, Problem p) { out.test.push_back({p, note}); };
  add("B15 no tokens", {.tokens = 0, .experts = 16, .top_k = 2});
  add("no slots", {.tokens = 3, .experts = 16, .top_k = 0});
  add("no experts", {.tokens = 3, .experts = 0, .top_k = 0});
  add("one of everything", {.tokens = 1, .experts = 1, .top_k = 1, .renormalize = Renormalize::yes});
  for (Score score : {Score::softmax, Score::sigmoid, Score::sqrt_softplus})
    for (Renormalize renormalize : {Renormalize::no, Renormalize::yes})
      for (bool bias : {false, true}) {
        Problem p{.tokens = 37, .experts = 64, .top_k = 6, .score = score, .renormalize = renormalize, .bias = bias};
        add("scores", p);
        for (DType logits : {DType::bf16, DType::f16}) {
          p.logits = logits;
          if (bias && renormalize == Renormalize::no) add("dtypes", p);
        }
        p.logits = DType::f32;
        p.tokens = 9;
        p.experts = p.top_k = 23;
        add("every expert", p);
        p.tokens = 41;
        p.experts = 96;
        p.top_k = 7;
        p.groups = 8;
        p.topk_groups = 3;
        add("groups", p);
      }
  for (int64_t tile : {8, 16, 32, 64})
    for (int64_t experts : {tile - 1, tile, tile + 1})
      add("around a vector", {.tokens = 5, .experts = experts, .top_k = 3, .score = Score::sigmoid, .bias = true});
  Problem grouped{.tokens = 19, .experts = 7, .top_k = 3, .groups = 7, .topk_groups = 4, .score = Score::sigmoid, .bias = true};
  add("B21 groups of one expert", grouped);
  grouped.experts = 35;
  grouped.top_k = grouped.groups = 5;
  grouped.topk_groups = 2;
  add("B21 odd groups", grouped);
  add("B22 more than 256 experts", {.tokens = 17, .experts = 512, .top_k = 10, .logits = DType::bf16});
  add("1024 experts", {.tokens = 7, .experts = 1024, .top_k = 32, .renormalize = Renormalize::yes});
  add("1031 experts", {.tokens = 3, .experts = 1031, .top_k = 13, .score = Score::sigmoid, .bias = true});
  Problem deepseek{.tokens = 67, .experts = 256, .top_k = 8, .groups = 8, .topk_groups = 4};
  deepseek.score = Score::sigmoid;
  deepseek.renormalize = Renormalize::yes;
  deepseek.bias = true;
  add("DeepSeek-V3", deepseek);
  add("many tokens", {.tokens = 1021, .experts = 128, .top_k = 8, .logits = DType::bf16, .renormalize = Renormalize::yes});
  for (int64_t tokens : {1, 64, 4096}) {
    out.bench.push_back({{.tokens = tokens, .experts = 128, .top_k = 8, .renormalize = Renormalize::yes}, "Qwen3-30B-A3B"});
    deepseek.tokens = tokens;
    out.bench.push_back({deepseek, "DeepSeek-V3"});
  }
  return out;
}

namespace {

/// Rows on which routers went wrong: all NaN, all -inf, all equal, some infinite.
void put_special_rows(const View& logits) {
  if (logits.shape[0] < 6) return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int64_t e = 0; e < logits.shape[1]; ++e) {
    store(logits, {0, e}, std::numeric_limits<double>::quiet_NaN());
    store(logits, {1, e}, -kInfinity);
    store(logits, {2, e}, 0.25);
    if (e % 3 == 1) store(logits, {3, e}, std::numeric_limits<double>::quiet_NaN());
    if (e % 3 == 2) store(logits, {3, e}, -kInfinity);
    if (e % 5 == 4) store(logits, {4, e}, kInfinity);
    store(logits, {5, e}, load(logits, {5, e}) * 300);  // far beyond where fp32 powers underflow
  }
}

}  // namespace

TopkGating::Args TopkGating::make(const Problem& p, Maker& maker) {
  Args args;
  args.logits = maker.input("logits", p.logits, {p.tokens, p.experts}, Fill::normal);
  if (maker.options().special_rows) put_special_rows(args.logits);
  if (p.bias) {
    args.correction_bias = maker.dense("correction_bias", DType::f32, {p.experts}, Fill::normal);
    for (int64_t e = 0; e < p.experts; e += 11) store(args.correction_bias, {e}, -2 * std::fabs(load(args.correction_bias, {e})));
  }
  args.weights = maker.output("weights", DType::f32, {p.tokens, p.top_k});
  args.ids = maker.output("ids", DType::i32, {p.tokens, p.top_k});
  args.score = p.score;
  args.renormalize = p.renormalize;
  args.scale = p.groups > 1 ? 2.5f : 1.0f;
  args.groups = p.groups;
  args.topk_groups = p.topk_groups;
  return args;
}

}  // namespace eitri
