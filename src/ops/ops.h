// The list of operators. Adding an op: its folder, one line here, one in api/.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "dispatch/explain.h"
#include "ops/activation/activation.h"
#include "ops/fused_moe/fused_moe.h"
#include "ops/gemm/gemm.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/moe_combine/moe_combine.h"
#include "ops/moe_sort/moe_sort.h"
#include "ops/quantize/quantize.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/topk_gating/topk_gating.h"

namespace eitri {

/// Calls f.template operator()<Op>() for every operator: how tests, benchmarks and tools walk them.
template <class F> void for_each_op(F&& f) {
  f.template operator()<Gemm>();
  f.template operator()<GroupedGemm>();
  f.template operator()<Quantize>();
  f.template operator()<Activation>();
  f.template operator()<RmsNorm>();
  f.template operator()<TopkGating>();
  f.template operator()<MoeSort>();
  f.template operator()<MoeCombine>();
  f.template operator()<FusedMoe>();
}

/// What tools that know an op only by name need of it.
struct KernelInfo {
  const char* name;
  Family family;
  Target target;
  Numerics numerics;
  Knobs knobs;
};
struct OpEntry {
  const char* name;
  std::vector<KernelInfo> kernels;  // in table order
  std::vector<std::string> fields;  // of the Problem
  Explanation (*explain)(std::string_view problem, const Device& device);
};
/// Every op in list order. The first call checks the tables (names unique and prefixed by the op, the reference last)
/// and announces the problem fields to the tuned-row reader.
std::span<const OpEntry> all_ops();
/// Error lists the known names.
const OpEntry& find_op(std::string_view name);

}  // namespace eitri
