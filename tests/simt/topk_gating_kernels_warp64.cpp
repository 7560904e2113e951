// topk_gating's SIMT kernels with warps of 64.
#define EITRI_SIMT_EMULATED 64
#include "simt/topk_gating_kernels_body.h"
