// moe_combine's SIMT kernels with warps of 64.
#define EITRI_SIMT_EMULATED 64
#include "simt/moe_combine_kernels_body.h"
