// The SIMT kernels of the operators on the operators' own cases, emulated with warps of 32 and of 64.
#include <gmock/gmock.h>

#include "ops/activation/simt.h"
#include "ops/quantize/simt_one_pass.h"
#include "ops/rmsnorm/simt.h"
#include "simt/check_emulated.h"

namespace eitri {
namespace {

using simt_emulation::check_emulated;
using simt_emulation::EmulatedLaunch;
using simt_emulation::tested_shape;

/// Rows that two blocks share, where the tables have the form.
EmulatedLaunch rmsnorm_pairs(const RmsNormArgs& args, const RmsNorm::Problem& p, int warp_size, int64_t) {
  const RowShape shape = tested_shape(p.hidden, wide_of(p.x));
  const RmsNormGrid grid = rmsnorm_grid(args, p);
  RmsNormForm form = rmsnorm_form(p, shape, 64);
  form.row_blocks = 2;
  form.threads = rmsnorm_threads(shape, 2, {.warp_size = warp_size});
  const RmsNormLane lane = warp_size == 32 ? simt32::rmsnorm_lane(form) : simt64::rmsnorm_lane(form);
  if (lane == nullptr) return {.idle = true};
  return {.threads = form.threads, .blocks = 2 * p.tokens, .lane = [=] { lane(grid); }, .cluster = 2};
}

template <int kRegisters>
EmulatedLaunch rmsnorm_launch(const RmsNormArgs& args, const RmsNorm::Problem& p, int warp_size, int64_t most_blocks) {
  const RowShape shape = tested_shape(p.hidden, wide_of(p.x));
  RmsNormGrid grid = rmsnorm_grid(args, p);
  grid.blocks = std::min(grid.blocks, most_blocks);
  const RmsNormForm form = rmsnorm_form(p, shape, kRegisters);
  const RmsNormLane lane = warp_size == 32 ? simt32::rmsnorm_lane(form) : simt64::rmsnorm_lane(form);
  if (lane == nullptr) return {};
  return {shape.threads, grid.blocks, [=] { lane(grid); }};
}

EmulatedLaunch activation_launch(const ActivationArgs& args, const Activation::Problem& p, int warp_size, int64_t most_blocks) {
  const RowShape shape = p.out == DType::i8 ? tested_shape(p.inter, wide_of(p.x)) : RowShape{kOneChunkThreads, 1};
  ActivationGrid grid = activation_grid(args, p, shape);
  grid.blocks = std::min(grid.blocks, most_blocks);
  const ActivationForm form = activation_form(p, shape);
  const ActivationLane lane = warp_size == 32 ? simt32::activation_lane(form) : simt64::activation_lane(form);
  if (lane == nullptr) return {};
  return {shape.threads, grid.blocks, [=] { lane(grid); }};
}

std::vector<EmulatedLaunch> quantize_launches(const QuantizeArgs& args, const Quantize::Problem& p, int warp_size, int64_t most_blocks) {
  const RowShape shape = tested_shape(p.cols, quantize_wide(p.x, p.q));
  static std::vector<std::byte> workspace;
  const SimtMachine machine{.warp_size = warp_size, .units = 1};
  workspace.assign(static_cast<size_t>(quantize_parts(p, machine)) * sizeof(float), std::byte{0xff});
  QuantizeGrid codes = quantize_grid(args, p, machine, workspace.data());
  codes.parts = std::min(codes.parts, most_blocks);
  const QuantizeGrid amax = quantize_amax_grid(codes);
  codes.blocks = std::min(codes.blocks, most_blocks);
  std::vector<EmulatedLaunch> launches;
  const auto add = [&](const QuantizeGrid& grid, QuantizePass pass) {
    const QuantizeForm form = quantize_form(p, shape, pass);
    const QuantizeLane lane = warp_size == 32 ? simt32::quantize_lane(form) : simt64::quantize_lane(form);
    if (lane == nullptr) launches.push_back({});
    else launches.push_back({shape.threads, grid.blocks, [=] { lane(grid); }});
  };
  if (p.quant == Quant::per_tensor) add(amax, QuantizePass::amax);
  add(codes, QuantizePass::codes);
  return launches;
}

TEST(SimtOps, rmsnorm_equals_the_reference) { check_emulated<RmsNorm>(rmsnorm_launch<64>); }
TEST(SimtOps, rmsnorm_with_few_registers_equals_the_reference) { check_emulated<RmsNorm>(rmsnorm_launch<32>); }
TEST(SimtOps, rmsnorm_of_pairs_of_blocks_equals_the_reference) { check_emulated<RmsNorm>(rmsnorm_pairs); }
TEST(SimtOps, rmsnorm_of_products_that_vanish) {
  // Each product of value and weight is 0 in fp32, the normed value 1e-31.
  constexpr int64_t kHidden = 64;
  std::vector<float> x(kHidden, 1e-15f), weight(kHidden, 1e-31f), scale(1);
  std::vector<int8_t> out(kHidden);
  const RmsNormArgs args{.x = View(x.data(), DType::f32, {1, kHidden}),
                         .weight = View(weight.data(), DType::f32, {kHidden}),
                         .out = View(out.data(), DType::i8, {1, kHidden}),
                         .scale = View(scale.data(), DType::f32, {1}),
                         .eps = 0,
                         .quant = Quant::per_token};
  for (const int warp_size : {32, 64}) {
    const EmulatedLaunch launch = rmsnorm_launch<64>(args, RmsNorm::check(args), warp_size, 1);
    ASSERT_TRUE(launch.lane);
    ASSERT_EQ(simt_emulation::run({.blocks = launch.blocks, .threads = launch.threads, .warp_size = warp_size}, launch.lane), "");
    EXPECT_THAT(out, testing::Each(127));
    EXPECT_NEAR(scale[0] * 127, 1e-31f, 1e-36f);
  }
}
TEST(SimtOps, activation_equals_the_reference) { check_emulated<Activation>(activation_launch); }
TEST(SimtOps, quantize_equals_the_reference) {
  Kernel<Quantize> row = quantize_simt_row();
  row.supports = [](const Quantize::Problem& p, const Device&) {
    const bool known = (p.q == DType::i8 && p.quant == Quant::per_token) || p.x == DType::bf16 ||
                       (p.x == DType::f32 && (p.q == DType::f4e2m1 || (p.q == DType::f8e4m3 && p.quant != Quant::per_1x32)));
    return known ? Support::yes() : Support::no("not in the tables of tests/simt");
  };
  check_emulated<Quantize>(quantize_launches, simt_emulation::EmptyProblems::skip, INT64_MAX, &row);
}

/// Blocks run one after another here: the first does the work of all, the others find it done. Launches of different sizes follow each
/// other on one meeting.
EmulatedLaunch quantize_one_pass_launch(const QuantizeArgs& args, const Quantize::Problem& p, int warp_size, int64_t most_blocks) {
  alignas(8) static std::byte meeting[kOnePassBytes] = {};
  const bool narrow = p.x == DType::f32 || most_blocks % 2 == 1;
  const OnePassShape shape{.threads = kOneChunkThreads, .chunks = narrow ? 1 : 4};
  QuantizeOnePassGrid grid = one_pass_grid(args, p, shape, static_cast<int>(most_blocks), meeting);
  if (grid.blocks == 1) grid.meeting = nullptr;
  const QuantizeForm form = one_pass_form(p, shape);
  const QuantizeOnePassLane lane = warp_size == 32 ? simt32::quantize_one_pass_lane(form) : simt64::quantize_one_pass_lane(form);
  if (lane == nullptr) return {};
  return {shape.threads, grid.blocks, [=] { lane(grid); }};
}

TEST(SimtOps, quantize_in_one_pass_equals_the_reference) {
  Kernel<Quantize> row = quantize_one_pass_row();
  row.supports = [](const Quantize::Problem& p, const Device&) {
    const bool known = p.quant == Quant::per_tensor && (p.x == DType::bf16 || (p.x == DType::f32 && p.q == DType::f8e4m3));
    return known ? Support::yes() : Support::no("not in the tables of tests/simt");
  };
  check_emulated<Quantize>(quantize_one_pass_launch, simt_emulation::EmptyProblems::run, INT64_MAX, &row);
}

TEST(SimtShape, rows_fit_their_blocks) {
  for (const int warp_size : {32, 64})
    for (const int wide : {4, 8})
      for (const int64_t rows : {1, 264, 265, 100'000})
        for (int64_t columns = 1; columns < 40'000; columns += columns / 7 + 1) {
          const RowShape shape = row_shape(columns, wide, rows, {.warp_size = warp_size, .units = 132});
          SCOPED_TRACE(testing::Message() << columns << " columns, wide " << wide << ", warp " << warp_size << ", rows " << rows);
          ASSERT_EQ(shape.threads % warp_size, 0);
          ASSERT_GE(shape.threads, warp_size);
          ASSERT_LE(shape.threads, 1024);
          ASSERT_TRUE(shape.chunks == 0 || int64_t{shape.threads} * shape.chunks * wide >= columns);
          ASSERT_LE(shape.threads * std::max(1, shape.chunks / 2), 1024) << "registers";
          // No chunk is without work.
          ASSERT_TRUE(shape.chunks <= 1 || int64_t{shape.threads} * (shape.chunks - 1) * wide < columns || shape.threads == warp_size);
          if (columns > 2048 * wide) ASSERT_EQ(shape.chunks, 0);
        }
}

TEST(SimtShape, entries_name_what_they_are_compiled_for) {
  const RmsNorm::Problem norm{.tokens = 4096, .hidden = 7168, .residual = DType::bf16, .out = DType::f8e4m3, .quant = Quant::per_1x128};
  const SimtEntry entry = rmsnorm_entry(norm, rmsnorm_shape(norm, {}), 64, RowAccess::vectors, {});
  EXPECT_STREQ(entry.entry, "rmsnorm_block_per_row");
  EXPECT_EQ(entry.threads, 224);
  EXPECT_EQ(entry.blocks, 4096);
  EXPECT_THAT(entry.defines,
              testing::ElementsAre("EITRI_X=bf16", "EITRI_WEIGHT=bf16", "EITRI_RESIDUAL=bf16", "EITRI_OUT=f8e4m3", "EITRI_QUANT=per_1x128",
                                   "EITRI_NORM_WEIGHT=plain", "EITRI_THREADS=224", "EITRI_CHUNKS=4", "EITRI_EARLY_WEIGHTS=true",
                                   "EITRI_PRODUCTS=true", "EITRI_ROW_BLOCKS=1", "EITRI_ROWS=vectors", "EITRI_REGISTERS=64"));
  const SimtMachine hopper{.clusters = true};
  const RmsNorm::Problem few{.tokens = 16, .hidden = 7168};
  const SimtEntry pair = rmsnorm_entry(few, rmsnorm_shape(few, hopper), 64, RowAccess::vectors, hopper);
  EXPECT_EQ(pair.threads, 224);
  EXPECT_EQ(pair.blocks, 32);
  EXPECT_THAT(pair.defines, testing::IsSupersetOf({"EITRI_THREADS=224", "EITRI_CHUNKS=2", "EITRI_ROW_BLOCKS=2"}));
  EXPECT_THAT(rmsnorm_entry(few, rmsnorm_shape(few, hopper), 64, RowAccess::elements, hopper).defines,
              testing::IsSupersetOf({"EITRI_THREADS=448", "EITRI_ROW_BLOCKS=1"}));
  const Activation::Problem act{.rows = 64, .inter = 768};
  EXPECT_THAT(
      activation_entry(act, activation_shape(act, {}), 48, RowAccess::elements).defines,
      testing::ElementsAre("EITRI_ENTRY=activation_tiles", "EITRI_X=bf16", "EITRI_OUT=bf16", "EITRI_KIND=silu", "EITRI_GATE=separated",
                           "EITRI_LIMITED=false", "EITRI_THREADS=96", "EITRI_CHUNKS=1", "EITRI_ROWS=elements", "EITRI_REGISTERS=64"));
  const Quantize::Problem codes{.rows = 1, .cols = 2048};
  EXPECT_THAT(quantize_entry(codes, quantize_shape(codes, {.warp_size = 64}), QuantizePass::codes, 32, RowAccess::vectors).defines,
              testing::ElementsAre("EITRI_X=bf16", "EITRI_Q=i8", "EITRI_QUANT=per_token", "EITRI_PASS=codes", "EITRI_THREADS=256",
                                   "EITRI_CHUNKS=1", "EITRI_ROWS=vectors", "EITRI_REGISTERS=32"));
}

}  // namespace
}  // namespace eitri
