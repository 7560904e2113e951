// Checks, costs and the kernel table of rmsnorm.
#include "ops/rmsnorm/rmsnorm.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/threads.h"
#include "ops/quantize/row_cost.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/tensor_check.h"
#include "ops/rmsnorm/simt.h"

namespace eitri {

std::span<const char* const> enum_names(NormWeight) {
  static constexpr const char* kNames[] = {"plain", "plus_one"};
  return kNames;
}

namespace {

constexpr int64_t kGroup = 128;

bool is_quantised(DType out) { return out == DType::i8 || out == DType::f8e4m3 || out == DType::f8e4m3fnuz; }

bool is_same(const View& a, const View& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape) &&
         std::equal(a.stride, a.stride + a.rank, b.stride);
}
/// Every kernel reads an element of a row before it writes the element in the same place, so a tensor may be its own output.
void check_apart_or_same(const Place& output, const Place& input) {
  if (output.range.meets(input.range) && !is_same(output.view, input.view)) check_apart(output, input, RmsNorm::name);
}

void check_of_x_or_f32(const View& view, const char* arg, Access access, DType x, std::initializer_list<int64_t> shape) {
  require(view.dtype == x || view.dtype == DType::f32, RmsNorm::name, ": ", arg, " is ", view, "; expected f32 or ", x, " (dtype of x)");
  check_tensor(view, RmsNorm::name, arg, access, view.dtype, shape);
}

void check_scale(const RmsNormArgs& args, int64_t tokens, int64_t hidden) {
  const View& scale = args.scale;
  if (!is_quantised(args.out.dtype)) {
    require(!scale.given(), RmsNorm::name, ": scale is ", scale, "; expected none (out is ", args.out.dtype, ")");
    require(args.quant == Quant::none, RmsNorm::name, ": quant is ", args.quant, "; expected none (out is ", args.out.dtype, ")");
    return;
  }
  require(args.quant == Quant::per_token || args.quant == Quant::per_1x128, RmsNorm::name, ": quant is ", args.quant,
          "; expected per_token or per_1x128 (out is ", args.out.dtype, ")");
  const bool groups = args.quant == Quant::per_1x128;
  const int64_t columns = (hidden + kGroup - 1) / kGroup;
  if (groups ? detail::is_usual(scale, DType::f32, {tokens, columns}) : detail::is_usual(scale, DType::f32, {tokens})) [[likely]]
    return;
  check_output(scale, RmsNorm::name, "scale", groups ? 2 : 1);
  const bool ok =
      scale.dtype == DType::f32 && scale.layout == Layout::strided && scale.shape[0] == tokens && (!groups || scale.shape[1] == columns);
  require(ok, RmsNorm::name, ": scale is ", scale, "; expected f32[", tokens, groups ? str(", ", columns) : std::string(),
          "] in CPU memory (quant is ", args.quant, ")");
}

}  // namespace

int64_t columns_of_scale(const RmsNorm::Problem& p) { return p.quant == Quant::none ? 0 : p.quant == Quant::per_token ? p.hidden : kGroup; }

RmsNorm::Problem RmsNorm::check(const Args& args) {
  require(static_cast<size_t>(args.norm_weight) < enum_names(args.norm_weight).size(), name, ": norm_weight is number ",
          static_cast<int>(args.norm_weight), "; expected plain or plus_one");
  require(std::isfinite(args.eps) && args.eps >= 0, name, ": eps is ", args.eps, "; expected a finite number >= 0");
  check_tensor(args.x, name, "x", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1];
  const DType x = args.x.dtype;
  if (args.weight.given()) check_of_x_or_f32(args.weight, "weight", Access::read, x, {hidden});
  else require(args.norm_weight == NormWeight::plain, name, ": norm_weight is plus_one; expected plain (weight is not given)");
  check_tensor(args.out, name, "out", Access::write, is_quantised(args.out.dtype) ? args.out.dtype : DType::none, {tokens, hidden});
  check_scale(args, tokens, hidden);
  if (args.residual.given()) {
    check_of_x_or_f32(args.residual, "residual", Access::read, x, {tokens, hidden});
    check_tensor(args.residual_out, name, "residual_out", Access::write, args.residual.dtype, {tokens, hidden});
  } else {
    require(!args.residual_out.given(), name, ": residual_out is ", args.residual_out, "; expected none (residual is not given)");
  }
  const Place x_place(args.x, "x"), weight(args.weight, "weight"), residual(args.residual, "residual");
  const Place residual_out(args.residual_out, "residual_out"), out(args.out, "out"), scale(args.scale, "scale");
  for (const Place* output : {&residual_out, &out}) {
    check_apart_or_same(*output, x_place);
    check_apart_or_same(*output, residual);
    check_apart(*output, weight, name);
  }
  check_apart(residual_out, out, name);
  check_apart(residual_out, scale, name);
  for (const Place* other : {&out, &x_place, &weight, &residual}) check_apart(scale, *other, name);
  return {.tokens = tokens,
          .hidden = hidden,
          .x = x,
          .weight = args.weight.dtype,
          .residual = args.residual.dtype,
          .out = args.out.dtype,
          .quant = args.quant,
          .norm_weight = args.norm_weight};
}

RmsNorm::Args RmsNorm::rows_of(const Args& args, int64_t begin, int64_t end) {
  Args part = args;
  for (View* view : {&part.x, &part.residual, &part.residual_out, &part.out, &part.scale})
    if (view->given()) *view = rows(*view, begin, end);
  return part;
}

std::vector<Output> RmsNorm::outputs(const Args& args) {
  std::vector<Output> out = {{"out", args.out}};
  if (args.residual_out.given()) out.push_back({"residual_out", args.residual_out});
  if (args.scale.given()) out.push_back({"scale", args.scale});
  return out;
}

std::vector<Tolerance> RmsNorm::tolerance(const Problem& p) {
  const double eps = epsilon(DType::f32);
  std::vector<Tolerance> all;
  // Codes: the oracle's values are the quotients before rounding; a code is at most half a step away from them, and further only
  // by the fp32 error of value and scale (bound).
  if (p.out == DType::i8) all.push_back({.absolute = 0.5, .relative = 0, .bound_eps = eps});
  else if (p.out == DType::f8e4m3) all.push_back({.absolute = 0x1p-10, .relative = 0x1p-4, .bound_eps = eps});
  else if (p.out == DType::f8e4m3fnuz) all.push_back({.absolute = 0x1p-11, .relative = 0x1p-4, .bound_eps = eps});
  else {
    const double smallest = p.out == DType::f16 ? 0x1p-24 : p.out == DType::bf16 ? 0x1p-133 : 0x1p-149;
    all.push_back({.absolute = smallest, .relative = epsilon(p.out) / 2, .bound_eps = eps});
  }
  if (p.residual != DType::none) all.push_back({});  // one fp32 sum, rounded once: exact
  if (p.quant != Quant::none) all.push_back({.absolute = 0x1p-126, .relative = eps, .bound_eps = eps});
  return all;
}

Cost RmsNorm::cost(const Problem& p) {
  const double elements = static_cast<double>(p.tokens) * static_cast<double>(p.hidden);
  const double scales = p.quant == Quant::none ? 0 : std::ceil(elements / static_cast<double>(std::max<int64_t>(1, columns_of_scale(p))));
  return {.flops = elements * (p.quant == Quant::none ? 4 : 7),
          .bytes = elements * (bits(p.x) + 2 * bits(p.residual) + bits(p.out)) / 8 + static_cast<double>(p.hidden) * bits(p.weight) / 8 +
                   4 * scales,
          .math = DType::f32};
}

namespace {

using Rows = void (*)(const RmsNormTask&, int64_t, int64_t, float*);

/// Elements, weighted by how many passes over L1 they take.
double work_of(const RmsNorm::Problem& p) {
  return static_cast<double>(p.tokens) * static_cast<double>(p.hidden) * (p.quant == Quant::none ? 1.5 : 3);
}

template <const double& kPerNs> Guess guess_rows(const RmsNorm::Problem& p, const Device& device) {
  return {.config = {}, .us = row_pass_us(device, RmsNorm::cost(p).bytes, work_of(p), kPerNs)};
}

int64_t scratch_bytes(const RmsNorm::Problem& p) { return (p.hidden * 4 + 63) / 64 * 64; }
size_t workspace_rows(const RmsNorm::Problem& p, const Config&, const Device&) {
  return static_cast<size_t>(scratch_bytes(p)) * static_cast<size_t>(std::max(1, max_threads()));
}

template <Rows kRows> void launch_rows(const RmsNormArgs& args, const RmsNorm::Problem& p, const Config&, Launch& launch) {
  const RmsNormTask task = rmsnorm_task(args, p);
  const double us = row_pass_us_on_one(launch.device, RmsNorm::cost(p).bytes, work_of(p), kAvx2PerNs);
  const int64_t scratch = scratch_bytes(p);
  // The route may be older than the thread count: never more threads than the workspace was made for.
  const int64_t wanted =
      std::min({p.tokens, int64_t{threads_for(us, launch.threads)}, static_cast<int64_t>(launch.workspace_bytes) / scratch});
  parallel(static_cast<int>(wanted), [&](int thread, int threads) {
    const Span part = split(p.tokens, thread, threads);
    kRows(task, part.begin, part.end, reinterpret_cast<float*>(launch.workspace + thread * scratch));
  });
}

Guess guess_reference(const RmsNorm::Problem& p, const Device&) { return {.config = {}, .us = 10 + work_of(p) / kReferencePerNs * 1e-3}; }

}  // namespace

std::span<const Kernel<RmsNorm>> RmsNorm::kernels() {
  static const Kernel<RmsNorm> kTable[] = {
#if EITRI_X86
    cpu_row<RmsNorm>("rmsnorm.x86_avx512.rows", Target::x86_avx512, guess_rows<kAvx512PerNs>, launch_rows<avx512::rmsnorm_rows>,
                     workspace_rows),
    cpu_row<RmsNorm>("rmsnorm.x86_avx2.rows", Target::x86_avx2, guess_rows<kAvx2PerNs>, launch_rows<avx2::rmsnorm_rows>, workspace_rows),
#endif
    rmsnorm_simt_row(),
    cpu_row<RmsNorm>("rmsnorm.portable.rows", Target::any_cpu, guess_rows<kPortablePerNs>, launch_rows<portable::rmsnorm_rows>,
                     workspace_rows),
    reference_row<RmsNorm>("rmsnorm.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
