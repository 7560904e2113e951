// The kernels of planted_kernels.h with warps of 64.
#define EITRI_SIMT_EMULATED 64
#include "simt/planted_kernels_body.h"
