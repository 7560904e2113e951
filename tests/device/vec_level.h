// The vector functions of one x86 level behind plain function pointers, so that a test without ISA flags can call them.
#pragma once

#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

enum class VecOp : uint8_t { exp, sigmoid, tanh, erf, normal_cdf, round_even, abs, negate };
enum class VecPair : uint8_t { add, subtract, multiply, divide, min, max, less, equal };

struct VecLevel {
  const char* name;
  int lanes;
  void (*unary)(VecOp op, const float* x, float* y, int64_t n);
  void (*pair)(VecPair op, const float* a, const float* b, float* y, int64_t n);
  /// n may be any number: whole vectors, then one partial vector.
  void (*store)(DType dtype, const float* x, void* codes, int64_t n);
  void (*load)(DType dtype, const void* codes, float* y, int64_t n);
  void (*activate)(const ActivationParams& params, const float* g, const float* u, float* y, int64_t n);  // u may be null
  float (*sum)(const float* x);                                                                           // of `lanes` values
  float (*largest)(const float* x);
};

VecLevel vec_level_portable();
VecLevel vec_level_avx2();
VecLevel vec_level_avx512();

}  // namespace eitri
