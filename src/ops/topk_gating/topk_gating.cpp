// Checks, costs and the kernel table of topk_gating.
#include "ops/topk_gating/topk_gating.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/threads.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/tensor_check.h"
#include "ops/topk_gating/simt.h"
#include "ops/topk_gating/topk_gating_kernels.h"

namespace eitri {

std::span<const char* const> enum_names(Score) {
  static constexpr const char* kNames[] = {"softmax", "sigmoid", "sqrt_softplus"};
  return kNames;
}
std::span<const char* const> enum_names(Renormalize) {
  static constexpr const char* kNames[] = {"no", "yes"};
  return kNames;
}

TopkGating::Problem TopkGating::check(const Args& args) {
  check_tensor(args.logits, name, "logits", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  const int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  check_tensor(args.ids, name, "ids", Access::write, DType::i32, {tokens, kAnyExtent});
  const int64_t top_k = args.ids.shape[1];
  check_tensor(args.weights, name, "weights", Access::write, DType::f32, {tokens, top_k});
  if (args.correction_bias.given()) check_tensor(args.correction_bias, name, "correction_bias", Access::read, DType::f32, {experts});
  require(experts < (int64_t{1} << 31), name, ": logits is ", args.logits, "; expected less than 2147483648 experts (ids are i32)");
  require(static_cast<size_t>(args.score) < enum_names(Score{}).size(), name, ": score is number ", static_cast<int>(args.score),
          "; expected softmax, sigmoid or sqrt_softplus");
  require(static_cast<size_t>(args.renormalize) < 2, name, ": renormalize is number ", static_cast<int>(args.renormalize),
          "; expected no or yes");
  require(std::isfinite(args.scale), name, ": scale is ", args.scale, "; expected a finite number");
  require(args.groups >= 1 && (experts == 0 || args.groups <= experts) && experts % args.groups == 0, name, ": groups is ", args.groups,
          "; expected a divisor of ", experts, " (experts)");
  require(args.topk_groups >= 1 && args.topk_groups <= args.groups, name, ": topk_groups is ", args.topk_groups, "; expected 1 to ",
          args.groups, " (groups)");
  const int64_t within_reach = experts / args.groups * args.topk_groups;
  require(top_k <= within_reach, name, ": ids is ", args.ids, "; expected at most ", within_reach, " columns (experts in the kept groups)");
  check_apart(args.weights, "weights", args.ids, "ids", name);
  for (const View* input : {&args.logits, &args.correction_bias}) {
    const char* input_name = input == &args.logits ? "logits" : "correction_bias";
    check_apart(args.weights, "weights", *input, input_name, name);
    check_apart(args.ids, "ids", *input, input_name, name);
  }
  return {.tokens = tokens,
          .experts = experts,
          .top_k = top_k,
          .groups = args.groups,
          .topk_groups = args.topk_groups,
          .logits = args.logits.dtype,
          .score = args.score,
          .renormalize = args.renormalize,
          .bias = args.correction_bias.given()};
}

TopkGating::Args TopkGating::rows_of(const Args& args, int64_t begin, int64_t end) {
  Args part = args;
  part.logits = rows(args.logits, begin, end);
  part.weights = rows(args.weights, begin, end);
  part.ids = rows(args.ids, begin, end);
  return part;
}

std::vector<Output> TopkGating::outputs(const Args& args) { return {{"weights", args.weights}, {"ids", args.ids}}; }

std::vector<Tolerance> TopkGating::tolerance(const Problem&) {
  // Weights: computed in double, rounded once; 2^-40 covers some dozen roundings in double. Ids: exact.
  return {{.absolute = 0x1p-149, .relative = 0x1p-24 + 0x1p-40, .bound_eps = 0}, {}};
}

Cost TopkGating::cost(const Problem& p) {
  const auto tokens = static_cast<double>(p.tokens), experts = static_cast<double>(p.experts), top_k = static_cast<double>(p.top_k);
  return {.flops = tokens * experts * (top_k + 10),
          .bytes = tokens * (experts * bits(p.logits) / 8 + top_k * 8) + (p.bias ? experts * 4 : 0),
          .math = DType::f32};
}

namespace {

using Gate = void (*)(const GatingTask&, int64_t, int64_t, std::byte*);

static_assert(static_cast<int>(GatingScore::softmax) == static_cast<int>(Score::softmax));
static_assert(static_cast<int>(GatingScore::sigmoid) == static_cast<int>(Score::sigmoid));
static_assert(static_cast<int>(GatingScore::sqrt_softplus) == static_cast<int>(Score::sqrt_softplus));

/// Microseconds on one thread, for doubles a vector. Measured at AVX-512: 0.35 us for top-8 of 128.
double one_thread_us(const TopkGating::Problem& p, double lanes) {
  const auto experts = static_cast<double>(p.experts), top_k = static_cast<double>(p.top_k);
  const bool all_scores = p.bias || (p.score == Score::softmax && p.renormalize == Renormalize::no);
  const double vectors = experts / lanes;
  const double ns = 20 + experts * 0.5 + vectors * (all_scores ? 10 : 1) + top_k * (15 + vectors * 0.7) + (p.groups > 1 ? experts : 0);
  return 0.1 + static_cast<double>(p.tokens) * ns * 1e-3;
}

template <int kLanes> Guess guess_rows(const TopkGating::Problem& p, const Device&) {
  const double us = one_thread_us(p, kLanes);
  const int threads = threads_for(us, max_threads());
  return {.config = {}, .us = threads == 1 ? us : us / threads + 1};
}

int64_t scratch_bytes(const TopkGating::Problem& p) { return (GatingScratch::bytes(p.experts, p.top_k, p.groups) + 63) / 64 * 64; }
size_t workspace_rows(const TopkGating::Problem& p, const Config&, const Device&) {
  return static_cast<size_t>(scratch_bytes(p)) * static_cast<size_t>(std::max(1, max_threads()));
}

template <Gate kGate> void launch_rows(const TopkGatingArgs& args, const TopkGating::Problem& p, const Config&, Launch& launch) {
  const GatingTask task = gating_task(args, p);
  const int64_t bytes = scratch_bytes(p);
  const auto room = static_cast<int64_t>(launch.workspace_bytes) / bytes;  // the route may be older than the thread count
  const int wanted = threads_for(one_thread_us(p, 4), launch.threads);
  parallel(static_cast<int>(std::min({int64_t{wanted}, room, p.tokens})), [&](int thread, int threads) {
    const Span part = split(p.tokens, thread, threads);
    kGate(task, part.begin, part.end, launch.workspace + thread * bytes);
  });
}

Guess guess_reference(const TopkGating::Problem& p, const Device&) { return {.config = {}, .us = 10 + 100 * one_thread_us(p, 1)}; }

}  // namespace

std::span<const Kernel<TopkGating>> TopkGating::kernels() {
  static const Kernel<TopkGating> kTable[] = {
#if EITRI_X86
    cpu_row<TopkGating>("topk_gating.x86_avx512.rows", Target::x86_avx512, guess_rows<8>, launch_rows<avx512::gate_tokens>, workspace_rows),
    cpu_row<TopkGating>("topk_gating.x86_avx2.rows", Target::x86_avx2, guess_rows<4>, launch_rows<avx2::gate_tokens>, workspace_rows),
#endif
    gating_lanes_simt_row(),
    gating_block_simt_row(),
    cpu_row<TopkGating>("topk_gating.portable.rows", Target::any_cpu, guess_rows<1>, launch_rows<portable::gate_tokens>, workspace_rows),
    reference_row<TopkGating>("topk_gating.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
