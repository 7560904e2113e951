// Cost model of the kernels that pass over rows once: quantize, activation, moe_combine.
#pragma once

#include "backend/backend.h"

namespace eitri {

/// Microseconds on one thread: `elements` at the core's rate for this kernel, or `bytes` at the memory's, whichever is
/// longer. What fits in L2 is taken to be there.
double row_pass_us_on_one(const Device& device, double bytes, double elements, double elements_per_ns);
/// With as many threads as that is worth.
double row_pass_us(const Device& device, double bytes, double elements, double elements_per_ns);

/// Rates of one core in elements per ns, measured on rows in L1 (x86_avx512, 3.4 GHz); routing needs their order only.
inline constexpr double kPortablePerNs = 0.3, kAvx2PerNs = 3, kAvx512PerNs = 5, kReferencePerNs = 0.005;

}  // namespace eitri
