// fused_moe.recipe.sorted: moe_sort -> (quantize) -> grouped_gemm with the activation in its epilogue -> (quantize) ->
// grouped_gemm -> moe_combine; a shared expert goes through gemm. For many tokens: each expert's weights are read once and
// meet all of its rows at a time.
//
// Every step is a routed call of its own. Stage 1's result is kept in x's dtype, or in f32 when it is quantised next (so
// that no rounding comes between sum and code). Stage 2's result is kept in out's dtype: half the traffic of f32, and the
// error that it adds, half a step a slot, is that of out itself. Bound by: weight bandwidth up to some 64 rows an expert,
// then the matrix unit. Order of addition: slots ascending, so results repeat bit for bit.
#include "ops/fused_moe/recipe.h"

#include <algorithm>

#include "base/view.h"
#include "dispatch/explain.h"
#include "ops/fused_moe/rows.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/panel_rows.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/panel_rows.h"
#include "ops/moe_combine/moe_combine.h"
#include "ops/moe_sort/moe_sort.h"
#include "ops/quantize/quantize.h"

namespace eitri {

namespace {

/// Which operator takes these arguments.
template <class Args> struct OpOf;
template <> struct OpOf<GemmArgs> { using type = Gemm; };
template <> struct OpOf<GroupedGemmArgs> { using type = GroupedGemm; };
template <> struct OpOf<QuantizeArgs> { using type = Quantize; };
template <> struct OpOf<MoeSortArgs> { using type = MoeSort; };
template <> struct OpOf<MoeCombineArgs> { using type = MoeCombine; };

class Carver {
 public:
  Carver(std::byte* base, DeviceId where) : base_(base), where_(where) {}
  View take(DType dtype, std::initializer_list<int64_t> shape) {
    // Without a base (only sizes are asked for) any address will do.
    View view(base_ == nullptr ? nullptr : base_ + used_, dtype, shape);
    view.device = where_;
    used_ += (static_cast<size_t>(bytes_for(dtype, view.size())) + 255) / 256 * 256;
    return view;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  DeviceId where_;
  size_t used_ = 0;
};

/// Addresses 1 TiB apart, never read or written.
View address_only(int& next, DType dtype, std::initializer_list<int64_t> shape) {
  return {reinterpret_cast<const void*>(static_cast<uintptr_t>(++next) << 40), dtype, shape};
}

Target best_target(const FusedMoe::Problem& p, const Device& device) {
  for (const Target target : {Target::x86_amx, Target::x86_avx512, Target::x86_avx2})
    if (target_runs_on(target, device) && (p.decodes() ? coded_kernel(target, multiplied_type(target, p.multiplied(), p.a_quant), device)
                                                       : panel_kernel(target, p.w, device)) != nullptr)
      return target;
  return Target::any_cpu;
}

}  // namespace

RecipeBuffers recipe_buffers(const FusedMoe::Problem& p, int64_t tile_m, std::byte* workspace, DeviceId where) {
  Carver carver(workspace, where);
  RecipeBuffers out;
  const int64_t padded = MoeSort::max_padded(p.tokens, p.top_k, p.experts, tile_m);
  // Every pair may open a block of its own, not more.
  const int64_t positions = std::min(padded, p.pairs() * tile_m);
  const DType h = p.quantised() ? DType::f32 : p.x;
  out.sorted_ids = carver.take(DType::i32, {padded});
  out.sorted_weights = carver.take(DType::f32, {padded});
  out.sorted_expert_ids = carver.take(DType::i32, {MoeSort::max_blocks(padded, tile_m)});
  out.num_valid = carver.take(DType::i32, {2});
  out.reverse = carver.take(DType::i32, {p.tokens, p.top_k});
  const auto scales = [&](int64_t rows, int64_t cols) {
    const Quant quant = p.codes_quant();
    if (!is_block(quant)) return carver.take(DType::f32, {rows});
    return carver.take(block_scale_dtype(p.codes(), quant), {rows, blocks_of(cols, block_k(quant))});
  };
  if (p.quantises_x()) {
    out.x_codes = carver.take(p.codes(), {p.tokens, p.hidden});
    out.x_scale = scales(p.tokens, p.hidden);
  }
  out.h = carver.take(h, {positions, p.inter});
  if (p.quantised()) {
    out.h_codes = carver.take(p.codes(), {positions, p.inter});
    out.h_scale = scales(positions, p.inter);
  }
  out.y = carver.take(p.out, {positions, p.hidden});
  if (p.shared_inter > 0) {
    out.shared_h = carver.take(h, {p.tokens, p.shared_inter});
    if (p.quantised()) {
      out.shared_h_codes = carver.take(p.codes(), {p.tokens, p.shared_inter});
      out.shared_h_scale = scales(p.tokens, p.shared_inter);
    }
    out.shared_y = carver.take(p.out, {p.tokens, p.hidden});
  }
  out.bytes = carver.used();
  return out;
}

FusedMoeArgs shapes_of(const FusedMoe::Problem& p) {
  int next = 0;
  FusedMoeArgs args;
  const auto f32 = [&](std::initializer_list<int64_t> shape) { return address_only(next, DType::f32, shape); };
  args.x = address_only(next, p.x, {p.tokens, p.hidden});
  args.w1 = address_only(next, p.w, {p.local_experts, p.w1_rows(p.inter), p.hidden});
  args.w2 = address_only(next, p.w, {p.local_experts, p.hidden, p.inter});
  args.topk_weights = f32({p.tokens, p.top_k});
  args.topk_ids = address_only(next, DType::i32, {p.tokens, p.top_k});
  args.out = address_only(next, p.out, {p.tokens, p.hidden});
  // As a plain weight of [rows, k] needs it; the first extent is left out where there are no experts.
  const auto scale = [&](int64_t experts, int64_t rows, int64_t k) {
    const bool stacked = experts >= 0;
    if (p.scaled_as_codes() && is_block(p.w_quant)) {
      const DType dtype = block_scale_dtype(p.w, p.w_quant);
      const int64_t tall = blocks_of(rows, block_rows(p.w_quant)), wide = blocks_of(k, block_k(p.w_quant));
      return stacked ? address_only(next, dtype, {experts, tall, wide}) : address_only(next, dtype, {tall, wide});
    }
    const int64_t extent = p.scaled_as_codes() && p.w_quant == Quant::per_tensor ? 1 : rows;
    return stacked ? f32({experts, extent}) : f32({extent});
  };
  const bool global = p.coded() && p.w_quant == Quant::per_1x16;
  if (p.quantised() || p.coded()) {
    args.w1_scale = scale(p.local_experts, p.w1_rows(p.inter), p.hidden);
    args.w2_scale = scale(p.local_experts, p.hidden, p.inter);
  }
  if (global) args.w1_global_scale = f32({p.local_experts}), args.w2_global_scale = f32({p.local_experts});
  if (p.decodes()) args.w_quant = p.w_quant, args.a_quant = p.a_quant;
  if (p.quantised() && p.x == p.codes())
    args.x_scale = is_block(p.a_quant)
                       ? address_only(next, block_scale_dtype(p.x, p.a_quant), {p.tokens, blocks_of(p.hidden, block_k(p.a_quant))})
                       : f32({p.tokens});
  if (p.bias1) args.bias1 = f32({p.local_experts, p.w1_rows(p.inter)});
  if (p.bias2) args.bias2 = f32({p.local_experts, p.hidden});
  if (p.expert_mask) args.expert_mask = address_only(next, DType::i32, {p.experts});
  if (p.local_tokens) args.num_local_tokens = address_only(next, DType::i32, {1});
  if (p.shared_inter > 0) {
    args.shared_w1 = address_only(next, p.w, {p.w1_rows(p.shared_inter), p.hidden});
    args.shared_w2 = address_only(next, p.w, {p.hidden, p.shared_inter});
    if (p.quantised() || p.coded()) {
      args.shared_w1_scale = scale(-1, p.w1_rows(p.shared_inter), p.hidden);
      args.shared_w2_scale = scale(-1, p.hidden, p.shared_inter);
    }
    if (global) args.shared_w1_global_scale = f32({1}), args.shared_w2_global_scale = f32({1});
  }
  args.activation.kind = p.activation;
  args.gate = p.gate;
  args.weight_stage = p.weight_stage;
  return args;
}

Support sorted_supports(const FusedMoe::Problem& p, const Device& device) {
  const auto is_packed = [](WeightFormat format) { return format != WeightFormat::strided; };
  const bool shared = p.shared_inter > 0 && (is_packed(p.shared_w1_format) || is_packed(p.shared_w2_format));
  if (device.is_gpu() && (is_packed(p.w1_format) || is_packed(p.w2_format) || shared))
    return Support::no("weights are packed for CPUs; a GPU reads plain rows (w1_format=strided, w2_format=strided)");
  if (device.is_gpu() && p.decodes()) return Support::no("w is ", p.w, " and x is ", p.x, "; there are no GPU kernels for that yet");
  const int64_t padded = MoeSort::max_padded(p.tokens, p.top_k, p.experts, kTileRows[2]);
  if (padded > INT32_MAX) return Support::no("tokens * top_k + experts * tile_m is ", padded, "; positions are 32-bit");
  return Support::yes();
}

namespace {

/// The least time that each child's rows expect, added up.
double children_us(const FusedMoe::Problem& p, int64_t tile_m, const Device& device) {
  double us = 0;
  const RecipeBuffers buffers = recipe_buffers(p, tile_m, reinterpret_cast<std::byte*>(uintptr_t{1} << 46));
  recipe_calls(shapes_of(p), p, tile_m, buffers, [&]<class Args>(const Args& child) {
    using Op = typename OpOf<Args>::type;
    const typename Op::Problem problem = Op::check(child);
    double least = 0;
    for (const auto& candidate : candidates<Op>(problem, device))
      if (candidate.support && (least == 0 || candidate.guess.us < least)) least = candidate.guess.us;
    us += least;
  });
  return us;
}

}  // namespace

double moe_products_us(Target target, const FusedMoe::Problem& p, const Device& device) {
  const Quant quant = p.scaled_as_codes() ? p.w_quant : Quant::none;
  const DType math = multiplied_type(target, p.multiplied(), p.a_quant);
  const auto flops = [&](double experts, double rows, int64_t inter) {
    const double weights = experts * static_cast<double>(p.w1_rows(inter) + inter) * static_cast<double>(p.hidden);
    if (!p.decodes()) return panel_rows::plain_flops(target, math, rows, weights);
    return 2 * rows * weights + panel_rows::decoding_flops(target, p.w, quant, rows, weights, device);
  };
  const double experts = p.expected_experts(), rows = local_pairs(p) / std::max(1.0, experts);
  const double all = flops(experts, rows, p.inter) + (p.shared_inter > 0 ? flops(1, static_cast<double>(p.tokens), p.shared_inter) : 0);
  return overlapped_us(all, panel_rate(target, math, rows, device), FusedMoe::cost(p).bytes, device);
}

Guess sorted_guess(const FusedMoe::Problem& p, const Device& device) {
  constexpr double kChildUs = 6, kSortPairUs = 2e-3, kTaskUs = 0.5;  // a routed call with its team; a pair in moe_sort
  const double pairs = local_pairs(p), rows_each = pairs / std::max<double>(1, static_cast<double>(p.local_experts));
  const double hidden = static_cast<double>(p.hidden), inter = static_cast<double>(p.inter);
  // h and y are written once and read once; quantised h once more as codes.
  const double h_bytes = pairs * inter * (p.quantised() ? 4 + 1 : 2), y_bytes = pairs * hidden * bits(p.out) / 8;
  const double traffic = 2 * (h_bytes + y_bytes) + pairs * hidden * bits(p.x) / 8;
  const double children = 4 + (p.quantised() ? 2 : 0) + (p.shared_inter > 0 ? 2 : 0);
  const double tasks = p.expected_experts() * 4 / workspace_threads(device);
  if (device.is_gpu()) {
    const int tile_m = rows_each <= 16 ? 16 : rows_each <= 128 ? 32 : 64;
    return {.config = {.value = {tile_m}}, .us = children_us(p, tile_m, device)};
  }
  const double us = kChildUs * children + kTaskUs * tasks + kSortPairUs * pairs + traffic / std::max(device.profile.l2_bytes, 1e9) * 2e6 +
                    moe_products_us(best_target(p, device), p, device);
  // Padding is skipped, so a larger tile only saves blocks in the lists.
  return {.config = {.value = {rows_each <= 16 ? 16 : rows_each <= 128 ? 32 : 64}}, .us = us};
}

size_t sorted_workspace(const FusedMoe::Problem& p, const Config& config, const Device&) {
  return recipe_buffers(p, config[0], nullptr).bytes;
}

void sorted_launch(const FusedMoeArgs& args, const FusedMoe::Problem& p, const Config& config, Launch& launch) {
  const RecipeBuffers buffers = recipe_buffers(p, config[0], launch.workspace, launch.device.id);
  recipe_calls(args, p, config[0], buffers, [&]<class Args>(const Args& child) { call<typename OpOf<Args>::type>(child, launch.stream); });
}

void sorted_children(const FusedMoe::Problem& p, const Config& config, ChildSink& sink) {
  const RecipeBuffers buffers = recipe_buffers(p, config[0], reinterpret_cast<std::byte*>(uintptr_t{1} << 46));
  int gemms = 0;
  recipe_calls(shapes_of(p), p, config[0], buffers, [&]<class Args>(const Args& child) {
    using Op = typename OpOf<Args>::type;
    typename Op::Problem problem = Op::check(child);
    if constexpr (std::is_same_v<Op, GroupedGemm>) problem.b_format = gemms++ == 0 ? p.w1_format : p.w2_format;
    if constexpr (std::is_same_v<Op, Gemm>) problem.b_format = gemms++ == 2 ? p.shared_w1_format : p.shared_w2_format;
    sink.add<Op>(problem);
  });
}

}  // namespace eitri
