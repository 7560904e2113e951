// The host side of the SIMT kernel of quantize: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/quantize/quantize.h"
#include "ops/quantize/simt_params.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// The rows of a checked call, as pointers.
QuantizeTask quantize_task(const QuantizeArgs& args, const Quantize::Problem& problem);

QuantizeForm quantize_form(const Quantize::Problem& problem, const RowShape& shape);
/// Registers without tuning.
int quantize_registers(const Quantize::Problem& problem, const RowShape& shape, const SimtMachine& machine);
SimtEntry quantize_entry(const Quantize::Problem& problem, const RowShape& shape, int registers, RowAccess access);
QuantizeGrid quantize_grid(const QuantizeArgs& args, const Quantize::Problem& problem);
/// The shape without tuning.
inline RowShape quantize_shape(const Quantize::Problem& p, const SimtMachine& machine) {
  // What a thread keeps is small, so that many rows go with four chunks a thread (16384 x 7168
  // bf16: 4.36 TB/s, two chunks 4.05; H200, 2026-11-30, `eitri bench quantize --all-configs`).
  return row_shape_with(p.cols, wide_of(p.x), p.rows <= 2 * int64_t{machine.units} ? 1 : 4, machine);
}

/// quantize.simt.block_per_row.
Kernel<Quantize> quantize_simt_row();

}  // namespace eitri
