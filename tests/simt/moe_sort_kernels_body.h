// moe_sort's kernels, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include "ops/moe_sort/simt.cuh"
#include "simt/routing_kernels.h"

namespace eitri::EITRI_SIMT {

MoeSortLanes moe_sort_lanes(const MoeSortForm& form) {
  if (form == kSharedSort)
    return {[](const MoeSortGrid& grid) { moe_sort_one_block<kSharedSort>(grid); },
            [](const MoeSortGrid& grid) { moe_sort_count<kSharedSort>(grid); },
            [](const MoeSortGrid& grid) { moe_sort_layout<kSharedSort>(grid); },
            [](const MoeSortGrid& grid) { moe_sort_place<kSharedSort>(grid); }};
  if (form == kWorkspaceSort)
    return {nullptr, [](const MoeSortGrid& grid) { moe_sort_count<kWorkspaceSort>(grid); },
            [](const MoeSortGrid& grid) { moe_sort_layout<kWorkspaceSort>(grid); },
            [](const MoeSortGrid& grid) { moe_sort_place<kWorkspaceSort>(grid); }};
  return {};
}

}  // namespace eitri::EITRI_SIMT
