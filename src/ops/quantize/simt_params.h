// What host and kernel share about the SIMT kernel of quantize.
#pragma once

#include "ops/quantize/quantize_kernels.h"

namespace eitri {

/// What the kernel is compiled for.
struct QuantizeForm {
  DType x = DType::bf16, q = DType::i8;
  int threads = 0;  // of a block
  int chunks = 0;   // kept by a thread; 0: rows are read again
  bool operator==(const QuantizeForm&) const = default;
};

/// The argument of the kernel.
struct QuantizeGrid {
  QuantizeTask task = {};
  const int32_t* num_valid = nullptr;  // with sorted_ids
  int64_t rows = 0;
  int64_t blocks = 0;
  int32_t vectors = 0;  // every row of every tensor is aligned for vector accesses
};

}  // namespace eitri
