// The host side of the SIMT kernel of quantize: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/quantize/quantize.h"
#include "ops/quantize/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// The rows of a checked call, as pointers.
QuantizeBlocksTask quantize_blocks_task(const QuantizeArgs& args, const Quantize::Problem& problem);

std::span<const char* const> enum_names(QuantizePass);
QuantizeForm quantize_form(const Quantize::Problem& problem, const RowShape& shape, QuantizePass pass = QuantizePass::codes);
/// Registers without tuning.
int quantize_registers(const Quantize::Problem& problem, const RowShape& shape, const SimtMachine& machine);
SimtEntry quantize_entry(const Quantize::Problem& problem, const RowShape& shape, QuantizePass pass, int registers, RowAccess access);
/// Blocks of the pass before the codes, each of which leaves a magnitude in the workspace; 0: there is no such pass.
int64_t quantize_parts(const Quantize::Problem& problem, const SimtMachine& machine);
QuantizeGrid quantize_grid(const QuantizeArgs& args, const Quantize::Problem& problem, const SimtMachine& machine, std::byte* workspace);
/// The argument of that pass.
QuantizeGrid quantize_amax_grid(QuantizeGrid grid);
/// The shape without tuning.
RowShape quantize_shape(const Quantize::Problem& p, const SimtMachine& machine);

/// quantize.simt.block_per_row.
Kernel<Quantize> quantize_simt_row();

}  // namespace eitri
