#include "ops/quantize/simt.h"

#include <algorithm>

namespace eitri {

QuantizeTask quantize_task(const QuantizeArgs& args, const Quantize::Problem& p) {
  return {.x = static_cast<const std::byte*>(args.x.data),
          .x_stride = args.x.stride[0] * bits(p.x) / 8,
          .x_dtype = p.x,
          .q = static_cast<int8_t*>(args.q.data),
          .q_stride = args.q.stride[0],
          .scale = static_cast<float*>(args.scale.data),
          .cols = p.cols,
          .sorted_ids = p.sorted ? static_cast<const int32_t*>(args.sorted_ids.data) : nullptr,
          .tokens = args.tokens};
}

QuantizeForm quantize_form(const Quantize::Problem& p, const RowShape& shape) {
  return {.x = p.x, .q = p.q, .threads = shape.threads, .chunks = shape.chunks};
}

/// What a thread keeps of a row beside addresses and sums.
int quantize_registers(const Quantize::Problem& p, const RowShape& shape, const SimtMachine& machine) {
  return registers_of_rows(shape.chunks == 1 ? 40 : 64, p.rows, shape, machine);
}

SimtEntry quantize_entry(const Quantize::Problem& p, const RowShape& shape, int registers, RowAccess access) {
  SimtEntry made = {
      .file = "ops/quantize/simt.cuh",
      .entry = "quantize_block_per_row",
      .defines = {simt_define("X", p.x), simt_define("Q", p.q), simt_define("THREADS", shape.threads), simt_define("CHUNKS", shape.chunks)},
      .threads = shape.threads,
      .blocks = blocks_for(p.rows)};
  define_access(made.defines, access, registers);
  return made;
}

QuantizeGrid quantize_grid(const QuantizeArgs& args, const Quantize::Problem& p) {
  const int wide = wide_of(p.x);
  return {.task = quantize_task(args, p),
          .num_valid = p.sorted ? static_cast<const int32_t*>(args.num_valid.data) : nullptr,
          .rows = p.rows,
          .blocks = blocks_for(p.rows),
          .vectors = is_whole_chunks(p.cols, wide) && is_vector_aligned(args.x, wide) && is_vector_aligned(args.q, wide) ? 1 : 0};
}

namespace {

RowShape shape_of(const Quantize::Problem& p, const Config& config, const Device& device) {
  return row_shape_with(p.cols, wide_of(p.x), config[kRowChunks], machine_of(device));
}
Guess guess(const Quantize::Problem& p, const Device& device) {
  const RowShape shape = quantize_shape(p, machine_of(device));
  return {.config = {.value = {shape.chunks, quantize_registers(p, shape, machine_of(device))}},
          .us = memory_pass_us(device, Quantize::cost(p).bytes)};
}
std::vector<Source> sources(const Quantize::Problem& p, const Config& config, const Device& device) {
  const RowShape shape = shape_of(p, config, device);
  return both_accesses([&](RowAccess access) { return quantize_entry(p, shape, config[kRowRegisters], access); });
}
void launch_row(const QuantizeArgs& args, const Quantize::Problem& p, const Config& config, Launch& launch) {
  const QuantizeGrid grid = quantize_grid(args, p);
  launch_kernel(launch, grid.vectors != 0 ? 0 : 1,
                {.blocks = p.rows == 0 ? 0 : grid.blocks,
                 .threads = shape_of(p, config, launch.device).threads,
                 .shared_bytes = shared_bytes_of_few(grid.blocks, launch.device)},
                grid);
}

}  // namespace

Kernel<Quantize> quantize_simt_row() {
  return {.name = "quantize.simt.block_per_row",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports =
              [](const Quantize::Problem& p, const Device&) {
                return p.quant == Quant::per_token ? Support::yes() : Support::no("quant is ", p.quant, "; the kernel has one scale a row");
              },
          .knobs = kRowKnobs,
          .guess = guess,
          .launch = launch_row,
          .sources = sources};
}

}  // namespace eitri
