// Activations of rows, one function per instruction level: pointers and sizes only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

struct ActivationTask {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  // bytes
  DType x_dtype = DType::bf16;
  std::byte* out = nullptr;
  int64_t out_stride = 0;  // bytes
  DType out_dtype = DType::bf16;
  float* scale = nullptr;  // with an i8 out
  int64_t inter = 0;
  ActivationParams params = {};
  GateLayout gate = GateLayout::none;
  // Rows whose sorted id names no token are skipped; null: none is.
  const int32_t* sorted_ids = nullptr;
  int64_t tokens = 0;
};

/// `scratch`: inter floats, with an i8 out; each thread its own.
namespace portable {
void activate_rows(const ActivationTask& task, int64_t begin, int64_t end, float* scratch);
}
namespace avx2 {
void activate_rows(const ActivationTask& task, int64_t begin, int64_t end, float* scratch);
}
namespace avx512 {
void activate_rows(const ActivationTask& task, int64_t begin, int64_t end, float* scratch);
}

}  // namespace eitri
