// Checks, costs and the kernel table of activation.
#include "ops/activation/activation.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/threads.h"
#include "ops/activation/simt.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/row_cost.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

void check_activation(const ActivationParams& params, GateLayout gate, const char* op) {
  using enum ActivationKind;
  require(static_cast<size_t>(params.kind) < enum_names(none).size(), op, ": activation is number ", static_cast<int>(params.kind),
          "; expected a kind that eitri knows");
  require(static_cast<size_t>(gate) < enum_names(gate).size(), op, ": gate is number ", static_cast<int>(gate),
          "; expected a layout that eitri knows");
  const bool gated = gate != GateLayout::none;
  require(gated || (params.kind != swiglu && params.kind != situv2), op, ": gate is ", gate,
          "; expected separated or interleaved (activation is ", params.kind, ")");
  require(!gated || (params.kind != none && params.kind != relu), op, ": activation is ", params.kind,
          "; expected silu, gelu, gelu_tanh, swiglu or situv2 (gate is ", gate, ")");
  require(std::isfinite(params.limit) && params.limit >= 0, op, ": limit is ", params.limit, "; expected a finite number >= 0");
  require(params.limit == 0 || params.kind == silu || params.kind == swiglu, op, ": limit is ", params.limit,
          "; expected 0 (activation is ", params.kind, ")");
  if (params.kind == swiglu) require(std::isfinite(params.alpha), op, ": alpha is ", params.alpha, "; expected a finite number");
  if (params.kind == situv2) {
    require(std::isfinite(params.beta) && params.beta != 0, op, ": beta is ", params.beta, "; expected a finite number, not 0");
    require(std::isfinite(params.linear_beta) && params.linear_beta != 0, op, ": linear_beta is ", params.linear_beta,
            "; expected a finite number, not 0");
  }
}

Activation::Problem Activation::check(const Args& args) {
  check_activation(args.activation, args.gate, name);
  const bool gated = args.gate != GateLayout::none, quantised = args.out.dtype == DType::i8;
  check_tensor(args.x, name, "x", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  const int64_t rows = args.x.shape[0], inter = gated ? args.x.shape[1] / 2 : args.x.shape[1];
  require(!gated || args.x.shape[1] % 2 == 0, name, ": x is ", args.x, "; expected an even number of columns (gate is ", args.gate, ")");
  check_tensor(args.out, name, "out", Access::write, quantised ? DType::i8 : DType::none, {rows, inter});
  if (quantised) check_tensor(args.scale, name, "scale", Access::write, DType::f32, {rows});
  else require(!args.scale.given(), name, ": scale is ", args.scale, "; expected none (out is ", args.out.dtype, ")");
  const bool sorted = check_sorted(args.sorted_ids, args.num_valid, args.tokens, rows, name);
  check_apart(args.out, "out", args.x, "x", name);
  check_apart(args.out, "out", args.scale, "scale", name);
  for (const View* index : {&args.sorted_ids, &args.num_valid}) {
    check_apart(args.out, "out", *index, "sorted_ids or num_valid", name);
    if (quantised) check_apart(args.scale, "scale", *index, "sorted_ids or num_valid", name);
  }
  if (quantised) check_apart(args.scale, "scale", args.x, "x", name);
  return {.rows = rows,
          .inter = inter,
          .x = args.x.dtype,
          .out = args.out.dtype,
          .kind = args.activation.kind,
          .gate = args.gate,
          .limited = args.activation.limit > 0,
          .sorted = sorted};
}

Activation::Args Activation::rows_of(const Args& args, int64_t begin, int64_t end) {
  if (!is_real_row(args.sorted_ids, args.num_valid, args.tokens, begin)) end = begin;
  Args part = args;
  part.x = rows(args.x, begin, end);
  part.out = rows(args.out, begin, end);
  if (args.scale.given()) part.scale = rows(args.scale, begin, end);
  part.sorted_ids = part.num_valid = {};
  part.tokens = 0;
  return part;
}

std::vector<Output> Activation::outputs(const Args& args) {
  std::vector<Output> out = {{"out", args.out}};
  if (args.scale.given()) out.push_back({"scale", args.scale});
  return out;
}

std::vector<Tolerance> Activation::tolerance(const Problem& p) {
  const double eps = epsilon(DType::f32);
  // Codes: the oracle's values are the quotients before rounding, so a code is at most half away from them, and further only
  // by the fp32 error of value and scale (bound, in codes). A quotient that is further than that from a tie has one right
  // code; near a tie both neighbours are. Scale: one division; the floor of 2^-126 hides whether tiny values became 0.
  if (p.out == DType::i8)
    return {{.absolute = 0.5, .relative = 0, .bound_eps = eps}, {.absolute = 0x1p-126, .relative = eps, .bound_eps = eps}};
  const double smallest = p.out == DType::f16 ? 0x1p-24 : p.out == DType::bf16 ? 0x1p-133 : 0x1p-149;
  return {{.absolute = smallest, .relative = epsilon(p.out) / 2, .bound_eps = eps}};
}

Cost Activation::cost(const Problem& p) {
  const double elements = static_cast<double>(p.rows) * static_cast<double>(p.inter);
  return {.flops = elements * (p.kind == ActivationKind::none || p.kind == ActivationKind::relu ? 1 : 20),
          .bytes = elements * ((p.gate == GateLayout::none ? 1 : 2) * bits(p.x) + bits(p.out)) / 8 +
                   (p.out == DType::i8 ? static_cast<double>(p.rows) * 4 : 0),
          .math = DType::f32};
}

namespace {

using Rows = void (*)(const ActivationTask&, int64_t, int64_t, float*);

/// Elements, weighted by how much slower than a copy their function is.
double work_of(const Activation::Problem& p) {
  const bool cheap = p.kind == ActivationKind::none || p.kind == ActivationKind::relu;
  const bool costly = p.kind == ActivationKind::gelu || p.kind == ActivationKind::situv2;
  return static_cast<double>(p.rows) * static_cast<double>(p.inter) * (cheap ? 1 : costly ? 6 : 3);
}

template <const double& kPerNs> Guess guess_rows(const Activation::Problem& p, const Device& device) {
  return {.config = {}, .us = row_pass_us(device, Activation::cost(p).bytes, work_of(p), kPerNs)};
}

int64_t scratch_bytes(const Activation::Problem& p) { return p.out == DType::i8 ? (p.inter * 4 + 63) / 64 * 64 : 0; }
size_t workspace_rows(const Activation::Problem& p, const Config&, const Device&) {
  return static_cast<size_t>(scratch_bytes(p)) * static_cast<size_t>(std::max(1, max_threads()));
}

template <Rows kRows> void launch_rows(const ActivationArgs& args, const Activation::Problem& p, const Config&, Launch& launch) {
  const ActivationTask task = activation_task(args, p);
  Activation::Problem real = p;
  if (p.sorted) real.rows = std::clamp<int64_t>(static_cast<const int32_t*>(args.num_valid.data)[0], 0, p.rows);
  const double us = row_pass_us_on_one(launch.device, Activation::cost(real).bytes, work_of(real), kAvx2PerNs);
  int64_t wanted = std::min<int64_t>(real.rows, threads_for(us, launch.threads));
  const int64_t scratch = scratch_bytes(p);
  // The route may be older than the thread count: never more threads than the workspace was made for.
  if (scratch > 0) wanted = std::min(wanted, static_cast<int64_t>(launch.workspace_bytes) / scratch);
  parallel(static_cast<int>(wanted), [&](int thread, int threads) {
    const Span part = split(real.rows, thread, threads);
    auto* own = scratch > 0 ? reinterpret_cast<float*>(launch.workspace + thread * scratch) : nullptr;
    kRows(task, part.begin, part.end, own);
  });
}

Guess guess_reference(const Activation::Problem& p, const Device&) {
  return {.config = {}, .us = 10 + work_of(p) / kReferencePerNs * 1e-3};
}

}  // namespace

std::span<const Kernel<Activation>> Activation::kernels() {
  static const Kernel<Activation> kTable[] = {
#if EITRI_X86
    cpu_row<Activation>("activation.x86_avx512.rows", Target::x86_avx512, guess_rows<kAvx512PerNs>, launch_rows<avx512::activate_rows>,
                        workspace_rows),
    cpu_row<Activation>("activation.x86_avx2.rows", Target::x86_avx2, guess_rows<kAvx2PerNs>, launch_rows<avx2::activate_rows>,
                        workspace_rows),
#endif
    activation_block_per_row(),
    activation_tiles(),
    cpu_row<Activation>("activation.portable.rows", Target::any_cpu, guess_rows<kPortablePerNs>, launch_rows<portable::activate_rows>,
                        workspace_rows),
    reference_row<Activation>("activation.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
