#include "cli/prebuild_requests.h"

#include "cli/tune_problems.h"
#include "ops/ops.h"
#include "ops/plain_weights.h"

namespace eitri::cli {

namespace {

template <class Op> void add_cases_of(PrebuildRequests& list, CasesOf which) {
  const auto cases = Op::cases();
  for (const auto& one : cases.bench) list.add<Op>(with_plain_weights(one.problem));
  if (which == CasesOf::tests_too)
    for (const auto& one : cases.test) list.add<Op>(with_plain_weights(one.problem));
}

}  // namespace

void add_cases(PrebuildRequests& list, std::string_view op, CasesOf which) {
  const std::string_view name = find_op(op).name;  // throws for an unknown one
  for_each_op([&]<class Op>() {
    if (name == Op::name) add_cases_of<Op>(list, which);
  });
}

void add_all_cases(PrebuildRequests& list, CasesOf which) {
  for_each_op([&]<class Op>() { add_cases_of<Op>(list, which); });
}

void add_model(PrebuildRequests& list, const checkpoint::MoeModel& model) {
  using enum DType;
  struct Codes {
    DType dtype;
    Quant quant;
  };
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    for (const DType residual : {none, bf16}) {
      list.add<RmsNorm>({.tokens = tokens, .hidden = model.hidden, .residual = residual});
      for (const Codes codes : {Codes{f8e4m3, Quant::per_token}, {f8e4m3, Quant::per_1x128}, {i8, Quant::per_token}})
        list.add<RmsNorm>({.tokens = tokens, .hidden = model.hidden, .residual = residual, .out = codes.dtype, .quant = codes.quant});
    }
    for (const int64_t inter : {model.inter, model.shared_inter}) {
      if (inter == 0) continue;
      const int64_t rows = inter == model.inter ? tokens * model.top_k : tokens;
      list.add<Activation>(
          {.rows = rows, .inter = inter, .kind = model.activation.kind, .gate = model.gate, .limited = model.activation.limit != 0});
      list.add<Quantize>({.rows = rows, .cols = inter, .x = f32});
      list.add<Quantize>({.rows = rows, .cols = inter, .x = bf16});
    }
    list.add<Quantize>({.rows = tokens, .cols = model.hidden, .x = bf16});
    list.add<TopkGating>({.tokens = tokens,
                          .experts = model.experts,
                          .top_k = model.top_k,
                          .groups = model.router.groups,
                          .topk_groups = model.router.topk_groups,
                          .score = model.router.score,
                          .renormalize = model.router.renormalize,
                          .bias = model.router.correction_bias});
    for (const DType w : {bf16, i8}) list.add<FusedMoe>(with_plain_weights(block_of(model, tokens, w)));
  }
}

}  // namespace eitri::cli
