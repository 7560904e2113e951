// Random weights of few bits, for benchmarks.
#pragma once

#include <string>

#include "checkpoint/moe_layer.h"

namespace eitri::cli {

/// Weights of few bits and what shares their scales.
struct Coding {
  DType dtype = DType::none;  // none: not of few bits
  Quant quant = Quant::none;
};
/// From the argument of --weights: "i4:per_1x32"; empty: none. Refuses other texts.
Coding parse_weights(const std::string& text);

/// A weight's codes, [n, k] or [experts, n, k], and its scales as in GemmArgs and FusedMoeArgs.
struct CodedWeight {
  View codes;
  View block_scale;   // of all blocks: goes into the packed buffer
  View scale;         // of rows or tensors
  View global_scale;  // per_1x16
};
/// Codes of any value but NaN and scales between 2^-8 and 2^-6. `experts` 0: one matrix. Codes and block scales lie in `plain`, other
/// scales in `kept`.
CodedWeight random_codes(const Coding& coding, int64_t experts, int64_t n, int64_t k, checkpoint::Arena& plain, checkpoint::Arena& kept);

}  // namespace eitri::cli
