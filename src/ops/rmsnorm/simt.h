// The host side of the SIMT kernel of rmsnorm: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/quantize/simt_shape.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rmsnorm/simt_params.h"

namespace eitri {

/// The rows of a checked call, as pointers.
RmsNormTask rmsnorm_task(const RmsNormArgs& args, const RmsNorm::Problem& problem);

/// Whether weights are kept in registers as well.
bool has_early_weights(const RowShape& shape, int registers);
/// Whether quantised rows are kept as products with the weights.
bool has_products(const RmsNorm::Problem& problem, const RowShape& shape, int registers, RowAccess access);
/// Blocks that share a row: two of a cluster where rows are long and few, else one.
int rmsnorm_row_blocks(const RmsNorm::Problem& problem, const RowShape& shape, const SimtMachine& machine, RowAccess access);
/// Threads of each of them.
int rmsnorm_threads(const RowShape& shape, int row_blocks, const SimtMachine& machine);
RmsNormForm rmsnorm_form(const RmsNorm::Problem& problem, const RowShape& shape, int registers);
/// Registers without tuning.
int rmsnorm_registers(const RmsNorm::Problem& problem, const RowShape& shape, const SimtMachine& machine);
SimtEntry rmsnorm_entry(const RmsNorm::Problem& problem, const RowShape& shape, int registers, RowAccess access,
                        const SimtMachine& machine);
RmsNormGrid rmsnorm_grid(const RmsNormArgs& args, const RmsNorm::Problem& problem);
/// The shape without tuning.
RowShape rmsnorm_shape(const RmsNorm::Problem& problem, const SimtMachine& machine);

/// rmsnorm.simt.block_per_row.
Kernel<RmsNorm> rmsnorm_simt_row();

}  // namespace eitri
