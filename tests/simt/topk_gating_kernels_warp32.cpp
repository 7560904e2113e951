// topk_gating's SIMT kernels with warps of 32.
#define EITRI_SIMT_EMULATED 32
#include "simt/topk_gating_kernels_body.h"
