// Quantisation to i8 codes per token on CPUs, one function per instruction level: pointers and sizes only, since these files are compiled
// per ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

struct QuantizeTask {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;  // bytes
  DType x_dtype = DType::bf16;
  int8_t* q = nullptr;
  int64_t q_stride = 0;
  float* scale = nullptr;
  int64_t cols = 0;
  // Rows whose sorted id names no token are skipped; null: none is.
  const int32_t* sorted_ids = nullptr;
  int64_t tokens = 0;
};

namespace portable {
void quantize_rows(const QuantizeTask& task, int64_t begin, int64_t end);
}
namespace avx2 {
void quantize_rows(const QuantizeTask& task, int64_t begin, int64_t end);
}
namespace avx512 {
void quantize_rows(const QuantizeTask& task, int64_t begin, int64_t end);
}

}  // namespace eitri
