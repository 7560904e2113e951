// Elements of rows of which only the launch knows whether they are aligned for vector accesses, and whose last elements need not
// fill a vector: one kernel for all rows, where the choice costs little beside the work. row.h has kernels compiled for either.
#pragma once

#include "device/row.h"

namespace eitri::EITRI_SIMT {

/// Elements [first, first + kWide) of a row of n, 0 beyond. `vectors`: every row begins at a multiple of 16 bytes (or of kWide
/// elements), and n < 2^28.
template <DType kType, int kWide> EITRI_INLINE Raw<kType, kWide> load_mixed(const void* row, int64_t first, int64_t n, bool vectors) {
  if (vectors && first + kWide <= n)
    return load_raw<kType, kWide, Rows::vectors>(row, static_cast<int32_t>(first), static_cast<int32_t>(n));
  return load_raw<kType, kWide, Rows::elements>(row, first, n);
}

template <DType kType, int kWide>
EITRI_INLINE void store_mixed(const Raw<kType, kWide>& raw, void* row, int64_t first, int64_t n, bool vectors) {
  if (vectors && first + kWide <= n)
    return store_raw<kType, kWide, Rows::vectors>(raw, row, static_cast<int32_t>(first), static_cast<int32_t>(n));
  store_raw<kType, kWide, Rows::elements>(raw, row, first, n);
}

}  // namespace eitri::EITRI_SIMT
