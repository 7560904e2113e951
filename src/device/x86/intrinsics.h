// <immintrin.h> for kernel files. gcc 12 takes the deliberately undefined pass-through operands inside its AVX-512
// intrinsics for uninitialised variables of ours; those warnings are off for the intrinsics alone.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
