// The SIMT kernels of topk_gating, moe_sort and moe_combine on the operators' own cases, emulated with warps of 32 and of 64.
#include <gmock/gmock.h>

#include <cstring>
#include <memory>

#include "ops/moe_combine/simt.h"
#include "ops/moe_sort/simt.h"
#include "ops/topk_gating/simt.h"
#include "simt/check_emulated.h"
#include "simt/routing_kernels.h"

namespace eitri {
namespace {

using simt_emulation::check_emulated;
using simt_emulation::EmptyProblems;
using simt_emulation::EmulatedLaunch;

/// Dirty memory that lives as long as the launches that hold it.
std::shared_ptr<std::byte[]> dirty(size_t bytes) {
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  std::memset(memory.get(), 0xa5, bytes);
  return memory;
}

EmulatedLaunch gating_launch(const TopkGatingArgs& args, const TopkGating::Problem& p, const GatingShape& shape, int warp_size,
                             int64_t most_blocks) {
  const SimtMachine machine{.warp_size = warp_size, .units = 1};
  const auto workspace = dirty(gating_workspace(p, shape, machine));
  GatingGrid grid = gating_grid(args, p, shape, machine, workspace.get());
  grid.blocks = std::min(grid.blocks, most_blocks);
  const GatingForm form = gating_form(p, shape);
  const GatingLane lane = warp_size == 32 ? simt32::gating_lane(form) : simt64::gating_lane(form);
  if (lane == nullptr) return {};
  return {shape.threads, grid.blocks, [=] { lane(grid), (void)workspace; }};
}

TEST(SimtRouting, topk_gating_equals_the_reference) {
  check_emulated<TopkGating>(
      [](const TopkGatingArgs& args, const TopkGating::Problem& p, int warp_size, int64_t most_blocks) {
        GatingShape shape = gating_shape(p.experts, p.groups, warp_size);
        if (shape.lanes == 0) shape.threads = kBlockGatingThreads;
        return gating_launch(args, p, shape, warp_size, most_blocks);
      },
      EmptyProblems::run);
}
TEST(SimtRouting, topk_gating_of_any_size_equals_the_reference) {
  constexpr int64_t kMostTokens = 100;
  check_emulated<TopkGating>(
      [](const TopkGatingArgs& args, const TopkGating::Problem& p, int warp_size, int64_t most_blocks) {
        return gating_launch(args, p, {.threads = kBlockGatingThreads}, warp_size, most_blocks);
      },
      EmptyProblems::run, kMostTokens);
}

std::vector<EmulatedLaunch> sort_launches(const MoeSortArgs& args, const MoeSort::Problem& p, const MoeSortShape& shape, int warp_size) {
  const SimtMachine machine{.warp_size = warp_size, .units = 1};
  const auto workspace = dirty(moe_sort_workspace(p, shape, machine));
  const MoeSortGrid grid = moe_sort_grid(args, p, shape, machine, workspace.get());
  const MoeSortForm form = moe_sort_form(shape);
  const MoeSortLanes lanes = warp_size == 32 ? simt32::moe_sort_lanes(form) : simt64::moe_sort_lanes(form);
  const std::pair<std::string, MoeSortLane> named[] = {{"moe_sort_one_block", lanes.one_block},
                                                       {"moe_sort_count", lanes.count},
                                                       {"moe_sort_layout", lanes.layout},
                                                       {"moe_sort_place", lanes.place}};
  std::vector<EmulatedLaunch> launches;
  for (const SimtEntry& entry : moe_sort_entries(shape))
    for (const auto& [name, lane] : named) {
      if (name != entry.entry || lane == nullptr) continue;
      launches.push_back({shape.threads, entry.blocks, [grid, workspace, lane = lane] { lane(grid), (void)workspace; }});
    }
  EXPECT_EQ(launches.size(), moe_sort_entries(shape).size());
  return launches;
}

void check_sort(MoeSortParts parts, const MoeSortForm& form) {
  check_emulated<MoeSort>(
      [&](const MoeSortArgs& args, const MoeSort::Problem& p, int warp_size, int64_t most_blocks) {
        const int64_t blocks = parts == MoeSortParts::one_block ? 1 : most_blocks;
        return sort_launches(args, p, {.parts = parts, .threads = form.threads, .counters = form.counters, .blocks = blocks}, warp_size);
      },
      EmptyProblems::run);
}
TEST(SimtRouting, moe_sort_in_one_block_equals_the_reference) { check_sort(MoeSortParts::one_block, kSharedSort); }
TEST(SimtRouting, moe_sort_in_blocks_equals_the_reference) { check_sort(MoeSortParts::blocks, kSharedSort); }
TEST(SimtRouting, moe_sort_in_warps_equals_the_reference) { check_sort(MoeSortParts::warps, kWorkspaceSort); }

TEST(SimtRouting, moe_combine_equals_the_reference) {
  check_emulated<MoeCombine>(
      [](const MoeCombineArgs& args, const MoeCombine::Problem& p, int warp_size, int64_t most_blocks) -> EmulatedLaunch {
        const MoeCombineShape shape{.threads = kCombineThreads, .slots = moe_combine_shape(p, {}).slots};
        MoeCombineGrid grid = moe_combine_grid(args, p, shape);
        grid.blocks = std::min(grid.blocks, 4 * most_blocks);
        const MoeCombineForm form = moe_combine_form(p, shape);
        const MoeCombineLane lane = warp_size == 32 ? simt32::moe_combine_lane(form) : simt64::moe_combine_lane(form);
        if (lane == nullptr) return {};
        return {shape.threads, grid.blocks, [=] { lane(grid); }};
      },
      EmptyProblems::run);
}

}  // namespace
}  // namespace eitri
