// The SIMT kernels of gemm and grouped_gemm with warps of 64.
#define EITRI_SIMT_EMULATED 64
#include "simt/gemm_kernels_body.h"
