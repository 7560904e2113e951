#include "ops/gemm/simt.h"

#include <algorithm>
#include <cmath>

namespace eitri {

namespace {

int64_t byte_stride(const View& view, int dimension) { return view.stride[dimension] * bits(view.dtype) / 8; }
/// Elements from one vector of the batch to the next; 0 when all share it.
int64_t vector_matrix(const View& view) { return view.rank == 2 ? view.stride[0] : 0; }
/// Elements from one scale to the next; 0 when there is one for all.
int64_t scale_step(Quant quant) { return quant == Quant::per_tensor ? 0 : 1; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

GemmGrid grid_of(const GemmArgs& args, const Gemm::Problem& p, int64_t bytes, GemmTiles tiles) {
  return {.a = gemm_operand(args.a, bytes),
          .b = gemm_operand(args.b, bytes),
          .finish = gemm_finish(args, p),
          .batch = p.batch,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .m_tiles = tiles.m,
          .n_tiles = tiles.n,
          .blocks = blocks_for(p.batch * tiles.m * tiles.n)};
}

}  // namespace

bool are_rows_aligned(const View& view, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int d = 0; d + 1 < view.rank; ++d)
    if (view.shape[d] > 1 && byte_stride(view, d) % bytes != 0) return false;
  return true;
}

GemmOperand gemm_operand(const View& view, int64_t bytes) {
  return {.data = view.data,
          .matrix = view.rank == 3 ? byte_stride(view, 0) : 0,
          .stride = byte_stride(view, view.rank - 2),
          .vectors = are_rows_aligned(view, bytes) ? 1 : 0};
}

GemmFinish gemm_finish(const GemmArgs& args, const Gemm::Problem& p) {
  GemmFinish f{.c = args.c.data,
               .c_matrix = args.c.rank == 3 ? byte_stride(args.c, 0) : 0,
               .c_stride = byte_stride(args.c, args.c.rank - 2),
               .columns = p.n_out(),
               .activation = args.activation,
               .bias_dtype = p.bias,
               .c_dtype = p.c,
               .gate = p.gate,
               .c_vectors = are_rows_aligned(args.c, bits(p.c) / 2) ? 1 : 0};
  if (p.scaled()) {
    f.a_scale = static_cast<const float*>(args.a_scale.data);
    f.a_scale_matrix = vector_matrix(args.a_scale);
    f.a_scale_step = scale_step(p.a_quant);
    f.b_scale = static_cast<const float*>(args.b_scale.data);
    f.b_scale_matrix = vector_matrix(args.b_scale);
    f.b_scale_step = scale_step(p.b_quant);
  }
  if (args.bias.given()) {
    f.bias = args.bias.data;
    f.bias_matrix = vector_matrix(args.bias) * bits(p.bias) / 8;
  }
  return f;
}

GemmTiles gemm_tiles(int64_t m, int64_t n_out, GateLayout gate, GemmTileShape shape) {
  return {.m = ceil_div(m, shape.tile_m), .n = ceil_div(n_out, gate == GateLayout::none ? shape.tile_n : shape.tile_n / 2)};
}

GemmTileForm gemm_tile_form(const Gemm::Problem& p, GemmTileShape shape) {
  // 64-bit sums take three registers each: a small tile.
  if (p.a == DType::i8 && p.k > kMaxI8K) return {.a = p.a, .tile_m = std::min(shape.tile_m, 64), .tile_n = 64, .wide = 1};
  return {.a = p.a, .tile_m = shape.tile_m, .tile_n = shape.tile_n, .wide = 0};
}

SimtEntry gemm_tile_entry(const Gemm::Problem& p, GemmTileShape shape) {
  const GemmTileForm form = gemm_tile_form(p, shape);
  const GemmTiles tiles = gemm_tiles(p.m, p.n_out(), p.gate, {form.tile_m, form.tile_n});
  return {.file = "ops/gemm/simt.cuh",
          .entry = "gemm_tile",
          .defines = {simt_define("A", form.a), simt_define("TILE_M", form.tile_m), simt_define("TILE_N", form.tile_n),
                      simt_define("WIDE", form.wide)},
          .threads = kGemmTileThreads,
          .blocks = blocks_for(p.batch * tiles.m * tiles.n)};
}

GemmGrid gemm_tile_grid(const GemmArgs& args, const Gemm::Problem& p, GemmTileShape shape) {
  const GemmTileForm form = gemm_tile_form(p, shape);
  return grid_of(args, p, gemm_tile_bytes(p.a), gemm_tiles(p.m, p.n_out(), p.gate, {form.tile_m, form.tile_n}));
}

int gemm_decode_rows(const Gemm::Problem& p) {
  for (const int rows : {1, 2, 4})
    if (p.m <= rows) return rows;
  return 8;
}

GemmDecodeForm gemm_decode_form(const Gemm::Problem& p) { return {.a = p.a, .rows = gemm_decode_rows(p)}; }

SimtEntry gemm_decode_entry(const Gemm::Problem& p) {
  const GemmDecodeForm form = gemm_decode_form(p);
  const GemmTiles tiles = gemm_tiles(p.m, p.n_out(), p.gate, {form.rows, kGemmDecodeColumns});
  return {.file = "ops/gemm/simt.cuh",
          .entry = "gemm_decode",
          .defines = {simt_define("A", form.a), simt_define("ROWS", form.rows)},
          .threads = kGemmDecodeThreads,
          .blocks = blocks_for(p.batch * tiles.m * tiles.n)};
}

GemmGrid gemm_decode_grid(const GemmArgs& args, const Gemm::Problem& p) {
  return grid_of(args, p, 16, gemm_tiles(p.m, p.n_out(), p.gate, {gemm_decode_rows(p), kGemmDecodeColumns}));
}

SimtEntry gemm_epilogue_entry(const Gemm::Problem& p, DType sums) {
  return {.file = "ops/gemm/simt.cuh",
          .entry = "gemm_epilogue",
          .defines = {simt_define("SUMS", sums)},
          .threads = kGemmEpilogueThreads,
          .blocks = blocks_for(ceil_div(p.batch * p.m * ceil_div(p.n_out(), 4), kGemmEpilogueThreads))};
}

GemmEpilogueGrid gemm_epilogue_grid(const GemmFinish& finish, const Gemm::Problem& p, const void* sums, int64_t matrix, int64_t stride) {
  const bool halves = p.gate != GateLayout::separated || p.n_out() % 4 == 0;
  const bool aligned = reinterpret_cast<uintptr_t>(sums) % 16 == 0 && (p.m <= 1 || stride % 4 == 0) && (p.batch <= 1 || matrix % 4 == 0);
  const int64_t quads = ceil_div(p.n_out(), 4);
  return {.finish = finish,
          .sums = sums,
          .matrix = matrix * 4,
          .stride = stride * 4,
          .batch = p.batch,
          .m = p.m,
          .n = p.n,
          .quads = quads,
          .blocks = blocks_for(ceil_div(p.batch * p.m * quads, kGemmEpilogueThreads)),
          .vectors = halves && aligned ? 1 : 0};
}

// A tile costs its multiply-adds, at a share of the rate that grows with the sums of a thread, since those share what they read; the
// tiles go over the units in whole waves.
GemmTileShape gemm_tile_shape(const Gemm::Problem& p, const SimtMachine& machine) {
  GemmTileShape best;
  double least = 1e300;
  for (const int tile_n : kGemmTileN)
    for (const int tile_m : kGemmTileM) {
      const GemmTiles tiles = gemm_tiles(p.m, p.n_out(), p.gate, {tile_m, tile_n});
      const int64_t waves = ceil_div(p.batch * tiles.m * tiles.n, std::max(1, machine.units));
      const double rows = tile_m / 16.0, columns = tile_n / 16.0;
      // Multiply-adds, and what is read for them from shared memory.
      const double us = static_cast<double>(waves) * (rows * columns + 2.0 * (rows + columns));
      if (us < least) least = us, best = {tile_m, tile_n};
    }
  return best;
}

double gemm_tile_us(double tiles, int64_t k, DType a, GemmTileShape shape, const Device& device) {
  const double rows = shape.tile_m / 16.0, columns = shape.tile_n / 16.0;
  const double share = 0.85 * rows * columns / (rows * columns + 2 * (rows + columns));
  // A four-way integer product takes two issues of a multiply-add on NVIDIA's machines.
  const double rate = device.profile.f32_flops * (a == DType::i8 ? 2 : 1) * share / device.units;
  const double waves = std::ceil(tiles / device.units);
  return waves * 2.0 * shape.tile_m * shape.tile_n * static_cast<double>(k) / rate * 1e6;
}

namespace {

Support takes_plain_rows(const Gemm::Problem& p, const Device&) {
  if (p.b != DType::none) return Support::no("b is ", p.b, " and a is ", p.a, "; this kernel takes operands of one type");
  if (!p.common()) return Support::no("this kernel has no scales of blocks (", p.a_quant, ", ", p.b_quant, ")");
  return p.b_format == WeightFormat::strided ? Support::yes()
                                             : Support::no("b is packed for CPUs; a GPU reads plain rows (b_format=strided)");
}

GemmTileShape shape_of(const Config& config) { return {.tile_m = config[0], .tile_n = config[1]}; }
Guess tile_guess(const Gemm::Problem& p, const Device& device) {
  const GemmTileShape shape = gemm_tile_shape(p, machine_of(device));
  const GemmTiles tiles = gemm_tiles(p.m, p.n_out(), p.gate, shape);
  const double sums = gemm_tile_us(static_cast<double>(p.batch * tiles.m * tiles.n), p.k, p.a, shape, device);
  return {.config = {.value = {shape.tile_m, shape.tile_n}}, .us = std::max(sums + 2.5, memory_pass_us(device, Gemm::cost(p).bytes))};
}
std::vector<Source> tile_sources(const Gemm::Problem& p, const Config& config, const Device&) {
  return {gemm_tile_entry(p, shape_of(config)).source()};
}
void launch_tile(const GemmArgs& args, const Gemm::Problem& p, const Config& config, Launch& launch) {
  const GemmGrid grid = gemm_tile_grid(args, p, shape_of(config));
  launch_kernel(launch, 0, {.blocks = p.batch * p.m * p.n == 0 ? 0 : grid.blocks, .threads = kGemmTileThreads}, grid);
}

/// b is read once for up to 8 rows, which a lane's multiply-adds keep up with at a third of the peak.
Guess decode_guess(const Gemm::Problem& p, const Device& device) {
  const double passes = static_cast<double>(ceil_div(p.m, gemm_decode_rows(p)));
  const Cost cost = Gemm::cost(p);
  const double padded = cost.flops / static_cast<double>(std::max<int64_t>(1, p.m)) * passes * gemm_decode_rows(p);
  return {.config = {}, .us = std::max(memory_pass_us(device, cost.bytes * passes), 2.5 + padded / (device.profile.f32_flops / 3) * 1e6)};
}
std::vector<Source> decode_sources(const Gemm::Problem& p, const Config&, const Device&) { return {gemm_decode_entry(p).source()}; }
void launch_decode(const GemmArgs& args, const Gemm::Problem& p, const Config&, Launch& launch) {
  const GemmGrid grid = gemm_decode_grid(args, p);
  launch_kernel(launch, 0, {.blocks = p.batch * p.m * p.n == 0 ? 0 : grid.blocks, .threads = kGemmDecodeThreads}, grid);
}

}  // namespace

Kernel<Gemm> gemm_simt_tile() {
  return {.name = "gemm.simt.tile",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = takes_plain_rows,
          .knobs = kGemmTileKnobs,
          .guess = tile_guess,
          .launch = launch_tile,
          .sources = tile_sources};
}

Kernel<Gemm> gemm_simt_decode() {
  return {.name = "gemm.simt.decode",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports =
              [](const Gemm::Problem& p, const Device& device) {
                if (p.a == DType::i8 && p.k > kMaxI8K)
                  return Support::no("k = ", p.k, " could overflow i32 sums of i8 products; at most ", kMaxI8K);
                return takes_plain_rows(p, device);
              },
          .guess = decode_guess,
          .launch = launch_decode,
          .sources = decode_sources};
}

}  // namespace eitri
