// What the machine profile is measured with, for benchmarks that time it beside a kernel.
#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace eitri {

/// Does about `ops` operations of `math`, at least one round, from registers on the calling thread, as the profile's peak is measured; false:
/// the level has no such loop.
bool run_at_peak(const Device& device, DType math, double ops);
/// Reads `bytes` once on the calling thread, as the profile's bandwidth is measured; up to 511 bytes at the end are left out.
void read_once(const Device& device, const std::byte* data, size_t bytes);

}  // namespace eitri
