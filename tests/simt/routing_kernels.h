// The SIMT kernels of topk_gating, moe_sort and moe_combine, compiled for emulation with warps of 32 and of 64. A kernel that the tables
// in *_kernels_body.h do not have is null.
#pragma once

#include "ops/moe_combine/simt_params.h"
#include "ops/moe_sort/simt_params.h"
#include "ops/topk_gating/simt_params.h"

namespace eitri {

using GatingLane = void (*)(const GatingGrid&);
using MoeSortLane = void (*)(const MoeSortGrid&);
using MoeCombineLane = void (*)(const MoeCombineGrid&);

/// moe_sort's kernels in one form.
struct MoeSortLanes {
  MoeSortLane one_block = nullptr, count = nullptr, layout = nullptr, place = nullptr;
};

namespace simt32 {
GatingLane gating_lane(const GatingForm& form);
MoeSortLanes moe_sort_lanes(const MoeSortForm& form);
MoeCombineLane moe_combine_lane(const MoeCombineForm& form);
}  // namespace simt32
namespace simt64 {
GatingLane gating_lane(const GatingForm& form);
MoeSortLanes moe_sort_lanes(const MoeSortForm& form);
MoeCombineLane moe_combine_lane(const MoeCombineForm& form);
}  // namespace simt64

/// Forms that the tables are made for. Few counters: cases with many experts have more warps than counters for them.
constexpr MoeSortForm kSharedSort{.threads = 256, .counters = 1024}, kWorkspaceSort{.threads = 128, .counters = 0};
constexpr int kCombineThreads = 64, kBlockGatingThreads = 128;

}  // namespace eitri
