#include "ops/activation/simt.h"

#include <algorithm>

namespace eitri {

namespace {

int64_t tiles_per_row(const Activation::Problem& p, const RowShape& shape) {
  const int64_t columns = int64_t{shape.threads} * wide_of(p.x);
  return (p.inter + columns - 1) / columns;
}
int64_t blocks_of(const Activation::Problem& p, const RowShape& shape) {
  return blocks_for(p.out == DType::i8 ? p.rows : p.rows * tiles_per_row(p, shape));
}

}  // namespace

ActivationTask activation_task(const ActivationArgs& args, const Activation::Problem& p) {
  return {.x = static_cast<const std::byte*>(args.x.data),
          .x_stride = args.x.stride[0] * bits(p.x) / 8,
          .x_dtype = p.x,
          .out = static_cast<std::byte*>(args.out.data),
          .out_stride = args.out.stride[0] * bits(p.out) / 8,
          .out_dtype = p.out,
          .scale = static_cast<float*>(args.scale.data),
          .inter = p.inter,
          .params = args.activation,
          .gate = args.gate,
          .sorted_ids = p.sorted ? static_cast<const int32_t*>(args.sorted_ids.data) : nullptr,
          .tokens = args.tokens};
}

ActivationForm activation_form(const Activation::Problem& p, const RowShape& shape) {
  return {.x = p.x, .out = p.out, .kind = p.kind, .gate = p.gate, .limited = p.limited, .threads = shape.threads, .chunks = shape.chunks};
}

namespace {

/// Their blocks of half the threads have a quicker barrier: 1 x 7168 to i8 in 1.48 us, with one chunk a thread 1.52.
bool has_few_rows(const Activation::Problem& p, const SimtMachine& machine) { return 4 * p.rows <= machine.units; }

}  // namespace

/// A tile keeps nothing: as many threads as possible. Rows keep fp32 values, 8 or 4 a chunk (H200, 2026-11-30,
/// `eitri bench activation --all-configs`).
int activation_registers(const Activation::Problem& p, const RowShape& shape, const SimtMachine& machine) {
  if (p.out != DType::i8) return 32;
  const bool is_long = shape.chunks == 2 && shape.threads > 8 * machine.warp_size && has_few_rows(p, machine);
  return registers_of_rows(shape.chunks > 2 || is_long ? 64 : 48, p.rows, shape, machine);
}

SimtEntry activation_entry(const Activation::Problem& p, const RowShape& shape, int registers, RowAccess access) {
  const char* entry = p.out == DType::i8 ? "activation_block_per_row" : "activation_tiles";
  SimtEntry made = {.file = "ops/activation/simt.cuh",
                    .entry = entry,
                    .defines = {simt_define("ENTRY", entry), simt_define("X", p.x), simt_define("OUT", p.out), simt_define("KIND", p.kind),
                                simt_define("GATE", p.gate), simt_define("LIMITED", p.limited ? "true" : "false"),
                                simt_define("THREADS", shape.threads), simt_define("CHUNKS", shape.chunks)},
                    .threads = shape.threads,
                    .blocks = blocks_of(p, shape)};
  define_access(made.defines, access, registers);
  return made;
}

ActivationGrid activation_grid(const ActivationArgs& args, const Activation::Problem& p, const RowShape& shape) {
  const int wide = wide_of(p.x);
  const int64_t tiles = tiles_per_row(p, shape);
  const bool whole = is_whole_chunks(p.inter, wide) && p.rows * tiles < int64_t{1} << 31;
  return {.task = activation_task(args, p),
          .num_valid = p.sorted ? static_cast<const int32_t*>(args.num_valid.data) : nullptr,
          .rows = p.rows,
          .tiles_per_row = tiles,
          .blocks = blocks_of(p, shape),
          .vectors = whole && is_vector_aligned(args.x, wide) && is_vector_aligned(args.out, wide) ? 1 : 0};
}

RowShape activation_shape(const Activation::Problem& p, const SimtMachine& machine) {
  if (p.out == DType::i8) {
    const RowShape one = row_shape_with(p.inter, wide_of(p.x), 1, machine);
    const bool is_short = has_few_rows(p, machine) ? one.threads < 512 : p.rows <= 2 * int64_t{machine.units};
    return is_short ? one : row_shape_with(p.inter, wide_of(p.x), 2, machine);
  }
  constexpr int kThreads = 256;
  const int64_t vectors = std::max<int64_t>(1, (p.inter + wide_of(p.x) - 1) / wide_of(p.x));
  const int64_t whole = (vectors + machine.warp_size - 1) / machine.warp_size * machine.warp_size;
  return {static_cast<int>(std::min<int64_t>(kThreads, whole)), 1};
}

namespace {

RowShape shape_of(const Activation::Problem& p, const Config& config, const Device& device) {
  if (p.out == DType::i8) return row_shape_with(p.inter, wide_of(p.x), config[kRowChunks], machine_of(device));
  return activation_shape(p, machine_of(device));
}
Guess guess(const Activation::Problem& p, const Device& device) {
  const RowShape shape = activation_shape(p, machine_of(device));
  const int registers = activation_registers(p, shape, machine_of(device));
  return {
      .config = {.value = p.out == DType::i8 ? std::array<int, kMaxKnobs>{shape.chunks, registers} : std::array<int, kMaxKnobs>{registers}},
      .us = memory_pass_us(device, Activation::cost(p).bytes)};
}
std::vector<Source> sources(const Activation::Problem& p, const Config& config, const Device& device) {
  const RowShape shape = shape_of(p, config, device);
  return both_accesses(
      [&](RowAccess access) { return activation_entry(p, shape, p.out == DType::i8 ? config[kRowRegisters] : config[0], access); });
}
void launch_rows(const ActivationArgs& args, const Activation::Problem& p, const Config& config, Launch& launch) {
  const RowShape shape = shape_of(p, config, launch.device);
  const ActivationGrid grid = activation_grid(args, p, shape);
  launch_kernel(
      launch, grid.vectors != 0 ? 0 : 1,
      {.blocks = p.rows == 0 ? 0 : grid.blocks, .threads = shape.threads, .shared_bytes = shared_bytes_of_few(grid.blocks, launch.device)},
      grid);
}

constexpr Knob kTileKnobs[] = {{"registers", kRegisterValues}};

Kernel<Activation> simt_row(const char* name, Knobs knobs, Support (*supports)(const Activation::Problem&, const Device&)) {
  return {.name = name,
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = supports,
          .knobs = knobs,
          .guess = guess,
          .launch = launch_rows,
          .sources = sources};
}

}  // namespace

Kernel<Activation> activation_block_per_row() {
  return simt_row("activation.simt.block_per_row", kRowKnobs, [](const Activation::Problem& p, const Device&) {
    return p.out == DType::i8 ? Support::yes() : Support::no("out is ", p.out, "; activation.simt.tiles takes it");
  });
}
Kernel<Activation> activation_tiles() {
  return simt_row("activation.simt.tiles", kTileKnobs, [](const Activation::Problem& p, const Device&) {
    return p.out != DType::i8 ? Support::yes() : Support::no("out is i8: a row has one scale; activation.simt.block_per_row takes it");
  });
}

}  // namespace eitri
