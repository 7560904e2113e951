#include "ops/grouped_gemm/simt.h"

#include <algorithm>
#include <cmath>

namespace eitri {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t tiles_per_block(const GroupedGemm::Problem& p, GemmTileShape shape) { return ceil_div(p.block, shape.tile_m); }
GemmTiles tiles_of(const GroupedGemm::Problem& p, GemmTileShape shape) {
  GemmTiles tiles = gemm_tiles(0, p.n_out(), p.gate, shape);
  tiles.m = ceil_div(p.capacity, p.block) * tiles_per_block(p, shape);
  return tiles;
}

}  // namespace

GemmTileForm grouped_gemm_tile_form(const GroupedGemm::Problem& p, GemmTileShape shape) {
  return {.a = p.a, .tile_m = shape.tile_m, .tile_n = shape.tile_n, .wide = 0};
}

SimtEntry grouped_gemm_tile_entry(const GroupedGemm::Problem& p, GemmTileShape shape) {
  const GemmTiles tiles = tiles_of(p, shape);
  return {.file = "ops/grouped_gemm/simt.cuh",
          .entry = "grouped_gemm_tile",
          .defines = {simt_define("A", p.a), simt_define("TILE_M", shape.tile_m), simt_define("TILE_N", shape.tile_n)},
          .threads = kGemmTileThreads,
          .blocks = blocks_for(tiles.m * tiles.n)};
}

GroupedGemmGrid grouped_gemm_tile_grid(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, GemmTileShape shape) {
  const GemmTiles tiles = tiles_of(p, shape);
  const int64_t bytes = gemm_tile_bytes(p.a);
  GroupedGemmGrid grid{.a = gemm_operand(args.a, bytes), .b = gemm_operand(args.b, bytes)};
  grid.finish = {.row_weight = p.row_weight ? static_cast<const float*>(args.row_weight.data) : nullptr,
                 .c = args.c.data,
                 .c_stride = args.c.stride[0] * bits(p.c) / 8,
                 .columns = p.n_out(),
                 .activation = args.activation,
                 .c_dtype = p.c,
                 .gate = p.gate,
                 .c_vectors = are_rows_aligned(args.c, bits(p.c) / 2) ? 1 : 0};
  if (p.a == DType::i8) {
    grid.finish.a_scale = static_cast<const float*>(args.a_scale.data);
    grid.finish.b_scale = static_cast<const float*>(args.b_scale.data);
    grid.finish.b_scale_matrix = args.b_scale.stride[0];
  }
  if (p.bias) {
    grid.finish.bias = args.bias.data;
    grid.finish.bias_dtype = DType::f32;
    grid.finish.bias_matrix = args.bias.stride[0] * static_cast<int64_t>(sizeof(float));
  }
  grid.sorted_ids = static_cast<const int32_t*>(args.sorted_ids.data);
  grid.sorted_expert_ids = static_cast<const int32_t*>(args.sorted_expert_ids.data);
  grid.num_valid = static_cast<const int32_t*>(args.num_valid.data);
  grid.tokens = p.tokens;
  grid.capacity = p.capacity;
  grid.experts = p.experts;
  grid.k = p.k;
  grid.block = p.block;
  grid.tiles_per_block = tiles_per_block(p, shape);
  grid.m_tiles = tiles.m;
  grid.n_tiles = tiles.n;
  grid.blocks = blocks_for(tiles.m * tiles.n);
  grid.gather_tokens = p.gather == Gather::token ? 1 : 0;
  return grid;
}

GemmTileShape grouped_gemm_tile_shape(const GroupedGemm::Problem& p, const SimtMachine& machine) {
  const double each = static_cast<double>(p.expected_rows()) / std::max(1.0, p.expected_experts());
  const double rows = std::min(static_cast<double>(p.block), each);
  GemmTileShape shape{.tile_m = 16, .tile_n = 64};
  for (const int tile_m : kGemmTileM)
    if (tile_m / 2 < rows) shape.tile_m = tile_m;
  const GemmTiles wide = gemm_tiles(0, p.n_out(), p.gate, {shape.tile_m, 128});
  const double used = p.expected_experts() * std::max(1.0, each / shape.tile_m);
  if (used * static_cast<double>(wide.n) >= 2.0 * machine.units) shape.tile_n = 128;
  return shape;
}

namespace {

GemmTileShape shape_of(const Config& config) { return {.tile_m = config[0], .tile_n = config[1]}; }

Support supports(const GroupedGemm::Problem& p, const Device&) {
  if (p.coded())
    return Support::no("b is ", p.weight(), " and a is ", p.a, "; this kernel takes f32, bf16, f16 or i8 operands of one type");
  return p.b_format == WeightFormat::strided ? Support::yes()
                                             : Support::no("b is packed for CPUs; a GPU reads plain rows (b_format=strided)");
}
Guess guess(const GroupedGemm::Problem& p, const Device& device) {
  const GemmTileShape shape = grouped_gemm_tile_shape(p, machine_of(device));
  // Tiles of padding alone take no time to speak of.
  const double each = static_cast<double>(p.expected_rows()) / std::max(1.0, p.expected_experts());
  const double columns = static_cast<double>(gemm_tiles(0, p.n_out(), p.gate, shape).n);
  const double tiles = p.expected_experts() * std::ceil(each / shape.tile_m) * columns;
  return {.config = {.value = {shape.tile_m, shape.tile_n}},
          .us = std::max(2.5 + gemm_tile_us(tiles, p.k, p.a, shape, device), memory_pass_us(device, GroupedGemm::cost(p).bytes))};
}
std::vector<Source> sources(const GroupedGemm::Problem& p, const Config& config, const Device&) {
  return {grouped_gemm_tile_entry(p, shape_of(config)).source()};
}
void launch_tile(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const Config& config, Launch& launch) {
  const GroupedGemmGrid grid = grouped_gemm_tile_grid(args, p, shape_of(config));
  launch_kernel(launch, 0, {.blocks = grid.m_tiles * grid.n_tiles == 0 ? 0 : grid.blocks, .threads = kGemmTileThreads}, grid);
}

}  // namespace

Kernel<GroupedGemm> grouped_gemm_simt_tile() {
  return {.name = "grouped_gemm.simt.tile",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = supports,
          .knobs = kGemmTileKnobs,
          .guess = guess,
          .launch = launch_tile,
          .sources = sources};
}

}  // namespace eitri
