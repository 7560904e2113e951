// EITRI_CLONES before a function of plain loops: it is compiled for wider vectors as well, and the widest that the CPU has is taken when
// the program starts. For references, whose sums keep their order at every width (nothing is contracted, so the bits are the same); kernels
// have files of their own. Not under sanitizers, which start after the choice is made.
#pragma once

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
// Without loop vectorisation, which would take steps of the sum for lanes, and shuffle; lanes are written as an inner loop.
#define EITRI_CLONES [[gnu::optimize("no-tree-loop-vectorize"), gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#elif defined(__GNUC__) && !defined(__clang__)
#define EITRI_CLONES [[gnu::optimize("no-tree-loop-vectorize")]]
#else
#define EITRI_CLONES
#endif
