// What host and kernels share about the SIMT kernels of activation.
#pragma once

#include "ops/activation/activation_kernels.h"

namespace eitri {

/// What a kernel is compiled for.
struct ActivationForm {
  DType x = DType::bf16, out = DType::bf16;
  ActivationKind kind = ActivationKind::silu;
  GateLayout gate = GateLayout::none;
  bool limited = false;  // ActivationParams::limit counts
  int threads = 0;       // of a block
  int chunks = 0;        // with an i8 out: kept by a thread; 0: rows are computed again
  bool operator==(const ActivationForm&) const = default;
};

/// The argument of both kernels.
struct ActivationGrid {
  ActivationTask task = {};
  const int32_t* num_valid = nullptr;  // with sorted_ids
  int64_t rows = 0;
  int64_t tiles_per_row = 0;  // tiles
  int64_t blocks = 0;
  int32_t vectors = 0;  // every row of every tensor, and its second half, is aligned for vector accesses
};

}  // namespace eitri
