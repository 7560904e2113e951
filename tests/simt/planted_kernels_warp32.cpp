// The kernels of planted_kernels.h with warps of 32.
#define EITRI_SIMT_EMULATED 32
#include "simt/planted_kernels_body.h"
