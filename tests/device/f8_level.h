// store_f8 of device/x86/vec_f8.h at each level, for f8_test.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eitri {

/// Codes of n floats, whole vectors and a partial one at the end; touches nothing beyond n codes.
using StoreF8 = void (*)(const float* x, uint8_t* codes, int64_t n);
struct F8Level {
  const char* name;
  StoreF8 e4m3, e4m3fnuz;
};
extern const F8Level kPortableF8, kAvx2F8, kAvx512F8;

}  // namespace eitri
