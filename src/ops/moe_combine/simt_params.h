// What host and kernel share about the SIMT kernel of moe_combine.
#pragma once

#include "ops/moe_combine/moe_combine_kernels.h"

namespace eitri {

/// What the kernel is compiled for.
struct MoeCombineForm {
  DType y = DType::bf16, out = DType::bf16;
  int threads = 0;  // of a block
  int slots = 0;    // whose rows a thread fetches at once
  bool operator==(const MoeCombineForm&) const = default;
};

/// The argument of the kernel.
struct MoeCombineGrid {
  MoeCombineTask task = {};
  int64_t tokens = 0;
  int64_t chunks = 0;  // of a row: 16 bytes of y each
  int64_t blocks = 0;
  int32_t vectors = 0;  // every row of every tensor is aligned for vector accesses
};

}  // namespace eitri
