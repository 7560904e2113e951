// The host side of quantize.simt.one_pass: what to compile for a problem, and the argument of a call.
#pragma once

#include "ops/quantize/simt.h"

namespace eitri {

/// A block's threads, and how many chunks of 16 bytes each of them keeps.
struct OnePassShape {
  int threads = 0, chunks = 0;
  bool operator==(const OnePassShape&) const = default;
};
inline constexpr int kOnePassThreads[] = {128, 256, 512, 1024}, kOnePassChunks[] = {1, 2, 4, 8};

/// The shape without tuning.
OnePassShape one_pass_shape(const Quantize::Problem& problem, const SimtMachine& machine);
/// Blocks that a device has room for at once, at most kOnePassBlocks.
int one_pass_blocks(const OnePassShape& shape, const SimtMachine& machine);
inline QuantizeForm one_pass_form(const Quantize::Problem& p, const OnePassShape& shape) {
  return {.x = p.x, .q = p.q, .quant = Quant::per_tensor, .threads = shape.threads, .chunks = shape.chunks};
}
SimtEntry one_pass_entry(const Quantize::Problem& problem, const OnePassShape& shape, RowAccess access);
/// `most_blocks`: more pieces than that are taken in turn. `meeting`: kOnePassBytes, zero before the first launch.
QuantizeOnePassGrid one_pass_grid(const QuantizeArgs& args, const Quantize::Problem& problem, const OnePassShape& shape, int most_blocks,
                                  void* meeting);

/// quantize.simt.one_pass.
Kernel<Quantize> quantize_one_pass_row();

}  // namespace eitri
