#include "ops/moe_combine/simt.h"

namespace eitri {

namespace {

int64_t stride_bytes(const View& view) { return view.stride[0] * bits(view.dtype) / 8; }
int64_t chunks_of(const MoeCombine::Problem& p) { return (p.hidden + wide_of(p.y) - 1) / wide_of(p.y); }
int64_t blocks_of(const MoeCombine::Problem& p, const MoeCombineShape& shape) {
  return blocks_for((p.tokens * chunks_of(p) + shape.threads - 1) / shape.threads);
}

}  // namespace

MoeCombineTask moe_combine_task(const MoeCombineArgs& args, const MoeCombine::Problem& p) {
  MoeCombineTask task{.y = static_cast<const std::byte*>(args.y.data),
                      .y_stride = stride_bytes(args.y),
                      .y_rows = args.y.shape[0],
                      .y_dtype = p.y,
                      .reverse = static_cast<const std::byte*>(args.reverse.data),
                      .reverse_stride = stride_bytes(args.reverse),
                      .out = static_cast<std::byte*>(args.out.data),
                      .out_stride = stride_bytes(args.out),
                      .out_dtype = p.out,
                      .hidden = p.hidden,
                      .top_k = p.top_k};
  if (p.weights) {
    task.weights = static_cast<const std::byte*>(args.weights.data);
    task.weights_stride = stride_bytes(args.weights);
  }
  if (p.local) task.num_local = static_cast<const int32_t*>(args.num_local_tokens.data);
  if (p.shared) {
    task.shared = static_cast<const std::byte*>(args.shared.data);
    task.shared_stride = stride_bytes(args.shared);
  }
  return task;
}

MoeCombineShape moe_combine_shape(const MoeCombine::Problem& p, const SimtMachine& machine) {
  constexpr int kSmall = 64, kLarge = 256;
  const bool few = p.tokens * chunks_of(p) < int64_t{2} * machine.units * kLarge;
  // Few chunks want loads in flight, many want threads: eight rows at once take too many registers then.
  return {.threads = few ? kSmall : kLarge, .slots = p.top_k <= 1 ? 1 : p.top_k <= 2 ? 2 : p.top_k <= 4 || !few ? 4 : 8};
}

MoeCombineForm moe_combine_form(const MoeCombine::Problem& p, const MoeCombineShape& shape) {
  return {.y = p.y, .out = p.out, .threads = shape.threads, .slots = shape.slots};
}

SimtEntry moe_combine_entry(const MoeCombine::Problem& p, const MoeCombineShape& shape) {
  return {.file = "ops/moe_combine/simt.cuh",
          .entry = "moe_combine_chunks",
          .defines = {simt_define("Y", p.y), simt_define("OUT", p.out), simt_define("THREADS", shape.threads),
                      simt_define("SLOTS", shape.slots)},
          .threads = shape.threads,
          .blocks = blocks_of(p, shape)};
}

MoeCombineGrid moe_combine_grid(const MoeCombineArgs& args, const MoeCombine::Problem& p, const MoeCombineShape& shape) {
  bool vectors = p.hidden < int64_t{1} << 28;  // as load_mixed() asks
  for (const View* view : {&args.y, &args.shared, &args.out}) vectors = vectors && is_vector_aligned(*view, wide_of(p.y));
  return {.task = moe_combine_task(args, p),
          .tokens = p.tokens,
          .chunks = chunks_of(p),
          .blocks = blocks_of(p, shape),
          .vectors = vectors ? 1 : 0};
}

namespace {

Guess guess(const MoeCombine::Problem& p, const Device& device) {
  return {.config = {}, .us = memory_pass_us(device, MoeCombine::cost(p).bytes)};
}
std::vector<Source> sources(const MoeCombine::Problem& p, const Config&, const Device& device) {
  return {moe_combine_entry(p, moe_combine_shape(p, machine_of(device))).source()};
}
void launch_chunks(const MoeCombineArgs& args, const MoeCombine::Problem& p, const Config&, Launch& launch) {
  const MoeCombineShape shape = moe_combine_shape(p, machine_of(launch.device));
  const MoeCombineGrid grid = moe_combine_grid(args, p, shape);
  launch_kernel(launch, 0, {.blocks = grid.tokens * grid.chunks == 0 ? 0 : grid.blocks, .threads = shape.threads}, grid);
}

}  // namespace

Kernel<MoeCombine> moe_combine_simt_row() {
  return {.name = "moe_combine.simt.chunks",
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = [](const MoeCombine::Problem&, const Device&) { return Support::yes(); },
          .guess = guess,
          .launch = launch_chunks,
          .sources = sources};
}

}  // namespace eitri
