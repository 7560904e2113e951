#include "ops/moe_sort/simt.h"

#include <algorithm>
#include <bit>

namespace eitri {

namespace {

int64_t parts_of(const MoeSortShape& shape, const SimtMachine& machine) {
  return shape.parts == MoeSortParts::warps ? shape.blocks * (shape.threads / machine.warp_size) : shape.blocks;
}

}  // namespace

MoeSortShape moe_sort_shape(const MoeSort::Problem& p, MoeSortParts parts, const SimtMachine& machine) {
  constexpr int kThreads = 1024, kThreadsOfWarps = 256;
  constexpr int64_t kPairsOfBlock = 2048, kMostWorkspace = int64_t{1} << 26;
  const int64_t wanted = std::min<int64_t>(machine.units, (p.tokens * p.top_k + kPairsOfBlock - 1) / kPairsOfBlock);
  if (parts == MoeSortParts::one_block) return {.parts = parts, .threads = kThreads, .counters = kMoeSortCounters, .blocks = 1};
  if (parts == MoeSortParts::blocks)
    return {.parts = parts, .threads = kThreads, .counters = kMoeSortCounters, .blocks = std::max<int64_t>(1, wanted)};
  const int64_t bytes = kThreadsOfWarps / machine.warp_size * std::max<int64_t>(1, p.experts) * 4;  // of a block's counters
  return {
      .parts = parts, .threads = kThreadsOfWarps, .counters = 0, .blocks = std::max<int64_t>(1, std::min(wanted, kMostWorkspace / bytes))};
}

MoeSortForm moe_sort_form(const MoeSortShape& shape) { return {.threads = shape.threads, .counters = shape.counters}; }

std::vector<SimtEntry> moe_sort_entries(const MoeSortShape& shape) {
  const auto entry = [&](const char* name, int64_t blocks) {
    return SimtEntry{
        .file = "ops/moe_sort/simt.cuh",
        .entry = name,
        .defines = {simt_define("ENTRY", name), simt_define("THREADS", shape.threads), simt_define("COUNTERS", shape.counters)},
        .threads = shape.threads,
        .blocks = blocks};
  };
  if (shape.parts == MoeSortParts::one_block) return {entry("moe_sort_one_block", 1)};
  return {entry("moe_sort_count", shape.blocks), entry("moe_sort_layout", 1), entry("moe_sort_place", shape.blocks)};
}

size_t moe_sort_workspace(const MoeSort::Problem& p, const MoeSortShape& shape, const SimtMachine& machine) {
  if (shape.parts == MoeSortParts::one_block) return 0;
  return static_cast<size_t>(parts_of(shape, machine) * p.experts) * sizeof(int32_t);
}

MoeSortGrid moe_sort_grid(const MoeSortArgs& args, const MoeSort::Problem& p, const MoeSortShape& shape, const SimtMachine& machine,
                          std::byte* workspace) {
  const int64_t padded = MoeSort::max_padded(p.tokens, p.top_k, p.experts, p.block);
  return {.ids = static_cast<const int32_t*>(args.topk_ids.data),
          .ids_stride = args.topk_ids.stride[0],
          .weights = static_cast<const float*>(args.topk_weights.data),
          .weights_stride = args.topk_weights.stride[0],
          .mask = static_cast<const int32_t*>(args.expert_mask.data),
          .local = static_cast<const int32_t*>(args.num_local_tokens.data),
          .sorted_ids = static_cast<int32_t*>(args.sorted_ids.data),
          .sorted_weights = static_cast<float*>(args.sorted_weights.data),
          .sorted_expert_ids = static_cast<int32_t*>(args.sorted_expert_ids.data),
          .num_valid = static_cast<int32_t*>(args.num_valid.data),
          .reverse = static_cast<int32_t*>(args.reverse.data),
          .reverse_stride = args.reverse.stride[0],
          .tokens = p.tokens,
          .top_k = p.top_k,
          .experts = p.experts,
          .block = p.block,
          .padded = padded,
          .sorted_blocks = MoeSort::max_blocks(padded, p.block),
          .counters = reinterpret_cast<int32_t*>(workspace),
          .parts = parts_of(shape, machine),
          .blocks = shape.blocks,
          .id_bits = p.experts <= 1 ? 0 : static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(p.experts - 1))),
          .vectors = is_vector_aligned(args.sorted_ids, 4) && is_vector_aligned(args.sorted_weights, 4) ? 1 : 0};
}

namespace {

template <MoeSortParts kParts> MoeSortShape shape_of(const MoeSort::Problem& p, const Device& device) {
  return moe_sort_shape(p, kParts, machine_of(device));
}
template <MoeSortParts kParts> Support takes(const MoeSort::Problem& p, const Device&) {
  if (kParts == MoeSortParts::warps || p.experts <= kMoeSortCounters) return Support::yes();
  return Support::no("has shared counters for ", kMoeSortCounters, " experts, not for ", p.experts);
}
template <MoeSortParts kParts> Guess guess(const MoeSort::Problem& p, const Device& device) {
  const MoeSortShape shape = shape_of<kParts>(p, device);
  const auto pairs = static_cast<double>(p.tokens * p.top_k), experts = static_cast<double>(p.experts);
  const auto padded = static_cast<double>(MoeSort::max_padded(p.tokens, p.top_k, p.experts, p.block));
  if (kParts == MoeSortParts::one_block) {
    const double warps = std::min<double>(shape.threads / device.warp_size, std::max(1.0, kMoeSortCounters / (experts + 1)));
    return {.config = {}, .us = 5 + padded * 8 / 50e3 + pairs / warps * 15e-3};
  }
  const double each = kParts == MoeSortParts::blocks ? 2 : 8;  // counters in the workspace are far away
  const auto parts = static_cast<double>(parts_of(shape, machine_of(device)));
  const double layout = 1 + experts * parts / shape.threads * 10e-3;
  return {.config = {}, .us = memory_pass_us(device, MoeSort::cost(p).bytes) + 5 + each * 2 + layout};
}
template <MoeSortParts kParts> size_t workspace(const MoeSort::Problem& p, const Config&, const Device& device) {
  return moe_sort_workspace(p, shape_of<kParts>(p, device), machine_of(device));
}
template <MoeSortParts kParts> std::vector<Source> sources(const MoeSort::Problem& p, const Config&, const Device& device) {
  std::vector<Source> list;
  for (const SimtEntry& entry : moe_sort_entries(shape_of<kParts>(p, device))) list.push_back(entry.source());
  return list;
}
template <MoeSortParts kParts> void launch_sort(const MoeSortArgs& args, const MoeSort::Problem& p, const Config&, Launch& launch) {
  const MoeSortShape shape = shape_of<kParts>(p, launch.device);
  const MoeSortGrid grid = moe_sort_grid(args, p, shape, machine_of(launch.device), launch.workspace);
  launch_kernel(launch, 0, {.blocks = grid.blocks, .threads = shape.threads}, grid);
  if (kParts == MoeSortParts::one_block) return;
  launch_kernel(launch, 1, {.blocks = 1, .threads = shape.threads}, grid);
  launch_kernel(launch, 2, {.blocks = grid.blocks, .threads = shape.threads}, grid);
}

template <MoeSortParts kParts>
constexpr const char* kName = kParts == MoeSortParts::one_block ? "moe_sort.simt.one_block"
                              : kParts == MoeSortParts::blocks  ? "moe_sort.simt.blocks"
                                                                : "moe_sort.simt.warps";

}  // namespace

template <MoeSortParts kParts> Kernel<MoeSort> moe_sort_simt_row() {
  return {.name = kName<kParts>,
          .family = Family::simt,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::i32, .repeatable = true, .batch_invariant = false},
          .supports = takes<kParts>,
          .guess = guess<kParts>,
          .workspace = workspace<kParts>,
          .launch = launch_sort<kParts>,
          .sources = sources<kParts>};
}
template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::one_block>();
template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::blocks>();
template Kernel<MoeSort> moe_sort_simt_row<MoeSortParts::warps>();

}  // namespace eitri
