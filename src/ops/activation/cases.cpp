// Problems of activation, and how their tensors are made.
#include <cmath>
#include <limits>

#include "ops/activation/activation.h"
#include "ops/quantize/quantize.h"

namespace eitri {

namespace {

using Kind = ActivationKind;

/// Every pair of kind and gate layout that check lets through.
template <class F> void for_each_form(F&& f) {
  for (Kind kind : {Kind::none, Kind::relu, Kind::silu, Kind::gelu, Kind::gelu_tanh}) f(kind, GateLayout::none);
  for (Kind kind : {Kind::silu, Kind::gelu, Kind::gelu_tanh, Kind::swiglu, Kind::situv2})
    for (GateLayout gate : {GateLayout::separated, GateLayout::interleaved}) f(kind, gate);
}

}  // namespace

Cases<Activation::Problem> Activation::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, Problem p) { out.test.push_back({p, note}); };
  for (DType type : {DType::bf16, DType::i8}) {
    add("B15 no tokens", {.rows = 0, .inter = 64, .out = type});
    add("no columns", {.rows = 3, .inter = 0, .out = type});
    add("one element", {.rows = 1, .inter = 1, .out = type});
  }
  for_each_form([&](Kind kind, GateLayout gate) {
    for (DType x : {DType::f32, DType::bf16, DType::f16})
      for (DType o : {DType::f32, DType::bf16, DType::f16, DType::i8})
        add("forms and dtypes", {.rows = 7, .inter = 67, .x = x, .out = o, .kind = kind, .gate = gate});
    const bool limits = kind == Kind::silu || kind == Kind::swiglu;
    if (limits) add("limited", {.rows = 7, .inter = 131, .x = DType::f32, .out = DType::f32, .kind = kind, .gate = gate, .limited = true});
    if (limits) add("limited", {.rows = 7, .inter = 131, .out = DType::i8, .kind = kind, .gate = gate, .limited = true});
    add("sorted rows", {.rows = 96, .inter = 37, .kind = kind, .gate = gate, .sorted = true});
    add("sorted rows", {.rows = 96, .inter = 37, .out = DType::i8, .kind = kind, .gate = gate, .sorted = true});
  });
  for (int64_t tile : {8, 16, 32, 64})
    for (int64_t inter : {tile - 1, tile, tile + 1})
      for (GateLayout gate : {GateLayout::none, GateLayout::separated, GateLayout::interleaved})
        for (DType o : {DType::bf16, DType::i8}) add("around a vector", {.rows = 5, .inter = inter, .out = o, .gate = gate});
  add("odd hidden size", {.rows = 7, .inter = 769, .x = DType::f16, .out = DType::f16});
  add("B14 704 of 768 columns", {.rows = 17, .inter = 704, .kind = Kind::gelu_tanh});
  add("more rows than threads", {.rows = 1031, .inter = 97, .out = DType::i8});
  add("wide row", {.rows = 2, .inter = 14336, .out = DType::i8});
  for (int64_t rows : {1, 64, 4096}) {
    out.bench.push_back({{.rows = rows, .inter = 768}, "Qwen3-30B-A3B"});
    out.bench.push_back({{.rows = rows, .inter = 2048, .out = DType::i8}, "DeepSeek-V3"});
    out.bench.push_back({{.rows = rows, .inter = 2880, .kind = Kind::swiglu, .gate = GateLayout::interleaved, .limited = true}, "gpt-oss"});
  }
  return out;
}

Activation::Args Activation::make(const Problem& p, Maker& maker) {
  Args args;
  const int64_t columns = p.gate == GateLayout::none ? p.inter : 2 * p.inter;
  args.x = maker.input("x", p.x, {p.rows, columns}, Fill::normal);
  if (maker.options().special_rows && p.rows >= 5 && columns >= 2) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < columns; ++j) {
      store(args.x, {1, j}, 0);                          // B26
      store(args.x, {2, j}, load(args.x, {2, j}) * 40);  // the tails of the functions
    }
    store(args.x, {3, columns / 2}, std::numeric_limits<double>::quiet_NaN());  // B31
    store(args.x, {3, 0}, kInfinity);
    store(args.x, {4, columns - 1}, -kInfinity);
  }
  const bool quantised = p.out == DType::i8;
  args.out = maker.output("out", p.out, {p.rows, p.inter});
  if (quantised) args.scale = maker.output("scale", DType::f32, {p.rows});
  args.activation.kind = p.kind;
  args.activation.limit = p.limited ? 0.75f : 0;
  args.gate = p.gate;
  if (p.sorted) make_sorted(p.rows, maker, args.sorted_ids, args.num_valid, args.tokens);
  return args;
}

}  // namespace eitri
