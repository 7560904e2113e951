// The cuBLASLt side of gemm: the library, found at run time, and the rows gemm.library.cublaslt and gemm.library.cublaslt_f8.
#pragma once

#include "ops/gemm/gemm.h"

namespace eitri::cublaslt {

/// "130100": the library at hand; 0 without one, and `absence` says why.
size_t version();
const std::string& absence();

Kernel<Gemm> row();
Kernel<Gemm> row_f8();

}  // namespace eitri::cublaslt
