// One level's store_f8 as functions. Included by the file of each level, which its compile flags choose.
#pragma once

#include "device/f8_level.h"
#include "device/x86/vec_f8.h"

namespace eitri::EITRI_VEC {

template <class Format> EITRI_INLINE void store_all(const float* x, uint8_t* codes, int64_t n) {
  int64_t i = 0;
  for (; i + F::kLanes <= n; i += F::kLanes) store_f8<Format>(F::load(x + i), codes + i);
  if (i < n) store_f8_partial<Format>(F::load_partial(x + i, n - i), codes + i, n - i);
}
static void store_e4m3(const float* x, uint8_t* codes, int64_t n) { store_all<F8e4m3>(x, codes, n); }
static void store_e4m3fnuz(const float* x, uint8_t* codes, int64_t n) { store_all<F8e4m3fnuz>(x, codes, n); }

}  // namespace eitri::EITRI_VEC
