#include "ops/fused_moe/fused_moe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/view.h"
#include "ops/activation/activation.h"
#include "ops/fused_moe/rows.h"
#include "ops/grouped_gemm/panel_rows.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

namespace {

constexpr const char* kOp = FusedMoe::name;
constexpr std::array kStageNames = {"first", "second"};
constexpr int64_t kMaxTokens = 0xffffff, kMaxTopK = 127;  // moe_sort packs token and slot into 24 and 7 bits

/// A weight of rank 2 or 3 with these extents, of the layer's weight dtype, unit inner stride, packed for `gate`.
WeightFormat check_weight(const View& w, const char* arg, DType dtype, std::initializer_list<int64_t> shape, GateLayout gate) {
  check_view(w, kOp, arg, static_cast<int>(shape.size()));
  View wanted(nullptr, dtype, shape);
  bool same = w.dtype == dtype;
  for (int i = 0; i < w.rank; ++i) same = same && w.shape[i] == wanted.shape[i];
  require(same, kOp, ": ", arg, " is ", w, "; expected ", wanted);
  if (w.layout == Layout::strided) {
    require(has_unit_inner_stride(w), kOp, ": ", arg, " is ", w, "; expected inner stride 1");
    const int r = w.rank - 2;
    require(w.shape[r] <= 1 || w.shape[r + 1] == 0 || w.stride[r] > 0, kOp, ": ", arg, " is ", w, "; expected row stride > 0");
    return WeightFormat::strided;
  }
  const PackedHeader& header = packed_header(w, kOp, arg);
  const auto packed_gate = static_cast<GateLayout>(header.gate);
  require(packed_gate == gate, kOp, ": ", arg, " is packed with gate layout ", packed_gate, "; expected ", gate);
  return header.format == static_cast<uint8_t>(PackFormat::onednn) ? WeightFormat::onednn : WeightFormat::panel32;
}

void check_vector(const View& v, const char* arg, std::initializer_list<int64_t> shape) {
  if (v.given()) check_tensor(v, kOp, arg, Access::read, DType::f32, shape);
}

/// Scales belong to i8 weights: required with them, refused otherwise.
void check_scale(const View& scale, const char* arg, const char* weight, DType dtype, std::initializer_list<int64_t> shape) {
  if (dtype != DType::i8) {
    require(!scale.given(), kOp, ": ", arg, " is ", scale, "; expected none (", weight, " is ", dtype, ")");
    return;
  }
  require(scale.given(), kOp, ": ", arg, " is none; expected ", View(nullptr, DType::f32, shape), " (", weight, " is i8)");
  check_tensor(scale, kOp, arg, Access::read, DType::f32, shape);
}

void check_types(const FusedMoeArgs& args) {
  const DType x = args.x.dtype, w = args.w1.dtype;
  require(x == DType::bf16 || x == DType::f16 || x == DType::i8, kOp, ": x is ", args.x, "; expected bf16, f16 or i8");
  require(w == DType::i8 || (w == x && x != DType::i8), kOp, ": w1 is ", args.w1, "; expected ", x == DType::i8 ? "" : to_string(x),
          x == DType::i8 ? "" : " (dtype of x) or ", "i8 (supported quantisations: none; i8 per token x i8 per output channel)");
  require(args.weight_stage <= WeightStage::second, kOp, ": weight_stage is number ", static_cast<int>(args.weight_stage),
          "; expected first or second");
  require(args.gate <= GateLayout::interleaved, kOp, ": gate is number ", static_cast<int>(args.gate),
          "; expected none, separated or interleaved");
}

void check_routing(const FusedMoeArgs& args, int64_t local_experts) {
  const int64_t tokens = args.x.shape[0];
  require(tokens <= kMaxTokens, kOp, ": x is ", args.x, "; expected at most ", kMaxTokens, " tokens (24 bits of a sorted id)");
  check_tensor(args.topk_ids, kOp, "topk_ids", Access::read, DType::i32, {tokens, kAnyExtent});
  const int64_t top_k = args.topk_ids.shape[1];
  check_tensor(args.topk_weights, kOp, "topk_weights", Access::read, DType::f32, {tokens, top_k});
  int64_t experts = local_experts;
  if (args.expert_mask.given()) {
    check_tensor(args.expert_mask, kOp, "expert_mask", Access::read, DType::i32, {kAnyExtent});
    experts = args.expert_mask.shape[0];
    // A mask on a GPU cannot be looked at without waiting for it. Where it turns on more experts than w1 has, what the others would
    // have added is undefined; nothing beyond w1 is read.
    const auto* mask = args.expert_mask.device.kind == DeviceKind::cpu ? static_cast<const int32_t*>(args.expert_mask.data) : nullptr;
    int64_t ones = mask == nullptr ? local_experts : 0;
    for (int64_t e = 0; mask != nullptr && e < experts; ++e) ones += mask[e] != 0;
    require(ones == local_experts, kOp, ": expert_mask is ", args.expert_mask, " with ", ones, " experts on; expected ", local_experts,
            " (experts of w1)");
  }
  require(top_k <= std::min(kMaxTopK, std::max<int64_t>(experts, 1)), kOp, ": topk_ids is ", args.topk_ids, "; expected at most ",
          std::min(kMaxTopK, std::max<int64_t>(experts, 1)), " slots (experts: ", experts, ")");
  if (args.num_local_tokens.given()) check_tensor(args.num_local_tokens, kOp, "num_local_tokens", Access::read, DType::i32, {1});
}

struct Shared {
  int64_t inter = 0;  // 0: no shared expert
  WeightFormat w1_format = WeightFormat::panel32, w2_format = WeightFormat::panel32;
};
Shared check_shared(const FusedMoeArgs& args, int64_t hidden, bool gated) {
  const View &w1 = args.shared_w1, &w2 = args.shared_w2;
  require(w1.given() == w2.given(), kOp, ": shared_w1 is ", w1, " and shared_w2 is ", w2, "; expected both or none");
  if (!w1.given()) {
    require(!args.shared_w1_scale.given(), kOp, ": shared_w1_scale is ", args.shared_w1_scale, "; expected none (no shared_w1)");
    require(!args.shared_w2_scale.given(), kOp, ": shared_w2_scale is ", args.shared_w2_scale, "; expected none (no shared_w2)");
    return {};
  }
  require(w2.rank == 2, kOp, ": shared_w2 is ", w2, "; expected [hidden, shared_inter]");
  const int64_t inter = w2.shape[1], w1_rows = gated ? 2 * inter : inter;
  const WeightFormat w1_format = check_weight(w1, "shared_w1", args.w1.dtype, {w1_rows, hidden}, args.gate);
  const WeightFormat w2_format = check_weight(w2, "shared_w2", args.w1.dtype, {hidden, inter}, GateLayout::none);
  check_scale(args.shared_w1_scale, "shared_w1_scale", "shared_w1", args.w1.dtype, {w1_rows});
  check_scale(args.shared_w2_scale, "shared_w2_scale", "shared_w2", args.w1.dtype, {hidden});
  require(args.w1.dtype != DType::i8 || inter <= kMaxI8K, kOp, ": shared_w2 is ", w2, "; expected at most ", kMaxI8K,
          " columns (i8 sums stay within 32 bits)");
  return {inter, w1_format, w2_format};
}

void check_aliases(const FusedMoeArgs& args) {
  const ByteRange out = byte_range(args.out);
  const auto apart = [&](const View& view, const char* name) {
    if (view.given() && out.meets(byte_range(view))) [[unlikely]]
      check_apart(args.out, "out", view, name, kOp);
  };
  apart(args.x, "x");
  apart(args.topk_weights, "topk_weights");
  apart(args.topk_ids, "topk_ids");
  apart(args.w1_scale, "w1_scale");
  apart(args.w2_scale, "w2_scale");
  apart(args.x_scale, "x_scale");
  apart(args.bias1, "bias1");
  apart(args.bias2, "bias2");
  apart(args.expert_mask, "expert_mask");
  apart(args.num_local_tokens, "num_local_tokens");
  apart(args.shared_w1_scale, "shared_w1_scale");
  apart(args.shared_w2_scale, "shared_w2_scale");
  const auto weight_apart = [&](const View& view, const char* name) {
    if (view.given()) apart(weight_memory(view), name);
  };
  weight_apart(args.w1, "w1");
  weight_apart(args.w2, "w2");
  weight_apart(args.shared_w1, "shared_w1");
  weight_apart(args.shared_w2, "shared_w2");
}

}  // namespace

std::span<const char* const> enum_names(WeightStage) { return kStageNames; }

FusedMoe::Problem FusedMoe::check(const Args& args) {
  check_view(args.x, kOp, "x", 2);
  require(args.x.layout == Layout::strided && has_unit_inner_stride(args.x), kOp, ": x is ", args.x, "; expected rows with inner stride 1");
  check_view(args.w1, kOp, "w1", 3);
  check_view(args.w2, kOp, "w2", 3);
  check_types(args);
  check_activation(args.activation, args.gate, kOp);

  const DType w = args.w1.dtype;
  const bool gated = args.gate != GateLayout::none;
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1];
  const int64_t experts = args.w1.shape[0], inter = args.w2.shape[2], w1_rows = gated ? 2 * inter : inter;
  require(experts <= INT32_MAX, kOp, ": w1 is ", args.w1, "; expected at most 2^31 - 1 experts");
  require(w != DType::i8 || std::max(hidden, inter) <= kMaxI8K, kOp, ": w1 is ", args.w1, " and w2 is ", args.w2, "; expected at most ",
          kMaxI8K, " columns (i8 sums stay within 32 bits)");
  const WeightFormat w1_format = check_weight(args.w1, "w1", w, {experts, w1_rows, hidden}, args.gate);
  const WeightFormat w2_format = check_weight(args.w2, "w2", w, {experts, hidden, inter}, GateLayout::none);
  check_scale(args.w1_scale, "w1_scale", "w1", w, {experts, w1_rows});
  check_scale(args.w2_scale, "w2_scale", "w2", w, {experts, hidden});
  check_scale(args.x_scale, "x_scale", "x", args.x.dtype, {tokens});
  check_vector(args.bias1, "bias1", {experts, w1_rows});
  check_vector(args.bias2, "bias2", {experts, hidden});
  check_routing(args, experts);
  const Shared shared = check_shared(args, hidden, gated);
  check_tensor(args.out, kOp, "out", Access::write, DType::none, {tokens, hidden});
  check_aliases(args);

  const Quant quant = w == DType::i8 ? Quant::per_token : Quant::none;
  return {.tokens = tokens,
          .hidden = hidden,
          .inter = inter,
          .local_experts = experts,
          .experts = args.expert_mask.given() ? args.expert_mask.shape[0] : experts,
          .top_k = args.topk_ids.shape[1],
          .x = args.x.dtype,
          .w = w,
          .out = args.out.dtype,
          .a_quant = quant,
          .w_quant = quant,
          .w1_format = w1_format,
          .w2_format = w2_format,
          .activation = args.activation.kind,
          .gate = args.gate,
          .weight_stage = args.weight_stage,
          .bias1 = args.bias1.given(),
          .bias2 = args.bias2.given(),
          .expert_mask = args.expert_mask.given(),
          .local_tokens = args.num_local_tokens.given(),
          .shared_inter = shared.inter,
          .shared_w1_format = shared.w1_format,
          .shared_w2_format = shared.w2_format};
}

bool FusedMoe::empty(const Problem& p) { return p.tokens == 0 || p.hidden == 0 || p.inter == 0 || p.local_experts == 0 || p.top_k == 0; }

std::vector<Output> FusedMoe::outputs(const Args& args) { return {{"out", args.out}}; }

double FusedMoe::Problem::expected_experts() const {
  // A pair meets a given expert with probability 1 / experts; only local ones count.
  const double miss = 1 - 1 / static_cast<double>(std::max<int64_t>(1, experts));
  return static_cast<double>(local_experts) * (1 - std::pow(miss, static_cast<double>(pairs())));
}

double FusedMoe::Problem::weight_bytes(double touched) const {
  const double element = bits(w) / 8.0, h = static_cast<double>(hidden);
  const auto of = [&](int64_t columns) { return static_cast<double>(w1_rows(columns) + columns) * h * element; };
  return touched * of(inter) + of(shared_inter);
}

Cost FusedMoe::cost(const Problem& p) {
  const auto tokens = static_cast<double>(p.tokens), hidden = static_cast<double>(p.hidden);
  const double local =
      static_cast<double>(p.pairs()) * static_cast<double>(p.local_experts) / static_cast<double>(std::max<int64_t>(1, p.experts));
  const double columns =
      local * static_cast<double>(p.w1_rows(p.inter) + p.inter) + tokens * static_cast<double>(p.w1_rows(p.shared_inter) + p.shared_inter);
  return {.flops = 2 * columns * hidden,
          .bytes = p.weight_bytes(p.expected_experts()) + tokens * hidden * (bits(p.x) + bits(p.out)) / 8,
          .math = p.w};
}

std::span<const Kernel<FusedMoe>> FusedMoe::kernels() {
  static constexpr std::array kKernels = {
#if EITRI_X86
    decode_row<Target::x86_amx>("fused_moe.x86_amx.decode"),
    decode_row<Target::x86_avx512>("fused_moe.x86_avx512.decode"),
    decode_row<Target::x86_avx2>("fused_moe.x86_avx2.decode"),
#endif
    decode_row<Target::any_cpu>("fused_moe.portable.decode"),
    moe_sorted_row(),
    moe_reference_row(),
  };
  return kKernels;
}

}  // namespace eitri
