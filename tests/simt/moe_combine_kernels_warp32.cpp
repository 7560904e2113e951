// moe_combine's SIMT kernels with warps of 32.
#define EITRI_SIMT_EMULATED 32
#include "simt/moe_combine_kernels_body.h"
