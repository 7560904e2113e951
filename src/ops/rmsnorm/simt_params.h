// What host and kernel share about the SIMT kernel of rmsnorm.
#pragma once

#include "ops/rmsnorm/rmsnorm_kernels.h"

namespace eitri {

/// What the kernel is compiled for.
struct RmsNormForm {
  DType x = DType::bf16, weight = DType::bf16, residual = DType::none, out = DType::bf16;
  Quant quant = Quant::none;
  NormWeight norm_weight = NormWeight::plain;
  int threads = 0;             // of a block
  int chunks = 0;              // kept by a thread; 0: rows are read again
  bool early_weights = false;  // kept as well
  bool products = false;       // of values and weights are kept, of quantised rows
  int row_blocks = 1;          // that share a row: 1, or a cluster of 2
  bool operator==(const RmsNormForm&) const = default;
};

/// The argument of the kernel.
struct RmsNormGrid {
  RmsNormTask task = {};
  float columns = 0, inverse_columns = 0;  // hidden, and the correctly rounded 1 / hidden
  int64_t tokens = 0;
  int64_t blocks = 0;
  int32_t vectors = 0;  // every row of every tensor is aligned for vector accesses
};

}  // namespace eitri
