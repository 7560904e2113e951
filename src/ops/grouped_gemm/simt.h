// The host side of the SIMT kernel of grouped_gemm: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/gemm/simt.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/simt_params.h"

namespace eitri {

GemmTileForm grouped_gemm_tile_form(const GroupedGemm::Problem& problem, GemmTileShape shape);
SimtEntry grouped_gemm_tile_entry(const GroupedGemm::Problem& problem, GemmTileShape shape);
GroupedGemmGrid grouped_gemm_tile_grid(const GroupedGemmArgs& args, const GroupedGemm::Problem& problem, GemmTileShape shape);
/// The shape without tuning: no taller than the rows that an expert has or that a block holds.
GemmTileShape grouped_gemm_tile_shape(const GroupedGemm::Problem& problem, const SimtMachine& machine);

/// grouped_gemm.simt.tile.
Kernel<GroupedGemm> grouped_gemm_simt_tile();

}  // namespace eitri
