// Rows of f8e4m3 activations as what the coded panel kernels multiply.
#pragma once

#include "eitri/types.hpp"

namespace eitri {

/// Rows [m, k] of f8e4m3 to bf16 or f32, contiguous, on the team. Block scales ([m, ceil(k / block)], per_1x32 or per_1x128; else not
/// given) are folded in: exactly, but for f32 scales, whose products are rounded to nearest. Scales of rows and tensors stay outside.
void widen_rows(const View& rows, const View& scale, Quant quant, DType to_dtype, std::byte* to, int threads);

}  // namespace eitri
