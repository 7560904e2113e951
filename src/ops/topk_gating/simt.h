// The host side of the SIMT kernels of topk_gating: what to compile for a problem, and the argument of a call.
#pragma once

#include <algorithm>

#include "ops/quantize/simt_shape.h"
#include "ops/topk_gating/simt_params.h"
#include "ops/topk_gating/topk_gating.h"

namespace eitri {

/// The rows of a checked call, as pointers.
GatingTask gating_task(const TopkGatingArgs& args, const TopkGating::Problem& problem);

/// How lanes share a token's experts; lanes == 0: topk_gating_block_per_token.
struct GatingShape {
  int threads = 0, lanes = 0, per_lane = 0, group_lanes = 0;
  bool operator==(const GatingShape&) const = default;
};
/// The shape that takes every problem.
inline constexpr GatingShape kGatingBlockShape{.threads = 256};

namespace detail {
constexpr int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}
/// Consecutive experts of a lane; 0: no number will do.
constexpr int64_t gating_run(int64_t experts, int64_t groups, int warp_size) {
  constexpr int64_t kMostExperts = 1024, kLongest = 32;
  constexpr int64_t kUsual = 8;  // while there are lanes: a maximum of 8 costs about as much as three shuffles
  if (experts > kMostExperts) return 0;
  if (groups == 1) {
    const int64_t lanes = std::min<int64_t>(warp_size, power_of_two_from((experts + kUsual - 1) / kUsual));
    const int64_t run = (std::max<int64_t>(1, experts) + lanes - 1) / lanes;
    return run <= 2 ? run : (run + 3) / 4 * 4;  // whole 16-byte loads
  }
  // Runs that fill a group exactly, a power of two of them; the shortest one of at least kUsual, or else the longest.
  int64_t best = 0;
  for (int64_t run = experts / groups; run >= 1; run /= 2) {
    const bool fits = run <= kLongest && power_of_two_from((experts + run - 1) / run) <= warp_size;
    if (fits && (best == 0 || run >= kUsual)) best = run;
    if (run % 2 != 0) break;
  }
  return best;
}
}  // namespace detail

/// Decided by experts and groups alone: a token's bits do not depend on the others. A few lanes take up to 1024 experts if every
/// group is a power of two of equal runs.
constexpr GatingShape gating_shape(int64_t experts, int64_t groups, int warp_size) {
  const int64_t run = detail::gating_run(experts, groups, warp_size);
  if (run == 0) return kGatingBlockShape;
  return {.threads = 128,
          .lanes = static_cast<int>(detail::power_of_two_from((experts + run - 1) / run)),
          .per_lane = static_cast<int>(run),
          .group_lanes = groups == 1 ? 0 : static_cast<int>(experts / groups / run)};
}

GatingForm gating_form(const TopkGating::Problem& problem, const GatingShape& shape);
SimtEntry gating_entry(const TopkGating::Problem& problem, const GatingShape& shape, const SimtMachine& machine);
size_t gating_workspace(const TopkGating::Problem& problem, const GatingShape& shape, const SimtMachine& machine);
GatingGrid gating_grid(const TopkGatingArgs& args, const TopkGating::Problem& problem, const GatingShape& shape, const SimtMachine& machine,
                       std::byte* workspace);

/// topk_gating.simt.lanes_per_token and topk_gating.simt.block_per_token.
Kernel<TopkGating> gating_lanes_simt_row();
Kernel<TopkGating> gating_block_simt_row();

}  // namespace eitri
