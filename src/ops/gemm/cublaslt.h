// The cuBLASLt side of gemm: the library, found at run time, and the row gemm.library.cublaslt.
#pragma once

#include "ops/gemm/gemm.h"

namespace eitri::cublaslt {

/// "130100": the library at hand; 0 without one, and `absence` says why.
size_t version();
const std::string& absence();

Kernel<Gemm> row();

}  // namespace eitri::cublaslt
