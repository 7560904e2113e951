// Problems of rmsnorm, and how their tensors are made.
#include <cmath>
#include <limits>

#include "ops/rmsnorm/rmsnorm.h"

namespace eitri {

namespace {

using enum DType;

struct Form {
  DType x, weight, residual;
};
/// Every triple that check lets through, some of f32 twice.
template <class F> void for_each_form(F&& f) {
  for (const DType x : {f32, bf16, f16})
    for (const DType weight : {none, f32, x})
      for (const DType residual : {none, f32, x}) f(Form{x, weight, residual});
}

}  // namespace

Cases<RmsNorm::Problem> RmsNorm::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, Problem p) { out.test.push_back({p, note}); };
  for (const DType type : {bf16, i8, f8e4m3}) {
    const Quant quant = type == bf16 ? Quant::none : Quant::per_token;
    add("B15 no tokens", {.tokens = 0, .hidden = 64, .residual = bf16, .out = type, .quant = quant});
    add("no columns", {.tokens = 3, .hidden = 0, .out = type, .quant = quant});
    add("one element", {.tokens = 1, .hidden = 1, .residual = bf16, .out = type, .quant = quant});
  }
  add("no columns in groups", {.tokens = 3, .hidden = 0, .out = i8, .quant = Quant::per_1x128});
  for_each_form([&](const Form& form) {
    for (const DType o : {f32, bf16, f16, i8, f8e4m3, f8e4m3fnuz})
      add("forms and dtypes", {.tokens = 5,
                               .hidden = 67,
                               .x = form.x,
                               .weight = form.weight,
                               .residual = form.residual,
                               .out = o,
                               .quant = o == f32 || o == bf16 || o == f16 ? Quant::none : Quant::per_token});
  });
  for (const DType x : {f32, bf16, f16}) {
    for (const DType o : {x, i8, f8e4m3, f8e4m3fnuz})
      for (const DType weight : {x, f32})
        add("Gemma", {.tokens = 5,
                      .hidden = 257,
                      .x = x,
                      .weight = weight,
                      .out = o,
                      .quant = o == x ? Quant::none : Quant::per_token,
                      .norm_weight = NormWeight::plus_one});
    for (const int64_t hidden : {1, 127, 128, 129, 384, 515})
      for (const DType o : {i8, f8e4m3, f8e4m3fnuz})
        add("groups of 128", {.tokens = 6,
                              .hidden = hidden,
                              .x = x,
                              .weight = x,
                              .residual = hidden == 384 ? x : none,
                              .out = o,
                              .quant = Quant::per_1x128});
  }
  for (int64_t hidden = 1; hidden <= 130; ++hidden) add("B33", {.tokens = 3, .hidden = hidden, .x = f16, .weight = f16, .out = f16});
  for (const int64_t hidden : {767, 768, 769, 3584, 16384})
    for (const DType x : {f16, bf16, f32}) add("B33", {.tokens = 7, .hidden = hidden, .x = x, .weight = x, .out = x});
  add("B33 quantised", {.tokens = 7, .hidden = 769, .x = f16, .weight = f16, .residual = f16, .out = i8, .quant = Quant::per_1x128});
  add("prime extents", {.tokens = 13, .hidden = 251, .residual = bf16});
  add("more rows than threads", {.tokens = 1031, .hidden = 97, .residual = bf16, .out = i8, .quant = Quant::per_token});
  add("wide row", {.tokens = 2, .hidden = 70001, .residual = bf16});
  add("wide row", {.tokens = 2, .hidden = 70001, .out = f8e4m3, .quant = Quant::per_token});
  for (const int64_t tokens : {1, 64, 4096}) {
    out.bench.push_back({{.tokens = tokens, .hidden = 2048, .residual = bf16}, "Qwen3-30B-A3B"});
    out.bench.push_back({{.tokens = tokens, .hidden = 7168, .residual = bf16, .out = f8e4m3, .quant = Quant::per_1x128}, "DeepSeek-V3"});
    out.bench.push_back({{.tokens = tokens, .hidden = 4096, .residual = bf16, .out = i8, .quant = Quant::per_token}, "Llama-8B, i8"});
  }
  return out;
}

RmsNorm::Args RmsNorm::make(const Problem& p, Maker& maker) {
  Args args;
  args.x = maker.input("x", p.x, {p.tokens, p.hidden}, Fill::normal);
  if (p.weight != none) args.weight = maker.input("weight", p.weight, {p.hidden}, Fill::normal);
  if (p.residual != none) {
    args.residual = maker.input("residual", p.residual, {p.tokens, p.hidden}, Fill::normal);
    args.residual_out = maker.output("residual_out", p.residual, {p.tokens, p.hidden});
  }
  if (maker.options().special_rows && p.tokens >= 5 && p.hidden >= 2) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < p.hidden; ++j) {
      store(args.x, {1, j}, 0);  // B26
      if (p.residual != none) store(args.residual, {1, j}, 0);
      store(args.x, {2, j}, load(args.x, {2, j}) * 100);
    }
    store(args.x, {3, p.hidden / 2}, std::numeric_limits<double>::quiet_NaN());  // B31
    store(args.x, {4, p.hidden - 1}, -kInfinity);
  }
  args.out = maker.output("out", p.out, {p.tokens, p.hidden});
  if (p.quant == Quant::per_token) args.scale = maker.output("scale", f32, {p.tokens});
  if (p.quant == Quant::per_1x128) args.scale = maker.output("scale", f32, {p.tokens, (p.hidden + 127) / 128});
  args.norm_weight = p.norm_weight;
  args.quant = p.quant;
  return args;
}

}  // namespace eitri
