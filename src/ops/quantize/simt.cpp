#include "ops/quantize/simt.h"

#include <algorithm>
#include <bit>

namespace eitri {

QuantizeBlocksTask quantize_blocks_task(const QuantizeArgs& args, const Quantize::Problem& p) {
  const bool blocks = has_block_scales(p.quant);
  const DType scale = quantize_scale_dtype(p.q, p.quant);
  const int64_t block = quantize_block(p.quant, p.cols), scale_bytes = bits(scale) / 8;
  return {.x = static_cast<const std::byte*>(args.x.data),
          .x_stride = args.x.stride[0] * bits(p.x) / 8,
          .x_dtype = p.x,
          .q = static_cast<std::byte*>(args.q.data),
          .q_stride = args.q.stride[0] * bits(p.q) / 8,
          .q_dtype = p.q,
          .scale = static_cast<std::byte*>(args.scale.data),
          .scale_row_stride = p.quant == Quant::per_tensor ? 0 : args.scale.stride[0] * scale_bytes,
          .scale_block_stride = blocks ? args.scale.stride[1] * scale_bytes : 0,
          .scale_dtype = scale,
          .rounding = args.scale_rounding,
          .cols = p.cols,
          .blocks = blocks ? (p.cols + block - 1) >> std::countr_zero(static_cast<uint64_t>(block)) : 1,
          .block_cols = block,
          .sorted_ids = p.sorted ? static_cast<const int32_t*>(args.sorted_ids.data) : nullptr,
          .tokens = args.tokens};
}

std::span<const char* const> enum_names(QuantizePass) {
  static constexpr const char* kNames[] = {"amax", "codes"};
  return kNames;
}

namespace {

/// Magnitudes are the same for all codes: one kernel.
DType codes_of(const Quantize::Problem& p, QuantizePass pass) { return pass == QuantizePass::amax ? DType::i8 : p.q; }

}  // namespace

QuantizeForm quantize_form(const Quantize::Problem& p, const RowShape& shape, QuantizePass pass) {
  return {.x = p.x, .q = codes_of(p, pass), .quant = p.quant, .pass = pass, .threads = shape.threads, .chunks = shape.chunks};
}

// What a thread keeps is small, so that many rows go with four chunks a thread (16384 x 7168 bf16: 4.36 TB/s, two chunks 4.05). Scales of
// blocks want as many threads as there are in short rows (4096 x 4096 to f8e4m3: for 128 columns 3.90 TB/s with two chunks and 32
// registers, 3.77 with four chunks; for 32 columns 3.98 and 3.82). H200, 2026-11-30, `eitri bench quantize --all-configs`.
RowShape quantize_shape(const Quantize::Problem& p, const SimtMachine& machine) {
  const auto with = [&](int64_t chunks) { return row_shape_with(p.cols, quantize_wide(p.x, p.q), chunks, machine); };
  const RowShape one = with(1);
  if (p.rows <= 2 * int64_t{machine.units}) return one;
  return with(has_block_scales(p.quant) && p.q != DType::f4e2m1 && one.chunks == 1 && one.threads <= 512 ? 2 : 4);
}

/// What a thread keeps of a row beside addresses and sums; the many instructions of f4e2m1 want more blocks a unit.
int quantize_registers(const Quantize::Problem& p, const RowShape& shape, const SimtMachine& machine) {
  const bool is_full = shape.chunks == 2 && p.quant == Quant::per_1x128;
  const int wanted = is_full ? 32 : shape.chunks == 1 ? 40 : shape.chunks == 4 && p.q == DType::f4e2m1 && shape.threads > 128 ? 48 : 64;
  return registers_of_rows(wanted, p.rows, shape, machine);
}

SimtEntry quantize_entry(const Quantize::Problem& p, const RowShape& shape, QuantizePass pass, int registers, RowAccess access) {
  SimtEntry made = {.file = "ops/quantize/simt.cuh",
                    .entry = "quantize_block_per_row",
                    .defines = {simt_define("X", p.x), simt_define("Q", codes_of(p, pass)), simt_define("QUANT", p.quant),
                                simt_define("PASS", pass), simt_define("THREADS", shape.threads), simt_define("CHUNKS", shape.chunks)},
                    .threads = shape.threads,
                    .blocks = blocks_for(p.rows)};
  define_access(made.defines, access, registers);
  return made;
}

int64_t quantize_parts(const Quantize::Problem& p, const SimtMachine& machine) {
  // All threads of the second pass read them: a few blocks a unit are enough to ask for the memory's bandwidth.
  return p.quant == Quant::per_tensor ? std::clamp<int64_t>(p.rows, 1, 8 * int64_t{machine.units}) : 0;
}

QuantizeGrid quantize_grid(const QuantizeArgs& args, const Quantize::Problem& p, const SimtMachine& machine, std::byte* workspace) {
  const int wide = quantize_wide(p.x, p.q);
  return {.task = quantize_blocks_task(args, p),
          .num_valid = p.sorted ? static_cast<const int32_t*>(args.num_valid.data) : nullptr,
          .partials = reinterpret_cast<float*>(workspace),
          .parts = quantize_parts(p, machine),
          .rows = p.rows,
          .blocks = blocks_for(p.rows),
          .vectors = is_whole_chunks(p.cols, wide) && is_vector_aligned(args.x, wide) && is_vector_aligned(args.q, wide) ? 1 : 0};
}

QuantizeGrid quantize_amax_grid(QuantizeGrid grid) {
  grid.blocks = grid.parts;
  return grid;
}

namespace {

RowShape shape_of(const Quantize::Problem& p, const Config& config, const Device& device) {
  return row_shape_with(p.cols, quantize_wide(p.x, p.q), config[kRowChunks], machine_of(device));
}
Guess guess(const Quantize::Problem& p, const Device& device) {
  const RowShape shape = quantize_shape(p, machine_of(device));
  const Cost cost = Quantize::cost(p);
  const double first_pass = p.quant == Quant::per_tensor ? memory_pass_us(device, static_cast<double>(p.rows * p.cols) * bits(p.x) / 8) : 0;
  return {.config = {.value = {shape.chunks, quantize_registers(p, shape, machine_of(device))}},
          .us = first_pass + memory_pass_us(device, cost.bytes)};
}
size_t workspace(const Quantize::Problem& p, const Config&, const Device& device) {
  return static_cast<size_t>(quantize_parts(p, machine_of(device))) * sizeof(float);
}
/// Of the pass that writes codes, then of the one before it, if any: each for both accesses.
std::vector<Source> sources(const Quantize::Problem& p, const Config& config, const Device& device) {
  const RowShape shape = shape_of(p, config, device);
  std::vector<Source> list;
  for (const QuantizePass pass : {QuantizePass::codes, QuantizePass::amax}) {
    if (pass == QuantizePass::amax && p.quant != Quant::per_tensor) break;
    for (Source& source : both_accesses([&](RowAccess access) { return quantize_entry(p, shape, pass, config[kRowRegisters], access); }))
      list.push_back(std::move(source));
  }
  return list;
}
void launch_row(const QuantizeArgs& args, const Quantize::Problem& p, const Config& config, Launch& launch) {
  const QuantizeGrid grid = quantize_grid(args, p, machine_of(launch.device), launch.workspace);
  const int threads = shape_of(p, config, launch.device).threads;
  const size_t access = grid.vectors != 0 ? 0 : 1;
  const auto pass = [&](size_t source, const QuantizeGrid& part, int64_t blocks) {
    launch_kernel(launch, source, {.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes_of_few(part.blocks, launch.device)},
                  part);
  };
  if (p.quant != Quant::per_tensor) return pass(access, grid, p.rows == 0 ? 0 : grid.blocks);
  const QuantizeGrid amax = quantize_amax_grid(grid);
  pass(2 + access, amax, amax.blocks);
  pass(access, grid, grid.blocks);  // without rows too: the scale is 0
}

}  // namespace

Kernel<Quantize> quantize_simt_row() {
  return {.name = "quantize.simt.block_per_row",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = [](const Quantize::Problem&, const Device&) { return Support::yes(); },
          .knobs = kRowKnobs,
          .guess = guess,
          .workspace = workspace,
          .launch = launch_row,
          .sources = sources};
}

}  // namespace eitri
