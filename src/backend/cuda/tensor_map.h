// TMA descriptors: what a kernel needs to copy boxes of a tensor between global and shared memory. The driver encodes one in
// about a microsecond, so they are kept by what they describe.
#pragma once

#include <cstdint>

#include "backend/cuda/driver.h"
#include "base/dtype.h"

namespace eitri::cuda {

enum class Swizzle : uint8_t { none, b32, b64, b128 };

/// Innermost dimension first. Strides are in bytes, of the dimensions after the first; multiples of 16, as is the address.
struct TensorBox {
  static constexpr int kMaxRank = 5;
  const void* data = nullptr;
  DType dtype = DType::bf16;
  int8_t rank = 2;
  Swizzle swizzle = Swizzle::b128;
  int64_t extent[kMaxRank] = {};
  int64_t stride[kMaxRank - 1] = {};
  int32_t box[kMaxRank] = {};
  bool operator==(const TensorBox&) const = default;
};

/// The descriptor; elements beyond an extent read as 0. Kept per thread and found again by all fields. The reference is valid until
/// the thread asks for another one: kernels take it by value. Throws Error{invalid_argument} for what TMA cannot describe.
const TensorMapBits& tensor_map(const TensorBox& box);

}  // namespace eitri::cuda
