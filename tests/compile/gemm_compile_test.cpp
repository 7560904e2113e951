// The SIMT kernels of gemm and grouped_gemm compiled for GPUs that need not be there: no spills, registers within bounds, arguments as the
// host has them, and loads as wide as the dtype allows. Skipped, with the reason, for targets that have no compiler here.
#include <gtest/gtest.h>

#include <cstdio>

#include "compile/check_entry.h"
#include "ops/gemm/simt.h"
#include "ops/grouped_gemm/simt.h"

namespace eitri {
namespace {

struct Expectation {
  SimtEntry entry;
  size_t argument_bytes = 0;
  int load_bytes = 16;  // of the widest load
  int room = 1;         // blocks of 256 threads that a unit should have registers for
};

std::vector<Expectation> expectations() {
  std::vector<Expectation> list;
  using enum DType;
  const auto tile = [&](const Gemm::Problem& p, GemmTileShape shape) {
    const GemmTileForm form = gemm_tile_form(p, shape);
    const int room = gemm_tile_room(form.tile_m, form.tile_n);
    list.push_back({gemm_tile_entry(p, shape), sizeof(GemmGrid), static_cast<int>(gemm_tile_bytes(p.a)), room});
  };
  const auto decode = [&](DType a, int64_t m) { list.push_back({gemm_decode_entry({.m = m, .a = a}), sizeof(GemmGrid), 16, 1}); };
  const auto grouped = [&](DType a, GemmTileShape shape) {
    const int room = gemm_tile_room(shape.tile_m, shape.tile_n);
    list.push_back({grouped_gemm_tile_entry({.a = a}, shape), sizeof(GroupedGemmGrid), static_cast<int>(gemm_tile_bytes(a)), room});
  };
  for (const DType a : {f32, i8, f8e4m3})
    for (const GemmTileShape shape : {GemmTileShape{32, 128}, {128, 128}}) tile({.a = a}, shape);
  for (const int tile_m : kGemmTileM)
    for (const int tile_n : kGemmTileN) tile({.a = bf16}, {tile_m, tile_n});
  tile({.a = f16}, {64, 64});
  tile({.k = kMaxI8K + 1, .a = i8}, {64, 64});
  for (const DType a : {f32, bf16, f16, i8, f8e4m3}) decode(a, 8);
  for (const int64_t m : {1, 2, 4}) decode(bf16, m);
  for (const DType sums : {f32, i32}) list.push_back({gemm_epilogue_entry({}, sums), sizeof(GemmEpilogueGrid), 16, 4});
  for (const DType a : {bf16, i8})
    for (const GemmTileShape shape : {GemmTileShape{16, 64}, {128, 128}}) grouped(a, shape);
  grouped(f32, {32, 128});
  return list;
}

void expect_good_kernels(const jit::Compiler& compiler, const char* target_name, KernelFacts (*read)(std::string_view), int registers) {
  const Device& device = nominal_gpu(target_name);
  int most = 0;
  for (const Expectation& e : expectations()) {
    SCOPED_TRACE(text_of(e.entry));
    KernelFacts facts;
    ASSERT_NO_FATAL_FAILURE(check_entry(e.entry, e.argument_bytes, compiler, device, read, facts));
    // Spilled scalar registers of AMD's machines, which lie in lanes of vector registers and cost no memory, do not count.
    EXPECT_LE(facts.registers * e.room, registers) << "for " << e.room << " blocks";
    EXPECT_GT(e.load_bytes == 16 ? facts.load16 : e.load_bytes == 8 ? facts.load8 : facts.load4, 0) << "loads of " << e.load_bytes;
    if (std::string_view(e.entry.entry) != "gemm_decode") {
      EXPECT_GT(facts.store16, 0) << "f32 results are stored four at a time";
      EXPECT_GT(facts.store8, 0) << "16-bit results are stored four at a time";
    }
    most = std::max(most, facts.registers);
  }
  std::printf("%s: at most %d registers\n", target_name, most);
}

TEST(SimtGemmCompile, sm_90a) {
  const jit::FoundCompiler found = jit::find_nvrtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  expect_good_kernels(*found.compiler, "sm_90a", read_cubin, 256);
}

void check_amd(const char* target) {
  const jit::FoundCompiler found = jit::find_clang_amd();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  if (!found.compiler->makes(jit::target_named(target))) GTEST_SKIP() << found.compiler->path() << " does not know " << target;
  expect_good_kernels(*found.compiler, target, read_code_object, 512);
}
TEST(SimtGemmCompile, gfx942) { check_amd("gfx942"); }
TEST(SimtGemmCompile, gfx950) { check_amd("gfx950"); }

}  // namespace
}  // namespace eitri
