// The SIMT kernels of topk_gating, moe_sort and moe_combine compiled for GPUs that need not be there: no spills, registers within bounds,
// arguments as the host has them, and vector loads and stores. Skipped, with the reason, for targets that have no compiler here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "compile/check_entry.h"
#include "ops/moe_combine/simt.h"
#include "ops/moe_sort/simt.h"
#include "ops/topk_gating/simt.h"

namespace eitri {
namespace {

struct Expectation {
  SimtEntry entry;
  size_t argument_bytes = 0;
  int load_bytes = 16, store_bytes = 16;  // of the widest accesses; 0: not looked at
  int most_registers = 0;
  /// Scalar registers of AMD's machines that lie in lanes of vector registers: no memory, but moves.
  int most_scalar_spills = 0;
};

/// The kernels that benchmarks run, and the forms that are hard on registers.
std::vector<Expectation> expectations(const SimtMachine& machine) {
  std::vector<Expectation> list;
  const auto gate_as = [&](const TopkGating::Problem& p, const GatingShape& shape, int most_registers) {
    const int run_bytes = shape.per_lane * bits(p.logits) / 8;
    list.push_back({.entry = gating_entry(p, shape, machine),
                    .argument_bytes = sizeof(GatingGrid),
                    .load_bytes = run_bytes % 16 == 0 && run_bytes > 0 ? 16 : 0,
                    .store_bytes = 4,
                    .most_registers = most_registers,
                    // Loops over tokens keep the constants of the double functions in scalar registers, beyond what there is.
                    .most_scalar_spills = shape.lanes == 0 ? 48
                                          : p.bias         ? 32
                                                           : 0});
  };
  const auto gate = [&](const TopkGating::Problem& p, int most_registers) {
    const GatingShape shape = gating_shape(p.experts, p.groups, machine.warp_size);
    ASSERT_GT(shape.lanes, 0);
    gate_as(p, shape, most_registers);
    gate_as(p, kGatingBlockShape, 80);
  };
  const auto sort = [&](const MoeSort::Problem& p) {
    for (const MoeSortParts parts : {MoeSortParts::one_block, MoeSortParts::blocks, MoeSortParts::warps})
      for (SimtEntry& entry : moe_sort_entries(moe_sort_shape(p, parts, machine))) {
        const std::string name = entry.entry;
        const int store = name == "moe_sort_one_block" || name == "moe_sort_count" ? 16 : 4;
        list.push_back({.entry = std::move(entry),
                        .argument_bytes = sizeof(MoeSortGrid),
                        .load_bytes = 4,
                        .store_bytes = store,
                        .most_registers = 64});
      }
  };
  const auto combine = [&](const MoeCombine::Problem& p) {
    list.push_back({.entry = moe_combine_entry(p, moe_combine_shape(p, machine)),
                    .argument_bytes = sizeof(MoeCombineGrid),
                    .store_bytes = std::min(16, wide_of(p.y) * bits(p.out) / 8),
                    .most_registers = 96});
  };
  for (const auto& [p, note] : TopkGating::cases().bench) gate(p, 96);
  for (const auto& [p, note] : MoeSort::cases().bench) sort(p);
  for (const auto& [p, note] : MoeCombine::cases().bench) combine(p);
  using enum DType;
  gate({.tokens = 64, .experts = 1024, .top_k = 8, .score = Score::softmax, .bias = true}, 255);
  gate({.tokens = 64, .experts = 512, .top_k = 10, .logits = bf16, .score = Score::sqrt_softplus, .bias = true}, 168);
  gate({.tokens = 64, .experts = 384, .top_k = 8, .logits = f16, .score = Score::sigmoid, .bias = true}, 128);
  gate({.tokens = 64, .experts = 35, .top_k = 5, .groups = 5, .topk_groups = 2, .logits = bf16, .score = Score::softmax, .bias = true}, 96);
  gate({.tokens = 64, .experts = 64, .top_k = 6, .logits = bf16, .score = Score::softmax}, 96);
  for (const DType y : {f32, bf16, f16})
    for (const DType out : {f32, bf16, f16})
      for (const int64_t top_k : {1, 4, 8}) combine({.tokens = 1024, .hidden = 4096, .top_k = top_k, .y = y, .out = out, .shared = true});
  return list;
}

bool has_access(int bytes, int of16, int of8, int of4) { return bytes == 0 || (bytes == 16 ? of16 : bytes == 8 ? of8 : of4) > 0; }

void expect_good_kernels(const jit::Compiler& compiler, const char* target_name, KernelFacts (*read)(std::string_view)) {
  const Device& device = nominal_gpu(target_name);
  std::set<std::string> seen;
  int most = 0;
  for (const Expectation& e : expectations(machine_of(device))) {
    const std::string what = text_of(e.entry);
    if (!seen.insert(what).second) continue;
    SCOPED_TRACE(what);
    KernelFacts facts;
    ASSERT_NO_FATAL_FAILURE(check_entry(e.entry, e.argument_bytes, compiler, device, read, facts));
    EXPECT_LE(facts.spills, e.most_scalar_spills) << "a spilled vector register would be on the stack";
    EXPECT_LE(facts.registers, e.most_registers);
    EXPECT_TRUE(has_access(e.load_bytes, facts.load16, facts.load8, facts.load4)) << "no loads of " << e.load_bytes;
    EXPECT_TRUE(has_access(e.store_bytes, facts.store16, facts.store8, facts.store4)) << "no stores of " << e.store_bytes;
    most = std::max(most, facts.registers);
  }
  std::printf("%s: %zu kernels, at most %d registers\n", target_name, seen.size(), most);
}

TEST(SimtRoutingCompile, sm_90a) {
  const jit::FoundCompiler found = jit::find_nvrtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  expect_good_kernels(*found.compiler, "sm_90a", read_cubin);
}

void check_amd(const char* target) {
  const jit::FoundCompiler found = jit::find_clang_amd();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  if (!found.compiler->makes(jit::target_named(target))) GTEST_SKIP() << found.compiler->path() << " does not know " << target;
  expect_good_kernels(*found.compiler, target, read_code_object);
}
TEST(SimtRoutingCompile, gfx942) { check_amd("gfx942"); }
TEST(SimtRoutingCompile, gfx950) { check_amd("gfx950"); }

}  // namespace
}  // namespace eitri
