// Inputs of expert layers for tests and benchmarks: weights in any format, and what a router would choose.
#pragma once

#include <initializer_list>

#include <string>

#include "dispatch/maker.h"
#include "eitri/types.hpp"
#include "ops/gemm/pack.h"

namespace eitri {

/// Random weights [n, k] or [experts, n, k] of realistic scale (codes for i8), packed as `format` says. `m_hint` is for
/// a library's layout.
View make_weights(Maker& maker, const char* name, DType dtype, std::initializer_list<int64_t> shape, GateLayout gate, WeightFormat format,
                  int64_t m_hint);

struct Routing {
  View ids;      // i32 [tokens, top_k]
  View weights;  // f32 [tokens, top_k]
};
/// Distinct random experts for every token, as popular as MakerOptions::skew says. Odd token counts above 1 are irregular on purpose: one token names an expert
/// twice, one has an id of -1, one has an id of `experts`.
Routing make_routing(Maker& maker, int64_t tokens, int64_t top_k, int64_t experts);

/// Weights of codes ([n, k] or [experts, n, k]) with their scales: of values about 1 / sqrt(k), as real weights are.
struct CodedWeights {
  View weights;
  View scale;         // not given when it is packed with the codes
  View global_scale;  // [experts] or [1], with per_1x16
};
/// Names are `name`, `name`_scale and `name`_global_scale.
CodedWeights make_coded_weights(Maker& maker, const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Quant quant,
                                GateLayout gate, WeightFormat format);

}  // namespace eitri
