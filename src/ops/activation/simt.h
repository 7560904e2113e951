// The host side of the SIMT kernels of activation: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/activation/activation.h"
#include "ops/activation/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// The rows of a checked call, as pointers.
ActivationTask activation_task(const ActivationArgs& args, const Activation::Problem& problem);

ActivationForm activation_form(const Activation::Problem& problem, const RowShape& shape);
/// Registers without tuning.
int activation_registers(const Activation::Problem& problem, const RowShape& shape, const SimtMachine& machine);
SimtEntry activation_entry(const Activation::Problem& problem, const RowShape& shape, int registers, RowAccess access);
ActivationGrid activation_grid(const ActivationArgs& args, const Activation::Problem& problem, const RowShape& shape);
/// The shape without tuning. Tiles: one chunk, and no more threads than the row has use for.
RowShape activation_shape(const Activation::Problem& problem, const SimtMachine& machine);

/// activation.simt.block_per_row (a quantised out) and activation.simt.tiles.
Kernel<Activation> activation_block_per_row();
Kernel<Activation> activation_tiles();

}  // namespace eitri
