// Problems of tests and benchmarks, and how their tensors are made.
#include <algorithm>
#include <cstring>

#include "base/view.h"
#include "ops/gemm/library.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/make_inputs.h"
#include "ops/moe_sort/moe_sort.h"

namespace eitri {

namespace {

using Problem = GroupedGemm::Problem;

Problem with_slots(Problem p, int64_t top_k) {
  p.capacity = MoeSort::max_padded(p.tokens, top_k, p.experts, p.block);
  return p;
}

/// Slots a token of a router that fills this capacity.
int64_t top_k_of(const Problem& p) {
  if (p.tokens <= 0 || p.experts <= 0 || p.block <= 0) return 0;
  const int64_t padding = p.experts * p.block;
  int64_t top_k = p.capacity / (p.tokens * p.block);
  if (p.tokens > 1 && p.capacity > padding) top_k = (p.capacity - padding) / (p.tokens - 1);
  return std::clamp<int64_t>(top_k, 1, std::min<int64_t>(p.experts, 64));
}

/// Rows of a (and their scales) at padding hold NaN: they may not matter.
void poison_padding(const GroupedGemm::Args& args, const Maker& maker) {
  if (args.gather != Gather::position || maker.options().zero_pads) return;
  const auto* ids = static_cast<const int32_t*>(args.sorted_ids.data);
  const int64_t used = static_cast<const int32_t*>(args.num_valid.data)[0];
  const auto bytes = static_cast<size_t>(bytes_for(args.a.dtype, args.a.shape[1]));
  for (int64_t p = 0; p < args.a.shape[0]; ++p) {
    if (p < used && (ids[p] & kTokenMask) < args.tokens) continue;
    std::memset(row(args.a, p), 0xff, bytes);
    const View& scale = args.a_scale;
    if (!scale.given() || scale.shape[0] != args.a.shape[0]) continue;
    std::memset(row(scale, p), 0xff, static_cast<size_t>(bytes_for(scale.dtype, scale.rank == 2 ? scale.shape[1] : 1)));
  }
}

std::vector<Case<Problem>> test_cases() {
  const Problem base{.tokens = 16,
                     .capacity = 0,
                     .experts = 4,
                     .n = 64,
                     .k = 96,
                     .block = 16,
                     .a = DType::bf16,
                     .c = DType::bf16,
                     .b_format = WeightFormat::panel32,
                     .gather = Gather::token,
                     .gate = GateLayout::none,
                     .activation = ActivationKind::none,
                     .row_weight = false,
                     .bias = false};
  std::vector<Case<Problem>> out;
  const auto add = [&](const char* note, int64_t top_k, auto&& change) {
    Problem p = base;
    change(p);
    out.push_back({with_slots(p, top_k), note});
  };
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::i8})
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      for (const GateLayout gate : {GateLayout::none, GateLayout::separated, GateLayout::interleaved})
        add("types, formats and gates", 2, [&](Problem& p) {
          p.a = dtype, p.b_format = format, p.gate = gate;
          p.c = dtype == DType::i8 ? DType::bf16 : dtype;
          p.activation = gate == GateLayout::none ? ActivationKind::none : ActivationKind::silu;
        });
  for (const DType dtype : {DType::bf16, DType::i8})
    for (const int64_t tokens : {1, 2, 7, 33, 130})
      for (const Gather gather : {Gather::token, Gather::position})
        add("prime extents", 3, [&](Problem& p) {
          p.a = dtype, p.tokens = tokens, p.gather = gather, p.c = DType::f32;
          p.experts = 5, p.n = 67, p.k = 101, p.block = 32;
          p.row_weight = p.bias = true;
        });
  for (const int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 129}) add("B01 tails of k", 2, [&](Problem& p) { p.k = k, p.tokens = 5; });
  for (const int64_t n : {1, 15, 16, 17, 31, 33, 63, 65})
    add("B08 tails of n", 2, [&](Problem& p) { p.n = n, p.tokens = 4, p.experts = 2; });
  for (const ActivationKind kind : {ActivationKind::relu, ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh})
    add("activations without a gate", 2, [&](Problem& p) { p.activation = kind, p.bias = true; });
  for (const ActivationKind kind :
       {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu, ActivationKind::situv2})
    add("activations with a gate", 2,
        [&](Problem& p) { p.activation = kind, p.gate = GateLayout::interleaved, p.bias = p.row_weight = true; });
  add("one expert takes all", 1, [](Problem& p) { p.experts = 1, p.tokens = 450, p.n = 96; });
  add("many experts, few rows", 2, [](Problem& p) { p.experts = 40, p.tokens = 3, p.block = 64; });
  add("more than one task a run", 2, [](Problem& p) { p.n = 2304, p.k = 40, p.experts = 3; });
  // More than kStreamBytes of c in tasks of less, whose rows fill whole lines.
  for (const DType dtype : {DType::bf16, DType::i8})
    add("a large c", 2, [&](Problem& p) { p.a = dtype, p.c = DType::bf16, p.tokens = 290, p.experts = 3, p.n = 2048, p.k = 17; });
  add("a large c of codes", 2,
      [](Problem& p) { p.b = DType::f4e2m1, p.b_quant = Quant::per_1x32, p.tokens = 290, p.experts = 3, p.n = 2048, p.k = 17; });
  add("B15 no tokens", 2, [](Problem& p) { p.tokens = 0; });
  add("no experts", 2, [](Problem& p) { p.experts = 0; });
  add("no positions", 1, [](Problem& p) { p.tokens = 0, p.experts = 0; });
  add("B03 no k", 2, [](Problem& p) { p.k = 0; });
  add("no n", 2, [](Problem& p) { p.n = 0; });
  struct Coding {
    DType a, b;
    Quant a_quant, b_quant;
  };
  using enum Quant;
  constexpr DType kF8 = DType::f8e4m3, kF4 = DType::f4e2m1, kBf16 = DType::bf16;
  constexpr Coding kCodings[] = {{kBf16, kF8, none, per_tensor},
                                 {kBf16, kF8, none, per_token},
                                 {kBf16, kF8, none, per_128x128},
                                 {kBf16, kF8, none, per_1x32},
                                 {kBf16, DType::i8, none, per_token},
                                 {kBf16, DType::i8, none, per_1x128},
                                 {kBf16, DType::i4, none, per_1x32},
                                 {kBf16, DType::i4, none, per_1x128},
                                 {kBf16, kF4, none, per_1x32},
                                 {kBf16, kF4, none, per_1x16},
                                 {DType::f16, kF4, none, per_1x32},
                                 {DType::f32, DType::i4, none, per_1x32},
                                 {kF8, DType::none, per_token, per_token},
                                 {kF8, DType::none, per_tensor, per_tensor},
                                 {kF8, DType::none, per_1x128, per_128x128},
                                 {kF8, DType::none, per_1x32, per_1x32},
                                 {kF8, kF4, per_1x32, per_1x32},
                                 {DType::i8, DType::i4, none, none}};
  for (const Coding& coding : kCodings)
    for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided})
      for (const Gather gather : {Gather::token, Gather::position}) {
        const auto code = [&](Problem& p) {
          p.a = coding.a, p.b = coding.b, p.a_quant = coding.a_quant, p.b_quant = coding.b_quant;
          p.b_format = format, p.gather = gather, p.c = is_float(coding.a) && bits(coding.a) > 8 ? coding.a : DType::bf16;
        };
        add("weights of few bits", 2, [&](Problem& p) { code(p), p.n = 150, p.k = 194, p.tokens = 7, p.bias = p.row_weight = true; });
        add("weights of few bits, gated", 3, [&](Problem& p) {
          code(p), p.n = 300, p.k = 96, p.tokens = 40, p.gate = gather == Gather::token ? GateLayout::separated : GateLayout::interleaved;
          p.activation = ActivationKind::silu;
        });
      }
  if (library::version() == 0) return out;
  add("a library's layout", 2, [](Problem& p) { p.b_format = WeightFormat::onednn; });
  add("a library's layout, i8", 2,
      [](Problem& p) { p.b_format = WeightFormat::onednn, p.a = DType::i8, p.bias = true, p.gather = Gather::position; });
  return out;
}

std::vector<Case<Problem>> bench_cases() {
  std::vector<Case<Problem>> out;
  for (const DType dtype : {DType::bf16, DType::i8})
    for (const int64_t tokens : {1, 16, 256, 1024}) {
      Problem p{.tokens = tokens,
                .capacity = 0,
                .experts = 128,
                .n = 1536,
                .k = 2048,
                .block = 32,
                .a = dtype,
                .c = DType::bf16,
                .b_format = WeightFormat::panel32,
                .gather = Gather::token,
                .gate = GateLayout::separated,
                .activation = ActivationKind::silu,
                .row_weight = false,
                .bias = false};
      out.push_back({with_slots(p, 8), "Qwen3-30B-A3B, stage 1"});
      p.n = 2048, p.k = 768, p.gate = GateLayout::none, p.activation = ActivationKind::none, p.gather = Gather::position;
      out.push_back({with_slots(p, 8), "Qwen3-30B-A3B, stage 2"});
    }
  return out;
}

}  // namespace

Cases<Problem> GroupedGemm::cases() { return {.test = test_cases(), .bench = bench_cases()}; }

GroupedGemm::Args GroupedGemm::make(const Problem& p, Maker& maker) {
  const int64_t top_k = top_k_of(p);
  const Routing routing = make_routing(maker, p.tokens, top_k, p.experts);
  // moe_sort writes its full lists; the call sees the first `capacity` positions.
  const int64_t full = std::max(p.capacity, MoeSort::max_padded(p.tokens, top_k, p.experts, p.block));
  const int64_t blocks = MoeSort::max_blocks(full, p.block);
  MoeSortArgs sort{.topk_ids = routing.ids,
                   .topk_weights = routing.weights,
                   .expert_mask = {},
                   .num_local_tokens = {},
                   .sorted_ids = maker.dense("sorted_ids", DType::i32, {full}, Fill::zero),
                   .sorted_weights = maker.dense("sorted_weights", DType::f32, {full}, Fill::zero),
                   .sorted_expert_ids = maker.dense("sorted_expert_ids", DType::i32, {blocks}, Fill::zero),
                   .num_valid = maker.dense("num_valid", DType::i32, {2}, Fill::zero),
                   .reverse = {},
                   .experts = p.experts,
                   .block = p.block};
  MoeSort::reference(sort, nullptr);

  GroupedGemmArgs args;
  args.gather = p.gather;
  args.gate = p.gate;
  args.activation = {.kind = p.activation};
  if (p.activation == ActivationKind::swiglu) args.activation.limit = 7;
  args.tokens = p.tokens;
  args.block = p.block;
  args.sorted_ids = rows(sort.sorted_ids, 0, p.capacity);
  args.sorted_expert_ids = sort.sorted_expert_ids;
  args.num_valid = sort.num_valid;
  const bool quantised = p.a == DType::i8;
  const int64_t a_rows = p.gather == Gather::token ? p.tokens : p.capacity;
  args.a = maker.input("a", p.a, {a_rows, p.k}, quantised || p.a == DType::f8e4m3 ? Fill::code : Fill::normal);
  if (p.coded()) {
    const CodedWeights b = make_coded_weights(maker, "b", p.weight(), {p.experts, p.n, p.k}, p.b_quant, p.gate, p.b_format);
    args.b = b.weights, args.b_scale = b.scale, args.b_global_scale = b.global_scale;
    if (is_block(p.b_quant)) args.b_quant = p.b_quant;
  } else {
    args.b = make_weights(maker, "b", p.a, {p.experts, p.n, p.k}, p.gate, p.b_format, p.expected_rows() / std::max<int64_t>(1, p.experts));
  }
  args.c = maker.output("c", p.c, {p.capacity, p.n_out()});
  if (quantised) {
    args.a_scale = maker.input("a_scale", DType::f32, {a_rows}, Fill::scale);
    if (!p.coded()) args.b_scale = maker.input("b_scale", DType::f32, {p.experts, p.n}, Fill::scale);
  } else if (is_block(p.a_quant)) {
    args.a_quant = p.a_quant;
    args.a_scale = maker.input("a_scale", block_scale_dtype(p.a, p.a_quant), {a_rows, blocks_of(p.k, block_k(p.a_quant))}, Fill::scale);
  } else if (p.a == DType::f8e4m3) {
    args.a_scale = maker.input("a_scale", DType::f32, {p.a_quant == Quant::per_tensor ? 1 : a_rows}, Fill::scale);
  }
  if (p.bias) args.bias = maker.input("bias", DType::f32, {p.experts, p.n}, Fill::normal);
  if (p.row_weight) args.row_weight = rows(sort.sorted_weights, 0, p.capacity);
  poison_padding(args, maker);
  return args;
}

}  // namespace eitri
