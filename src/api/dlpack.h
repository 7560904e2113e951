// DLPack's names of our dtypes, for everything that takes DLPack tensors.
#pragma once

#include <cstdint>

#include "eitri/types.hpp"

namespace eitri {

struct DlpackType {
  uint8_t code, bits;  // DLDataTypeCode; lanes are 1
  DType dtype;
};
inline constexpr DlpackType kDlpackTypes[] = {
    {2, 32, DType::f32},    {2, 16, DType::f16},    {4, 16, DType::bf16},   {0, 8, DType::i8},          {1, 8, DType::u8},
    {0, 32, DType::i32},    {0, 64, DType::i64},    {10, 8, DType::f8e4m3}, {11, 8, DType::f8e4m3fnuz}, {12, 8, DType::f8e5m2},
    {14, 8, DType::f8e8m0}, {17, 4, DType::f4e2m1}, {0, 4, DType::i4}};

/// none when there is no such dtype.
constexpr DType dtype_of_dlpack(uint8_t code, uint8_t bits) {
  for (const DlpackType& row : kDlpackTypes)
    if (row.code == code && row.bits == bits) return row.dtype;
  return DType::none;
}
constexpr DlpackType dlpack_of_dtype(DType dtype) {
  for (const DlpackType& row : kDlpackTypes)
    if (row.dtype == dtype) return row;
  return {};
}

}  // namespace eitri
