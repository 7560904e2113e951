// The body of vec_level_*(): included by one file per level, compiled with that level's flags.
#pragma once

#include "device/activation.h"
#include "device/vec_level.h"
#include "device/x86/vec.h"

namespace eitri::EITRI_VEC {

static F unary_one(VecOp op, F x) {
  switch (op) {
    case VecOp::exp: return exp(x);
    case VecOp::sigmoid: return sigmoid(x);
    case VecOp::tanh: return tanh(x);
    case VecOp::erf: return erf(x);
    case VecOp::normal_cdf: return normal_cdf(x);
    case VecOp::round_even: return round_even(x);
    case VecOp::abs: return abs(x);
    case VecOp::negate: return -x;
  }
  return x;
}
static F pair_one(VecPair op, F a, F b) {
  switch (op) {
    case VecPair::add: return a + b;
    case VecPair::subtract: return a - b;
    case VecPair::multiply: return a * b;
    case VecPair::divide: return a / b;
    case VecPair::min: return min(a, b);
    case VecPair::max: return max(a, b);
    case VecPair::less: return select(a < b, F::set1(1.0f), F::zero());
    case VecPair::equal: return select((a == b) | is_nan(a), F::set1(1.0f), F::zero());
  }
  return a;
}
static void unary(VecOp op, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += F::kLanes) {
    const int64_t rest = n - i;
    if (rest >= F::kLanes) unary_one(op, F::load(x + i)).store(y + i);
    else unary_one(op, F::load_partial(x + i, rest)).store_partial(y + i, rest);
  }
}
static void pair(VecPair op, const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += F::kLanes) {
    const int64_t rest = n - i < F::kLanes ? n - i : F::kLanes;
    pair_one(op, F::load_partial(a + i, rest), F::load_partial(b + i, rest)).store_partial(y + i, rest);
  }
}
template <DType kType> static void store_type(const float* x, void* codes, int64_t n) {
  for (int64_t i = 0; i < n; i += F::kLanes) {
    if (n - i >= F::kLanes) store_as<kType>(F::load(x + i), codes, i);
    else store_as_partial<kType>(F::load_partial(x + i, n - i), codes, i, n - i);
  }
}
template <DType kType> static void load_type(const void* codes, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += F::kLanes) {
    if (n - i >= F::kLanes) load_as<kType>(codes, i).store(y + i);
    else load_as_partial<kType>(codes, i, n - i).store_partial(y + i, n - i);
  }
}
static void store(DType dtype, const float* x, void* codes, int64_t n) {
  if (dtype == DType::f32) store_type<DType::f32>(x, codes, n);
  if (dtype == DType::bf16) store_type<DType::bf16>(x, codes, n);
  if (dtype == DType::f16) store_type<DType::f16>(x, codes, n);
  if (dtype == DType::i8) store_type<DType::i8>(x, codes, n);
}
static void load(DType dtype, const void* codes, float* y, int64_t n) {
  if (dtype == DType::f32) load_type<DType::f32>(codes, y, n);
  if (dtype == DType::bf16) load_type<DType::bf16>(codes, y, n);
  if (dtype == DType::f16) load_type<DType::f16>(codes, y, n);
  if (dtype == DType::i8) load_type<DType::i8>(codes, y, n);
  if (dtype == DType::i32) load_type<DType::i32>(codes, y, n);
}
static void activate_all(const ActivationParams& params, const float* g, const float* u, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += F::kLanes) {
    const int64_t rest = n - i < F::kLanes ? n - i : F::kLanes;
    const F gate = F::load_partial(g + i, rest);
    const F out = u ? activate(params, gate, F::load_partial(u + i, rest)) : activate(params, gate);
    out.store_partial(y + i, rest);
  }
}
static float sum(const float* x) { return reduce_add(F::load(x)); }
static float largest(const float* x) { return reduce_max(F::load(x)); }

static VecLevel level(const char* name) { return {name, F::kLanes, unary, pair, store, load, activate_all, sum, largest}; }

}  // namespace eitri::EITRI_VEC
