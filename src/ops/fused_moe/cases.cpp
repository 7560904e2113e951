// Problems of tests and benchmarks, and how their tensors are made.
#include <algorithm>

#include "base/view.h"
#include "ops/fused_moe/fused_moe.h"
#include "ops/gemm/library.h"
#include "ops/grouped_gemm/make_inputs.h"

namespace eitri {

namespace {

using Problem = FusedMoe::Problem;

constexpr int64_t kBenchBytes = int64_t{20} << 30;

class TestCases {
 public:
  template <class Change> void add(const char* note, Change&& change) {
    Problem p{.tokens = 7,
              .hidden = 64,
              .inter = 48,
              .local_experts = 6,
              .experts = 6,
              .top_k = 2,
              .x = DType::bf16,
              .w = DType::bf16,
              .out = DType::bf16,
              .a_quant = Quant::none,
              .w_quant = Quant::none,
              .w1_format = WeightFormat::panel32,
              .w2_format = WeightFormat::panel32,
              .activation = ActivationKind::silu,
              .gate = GateLayout::separated,
              .weight_stage = WeightStage::second,
              .bias1 = false,
              .bias2 = false,
              .expert_mask = false,
              .local_tokens = false,
              .shared_inter = 0,
              .shared_w1_format = WeightFormat::panel32,
              .shared_w2_format = WeightFormat::panel32};
    change(p);
    if (p.w == DType::i8 && p.w_quant == Quant::none) p.a_quant = p.w_quant = Quant::per_token;
    if (!p.expert_mask) p.experts = p.local_experts;
    list_.push_back({p, note});
  }
  std::vector<Case<Problem>> take() { return std::move(list_); }

 private:
  std::vector<Case<Problem>> list_;
};

void set_format(Problem& p, WeightFormat format) {
  p.w1_format = p.w2_format = format;
  if (p.shared_inter > 0) p.shared_w1_format = p.shared_w2_format = format;
}

std::vector<Case<Problem>> test_cases() {
  TestCases cases;
  const auto add = [&](const char* note, auto&& change) { cases.add(note, change); };
  struct Types {
    DType x, w, out;
  };
  constexpr Types kTypes[] = {{DType::bf16, DType::bf16, DType::bf16}, {DType::f16, DType::f16, DType::f16},
                              {DType::bf16, DType::bf16, DType::f32},  {DType::bf16, DType::i8, DType::bf16},
                              {DType::f16, DType::i8, DType::f16},     {DType::i8, DType::i8, DType::bf16}};
  for (const Types& types : kTypes)
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      add("types and formats", [&](Problem& p) {
        p.x = types.x, p.w = types.w, p.out = types.out;
        p.shared_inter = format == WeightFormat::strided ? 33 : 0;
        set_format(p, format);
      });
  for (const DType w : {DType::bf16, DType::i8}) {
    for (const ActivationKind kind :
         {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu, ActivationKind::situv2})
      for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved})
        add("gated activations", [&](Problem& p) { p.w = w, p.activation = kind, p.gate = gate, p.bias1 = p.bias2 = true; });
    for (const ActivationKind kind :
         {ActivationKind::none, ActivationKind::relu, ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh})
      add("activations without a gate", [&](Problem& p) { p.w = w, p.activation = kind, p.gate = GateLayout::none, p.bias1 = true; });
    add("Llama 4: weight before the activation",
        [&](Problem& p) { p.w = w, p.weight_stage = WeightStage::first, p.top_k = 1, p.bias1 = true, p.shared_inter = 40; });
    add("B18 expert parallel", [&](Problem& p) { p.w = w, p.expert_mask = true, p.experts = 13, p.top_k = 4; });
    add("padded batch", [&](Problem& p) { p.w = w, p.local_tokens = true, p.tokens = 16, p.shared_inter = 32; });
    add("all options", [&](Problem& p) {
      p.w = w, p.local_tokens = p.expert_mask = p.bias1 = p.bias2 = true, p.tokens = 33, p.experts = 11, p.top_k = 5;
      p.shared_inter = 67, p.gate = GateLayout::interleaved, p.activation = ActivationKind::swiglu;
    });
    for (const int64_t tokens : {1, 2, 16, 33, 64, 130}) add("tokens", [&](Problem& p) { p.w = w, p.tokens = tokens, p.top_k = 3; });
    for (const int64_t top_k : {1, 4, 8}) add("slots", [&](Problem& p) { p.w = w, p.top_k = top_k, p.local_experts = 9; });
    for (const int64_t hidden : {1, 3, 31, 65, 127, 129}) add("odd hidden", [&](Problem& p) { p.w = w, p.hidden = hidden, p.tokens = 3; });
    for (const int64_t inter : {1, 2, 17, 37, 101}) add("odd inter", [&](Problem& p) { p.w = w, p.inter = inter, p.tokens = 3; });
    add("B14 inter of 704", [&](Problem& p) {
      p.w = w, p.inter = 704, p.activation = ActivationKind::gelu_tanh, p.tokens = 5, p.local_experts = 3;
      set_format(p, WeightFormat::strided);
    });
    add("B24 one token of many experts",
        [&](Problem& p) { p.w = w, p.tokens = 1, p.local_experts = 256, p.hidden = 32, p.inter = 32, p.top_k = 8; });
  }
  struct Coding {
    DType w;
    Quant quant;
  };
  using enum Quant;
  constexpr Coding kCodings[] = {{DType::f8e4m3, per_tensor}, {DType::f8e4m3, per_token}, {DType::f8e4m3, per_128x128},
                                 {DType::f8e4m3, per_1x32},   {DType::i8, per_token},     {DType::i8, per_1x32},
                                 {DType::i4, per_token},      {DType::i4, per_1x32},      {DType::i4, per_1x128},
                                 {DType::f4e2m1, per_1x32},   {DType::f4e2m1, per_1x16}};
  for (const Coding coding : kCodings) {
    const auto code = [&](Problem& p) { p.w = coding.w, p.w_quant = coding.quant; };
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      add("weights of few bits", [&](Problem& p) {
        code(p), p.shared_inter = 66, p.bias1 = p.bias2 = true, p.hidden = 194, p.inter = 150, p.tokens = 5;
        if (format == WeightFormat::strided) p.x = p.out = DType::f16;
        set_format(p, format);
      });
    add("weights of few bits, gpt-oss", [&](Problem& p) {
      code(p), p.gate = GateLayout::interleaved, p.activation = ActivationKind::swiglu, p.bias1 = p.bias2 = true, p.tokens = 40;
      p.hidden = 96, p.inter = 96;
    });
    for (const int64_t tokens : {1, 130}) add("weights of few bits", [&](Problem& p) { code(p), p.tokens = tokens, p.hidden = 130; });
    add("weights of few bits, every option", [&](Problem& p) {
      code(p), p.local_tokens = p.expert_mask = p.bias1 = p.bias2 = true, p.tokens = 33, p.experts = 11, p.top_k = 5;
      p.shared_inter = 34, p.weight_stage = WeightStage::first;
    });
  }
  for (const DType x : {DType::bf16, DType::f16, DType::i8})
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      for (const int64_t tokens : {1, 40})
        add("i4 weights, i8 activations", [&](Problem& p) {
          p.x = x, p.w = DType::i4, p.a_quant = p.w_quant = per_token, p.tokens = tokens, p.shared_inter = 34, p.hidden = 130,
          p.bias1 = true;
          set_format(p, format);
        });
  struct Eights {
    DType w;
    Quant a_quant, w_quant;
  };
  constexpr Eights kEights[] = {{DType::f8e4m3, per_token, per_tensor},
                                {DType::f8e4m3, per_token, per_token},
                                {DType::f8e4m3, per_1x128, per_128x128},
                                {DType::f8e4m3, per_1x32, per_1x32},
                                {DType::f4e2m1, per_1x32, per_1x32}};
  for (const Eights& eights : kEights) {
    const auto code = [&](Problem& p) { p.w = eights.w, p.a_quant = eights.a_quant, p.w_quant = eights.w_quant; };
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      add("f8 activations", [&](Problem& p) {
        code(p), p.shared_inter = 66, p.bias1 = p.bias2 = true, p.hidden = 194, p.inter = 150, p.tokens = 5;
        if (format == WeightFormat::strided) p.x = DType::f16, p.out = DType::f32;
        set_format(p, format);
      });
    add("f8 activations and x", [&](Problem& p) {
      code(p), p.x = DType::f8e4m3, p.tokens = p.a_quant == per_token ? 1 : 16, p.hidden = 130, p.inter = 34, p.shared_inter = 32;
    });
    add("f8 activations, every option", [&](Problem& p) {
      code(p), p.local_tokens = p.expert_mask = p.bias1 = p.bias2 = true, p.tokens = 33, p.experts = 11, p.top_k = 5;
      p.shared_inter = 34, p.weight_stage = WeightStage::first;
    });
  }
  add("f8 activations, more tokens than the decode rows take", [](Problem& p) {
    p.w = DType::f8e4m3, p.a_quant = per_1x128, p.w_quant = per_128x128, p.tokens = 259, p.local_experts = 4, p.hidden = 64, p.inter = 32;
  });
  add("weights of few bits, more tokens than the decode rows take",
      [](Problem& p) { p.w = DType::f4e2m1, p.w_quant = per_1x32, p.tokens = 259, p.local_experts = 4, p.hidden = 64, p.inter = 32; });
  add("B17 more slots than usual, few experts", [](Problem& p) { p.local_experts = 4, p.top_k = 3, p.tokens = 3; });
  add("more tokens than the decode rows take", [](Problem& p) { p.tokens = 259, p.local_experts = 4, p.hidden = 48, p.inter = 32; });
  if (library::version() != 0)
    for (const DType w : {DType::bf16, DType::i8})
      add("a library's layout", [&](Problem& p) { p.w = w, p.shared_inter = 32, set_format(p, WeightFormat::onednn); });
  add("B15 no tokens", [](Problem& p) { p.tokens = 0; });
  add("no slots", [](Problem& p) { p.top_k = 0, p.shared_inter = 16; });
  add("no experts", [](Problem& p) { p.local_experts = 0, p.top_k = 1, p.shared_inter = 16; });
  add("no hidden", [](Problem& p) { p.hidden = 0; });
  add("no inter", [](Problem& p) { p.inter = 0, p.bias2 = true; });
  return cases.take();
}

struct Model {
  const char* name;
  int64_t hidden, inter, experts, top_k, shared_inter;
  ActivationKind activation;
  GateLayout gate;
  bool biases;
};
constexpr Model kModels[] = {
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 0, ActivationKind::silu, GateLayout::separated, false},
    {"OLMoE-1B-7B", 2048, 1024, 64, 8, 0, ActivationKind::silu, GateLayout::separated, false},
    {"DeepSeek-V2-Lite", 2048, 1408, 64, 6, 2816, ActivationKind::silu, GateLayout::separated, false},
    {"gpt-oss-20b", 2880, 2880, 32, 4, 0, ActivationKind::swiglu, GateLayout::interleaved, true},
    {"Mixtral-8x7B", 4096, 14336, 8, 2, 0, ActivationKind::silu, GateLayout::separated, false},
    {"Qwen3-235B-A22B TP4", 4096, 384, 128, 8, 0, ActivationKind::silu, GateLayout::separated, false},
    {"DeepSeek-V3 TP8", 7168, 256, 256, 8, 256, ActivationKind::silu, GateLayout::separated, false},
    {"Llama-4-Scout TP4", 5120, 2048, 16, 1, 2048, ActivationKind::silu, GateLayout::separated, false},
};

std::vector<Case<Problem>> bench_cases() {
  std::vector<Case<Problem>> out;
  for (const Model& m : kModels)
    for (const DType w : {DType::bf16, DType::i8})
      for (const int64_t tokens : {1, 16, 64, 256, 1024}) {
        const bool llama4 = m.top_k == 1;
        Problem p{.tokens = tokens,
                  .hidden = m.hidden,
                  .inter = m.inter,
                  .local_experts = m.experts,
                  .experts = m.experts,
                  .top_k = m.top_k,
                  .x = DType::bf16,
                  .w = w,
                  .out = DType::bf16,
                  .a_quant = Quant::none,
                  .w_quant = Quant::none,
                  .activation = m.activation,
                  .gate = m.gate,
                  .weight_stage = llama4 ? WeightStage::first : WeightStage::second,
                  .bias1 = m.biases,
                  .bias2 = m.biases,
                  .shared_inter = m.shared_inter};
        if (w == DType::i8) p.a_quant = p.w_quant = Quant::per_token;
        if (p.weight_bytes(static_cast<double>(m.experts)) <= static_cast<double>(kBenchBytes)) out.push_back({p, m.name});
      }
  return out;
}

/// Ones for the experts that are here: every other one, then the rest from the front.
View make_mask(Maker& maker, const Problem& p) {
  const View mask = maker.dense("expert_mask", DType::i32, {p.experts}, Fill::zero);
  auto* on = static_cast<int32_t*>(mask.data);
  int64_t left = p.local_experts;
  for (int64_t e = 1; e < p.experts && left > 0; e += 2, --left) on[e] = 1;
  for (int64_t e = 0; e < p.experts && left > 0; e += 2, --left) on[e] = 1;
  return mask;
}

}  // namespace

Cases<Problem> FusedMoe::cases() { return {.test = test_cases(), .bench = bench_cases()}; }

FusedMoe::Args FusedMoe::make(const Problem& p, Maker& maker) {
  FusedMoeArgs args;
  args.activation = {.kind = p.activation};
  if (p.activation == ActivationKind::swiglu) args.activation.limit = 7;
  args.gate = p.gate;
  args.weight_stage = p.weight_stage;
  const int64_t n1 = p.w1_rows(p.inter), shared_n1 = p.w1_rows(p.shared_inter), experts = p.local_experts;
  const int64_t each = p.pairs() / std::max<int64_t>(1, experts);
  const Routing routing = make_routing(maker, p.tokens, p.top_k, p.experts);
  args.topk_ids = routing.ids;
  args.topk_weights = routing.weights;
  const bool x_is_codes = p.quantised() && !p.quantises_x();
  args.x = maker.input("x", p.x, {p.tokens, p.hidden}, p.x == DType::i8 ? Fill::code : Fill::normal);
  if (x_is_codes && is_block(p.a_quant))
    args.x_scale =
        maker.input("x_scale", block_scale_dtype(p.x, p.a_quant), {p.tokens, blocks_of(p.hidden, block_k(p.a_quant))}, Fill::scale);
  else if (x_is_codes) args.x_scale = maker.input("x_scale", DType::f32, {p.tokens}, Fill::scale);
  const auto coded = [&](const char* name, std::initializer_list<int64_t> shape, GateLayout gate, WeightFormat format, View& w, View& scale,
                         View& global_scale) {
    const CodedWeights made = make_coded_weights(maker, name, p.w, shape, p.w_quant, gate, format);
    w = made.weights, scale = made.scale, global_scale = made.global_scale;
  };
  if (p.decodes()) {
    args.w_quant = p.w_quant, args.a_quant = p.a_quant;
    coded("w1", {experts, n1, p.hidden}, p.gate, p.w1_format, args.w1, args.w1_scale, args.w1_global_scale);
    coded("w2", {experts, p.hidden, p.inter}, GateLayout::none, p.w2_format, args.w2, args.w2_scale, args.w2_global_scale);
  } else {
    args.w1 = make_weights(maker, "w1", p.w, {experts, n1, p.hidden}, p.gate, p.w1_format, each);
    args.w2 = make_weights(maker, "w2", p.w, {experts, p.hidden, p.inter}, GateLayout::none, p.w2_format, each);
  }
  // Codes times these scales have the size of real weights: about 1 / sqrt(k).
  const auto scales = [&](const char* name, std::initializer_list<int64_t> shape, int64_t k) {
    const View view = maker.input(name, DType::f32, shape, Fill::scale);
    const int64_t rows = view.rank == 2 ? view.shape[0] : 1, columns = view.shape[view.rank - 1];
    const float share = 1.3f / std::max(1.0f, __builtin_sqrtf(static_cast<float>(k)));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; ++j) static_cast<float*>(view.rank == 2 ? row(view, r) : view.data)[j] *= share;
    return view;
  };
  if (p.quantised() && !p.decodes()) {
    args.w1_scale = scales("w1_scale", {experts, n1}, p.hidden);
    args.w2_scale = scales("w2_scale", {experts, p.hidden}, p.inter);
  }
  if (p.bias1) args.bias1 = maker.input("bias1", DType::f32, {experts, n1}, Fill::normal);
  if (p.bias2) args.bias2 = maker.input("bias2", DType::f32, {experts, p.hidden}, Fill::normal);
  if (p.expert_mask) args.expert_mask = make_mask(maker, p);
  if (p.local_tokens) {
    args.num_local_tokens = maker.dense("num_local_tokens", DType::i32, {1}, Fill::zero);
    *static_cast<int32_t*>(args.num_local_tokens.data) = static_cast<int32_t>(p.tokens - p.tokens / 4);
  }
  if (p.shared_inter > 0 && p.decodes()) {
    coded("shared_w1", {shared_n1, p.hidden}, p.gate, p.shared_w1_format, args.shared_w1, args.shared_w1_scale,
          args.shared_w1_global_scale);
    coded("shared_w2", {p.hidden, p.shared_inter}, GateLayout::none, p.shared_w2_format, args.shared_w2, args.shared_w2_scale,
          args.shared_w2_global_scale);
  } else if (p.shared_inter > 0) {
    args.shared_w1 = make_weights(maker, "shared_w1", p.w, {shared_n1, p.hidden}, p.gate, p.shared_w1_format, p.tokens);
    args.shared_w2 = make_weights(maker, "shared_w2", p.w, {p.hidden, p.shared_inter}, GateLayout::none, p.shared_w2_format, p.tokens);
    if (p.quantised()) {
      args.shared_w1_scale = scales("shared_w1_scale", {shared_n1}, p.hidden);
      args.shared_w2_scale = scales("shared_w2_scale", {p.hidden}, p.shared_inter);
    }
  }
  args.out = maker.output("out", p.out, {p.tokens, p.hidden});
  return args;
}

}  // namespace eitri
