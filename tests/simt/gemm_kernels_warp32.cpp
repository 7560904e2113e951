// The SIMT kernels of gemm and grouped_gemm with warps of 32.
#define EITRI_SIMT_EMULATED 32
#include "simt/gemm_kernels_body.h"
