// moe_sort's SIMT kernels with warps of 64.
#define EITRI_SIMT_EMULATED 64
#include "simt/moe_sort_kernels_body.h"
