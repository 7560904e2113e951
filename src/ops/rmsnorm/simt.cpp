#include "ops/rmsnorm/simt.h"

#include <algorithm>

namespace eitri {

namespace {

int64_t row_bytes(const View& view) { return view.stride[0] * static_cast<int64_t>(detail::element_bytes(view.dtype)); }

}  // namespace

RmsNormTask rmsnorm_task(const RmsNormArgs& args, const RmsNorm::Problem& p) {
  return {.x = static_cast<const std::byte*>(args.x.data),
          .x_stride = row_bytes(args.x),
          .x_dtype = p.x,
          .residual = static_cast<const std::byte*>(args.residual.data),
          .residual_stride = row_bytes(args.residual),
          .residual_out = static_cast<std::byte*>(args.residual_out.data),
          .residual_out_stride = row_bytes(args.residual_out),
          .residual_dtype = p.residual,
          .weight = static_cast<const std::byte*>(args.weight.data),
          .weight_dtype = p.weight,
          .norm_weight = p.norm_weight,
          .out = static_cast<std::byte*>(args.out.data),
          .out_stride = row_bytes(args.out),
          .out_dtype = p.out,
          .scale = static_cast<float*>(args.scale.data),
          .scale_row_stride = args.scale.stride[0],
          .scale_group_stride = args.scale.stride[1],
          .group = columns_of_scale(p),
          .hidden = p.hidden,
          .eps = args.eps};
}

bool has_early_weights(const RowShape& shape, int registers) {
  return shape.chunks == 1 || (shape.chunks > 1 && registers >= 24 + 8 * shape.chunks);  // 4 of a row and 4 of weights a chunk
}

bool has_products(const RmsNorm::Problem& p, const RowShape& shape, int registers, RowAccess access) {
  if (p.quant == Quant::none || shape.chunks < 1) return false;
  if (p.weight != DType::none && !has_early_weights(shape, registers)) return false;
  // 8 a chunk, made while the next chunks of a wide residual are still in their registers; single elements take more than vectors.
  return shape.chunks <= 2 || (access == RowAccess::vectors && bits(p.residual) <= bits(p.x));
}

// On an H200 (2026-11-30, `eitri bench rmsnorm`): 16 x 7168 with residual to f8e4m3 in groups 1.84 us with one block and 1.66 with two, 64
// rows 2.07 and 2.24.
int rmsnorm_row_blocks(const RmsNorm::Problem& p, const RowShape& shape, const SimtMachine& machine, RowAccess access) {
  const bool few = 4 * p.tokens <= machine.units, is_long = shape.threads >= 8 * machine.warp_size;
  return machine.clusters && access == RowAccess::vectors && shape.chunks > 0 && few && is_long ? 2 : 1;
}

int rmsnorm_threads(const RowShape& shape, int row_blocks, const SimtMachine& machine) {
  return row_blocks == 1 ? shape.threads : (shape.threads / 2 + machine.warp_size - 1) / machine.warp_size * machine.warp_size;
}

RmsNormForm rmsnorm_form(const RmsNorm::Problem& p, const RowShape& shape, int registers) {
  return {.x = p.x,
          .weight = p.weight,
          .residual = p.residual,
          .out = p.out,
          .quant = p.quant,
          .norm_weight = p.norm_weight,
          .threads = shape.threads,
          .chunks = shape.chunks,
          .early_weights = has_early_weights(shape, registers),
          .products = has_products(p, shape, registers, RowAccess::vectors)};
}

namespace {

/// With up to two rows a unit, a row's own time is what counts.
bool has_few_rows(const RmsNorm::Problem& p, const SimtMachine& machine) { return p.tokens <= 2 * int64_t{machine.units}; }

}  // namespace

// Both rules: the best of `eitri bench rmsnorm --all-configs` on an H200, 2026-11-30, at hidden 4096 and 7168. Two chunks a thread, whose
// loads are in flight together, make blocks of half the threads, whose barriers are quicker; short rows want their threads.
RowShape rmsnorm_shape(const RmsNorm::Problem& p, const SimtMachine& machine) {
  const auto with = [&](int64_t chunks) { return row_shape_with(p.hidden, wide_of(p.x), chunks, machine); };
  const RowShape one = with(1);
  const bool narrow = one.chunks == 1 && one.threads <= 512, quantised = p.quant != Quant::none;
  if (has_few_rows(p, machine)) return one.chunks == 1 && one.threads < 512 ? one : with(2);
  // Products of four chunks fit beside values of 16 bits only.
  if (quantised && one.threads > 512 && bits(p.x) == 16 && bits(p.residual) <= 16) return with(4);
  return with(p.residual == DType::none && !quantised && !narrow ? 4 : 2);
}

int rmsnorm_registers(const RmsNorm::Problem& p, const RowShape& shape, const SimtMachine& machine) {
  const bool wide_residual = bits(p.residual) > bits(p.x);
  const int wanted = shape.chunks == 1   ? 48
                     : shape.chunks == 2 ? (has_few_rows(p, machine) || wide_residual || p.quant != Quant::none ? 64 : 40)
                                         : (shape.chunks > 2 ? 64 : 40);
  return registers_of_rows(wanted, p.tokens, shape, machine);
}

SimtEntry rmsnorm_entry(const RmsNorm::Problem& p, const RowShape& shape, int registers, RowAccess access, const SimtMachine& machine) {
  const int row_blocks = rmsnorm_row_blocks(p, shape, machine, access), threads = rmsnorm_threads(shape, row_blocks, machine);
  SimtEntry made = {
      .file = "ops/rmsnorm/simt.cuh",
      .entry = "rmsnorm_block_per_row",
      .defines = {simt_define("X", p.x), simt_define("WEIGHT", p.weight), simt_define("RESIDUAL", p.residual), simt_define("OUT", p.out),
                  simt_define("QUANT", p.quant), simt_define("NORM_WEIGHT", p.norm_weight), simt_define("THREADS", threads),
                  simt_define("CHUNKS", shape.chunks), simt_define("EARLY_WEIGHTS", has_early_weights(shape, registers) ? "true" : "false"),
                  simt_define("PRODUCTS", has_products(p, shape, registers, access) ? "true" : "false"),
                  simt_define("ROW_BLOCKS", row_blocks)},
      .threads = threads,
      .blocks = blocks_for(p.tokens) * row_blocks};
  define_access(made.defines, access, registers);
  return made;
}

RmsNormGrid rmsnorm_grid(const RmsNormArgs& args, const RmsNorm::Problem& p) {
  RmsNormGrid grid = {.task = rmsnorm_task(args, p),
                      .columns = static_cast<float>(p.hidden),
                      .inverse_columns = 1.0f / static_cast<float>(p.hidden),
                      .tokens = p.tokens,
                      .blocks = blocks_for(p.tokens)};
  // Every row of every tensor begins at a multiple of 16 bytes, or of the bytes of a chunk of codes; null is aligned.
  const RmsNormTask& t = grid.task;
  const int wide = wide_of(p.x), codes = std::min(16, wide * static_cast<int>(detail::element_bytes(p.out)));
  const auto begin = [](const void* data, int64_t stride) { return reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride); };
  const int64_t many = p.tokens > 1 ? -1 : 0;  // strides of one row do not matter
  const uintptr_t wide_rest = begin(t.x, t.x_stride & many) | begin(t.weight, 0) | begin(t.residual, t.residual_stride & many) |
                              begin(t.residual_out, t.residual_out_stride & many);
  const uintptr_t rest = (wide_rest & 15) | (begin(t.out, t.out_stride & many) & static_cast<uintptr_t>(codes - 1));
  grid.vectors = is_whole_chunks(p.hidden, wide) && rest == 0 ? 1 : 0;
  return grid;
}

namespace {

RowShape shape_of(const RmsNorm::Problem& p, const Config& config, const Device& device) {
  return row_shape_with(p.hidden, wide_of(p.x), config[kRowChunks], machine_of(device));
}
Guess guess(const RmsNorm::Problem& p, const Device& device) {
  const RowShape shape = rmsnorm_shape(p, machine_of(device));
  return {.config = {.value = {shape.chunks, rmsnorm_registers(p, shape, machine_of(device))}},
          .us = memory_pass_us(device, RmsNorm::cost(p).bytes)};
}
std::vector<Source> sources(const RmsNorm::Problem& p, const Config& config, const Device& device) {
  const RowShape shape = shape_of(p, config, device);
  return both_accesses([&](RowAccess access) { return rmsnorm_entry(p, shape, config[kRowRegisters], access, machine_of(device)); });
}
void launch_row(const RmsNormArgs& args, const RmsNorm::Problem& p, const Config& config, Launch& launch) {
  const RmsNormGrid grid = rmsnorm_grid(args, p);
  const RowAccess access = grid.vectors != 0 ? RowAccess::vectors : RowAccess::elements;
  const SimtMachine machine = machine_of(launch.device);
  const RowShape shape = row_shape_with(p.hidden, wide_of(p.x), config[kRowChunks], machine);
  const int row_blocks = rmsnorm_row_blocks(p, shape, machine, access);
  const int64_t blocks = p.tokens == 0 ? 0 : grid.blocks * row_blocks;
  launch_kernel(launch, access == RowAccess::vectors ? 0 : 1,
                {.blocks = blocks,
                 .threads = rmsnorm_threads(shape, row_blocks, machine),
                 .shared_bytes = shared_bytes_of_few(blocks, launch.device),
                 .cluster = row_blocks},
                grid);
}

}  // namespace

Kernel<RmsNorm> rmsnorm_simt_row() {
  // The number of threads, which follows from the tokens, decides the order of a sum: not batch-invariant.
  return {.name = "rmsnorm.simt.block_per_row",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false},
          .supports = [](const RmsNorm::Problem&, const Device&) { return Support::yes(); },
          .knobs = kRowKnobs,
          .guess = guess,
          .launch = launch_row,
          .sources = sources};
}

}  // namespace eitri
