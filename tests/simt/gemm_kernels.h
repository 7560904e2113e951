// The SIMT kernels of gemm and grouped_gemm, compiled for emulation with warps of 32 and of 64. Null: the tables in
// gemm_kernels_body.h have no such form.
#pragma once

#include "ops/gemm/simt_params.h"
#include "ops/grouped_gemm/simt_params.h"

namespace eitri {

using GemmLane = void (*)(const GemmGrid&);
using GemmEpilogueLane = void (*)(const GemmEpilogueGrid&);
using GroupedGemmLane = void (*)(const GroupedGemmGrid&);

namespace simt32 {
GemmLane gemm_tile_lane(const GemmTileForm& form);
GemmLane gemm_decode_lane(const GemmDecodeForm& form);
GemmEpilogueLane gemm_epilogue_lane(DType sums);
GroupedGemmLane grouped_gemm_lane(const GemmTileForm& form);
}  // namespace simt32
namespace simt64 {
GemmLane gemm_tile_lane(const GemmTileForm& form);
GemmLane gemm_decode_lane(const GemmDecodeForm& form);
GemmEpilogueLane gemm_epilogue_lane(DType sums);
GroupedGemmLane grouped_gemm_lane(const GemmTileForm& form);
}  // namespace simt64

}  // namespace eitri
