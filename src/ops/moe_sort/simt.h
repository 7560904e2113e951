// The host side of the SIMT kernels of moe_sort: what to compile for a problem, in the order of the launches, and their argument.
#pragma once

#include "ops/moe_sort/moe_sort.h"
#include "ops/moe_sort/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// What has counters of its own: a warp of the only block; a block, and again its warps; a warp, in the workspace.
enum class MoeSortParts : uint8_t { one_block, blocks, warps };

struct MoeSortShape {
  MoeSortParts parts = MoeSortParts::one_block;
  int threads = 0, counters = 0;
  int64_t blocks = 1;
  bool operator==(const MoeSortShape&) const = default;
};
inline constexpr int kMoeSortCounters = 8192;  // 32 KiB
/// The shape with these parts; only `warps` takes more than kMoeSortCounters experts.
MoeSortShape moe_sort_shape(const MoeSort::Problem& problem, MoeSortParts parts, const SimtMachine& machine);

MoeSortForm moe_sort_form(const MoeSortShape& shape);
/// In the order of the launches, each of which waits for the one before.
std::vector<SimtEntry> moe_sort_entries(const MoeSortShape& shape);
size_t moe_sort_workspace(const MoeSort::Problem& problem, const MoeSortShape& shape, const SimtMachine& machine);
MoeSortGrid moe_sort_grid(const MoeSortArgs& args, const MoeSort::Problem& problem, const MoeSortShape& shape, const SimtMachine& machine,
                          std::byte* workspace);

/// moe_sort.simt.one_block, .blocks and .warps.
template <MoeSortParts kParts> Kernel<MoeSort> moe_sort_simt_row();
extern template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::one_block>();
extern template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::blocks>();
extern template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::warps>();

}  // namespace eitri
