// The rows of fused_moe's table.
#pragma once

#include <algorithm>

#include "ops/fused_moe/fused_moe.h"

namespace eitri {

/// Tokens up to which the decode rows are offered: their buffers hold every (token, slot) pair's activations, and every
/// task packs its rows of x anew.
inline constexpr int64_t kMaxDecodeTokens = 256;

/// (token, slot) pairs that meet a local expert when the router chooses evenly.
inline double local_pairs(const FusedMoe::Problem& p) {
  return static_cast<double>(p.pairs()) * static_cast<double>(p.local_experts) / static_cast<double>(std::max<int64_t>(1, p.experts));
}
/// Time of the call's products by the panel kernels of a level, reading the weights included.
double moe_products_us(Target target, const FusedMoe::Problem& problem, const Device& device);

template <Target kTarget> Support decode_supports(const FusedMoe::Problem& problem, const Device& device);
template <Target kTarget> Guess decode_guess(const FusedMoe::Problem& problem, const Device& device);
size_t decode_workspace(const FusedMoe::Problem& problem, const Config& config, const Device& device);
template <Target kTarget>
void decode_launch(const FusedMoeArgs& args, const FusedMoe::Problem& problem, const Config& config, Launch& launch);
void decode_children(const FusedMoe::Problem& problem, const Config& config, ChildSink& sink);

template <Target kTarget> constexpr Kernel<FusedMoe> decode_row(const char* name) {
  return {.name = name,
          .family = kTarget == Target::any_cpu ? Family::tile_template : Family::assembly,
          .target = kTarget,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false},
          .supports = decode_supports<kTarget>,
          .knobs = {},
          .guess = decode_guess<kTarget>,
          .workspace = decode_workspace,
          .launch = decode_launch<kTarget>,
          .children = decode_children};
}

inline constexpr int kTileRows[] = {16, 32, 64};
inline constexpr Knob kSortedKnobs[] = {{"tile_m", kTileRows}};

Support sorted_supports(const FusedMoe::Problem& problem, const Device& device);
Guess sorted_guess(const FusedMoe::Problem& problem, const Device& device);
size_t sorted_workspace(const FusedMoe::Problem& problem, const Config& config, const Device& device);
void sorted_launch(const FusedMoeArgs& args, const FusedMoe::Problem& problem, const Config& config, Launch& launch);
void sorted_children(const FusedMoe::Problem& problem, const Config& config, ChildSink& sink);
constexpr Kernel<FusedMoe> moe_sorted_row() {
  return {.name = "fused_moe.recipe.sorted",
          .family = Family::recipe,
          .target = Target::any,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false},
          .supports = sorted_supports,
          .knobs = kSortedKnobs,
          .guess = sorted_guess,
          .workspace = sorted_workspace,
          .launch = sorted_launch,
          .children = sorted_children};
}

constexpr Kernel<FusedMoe> moe_reference_row() {
  return {.name = "fused_moe.reference",
          .family = Family::reference,
          .target = Target::any_cpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = [](const FusedMoe::Problem&, const Device&) { return Support::yes(); },
          .knobs = {},
          .guess = [](const FusedMoe::Problem& p, const Device&) -> Guess {
            constexpr double kFlops = 2e8;  // in double, decoding as it goes: only ever chosen when alone
            return {.config = {}, .us = FusedMoe::cost(p).flops / kFlops * 1e6 + 1000};
          },
          .workspace = nullptr,
          .launch = [](const FusedMoeArgs& args, const FusedMoe::Problem&, const Config&, Launch&) { FusedMoe::reference(args, nullptr); },
          .children = nullptr};
}

}  // namespace eitri
