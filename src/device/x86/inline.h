// EITRI_INLINE: functions of kernel headers are always inlined, so that no out-of-line copy compiled for a newer machine
// can be picked by the linker for older code.
#pragma once

#define EITRI_INLINE inline __attribute__((always_inline))
