// Facts about dtypes. Codecs are in numeric.h, which kernels of every machine share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/str.h"
#include "eitri/types.hpp"

namespace eitri {

enum class ScaleRounding : uint8_t;  // numeric.h
std::span<const char* const> enum_names(ScaleRounding);
std::span<const char* const> enum_names(ActivationKind);
std::span<const char* const> enum_names(GateLayout);
std::span<const char* const> enum_names(Quant);

/// 4, 8, 16, 32, 64; 0 for none. Inline: launches ask for every tensor.
constexpr int bits(DType dtype) {
  switch (dtype) {
    case DType::none: return 0;
    case DType::f4e2m1:
    case DType::i4: return 4;
    case DType::f8e4m3:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e8m0:
    case DType::i8:
    case DType::u8: return 8;
    case DType::f16:
    case DType::bf16: return 16;
    case DType::f32:
    case DType::i32: return 32;
    case DType::i64: return 64;
  }
  return 0;
}

bool is_float(DType dtype);                 // f32 ... f4e2m1, not e8m0
bool is_packed(DType dtype);                // two elements per byte
double max_finite(DType dtype);             // 448 for f8e4m3, 127 for i8 (codes are symmetric)
double epsilon(DType dtype);                // spacing of 1: 2^-mantissa_bits; 0 for integers
int64_t bytes_for(DType dtype, int64_t n);  // bytes of n contiguous elements, rounded up
std::optional<DType> dtype_from(std::string_view name);
std::span<const DType> all_dtypes();  // without none

}  // namespace eitri
