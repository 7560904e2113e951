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

/// The quantisation of a call: of weights, and of activations and their type. coded: the weights' scales are those of a b of GemmArgs.
struct Coding {
  Quant quant = Quant::none;
  bool coded = false;
  Quant a_quant = Quant::none;
  DType activations = DType::none;
};
/// One weight with its scales. `index`: expert-wise extents, {} for a shared expert.
struct ScaledWeight {
  const View &weight, &scale, &global_scale;
  const char *name, *scale_name, *global_name;
  int64_t experts;  // below 0: a shared expert
  int64_t n, k;
};

/// Scales of a weight: one for each row of i8 ones that meet i8 activations, as w_quant says for codes, else none.
void check_scales(const ScaledWeight& w, const Coding& coding) {
  const DType dtype = w.weight.dtype;
  const bool shared = w.experts < 0;
  if (coding.coded) {
    const Quant found = check_weight_scale({kOp, w.name, w.scale_name, "w_quant"}, w.weight, w.scale, coding.quant, w.experts, w.n, w.k);
    // One row or one element of k has the same scale either way.
    require(found == coding.quant || (w.n == 1 && !is_block(found)), kOp, ": ", w.scale_name, " is ", w.scale, "; expected it ",
            coding.quant, ", as of w1");
  } else if (dtype == DType::i8 || dtype == DType::i4) {
    const View wanted = shared ? View(nullptr, DType::f32, {w.n}) : View(nullptr, DType::f32, {w.experts, w.n});
    require(packed_quant(w.weight) == Quant::none, kOp, ": ", w.name, " is packed with ", packed_quant(w.weight),
            " scales; expected none (activations are i8)");
    require(w.scale.given(), kOp, ": ", w.scale_name, " is none; expected ", wanted, " (", w.name, " is ", dtype, ")");
    if (shared) check_tensor(w.scale, kOp, w.scale_name, Access::read, DType::f32, {w.n});
    else check_tensor(w.scale, kOp, w.scale_name, Access::read, DType::f32, {w.experts, w.n});
  } else {
    require(!w.scale.given(), kOp, ": ", w.scale_name, " is ", w.scale, "; expected none (", w.name, " is ", dtype, ")");
  }
  if (coding.quant == Quant::per_1x16 && coding.coded)
    check_tensor(w.global_scale, kOp, w.global_name, Access::read, DType::f32, {shared ? 1 : w.experts});
  else
    require(!w.global_scale.given(), kOp, ": ", w.global_name, " is ", w.global_scale, "; expected none (w_quant is ", coding.quant, ")");
}

/// x_scale belongs to an x of codes: required with it, refused otherwise.
void check_x_scale(const FusedMoeArgs& args, const Coding& coding) {
  const DType x = args.x.dtype;
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1];
  if (x != coding.activations) {
    require(!args.x_scale.given(), kOp, ": x_scale is ", args.x_scale, "; expected none (x is ", x, ")");
    return;
  }
  if (is_block(coding.a_quant)) {
    check_block_scale(args.x_scale, kOp, "x_scale", x, coding.a_quant, -1, tokens, hidden);
    return;
  }
  require(args.x_scale.given(), kOp, ": x_scale is none; expected f32[", tokens, "] (x is ", x, ")");
  check_tensor(args.x_scale, kOp, "x_scale", Access::read, DType::f32, {tokens});
}

/// f8e4m3 activations with f8e4m3 or f4e2m1 weights, `asked` their quantisation.
Coding check_f8_activations(const FusedMoeArgs& args, Quant asked) {
  const Quant a = args.a_quant == Quant::none ? Quant::per_token : args.a_quant;
  require(asked != Quant::none, kOp, ": w_quant is none; expected what shares a scale of w1, ", args.w1);
  const bool together = a == Quant::per_token ? asked == Quant::per_tensor || asked == Quant::per_token
                                              : (a == Quant::per_1x128 || a == Quant::per_1x32) && quants_go_together(a, asked);
  require(together, kOp, ": a_quant is ", a, " and w_quant is ", asked,
          "; expected per_token with per_tensor or per_token, per_1x128 with per_128x128, or per_1x32 for both (activations are f8e4m3)");
  return {asked, true, a, DType::f8e4m3};
}

Coding check_types(const FusedMoeArgs& args) {
  const DType x = args.x.dtype, w = args.w1.dtype;
  require(x == DType::bf16 || x == DType::f16 || x == DType::i8 || x == DType::f8e4m3, kOp, ": x is ", args.x,
          "; expected bf16, f16, i8 or f8e4m3");
  if (x == DType::i8) require(goes_with(x, w), kOp, ": w1 is ", args.w1, "; expected i8 (dtype of x) or i4");
  else if (x == DType::f8e4m3) require(goes_with(x, w), kOp, ": w1 is ", args.w1, "; expected f8e4m3 (dtype of x) or f4e2m1");
  else require(goes_with(x, w), kOp, ": w1 is ", args.w1, "; expected ", x, " (dtype of x), i8, f8e4m3, i4 or f4e2m1");
  require(args.weight_stage <= WeightStage::second, kOp, ": weight_stage is number ", static_cast<int>(args.weight_stage),
          "; expected first or second");
  require(args.gate <= GateLayout::interleaved, kOp, ": gate is number ", static_cast<int>(args.gate),
          "; expected none, separated or interleaved");
  if (args.w1.layout == Layout::packed) packed_header(args.w1, kOp, "w1");  // before anything believes it
  const Quant packed = packed_quant(args.w1), asked = args.w_quant != Quant::none ? args.w_quant : packed;
  if (x == DType::f8e4m3 || (args.a_quant != Quant::none && (w == DType::f8e4m3 || w == DType::f4e2m1)))
    return check_f8_activations(args, asked);
  if (w == x && x != DType::i8) {
    require(args.a_quant == Quant::none, kOp, ": a_quant is ", args.a_quant, "; expected none (w1 is ", w, ")");
    require(args.w_quant == Quant::none, kOp, ": w_quant is ", args.w_quant, "; expected none (w1 is ", w, ")");
    return {};
  }
  const bool whole = w == DType::i8 || w == DType::i4;
  if (whole && (x == DType::i8 || args.a_quant != Quant::none || (w == DType::i8 && asked == Quant::none))) {
    require(args.a_quant == Quant::none || args.a_quant == Quant::per_token, kOp, ": a_quant is ", args.a_quant,
            "; expected per_token (i8 activations)");
    require(asked == Quant::none || asked == Quant::per_token, kOp, ": w_quant is ", asked, "; expected per_token (i8 activations)");
    return {Quant::per_token, false, Quant::per_token, DType::i8};
  }
  require(asked != Quant::none, kOp, ": w_quant is none; expected what shares a scale of w1, ", args.w1);
  return {asked, true};
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
Shared check_shared(const FusedMoeArgs& args, int64_t hidden, bool gated, const Coding& coding) {
  const View &w1 = args.shared_w1, &w2 = args.shared_w2;
  require(w1.given() == w2.given(), kOp, ": shared_w1 is ", w1, " and shared_w2 is ", w2, "; expected both or none");
  if (!w1.given()) {
    require(!args.shared_w1_scale.given(), kOp, ": shared_w1_scale is ", args.shared_w1_scale, "; expected none (no shared_w1)");
    require(!args.shared_w2_scale.given(), kOp, ": shared_w2_scale is ", args.shared_w2_scale, "; expected none (no shared_w2)");
    require(!args.shared_w1_global_scale.given() && !args.shared_w2_global_scale.given(), kOp, ": shared_w1_global_scale is ",
            args.shared_w1_global_scale, " and shared_w2_global_scale is ", args.shared_w2_global_scale, "; expected none (no shared_w1)");
    return {};
  }
  require(w2.rank == 2, kOp, ": shared_w2 is ", w2, "; expected [hidden, shared_inter]");
  const int64_t inter = w2.shape[1], w1_rows = gated ? 2 * inter : inter;
  const WeightFormat w1_format = check_weight(w1, "shared_w1", args.w1.dtype, {w1_rows, hidden}, args.gate);
  const WeightFormat w2_format = check_weight(w2, "shared_w2", args.w1.dtype, {hidden, inter}, GateLayout::none);
  check_scales({w1, args.shared_w1_scale, args.shared_w1_global_scale, "shared_w1", "shared_w1_scale", "shared_w1_global_scale", -1,
                w1_rows, hidden},
               coding);
  check_scales(
      {w2, args.shared_w2_scale, args.shared_w2_global_scale, "shared_w2", "shared_w2_scale", "shared_w2_global_scale", -1, hidden, inter},
      coding);
  require(coding.quant == Quant::none || coding.coded || inter <= kMaxI8K, kOp, ": shared_w2 is ", w2, "; expected at most ", kMaxI8K,
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
  apart(args.w1_global_scale, "w1_global_scale");
  apart(args.w2_global_scale, "w2_global_scale");
  apart(args.shared_w1_global_scale, "shared_w1_global_scale");
  apart(args.shared_w2_global_scale, "shared_w2_global_scale");
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
  const Coding coding = check_types(args);
  check_activation(args.activation, args.gate, kOp);

  const DType w = args.w1.dtype;
  const bool gated = args.gate != GateLayout::none;
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1];
  const int64_t experts = args.w1.shape[0], inter = args.w2.shape[2], w1_rows = gated ? 2 * inter : inter;
  require(experts <= INT32_MAX, kOp, ": w1 is ", args.w1, "; expected at most 2^31 - 1 experts");
  const bool whole_sums = coding.activations == DType::i8;
  require(!whole_sums || std::max(hidden, inter) <= kMaxI8K, kOp, ": w1 is ", args.w1, " and w2 is ", args.w2, "; expected at most ",
          kMaxI8K, " columns (i8 sums stay within 32 bits)");
  const WeightFormat w1_format = check_weight(args.w1, "w1", w, {experts, w1_rows, hidden}, args.gate);
  const WeightFormat w2_format = check_weight(args.w2, "w2", w, {experts, hidden, inter}, GateLayout::none);
  check_scales({args.w1, args.w1_scale, args.w1_global_scale, "w1", "w1_scale", "w1_global_scale", experts, w1_rows, hidden}, coding);
  check_scales({args.w2, args.w2_scale, args.w2_global_scale, "w2", "w2_scale", "w2_global_scale", experts, hidden, inter}, coding);
  check_x_scale(args, coding);
  check_vector(args.bias1, "bias1", {experts, w1_rows});
  check_vector(args.bias2, "bias2", {experts, hidden});
  check_routing(args, experts);
  const Shared shared = check_shared(args, hidden, gated, coding);
  check_tensor(args.out, kOp, "out", Access::write, DType::none, {tokens, hidden});
  check_aliases(args);

  return {.tokens = tokens,
          .hidden = hidden,
          .inter = inter,
          .local_experts = experts,
          .experts = args.expert_mask.given() ? args.expert_mask.shape[0] : experts,
          .top_k = args.topk_ids.shape[1],
          .x = args.x.dtype,
          .w = w,
          .out = args.out.dtype,
          .a_quant = coding.a_quant,
          .w_quant = coding.quant,
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
  // A token's experts are distinct, and a given one is among them with probability top_k / experts; only local ones count.
  const double miss = std::max(0.0, 1 - static_cast<double>(top_k) / static_cast<double>(std::max<int64_t>(1, experts)));
  return static_cast<double>(local_experts) * (1 - std::pow(miss, static_cast<double>(tokens)));
}

double FusedMoe::Problem::weight_bytes(double touched) const {
  const double element = bits(w) / 8.0, h = static_cast<double>(hidden);
  const auto of = [&](int64_t columns) {
    const double codes = static_cast<double>(w1_rows(columns) + columns) * h * element;
    return decodes() ? codes + block_scale_bytes(w, w_quant, w1_rows(columns), hidden) + block_scale_bytes(w, w_quant, hidden, columns)
                     : codes;
  };
  return touched * of(inter) + of(shared_inter);
}

Cost FusedMoe::cost(const Problem& p) {
  const auto tokens = static_cast<double>(p.tokens), hidden = static_cast<double>(p.hidden);
  const double columns = local_pairs(p) * static_cast<double>(p.w1_rows(p.inter) + p.inter) +
                         tokens * static_cast<double>(p.w1_rows(p.shared_inter) + p.shared_inter);
  return {.flops = 2 * columns * hidden,
          .bytes = p.weight_bytes(p.expected_experts()) + tokens * hidden * (bits(p.x) + bits(p.out)) / 8,
          .math = p.multiplied()};
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
