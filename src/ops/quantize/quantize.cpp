// Checks, costs and the kernel table of quantize.
#include "ops/quantize/quantize.h"

#include <algorithm>

#include "backend/cpu/threads.h"
#include "ops/quantize/row_cost.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/simt.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

bool check_sorted(const View& sorted_ids, const View& num_valid, int64_t tokens, int64_t rows, const char* op) {
  if (!sorted_ids.given()) {
    require(!num_valid.given(), op, ": num_valid is ", num_valid, "; expected none (sorted_ids is not given)");
    require(tokens == 0, op, ": tokens is ", tokens, "; expected 0 (sorted_ids is not given)");
    return false;
  }
  check_tensor(sorted_ids, op, "sorted_ids", Access::read, DType::i32, {rows});
  check_tensor(num_valid, op, "num_valid", Access::read, DType::i32, {2});
  require(tokens >= 0 && tokens < (int64_t{1} << 24), op, ": tokens is ", tokens, "; expected 0 to 16777215 (24 bits of a sorted id)");
  return true;
}

bool is_real_row(const View& sorted_ids, const View& num_valid, int64_t tokens, int64_t position) {
  if (!sorted_ids.given()) return true;
  const auto* ids = static_cast<const int32_t*>(sorted_ids.data);
  return position < static_cast<const int32_t*>(num_valid.data)[0] && (ids[position] & 0xffffff) < tokens;
}

Quantize::Problem Quantize::check(const Args& args) {
  check_tensor(args.x, name, "x", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  const int64_t rows = args.x.shape[0], cols = args.x.shape[1];
  require(args.quant == Quant::per_token, name, ": quant is ", args.quant, "; expected per_token");
  check_tensor(args.q, name, "q", Access::write, DType::i8, {rows, cols});
  check_tensor(args.scale, name, "scale", Access::write, DType::f32, {rows});
  const bool sorted = check_sorted(args.sorted_ids, args.num_valid, args.tokens, rows, name);
  check_apart(args.q, "q", args.x, "x", name);
  check_apart(args.q, "q", args.scale, "scale", name);
  check_apart(args.scale, "scale", args.x, "x", name);
  for (const View* index : {&args.sorted_ids, &args.num_valid}) {
    check_apart(args.q, "q", *index, "sorted_ids or num_valid", name);
    check_apart(args.scale, "scale", *index, "sorted_ids or num_valid", name);
  }
  return {.rows = rows, .cols = cols, .x = args.x.dtype, .q = args.q.dtype, .quant = args.quant, .sorted = sorted};
}

Quantize::Args Quantize::rows_of(const Args& args, int64_t begin, int64_t end) {
  if (!is_real_row(args.sorted_ids, args.num_valid, args.tokens, begin)) end = begin;
  Args part = args;
  part.x = rows(args.x, begin, end);
  part.q = rows(args.q, begin, end);
  part.scale = rows(args.scale, begin, end);
  part.sorted_ids = part.num_valid = {};
  part.tokens = 0;
  return part;
}

std::vector<Output> Quantize::outputs(const Args& args) { return {{"q", args.q}, {"scale", args.scale}}; }

std::vector<Tolerance> Quantize::tolerance(const Problem&) { return {{}, {}}; }  // exact, by the numerics contract

Cost Quantize::cost(const Problem& p) {
  const double elements = static_cast<double>(p.rows) * static_cast<double>(p.cols);
  return {.flops = 2 * elements, .bytes = elements * (bits(p.x) / 8 + 1) + static_cast<double>(p.rows) * 4, .math = DType::f32};
}

namespace {

using Rows = void (*)(const QuantizeTask&, int64_t, int64_t);

double elements_of(const Quantize::Problem& p) { return static_cast<double>(p.rows) * static_cast<double>(p.cols); }

template <const double& kPerNs> Guess guess_rows(const Quantize::Problem& p, const Device& device) {
  return {.config = {}, .us = row_pass_us(device, Quantize::cost(p).bytes, elements_of(p), kPerNs)};
}

template <Rows kRows> void launch_rows(const QuantizeArgs& args, const Quantize::Problem& p, const Config&, Launch& launch) {
  const QuantizeTask task = quantize_task(args, p);
  // Beyond num_valid nothing is real: sizing the team by the rows that are keeps decode steps on one thread.
  const int64_t rows = p.sorted ? std::clamp<int64_t>(static_cast<const int32_t*>(args.num_valid.data)[0], 0, p.rows) : p.rows;
  const Quantize::Problem real{.rows = rows, .cols = p.cols, .x = p.x};
  const double us = row_pass_us_on_one(launch.device, Quantize::cost(real).bytes, elements_of(real), kAvx2PerNs);
  parallel(static_cast<int>(std::min<int64_t>(rows, threads_for(us, launch.threads))), [&](int thread, int threads) {
    const Span part = split(rows, thread, threads);
    kRows(task, part.begin, part.end);
  });
}

Guess guess_reference(const Quantize::Problem& p, const Device&) {
  return {.config = {}, .us = 10 + elements_of(p) / kReferencePerNs * 1e-3};
}

}  // namespace

std::span<const Kernel<Quantize>> Quantize::kernels() {
  static const Kernel<Quantize> kTable[] = {
#if EITRI_X86
    cpu_row<Quantize>("quantize.x86_avx512.rows", Target::x86_avx512, guess_rows<kAvx512PerNs>, launch_rows<avx512::quantize_rows>),
    cpu_row<Quantize>("quantize.x86_avx2.rows", Target::x86_avx2, guess_rows<kAvx2PerNs>, launch_rows<avx2::quantize_rows>),
#endif
    quantize_simt_row(),
    cpu_row<Quantize>("quantize.portable.rows", Target::any_cpu, guess_rows<kPortablePerNs>, launch_rows<portable::quantize_rows>),
    reference_row<Quantize>("quantize.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
