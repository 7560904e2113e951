// The SIMT kernels compiled for GPUs that need not be there: no spills, registers within bounds, arguments as the host has them, and
// vector loads and stores. Skipped, with the reason, for targets that have no compiler here.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>

#include "compile/check_entry.h"
#include "jit/compiler.h"
#include "jit/embedded.h"
#include "ops/activation/simt.h"
#include "ops/quantize/simt_one_pass.h"
#include "ops/rmsnorm/simt.h"

namespace eitri {
namespace {

jit::Compiled compile(const jit::Compiler& compiler, const jit::Target& target, jit::SourceBundle source,
                      std::vector<std::string> defines) {
  const jit::CompileRequest request = {.label = "test", .source = std::move(source), .defines = std::move(defines), .target = &target};
  jit::check_request(request);
  return compiler.compile(request, jit::include_closure(request.source));
}

struct Expectation {
  SimtEntry entry;
  size_t argument_bytes = 0;
  int store_bytes = 16;  // of the widest store; 0: rows are read element by element
};

/// The kernels that benchmarks run, and the forms that are hard on registers.
std::vector<Expectation> expectations(const SimtMachine& machine) {
  std::map<std::string, Expectation> unique;
  const auto add = [&](SimtEntry entry, size_t argument_bytes, DType x, DType out, RowAccess access) {
    std::string key = entry.entry;
    for (const std::string& define : entry.defines) key += " " + define;
    const int store = access == RowAccess::elements ? 0 : std::min(16, wide_of(x) * bits(out) / 8);
    unique.emplace(key, Expectation{std::move(entry), argument_bytes, store});
  };
  const auto norm = [&](const RmsNorm::Problem& p) {
    const RowShape shape = rmsnorm_shape(p, machine);
    for (const RowAccess access : {RowAccess::vectors, RowAccess::elements})
      add(rmsnorm_entry(p, shape, rmsnorm_registers(p, shape, machine), access, machine), sizeof(RmsNormGrid), p.x, p.out, access);
  };
  const auto act = [&](const Activation::Problem& p) {
    const RowShape shape = activation_shape(p, machine);
    for (const RowAccess access : {RowAccess::vectors, RowAccess::elements})
      add(activation_entry(p, shape, activation_registers(p, shape, machine), access), sizeof(ActivationGrid), p.x, p.out, access);
  };
  const auto codes = [&](const Quantize::Problem& p) {
    if (p.quant == Quant::per_tensor)
      for (const RowAccess access : {RowAccess::vectors, RowAccess::elements})
        add(one_pass_entry(p, one_pass_shape(p, machine), access), sizeof(QuantizeOnePassGrid), p.x, p.q, access);
    const RowShape shape = quantize_shape(p, machine);
    for (const QuantizePass pass : {QuantizePass::amax, QuantizePass::codes}) {
      if (pass == QuantizePass::amax && p.quant != Quant::per_tensor) continue;
      for (const RowAccess access : {RowAccess::vectors, RowAccess::elements})
        add(quantize_entry(p, shape, pass, quantize_registers(p, shape, machine), access), sizeof(QuantizeGrid),
            pass == QuantizePass::amax ? DType::f32 : p.x, pass == QuantizePass::amax ? DType::i8 : p.q, access);  // stores words
    }
  };
  for (const auto& [p, note] : RmsNorm::cases().bench) norm(p);
  for (const auto& [p, note] : Activation::cases().bench) act(p);
  for (const auto& [p, note] : Quantize::cases().bench) codes(p);
  using enum DType;
  norm({.tokens = 4096, .hidden = 16384, .residual = f32, .out = i8, .quant = Quant::per_1x128, .norm_weight = NormWeight::plus_one});
  norm({.tokens = 4096, .hidden = 8192, .x = f32, .weight = f32, .residual = f32, .out = f8e4m3fnuz, .quant = Quant::per_token});
  norm({.tokens = 16, .hidden = 100'000, .residual = bf16, .out = f8e4m3, .quant = Quant::per_token});
  act({.rows = 4096, .inter = 16384, .out = i8, .kind = ActivationKind::gelu, .gate = GateLayout::interleaved});
  act({.rows = 4096, .inter = 8192, .x = f32, .out = i8, .kind = ActivationKind::situv2});
  act({.rows = 4096, .inter = 4096, .x = f16, .out = f16, .kind = ActivationKind::gelu_tanh});
  codes({.rows = 4096, .cols = 8192, .x = f32});
  codes({.rows = 16, .cols = 100'000});
  codes({.rows = 4096, .cols = 7168, .q = f8e4m3, .quant = Quant::per_tensor});
  codes({.rows = 4096, .cols = 7168, .q = f8e4m3fnuz, .quant = Quant::per_1x128});
  codes({.rows = 4096, .cols = 7168, .q = f8e4m3, .quant = Quant::per_1x32});
  codes({.rows = 4096, .cols = 7168, .q = f4e2m1, .quant = Quant::per_1x32});
  std::vector<Expectation> list;
  for (auto& [key, expectation] : unique) list.push_back(std::move(expectation));
  return list;
}

/// `kernel` of the entry's file; the macros say the rest.
void expect_good_kernels(const jit::Compiler& compiler, const char* target_name, const SimtMachine& machine,
                         KernelFacts (*read)(std::string_view), int register_file) {
  const Device& device = nominal_gpu(target_name);
  double slowest = 0, total = 0;
  int count = 0;
  for (const Expectation& e : expectations(machine)) {
    SCOPED_TRACE(text_of(e.entry));
    KernelFacts facts;
    const auto start = std::chrono::steady_clock::now();
    ASSERT_NO_FATAL_FAILURE(check_entry(e.entry, e.argument_bytes, compiler, device, read, facts));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    slowest = std::max(slowest, seconds), total += seconds, ++count;
    EXPECT_EQ(facts.spills, 0);
    EXPECT_LE(facts.registers * e.entry.threads, register_file);
    if (e.store_bytes == 0) {
      EXPECT_EQ(facts.load16 + facts.store16, 0);
      continue;
    }
    EXPECT_GT(facts.load16, 0);
    EXPECT_GT(e.store_bytes == 16 ? facts.store16 : e.store_bytes == 8 ? facts.store8 : facts.store4, 0) << "stores of " << e.store_bytes;
  }
  std::printf("%s: %d kernels, %.2f s on average, %.2f s the slowest\n", target_name, count, total / count, slowest);
}

TEST(SimtCompile, sm_90a) {
  const jit::FoundCompiler found = jit::find_nvrtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  expect_good_kernels(*found.compiler, "sm_90a", {.warp_size = 32, .units = 132, .clusters = true}, read_cubin, 64 * 1024);
}

void check_amd(const char* target, int units) {
  const jit::FoundCompiler found = jit::find_clang_amd();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  if (!found.compiler->makes(jit::target_named(target))) GTEST_SKIP() << found.compiler->path() << " does not know " << target;
  // 512 registers a lane for the threads on each of four units of 64 lanes.
  expect_good_kernels(*found.compiler, target, {.warp_size = 64, .units = units}, read_code_object, 4 * 64 * 512);
}
TEST(SimtCompile, gfx942) { check_amd("gfx942", 304); }
TEST(SimtCompile, gfx950) { check_amd("gfx950", 256); }

// The readers themselves: kernels of which the answers are known.
constexpr const char* kControl = R"(#include "device/simt.h"
using namespace eitri::simt;
EITRI_KERNEL(1024) control(float* p, const int* index) {
#if defined(NARROW)
  p[thread() + 4096] = p[thread()];
#elif defined(WIDE)
  store16(p + 4096 + thread() * 4, load16(p + thread() * 4));
  store8(p + 16384 + thread() * 2, load8(p + 8192 + thread() * 2));
#else
  float kept[64], sum = 0;
  for (int i = 0; i < 64; ++i) kept[i] = p[i * 1024 + thread()];
  for (int i = 0; i < 64; ++i) sum += kept[index[i] & 63];
  p[thread()] = sum;
#endif
}
)";

void check_reader(const jit::Compiler& compiler, const char* target_name, KernelFacts (*read)(std::string_view)) {
  const auto facts_of = [&](const char* define) {
    const jit::SourceBundle source = {.name = "control.cu", .text = kControl, .headers = jit::embedded_sources()};
    const jit::Compiled compiled = compile(compiler, jit::target_named(target_name), source, {define});
    EXPECT_TRUE(compiled.ok) << compiled.log;
    return read(compiled.binary);
  };
  const KernelFacts narrow = facts_of("NARROW"), wide = facts_of("WIDE"), indexed = facts_of("INDEXED");
  EXPECT_EQ(narrow.problem + wide.problem + indexed.problem, "");
  EXPECT_TRUE(narrow.load4 == 1 && narrow.store4 == 1 && narrow.load16 == 0 && narrow.store16 == 0);
  EXPECT_TRUE(wide.load16 == 1 && wide.store16 == 1 && wide.load8 == 1 && wide.store8 == 1 && wide.load4 == 0 && wide.store4 == 0);
  EXPECT_EQ(narrow.stack_bytes, 0);
  EXPECT_GE(indexed.stack_bytes, 256) << "an array that is indexed lives in memory";
  EXPECT_EQ(narrow.argument_bytes, 16);
  EXPECT_GT(narrow.registers, 0);
  EXPECT_NE(read("no ELF file").problem, "");
}

TEST(SimtCompile, cubins_are_read_right) {
  const jit::FoundCompiler found = jit::find_nvrtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_reader(*found.compiler, "sm_90a", read_cubin);
}
TEST(SimtCompile, code_objects_are_read_right) {
  const jit::FoundCompiler found = jit::find_clang_amd();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_reader(*found.compiler, "gfx942", read_code_object);
}

}  // namespace
}  // namespace eitri
