// The SIMT kernels of the operators, compiled for emulation with warps of 32 and of 64. A kernel that the tables in
// *_kernels_body.h do not have is null.
#pragma once

#include "ops/activation/simt_params.h"
#include "ops/quantize/simt_params.h"
#include "ops/rmsnorm/simt_params.h"

namespace eitri {

using RmsNormLane = void (*)(const RmsNormGrid&);
using ActivationLane = void (*)(const ActivationGrid&);
using QuantizeLane = void (*)(const QuantizeGrid&);
using QuantizeOnePassLane = void (*)(const QuantizeOnePassGrid&);

namespace simt32 {
RmsNormLane rmsnorm_lane(const RmsNormForm& form);
ActivationLane activation_lane(const ActivationForm& form);
QuantizeLane quantize_lane(const QuantizeForm& form);
QuantizeOnePassLane quantize_one_pass_lane(const QuantizeForm& form);
}  // namespace simt32
namespace simt64 {
RmsNormLane rmsnorm_lane(const RmsNormForm& form);
ActivationLane activation_lane(const ActivationForm& form);
QuantizeLane quantize_lane(const QuantizeForm& form);
QuantizeOnePassLane quantize_one_pass_lane(const QuantizeForm& form);
}  // namespace simt64

/// Shapes that the tables are made for: one chunk a thread, four, and rows that are read again.
constexpr int kOneChunkThreads = 128, kLongRowThreads = 256;

}  // namespace eitri
