// Checks, costs and the kernel table of moe_combine.
#include "ops/moe_combine/moe_combine.h"

#include <algorithm>

#include "backend/cpu/threads.h"
#include "ops/moe_combine/moe_combine_kernels.h"
#include "ops/moe_combine/simt.h"
#include "ops/quantize/row_cost.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

MoeCombine::Problem MoeCombine::check(const Args& args) {
  check_tensor(args.y, name, "y", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  check_tensor(args.reverse, name, "reverse", Access::read, DType::i32, {kAnyExtent, kAnyExtent});
  const int64_t tokens = args.reverse.shape[0], top_k = args.reverse.shape[1], hidden = args.y.shape[1];
  if (args.weights.given()) check_tensor(args.weights, name, "weights", Access::read, DType::f32, {tokens, top_k});
  if (args.shared.given()) check_tensor(args.shared, name, "shared", Access::read, args.y.dtype, {tokens, hidden});
  check_tensor(args.out, name, "out", Access::write, DType::none, {tokens, hidden});
  check_apart(args.out, "out", args.y, "y", name);
  check_apart(args.out, "out", args.reverse, "reverse", name);
  check_apart(args.out, "out", args.weights, "weights", name);
  check_apart(args.out, "out", args.shared, "shared", name);
  if (args.num_local_tokens.given()) {
    check_tensor(args.num_local_tokens, name, "num_local_tokens", Access::read, DType::i32, {1});
    check_apart(args.out, "out", args.num_local_tokens, "num_local_tokens", name);
  }
  return {.tokens = tokens,
          .hidden = hidden,
          .top_k = top_k,
          .y = args.y.dtype,
          .out = args.out.dtype,
          .weights = args.weights.given(),
          .shared = args.shared.given(),
          .local = args.num_local_tokens.given()};
}

MoeCombine::Args MoeCombine::rows_of(const Args& args, int64_t begin, int64_t end) {
  Args part = args;
  part.reverse = rows(args.reverse, begin, end);
  part.out = rows(args.out, begin, end);
  if (args.weights.given()) part.weights = rows(args.weights, begin, end);
  if (args.shared.given()) part.shared = rows(args.shared, begin, end);
  part.num_local_tokens = {};  // it counts the rows of the whole
  return part;
}

std::vector<Output> MoeCombine::outputs(const Args& args) { return {{"out", args.out}}; }

std::vector<Tolerance> MoeCombine::tolerance(const Problem& p) {
  // The first product has one rounding; every further slot and the shared row add two: bound is the sum of |products|.
  const double roundings = 2.0 * static_cast<double>(p.top_k) + (p.shared ? 1 : 0);
  const double smallest = p.out == DType::f16 ? 0x1p-24 : p.out == DType::bf16 ? 0x1p-133 : 0x1p-149;
  return {{.absolute = smallest, .relative = epsilon(p.out) / 2, .bound_eps = roundings * epsilon(DType::f32) / 2}};
}

Cost MoeCombine::cost(const Problem& p) {
  const double columns = static_cast<double>(p.tokens) * static_cast<double>(p.hidden), slots = static_cast<double>(p.top_k);
  const double in = bits(p.y) / 8.0;
  return {.flops = 2 * columns * slots,
          .bytes = columns * (in * (slots + (p.shared ? 1 : 0)) + bits(p.out) / 8.0) +
                   static_cast<double>(p.tokens) * slots * (p.weights ? 8 : 4),
          .math = DType::f32};
}

namespace {

using Pieces = void (*)(const MoeCombineTask&, int64_t, int64_t);

double elements_of(const MoeCombine::Problem& p) { return MoeCombine::cost(p).flops / 2; }

template <const double& kPerNs> Guess guess_rows(const MoeCombine::Problem& p, const Device& device) {
  return {.config = {}, .us = row_pass_us(device, MoeCombine::cost(p).bytes, elements_of(p), kPerNs)};
}

template <Pieces kPieces> void launch_rows(const MoeCombineArgs& args, const MoeCombine::Problem& p, const Config&, Launch& launch) {
  MoeCombineTask task = moe_combine_task(args, p);
  if (p.local) task.local = *task.num_local;
  const int64_t pieces = p.tokens * ((p.hidden + kCombineColumns - 1) / kCombineColumns);
  const double us = row_pass_us_on_one(launch.device, MoeCombine::cost(p).bytes, elements_of(p), kAvx2PerNs);
  parallel(static_cast<int>(std::min<int64_t>(pieces, threads_for(us, launch.threads))), [&](int thread, int threads) {
    const Span part = split(pieces, thread, threads);
    kPieces(task, part.begin, part.end);
  });
}

Guess guess_reference(const MoeCombine::Problem& p, const Device&) {
  return {.config = {}, .us = 10 + elements_of(p) / kReferencePerNs * 1e-3};
}

}  // namespace

std::span<const Kernel<MoeCombine>> MoeCombine::kernels() {
  static const Kernel<MoeCombine> kTable[] = {
#if EITRI_X86
    cpu_row<MoeCombine>("moe_combine.x86_avx512.rows", Target::x86_avx512, guess_rows<kAvx512PerNs>, launch_rows<avx512::combine_pieces>),
    cpu_row<MoeCombine>("moe_combine.x86_avx2.rows", Target::x86_avx2, guess_rows<kAvx2PerNs>, launch_rows<avx2::combine_pieces>),
#endif
    moe_combine_simt_row(),
    cpu_row<MoeCombine>("moe_combine.portable.rows", Target::any_cpu, guess_rows<kPortablePerNs>, launch_rows<portable::combine_pieces>),
    reference_row<MoeCombine>("moe_combine.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
