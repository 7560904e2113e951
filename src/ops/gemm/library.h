// The oneDNN side of gemm: rows that call the library and weights in its own layouts. Without the library every function
// is still there: the row says why it cannot run, packing refuses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gemm/gemm.h"

namespace eitri::library {

/// major * 100 + minor of the library at hand; 0 without one.
uint16_t version();
/// Bytes of one matrix of `args.weights` in the library's layout, with a description of that layout in front.
size_t matrix_bytes(const PackArgs& args);
/// Writes matrix `index` of the weights.
void pack_matrix(const PackArgs& args, int64_t index, std::byte* to);
/// Writes matrix `index` as contiguous rows of k elements.
void unpack_matrix(const View& weights, int64_t index, std::byte* rows);

Support supports(const Gemm::Problem& problem, const Device& device);
Guess guess(const Gemm::Problem& problem, const Device& device);
size_t workspace(const Gemm::Problem& problem, const Config& config, const Device& device);
void launch(const GemmArgs& args, const Gemm::Problem& problem, const Config& config, Launch& launch);
/// The same for a b whose header need not be there: `packed_bytes` are those of one matrix in the library's layout.
void launch_products(const GemmArgs& args, const Gemm::Problem& problem, int64_t packed_bytes, Launch& launch);

}  // namespace eitri::library
