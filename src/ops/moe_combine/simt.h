// The host side of the SIMT kernel of moe_combine: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/moe_combine/moe_combine.h"
#include "ops/moe_combine/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// The rows of a checked call, as pointers.
MoeCombineTask moe_combine_task(const MoeCombineArgs& args, const MoeCombine::Problem& problem);

struct MoeCombineShape {
  int threads = 0, slots = 0;
  bool operator==(const MoeCombineShape&) const = default;
};
/// Few chunks get small blocks, so that all multiprocessors take part.
MoeCombineShape moe_combine_shape(const MoeCombine::Problem& problem, const SimtMachine& machine);

MoeCombineForm moe_combine_form(const MoeCombine::Problem& problem, const MoeCombineShape& shape);
SimtEntry moe_combine_entry(const MoeCombine::Problem& problem, const MoeCombineShape& shape);
MoeCombineGrid moe_combine_grid(const MoeCombineArgs& args, const MoeCombine::Problem& problem, const MoeCombineShape& shape);

/// moe_combine.simt.chunks.
Kernel<MoeCombine> moe_combine_simt_row();

}  // namespace eitri
