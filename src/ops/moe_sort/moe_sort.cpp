// Checks, costs and the kernel table of moe_sort.
#include "ops/moe_sort/moe_sort.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/threads.h"
#include "ops/moe_sort/portable.h"
#include "ops/moe_sort/simt.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

MoeSort::Problem MoeSort::check(const Args& args) {
  check_tensor(args.topk_ids, name, "topk_ids", Access::read, DType::i32, {kAnyExtent, kAnyExtent});
  const int64_t tokens = args.topk_ids.shape[0], top_k = args.topk_ids.shape[1];
  require(tokens < (int64_t{1} << kSortedSlotShift), name, ": topk_ids is ", args.topk_ids,
          "; expected less than 16777216 tokens (24 bits of a sorted id)");
  require(args.experts >= 0 && args.experts <= (1 << 20), name, ": experts is ", args.experts, "; expected 0 to 1048576");
  require(args.block >= 1 && args.block <= (1 << 20), name, ": block is ", args.block, "; expected 1 to 1048576");
  require(top_k <= std::min<int64_t>(127, args.experts), name, ": topk_ids is ", args.topk_ids, "; expected at most ",
          std::min<int64_t>(127, args.experts), " columns (experts; and 7 bits of a sorted id)");
  check_tensor(args.topk_weights, name, "topk_weights", Access::read, DType::f32, {tokens, top_k});
  if (args.expert_mask.given()) check_tensor(args.expert_mask, name, "expert_mask", Access::read, DType::i32, {args.experts});
  if (args.num_local_tokens.given()) check_tensor(args.num_local_tokens, name, "num_local_tokens", Access::read, DType::i32, {1});

  const int64_t padded = max_padded(tokens, top_k, args.experts, args.block);
  require(padded <= std::numeric_limits<int32_t>::max(), name, ": tokens * top_k + experts * block - top_k is ", padded,
          "; expected at most 2147483647 (positions are i32)");
  check_tensor(args.sorted_ids, name, "sorted_ids", Access::write, DType::i32, {padded});
  check_tensor(args.sorted_weights, name, "sorted_weights", Access::write, DType::f32, {padded});
  check_tensor(args.sorted_expert_ids, name, "sorted_expert_ids", Access::write, DType::i32, {max_blocks(padded, args.block)});
  check_tensor(args.num_valid, name, "num_valid", Access::write, DType::i32, {2});
  if (args.reverse.given()) check_tensor(args.reverse, name, "reverse", Access::write, DType::i32, {tokens, top_k});

  struct Named {
    const View* view;
    const char* name;
  };
  const Named written[] = {{&args.sorted_ids, "sorted_ids"},
                           {&args.sorted_weights, "sorted_weights"},
                           {&args.sorted_expert_ids, "sorted_expert_ids"},
                           {&args.num_valid, "num_valid"},
                           {&args.reverse, "reverse"}};
  const Named read[] = {{&args.topk_ids, "topk_ids"},
                        {&args.topk_weights, "topk_weights"},
                        {&args.expert_mask, "expert_mask"},
                        {&args.num_local_tokens, "num_local_tokens"}};
  for (const Named& out : written) {
    if (!out.view->given()) continue;
    for (const Named& in : read) check_apart(*out.view, out.name, *in.view, in.name, name);
    for (const Named& other : written)
      if (&other != &out) check_apart(*out.view, out.name, *other.view, other.name, name);
  }
  return {.tokens = tokens,
          .experts = args.experts,
          .top_k = top_k,
          .block = args.block,
          .mask = args.expert_mask.given(),
          .local = args.num_local_tokens.given(),
          .reverse = args.reverse.given()};
}

std::vector<Output> MoeSort::outputs(const Args& args) {
  std::vector<Output> out = {{"sorted_ids", args.sorted_ids},
                             {"sorted_weights", args.sorted_weights},
                             {"sorted_expert_ids", args.sorted_expert_ids},
                             {"num_valid", args.num_valid}};
  if (args.reverse.given()) out.push_back({"reverse", args.reverse});
  return out;
}

std::vector<Tolerance> MoeSort::tolerance(const Problem& p) { return std::vector<Tolerance>(p.reverse ? 5 : 4); }  // exact

Cost MoeSort::cost(const Problem& p) {
  const auto pairs = static_cast<double>(p.tokens * p.top_k);
  const int64_t padded = max_padded(p.tokens, p.top_k, p.experts, p.block);
  return {.flops = 2 * pairs,
          .bytes = pairs * (p.reverse ? 12 : 8) + static_cast<double>(padded) * 8 + static_cast<double>(max_blocks(padded, p.block)) * 4 +
                   (p.mask ? static_cast<double>(p.experts) * 4 : 0),
          .math = DType::f32};
}

namespace {

// Measured on one core: step 2 and the fill, then steps 1 and 3.
double layout_us(const MoeSort::Problem& p) {
  const int64_t padded = MoeSort::max_padded(p.tokens, p.top_k, p.experts, p.block) - p.tokens * p.top_k;
  return 0.05 + static_cast<double>(p.experts) * 3e-3 + static_cast<double>(padded) * 8 / 40e3;
}
double pairs_us(const MoeSort::Problem& p) { return static_cast<double>(p.tokens * p.top_k) * 3e-3; }

Support takes_all(const MoeSort::Problem&, const Device&) { return Support::yes(); }

Guess guess_counting(const MoeSort::Problem& p, const Device&) { return {.config = {}, .us = layout_us(p) + pairs_us(p)}; }

int parts_of(int threads) { return std::clamp(threads, 1, 64); }

Support takes_threads(const MoeSort::Problem&, const Device&) {
  return max_threads() > 1 ? Support::yes() : Support::no("only one thread is in use");
}
Guess guess_threads(const MoeSort::Problem& p, const Device&) {
  const int parts = parts_of(max_threads());
  constexpr double kTeamsUs = 4;  // two teams, and caches that change hands
  return {.config = {}, .us = kTeamsUs + layout_us(p) + static_cast<double>(p.experts * parts) * 1e-3 + pairs_us(p) / parts};
}

portable::SortTask task_of(const MoeSortArgs& args, const MoeSort::Problem& p) {
  portable::SortTask task{.ids = static_cast<const int32_t*>(args.topk_ids.data),
                          .ids_stride = args.topk_ids.stride[0],
                          .weights = static_cast<const float*>(args.topk_weights.data),
                          .weights_stride = args.topk_weights.stride[0],
                          .mask = static_cast<const int32_t*>(args.expert_mask.data),
                          .sorted_ids = static_cast<int32_t*>(args.sorted_ids.data),
                          .sorted_weights = static_cast<float*>(args.sorted_weights.data),
                          .sorted_expert_ids = static_cast<int32_t*>(args.sorted_expert_ids.data),
                          .num_valid = static_cast<int32_t*>(args.num_valid.data),
                          .reverse = static_cast<int32_t*>(args.reverse.data),
                          .reverse_stride = args.reverse.stride[0],
                          .tokens = p.tokens,
                          .considered = p.tokens,
                          .top_k = p.top_k,
                          .experts = p.experts,
                          .block = p.block,
                          .padded = MoeSort::max_padded(p.tokens, p.top_k, p.experts, p.block)};
  task.blocks = MoeSort::max_blocks(task.padded, p.block);
  if (p.local) task.considered = std::clamp<int64_t>(static_cast<const int32_t*>(args.num_local_tokens.data)[0], 0, p.tokens);
  return task;
}

size_t workspace_counting(const MoeSort::Problem& p, const Config&, const Device&) { return portable::sort_scratch(p.experts, 1); }
size_t workspace_threads(const MoeSort::Problem& p, const Config&, const Device&) {
  return portable::sort_scratch(p.experts, parts_of(max_threads()));
}
void launch_counting(const MoeSortArgs& args, const MoeSort::Problem& p, const Config&, Launch& launch) {
  portable::sort_counting(task_of(args, p), reinterpret_cast<int32_t*>(launch.workspace));
}
void launch_threads(const MoeSortArgs& args, const MoeSort::Problem& p, const Config&, Launch& launch) {
  // The route may be older than the thread count: never more parts than the workspace was made for.
  const auto room = static_cast<int>(launch.workspace_bytes / portable::sort_scratch(p.experts, 1));
  const int parts = std::max(1, std::min(room, parts_of(launch.threads)));
  portable::sort_counting_parallel(task_of(args, p), reinterpret_cast<int32_t*>(launch.workspace), parts);
}

Guess guess_reference(const MoeSort::Problem& p, const Device&) { return {.config = {}, .us = 10 + 100 * (layout_us(p) + pairs_us(p))}; }
void launch_reference(const MoeSortArgs& args, const MoeSort::Problem&, const Config&, Launch&) { MoeSort::reference(args, nullptr); }

constexpr Numerics kNumerics{.accumulator = DType::i32, .repeatable = true, .batch_invariant = false};

}  // namespace

std::span<const Kernel<MoeSort>> MoeSort::kernels() {
  static const Kernel<MoeSort> kTable[] = {
      moe_sort_simt_row<MoeSortParts::one_block>(),
      moe_sort_simt_row<MoeSortParts::blocks>(),
      moe_sort_simt_row<MoeSortParts::warps>(),
      {.name = "moe_sort.portable.counting",
       .family = Family::tile_template,
       .target = Target::any_cpu,
       .numerics = kNumerics,
       .supports = takes_all,
       .guess = guess_counting,
       .workspace = workspace_counting,
       .launch = launch_counting},
      {.name = "moe_sort.portable.counting_threads",
       .family = Family::tile_template,
       .target = Target::any_cpu,
       .numerics = kNumerics,
       .supports = takes_threads,
       .guess = guess_threads,
       .workspace = workspace_threads,
       .launch = launch_threads},
      {.name = "moe_sort.reference",
       .family = Family::reference,
       .target = Target::any_cpu,
       .numerics = kNumerics,
       .supports = takes_all,
       .guess = guess_reference,
       .launch = launch_reference},
  };
  return kTable;
}

}  // namespace eitri
