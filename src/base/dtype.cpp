#include "base/dtype.h"

#include <array>

#include "base/numeric.h"

namespace eitri {

namespace {
constexpr std::array kDtypes = {DType::f32,    DType::f16, DType::bf16, DType::f8e4m3, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e8m0,
                                DType::f4e2m1, DType::i4,  DType::i8,   DType::u8,     DType::i32,        DType::i64};
}  // namespace

std::span<const char* const> enum_names(ScaleRounding) {
  static constexpr std::array kNames = {"down", "up", "even"};
  return kNames;
}

std::span<const char* const> enum_names(ActivationKind) {
  static constexpr std::array kNames = {"none", "relu", "silu", "gelu", "gelu_tanh", "swiglu", "situv2"};
  return kNames;
}

std::span<const char* const> enum_names(GateLayout) {
  static constexpr std::array kNames = {"none", "separated", "interleaved"};
  return kNames;
}

std::span<const char* const> enum_names(Quant) {
  static constexpr std::array kNames = {"none", "per_tensor", "per_token", "per_1x32", "per_1x128", "per_128x128", "per_1x16"};
  return kNames;
}

bool is_float(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f4e2m1: return true;
    default: return false;
  }
}

bool is_packed(DType dtype) { return dtype == DType::f4e2m1 || dtype == DType::i4; }

double max_finite(DType dtype) {
  switch (dtype) {
    case DType::none: return 0;
    case DType::f32: return 0x1.fffffep127;
    case DType::f16: return 65504;
    case DType::bf16: return 0x1.fep127;
    case DType::f8e4m3: return double{F8e4m3::max};
    case DType::f8e4m3fnuz: return double{F8e4m3fnuz::max};
    case DType::f8e5m2: return double{F8e5m2::max};
    case DType::f8e8m0: return 0x1p127;
    case DType::f4e2m1: return double{F4e2m1::max};
    case DType::i4: return double{kI4Max};
    case DType::i8: return double{kI8Max};
    case DType::u8: return 255;
    case DType::i32: return 2147483647;
    case DType::i64: return 0x1p63;  // 2^63 - 1 is not a double
  }
  return 0;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0x1p-23;
    case DType::f16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    case DType::f8e4m3:
    case DType::f8e4m3fnuz: return 0x1p-3;
    case DType::f8e5m2: return 0x1p-2;
    case DType::f4e2m1: return 0x1p-1;
    case DType::f8e8m0: return 1;  // 1, then 2
    default: return 0;
  }
}

int64_t bytes_for(DType dtype, int64_t n) { return is_packed(dtype) ? n / 2 + n % 2 : n * (bits(dtype) / 8); }

std::optional<DType> dtype_from(std::string_view name) {
  if (name == to_string(DType::none)) return DType::none;
  for (DType dtype : kDtypes) {
    if (name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

std::span<const DType> all_dtypes() { return kDtypes; }

}  // namespace eitri
