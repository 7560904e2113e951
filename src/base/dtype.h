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

int bits(DType dtype);                      // 4, 8, 16, 32, 64; 0 for none
bool is_float(DType dtype);                 // f32 ... f4e2m1, not e8m0
bool is_packed(DType dtype);                // two elements per byte
double max_finite(DType dtype);             // 448 for f8e4m3, 127 for i8 (codes are symmetric)
double epsilon(DType dtype);                // spacing of 1: 2^-mantissa_bits; 0 for integers
int64_t bytes_for(DType dtype, int64_t n);  // bytes of n contiguous elements, rounded up
std::optional<DType> dtype_from(std::string_view name);
std::span<const DType> all_dtypes();  // without none

}  // namespace eitri
