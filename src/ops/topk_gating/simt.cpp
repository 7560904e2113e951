#include "ops/topk_gating/simt.h"

#include <algorithm>

namespace eitri {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t blocks_of(const TopkGating::Problem& p, const GatingShape& shape, const SimtMachine& machine) {
  if (shape.lanes > 0) return blocks_for(ceil_div(p.tokens, shape.threads / shape.lanes));
  // Each block has its part of the workspace.
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const int64_t room = std::max<int64_t>(1, kMostBytes / (8 * std::max<int64_t>(1, gating_block_words(p.experts, p.groups))));
  return std::max<int64_t>(1, std::min({p.tokens, int64_t{4} * machine.units, room}));
}

}  // namespace

GatingTask gating_task(const TopkGatingArgs& args, const TopkGating::Problem& p) {
  return {.logits = static_cast<const std::byte*>(args.logits.data),
          .logits_stride = args.logits.stride[0] * bits(p.logits) / 8,
          .dtype = p.logits,
          .bias = static_cast<const float*>(args.correction_bias.data),
          .weights = static_cast<float*>(args.weights.data),
          .weights_stride = args.weights.stride[0],
          .ids = static_cast<int32_t*>(args.ids.data),
          .ids_stride = args.ids.stride[0],
          .experts = p.experts,
          .top_k = p.top_k,
          .groups = p.groups,
          .topk_groups = p.topk_groups,
          .score = static_cast<GatingScore>(p.score),
          .renormalize = p.renormalize == Renormalize::yes,
          .scale = args.scale};
}

GatingForm gating_form(const TopkGating::Problem& p, const GatingShape& shape) {
  return {.logits = p.logits,
          .score = static_cast<GatingScore>(p.score),
          .bias = p.bias,
          .threads = shape.threads,
          .lanes = shape.lanes,
          .per_lane = shape.per_lane,
          .group_lanes = shape.group_lanes};
}

SimtEntry gating_entry(const TopkGating::Problem& p, const GatingShape& shape, const SimtMachine& machine) {
  const char* entry = shape.lanes > 0 ? "topk_gating_lanes_per_token" : "topk_gating_block_per_token";
  return {
      .file = "ops/topk_gating/simt.cuh",
      .entry = entry,
      .defines = {simt_define("ENTRY", entry), simt_define("LOGITS", p.logits), simt_define("SCORE", p.score),
                  simt_define("BIAS", p.bias ? "true" : "false"), simt_define("THREADS", shape.threads), simt_define("LANES", shape.lanes),
                  simt_define("PER_LANE", shape.per_lane), simt_define("GROUP_LANES", shape.group_lanes)},
      .threads = shape.threads,
      .blocks = blocks_of(p, shape, machine)};
}

size_t gating_workspace(const TopkGating::Problem& p, const GatingShape& shape, const SimtMachine& machine) {
  if (shape.lanes > 0) return 0;
  return static_cast<size_t>(blocks_of(p, shape, machine) * gating_block_words(p.experts, p.groups)) * sizeof(uint64_t);
}

GatingGrid gating_grid(const TopkGatingArgs& args, const TopkGating::Problem& p, const GatingShape& shape, const SimtMachine& machine,
                       std::byte* workspace) {
  const auto aligned = [](const View& view) { return is_vector_aligned(view, wide_of(view.dtype)); };
  return {.task = gating_task(args, p),
          .tokens = p.tokens,
          .blocks = blocks_of(p, shape, machine),
          .words = reinterpret_cast<uint64_t*>(workspace),
          .vectors = aligned(args.logits) && (!p.bias || aligned(args.correction_bias)) ? 1 : 0};
}

namespace {

template <bool kLanes> GatingShape shape_of(const TopkGating::Problem& p, const Device& device) {
  return kLanes ? gating_shape(p.experts, p.groups, device.warp_size) : kGatingBlockShape;
}
template <bool kLanes> std::vector<Source> sources(const TopkGating::Problem& p, const Config&, const Device& device) {
  return {gating_entry(p, shape_of<kLanes>(p, device), machine_of(device)).source()};
}
template <bool kLanes> size_t workspace(const TopkGating::Problem& p, const Config&, const Device& device) {
  return gating_workspace(p, shape_of<kLanes>(p, device), machine_of(device));
}
template <bool kLanes> void launch_tokens(const TopkGatingArgs& args, const TopkGating::Problem& p, const Config&, Launch& launch) {
  const GatingShape shape = shape_of<kLanes>(p, launch.device);
  const GatingGrid grid = gating_grid(args, p, shape, machine_of(launch.device), launch.workspace);
  launch_kernel(launch, 0, {.blocks = TopkGating::empty(p) ? 0 : grid.blocks, .threads = shape.threads}, grid);
}

Support takes_lanes(const TopkGating::Problem& p, const Device& device) {
  if (gating_shape(p.experts, p.groups, device.warp_size).lanes > 0) return Support::yes();
  if (p.experts > 1024) return Support::no("takes up to 1024 experts, not ", p.experts);
  return Support::no("groups of ", p.experts / p.groups, " experts are no power of two of equal runs for at most ", device.warp_size,
                     " lanes");
}
double rounds(const TopkGating::Problem& p) { return static_cast<double>(p.top_k); }
Guess guess_lanes(const TopkGating::Problem& p, const Device& device) {
  return {.config = {}, .us = memory_pass_us(device, TopkGating::cost(p).bytes) + 0.15 * rounds(p)};
}
Guess guess_block(const TopkGating::Problem& p, const Device& device) {
  const double waves = 1 + static_cast<double>(p.tokens) / (4.0 * device.units);
  const double us = 1 + 0.6 * rounds(p) + static_cast<double>(p.experts) * (1 + rounds(p)) * 1e-4;
  return {.config = {}, .us = memory_pass_us(device, TopkGating::cost(p).bytes) + waves * us};
}

constexpr Numerics kNumerics{.accumulator = DType::f32, .repeatable = true, .batch_invariant = true};

}  // namespace

Kernel<TopkGating> gating_lanes_simt_row() {
  return {.name = "topk_gating.simt.lanes_per_token",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = kNumerics,
          .supports = takes_lanes,
          .guess = guess_lanes,
          .launch = launch_tokens<true>,
          .sources = sources<true>};
}

Kernel<TopkGating> gating_block_simt_row() {
  return {.name = "topk_gating.simt.block_per_token",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = kNumerics,
          .supports = [](const TopkGating::Problem&, const Device&) { return Support::yes(); },
          .guess = guess_block,
          .workspace = workspace<false>,
          .launch = launch_tokens<false>,
          .sources = sources<false>};
}

}  // namespace eitri
