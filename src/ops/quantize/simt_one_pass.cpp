#include "ops/quantize/simt_one_pass.h"

#include <algorithm>

namespace eitri {

namespace {

/// Beside what a thread keeps, of 64 that 1024 threads have.
int registers_of(const OnePassShape& shape) { return shape.chunks == 1 ? 40 : shape.chunks == 2 ? 48 : 64; }

int64_t piece_of(const Quantize::Problem& p, const OnePassShape& shape) {
  return int64_t{shape.threads} * shape.chunks * quantize_wide(p.x, p.q);
}

}  // namespace

// The best of `eitri bench quantize --all-configs` on an H200, 2026-11-30, at 4096 and 7168 columns. What one block can take quickly it takes
// alone; of few rows fewer and larger blocks have less to tell each other; of many as much as possible stays in registers, and when that
// is less than a third, more loads in flight are worth more (4096 x 4096 17.8 and 18.6 us with 8 and 4 chunks, 4096 x 7168 35.4 and 35.0).
OnePassShape one_pass_shape(const Quantize::Problem& p, const SimtMachine& machine) {
  const int64_t chunks = (p.rows * p.cols + quantize_wide(p.x, p.q) - 1) / quantize_wide(p.x, p.q), units = machine.units;
  for (const int kept : kOnePassChunks)
    if (chunks <= 256 * kept) return {256, kept};
  if (chunks <= 8192) return {256, 2};
  if (chunks <= units * 512) return {256, 4};
  if (chunks <= units * 2048) return {512, 4};
  return {1024, chunks <= 3 * units * 1024 * 8 ? 8 : 4};
}

int one_pass_blocks(const OnePassShape& shape, const SimtMachine& machine) {
  const int a_unit = std::max(1, std::min(2048 / shape.threads, 65536 / (registers_of(shape) * shape.threads)));
  return std::min(kOnePassBlocks, machine.units * a_unit);
}

SimtEntry one_pass_entry(const Quantize::Problem& p, const OnePassShape& shape, RowAccess access) {
  SimtEntry made = {.file = "ops/quantize/simt_one_pass.cuh",
                    .entry = "quantize_one_pass",
                    .defines = {simt_define("X", p.x), simt_define("Q", p.q), simt_define("ONE_PASS_THREADS", shape.threads),
                                simt_define("CHUNKS", shape.chunks)},
                    .threads = shape.threads,
                    .blocks = 1};
  define_access(made.defines, access, registers_of(shape));
  return made;
}

QuantizeOnePassGrid one_pass_grid(const QuantizeArgs& args, const Quantize::Problem& p, const OnePassShape& shape, int most_blocks,
                                  void* meeting) {
  const int wide = quantize_wide(p.x, p.q);
  QuantizeOnePassGrid grid = {.task = quantize_blocks_task(args, p),
                              .num_valid = p.sorted ? static_cast<const int32_t*>(args.num_valid.data) : nullptr,
                              .meeting = meeting};
  int64_t rows = p.rows;
  if (!p.sorted && args.x.stride[0] == p.cols && args.q.stride[0] == p.cols) {  // no gaps
    grid.task.cols = p.rows * p.cols;
    rows = std::min<int64_t>(rows, 1);
    const uintptr_t rest = (reinterpret_cast<uintptr_t>(args.x.data) & 15) |
                           (reinterpret_cast<uintptr_t>(args.q.data) & static_cast<uintptr_t>(wide - 1)) |
                           static_cast<uintptr_t>(grid.task.cols & (wide - 1));
    grid.vectors = rest == 0 ? 1 : 0;
  } else {
    grid.vectors = (p.cols & (wide - 1)) == 0 && is_vector_aligned(args.x, wide) && is_vector_aligned(args.q, wide) ? 1 : 0;
  }
  const int64_t piece = piece_of(p, shape), row_pieces = std::max<int64_t>(1, (grid.task.cols + piece - 1) / piece);
  grid.row_pieces = static_cast<int32_t>(row_pieces);
  grid.pieces = static_cast<int32_t>(rows * row_pieces);
  grid.blocks = std::clamp(grid.pieces, 1, most_blocks);
  return grid;
}

namespace {

constexpr Knob kKnobs[] = {{"threads", kOnePassThreads}, {"chunks", kOnePassChunks}};
OnePassShape shape_of(const Config& config) { return {config[0], config[1]}; }

Support supports(const Quantize::Problem& p, const Device&) {
  if (p.quant != Quant::per_tensor) return Support::no("takes one scale for the tensor only, not ", p.quant);
  constexpr int64_t kMost = int64_t{1} << 30;  // pieces are counted in 32 bits
  if (p.rows > kMost || p.rows * (p.cols / 512 + 1) > kMost) return Support::no("has more than 2^30 pieces");
  return Support::yes();
}
Guess guess(const Quantize::Problem& p, const Device& device) {
  const SimtMachine machine = machine_of(device);
  const OnePassShape shape = one_pass_shape(p, machine);
  const int64_t kept = one_pass_blocks(shape, machine) * piece_of(p, shape);
  const double again = static_cast<double>(std::max<int64_t>(0, p.rows * p.cols - kept)) * bits(p.x) / 8;
  return {.config = {.value = {shape.threads, shape.chunks}},
          .us = memory_pass_us(device, Quantize::cost(p).bytes) + again / (0.9 * device.profile.read_bytes) * 1e6};
}
std::vector<Source> sources(const Quantize::Problem& p, const Config& config, const Device&) {
  return both_accesses([&](RowAccess access) { return one_pass_entry(p, shape_of(config), access); });
}
void launch_row(const QuantizeArgs& args, const Quantize::Problem& p, const Config& config, Launch& launch) {
  const OnePassShape shape = shape_of(config);
  QuantizeOnePassGrid grid = one_pass_grid(args, p, shape, one_pass_blocks(shape, machine_of(launch.device)), nullptr);
  if (grid.blocks > 1) grid.meeting = gpu::kept_memory(launch.device, launch.stream);
  launch_kernel(launch, grid.vectors != 0 ? 0 : 1,
                {.blocks = grid.blocks, .threads = shape.threads, .shared_bytes = shared_bytes_of_few(grid.blocks, launch.device)}, grid);
}
static_assert(kOnePassBytes <= gpu::kKeptBytes);

}  // namespace

Kernel<Quantize> quantize_one_pass_row() {
  return {.name = "quantize.simt.one_pass",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = supports,
          .knobs = kKnobs,
          .guess = guess,
          .launch = launch_row,
          .sources = sources};
}

}  // namespace eitri
