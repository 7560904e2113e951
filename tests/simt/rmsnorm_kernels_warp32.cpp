// rmsnorm's SIMT kernels with warps of 32.
#define EITRI_SIMT_EMULATED 32
#include "simt/rmsnorm_kernels_body.h"
