// The GPU vendor's library as rows of gemm: gemm.library.cublaslt and gemm.library.cublaslt_f8, found at run time.
#pragma once

#include <string>

#include "ops/gemm/gemm.h"

namespace eitri {

/// "cuBLASLt 13.1.0", or why there is none.
std::string gpu_library_state();

Kernel<Gemm> gpu_library_row();
Kernel<Gemm> gpu_library_row_f8();

}  // namespace eitri
