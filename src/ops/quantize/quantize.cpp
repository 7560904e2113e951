// Checks, costs and the kernel table of quantize.
#include "ops/quantize/quantize.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/numeric.h"
#include "ops/quantize/quantize_kernels.h"
#include "ops/quantize/row_cost.h"
#include "ops/quantize/row_table.h"
#include "ops/quantize/simt_one_pass.h"
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

static_assert(kScaleDown == ScaleRounding::down && kScaleUp == ScaleRounding::up && kScaleEven == ScaleRounding::even);

DType quantize_scale_dtype(DType q, Quant quant) {
  const bool f8 = q == DType::f8e4m3 || q == DType::f8e4m3fnuz;
  switch (quant) {
    case Quant::per_tensor:
    case Quant::per_token:
    case Quant::per_1x128: return f8 || q == DType::i8 ? DType::f32 : DType::none;
    case Quant::per_1x32: return q == DType::i8 ? DType::f32 : q == DType::f8e4m3 || q == DType::f4e2m1 ? DType::f8e8m0 : DType::none;
    default: return DType::none;
  }
}

namespace {

void check_codes(const QuantizeArgs& args, int64_t rows, int64_t cols) {
  const DType q = args.q.dtype;
  require(q == DType::i8 || q == DType::f8e4m3 || q == DType::f8e4m3fnuz || q == DType::f4e2m1, Quantize::name, ": q is ", args.q,
          "; expected i8, f8e4m3, f8e4m3fnuz or f4e2m1 [", rows, ", ", cols, "]");
  const DType scale = quantize_scale_dtype(q, args.quant);
  require(scale != DType::none, Quantize::name, ": quant is ", args.quant, "; expected ",
          q == DType::f4e2m1       ? "per_1x32"
          : q == DType::f8e4m3fnuz ? "per_tensor, per_token or per_1x128"
                                   : "per_tensor, per_token, per_1x128 or per_1x32",
          " (q is ", q, ")");
  check_tensor(args.q, Quantize::name, "q", Access::write, q, {rows, cols});
  require(q != DType::f4e2m1 || cols % 2 == 0, Quantize::name, ": x is ", args.x, "; expected an even number of columns (q is f4e2m1)");
  require(args.scale_rounding <= ScaleRounding::even, Quantize::name, ": scale_rounding is number ", static_cast<int>(args.scale_rounding),
          "; expected down, up or even");
  require(scale == DType::f8e8m0 || args.scale_rounding == ScaleRounding::up, Quantize::name, ": scale_rounding is ", args.scale_rounding,
          "; expected up (scales are f32)");
  if (!has_block_scales(args.quant)) {
    check_tensor(args.scale, Quantize::name, "scale", Access::write, scale, {args.quant == Quant::per_tensor ? 1 : rows});
    return;
  }
  const int64_t block = quantize_block(args.quant, cols), blocks = (cols + block - 1) / block;
  check_output(args.scale, Quantize::name, "scale", 2);
  require(args.scale.dtype == scale && args.scale.layout == Layout::strided && args.scale.shape[0] == rows && args.scale.shape[1] == blocks,
          Quantize::name, ": scale is ", args.scale, "; expected ", scale, "[", rows, ", ", blocks, "] (q is ", q, " ", args.quant, ")");
}

}  // namespace

Quantize::Problem Quantize::check(const Args& args) {
  check_tensor(args.x, name, "x", Access::read, DType::none, {kAnyExtent, kAnyExtent});
  const int64_t rows = args.x.shape[0], cols = args.x.shape[1];
  check_codes(args, rows, cols);
  const bool sorted = check_sorted(args.sorted_ids, args.num_valid, args.tokens, rows, name);
  const Place x(args.x, "x"), q(args.q, "q"), scale(args.scale, "scale");
  check_apart(q, x, name);
  check_apart(q, scale, name);
  check_apart(scale, x, name);
  for (const View* index : {&args.sorted_ids, &args.num_valid}) {
    if (!index->given()) continue;
    const Place other(*index, "sorted_ids or num_valid");
    check_apart(q, other, name);
    check_apart(scale, other, name);
  }
  return {.rows = rows, .cols = cols, .x = args.x.dtype, .q = args.q.dtype, .quant = args.quant, .sorted = sorted};
}

Quantize::Args Quantize::rows_of(const Args& args, int64_t begin, int64_t end) {
  if (args.quant == Quant::per_tensor) return args;
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
  const double scale_bytes = bits(quantize_scale_dtype(p.q, p.quant)) / 8.0;
  const double scales = p.quant == Quant::per_tensor ? 1
                        : has_block_scales(p.quant)  ? elements / static_cast<double>(quantize_block(p.quant, p.cols))
                                                     : static_cast<double>(p.rows);
  return {.flops = 2 * elements, .bytes = elements * (bits(p.x) + bits(p.q)) / 8 + scales * scale_bytes, .math = DType::f32};
}

namespace {

// The functions of an instruction level; Rows takes i8 codes per token.
using Rows = void (*)(const QuantizeTask&, int64_t, int64_t);
using Blocks = void (*)(const QuantizeBlocksTask&, int64_t, int64_t);
using Amax = float (*)(const QuantizeBlocksTask&, int64_t, int64_t);

double elements_of(const Quantize::Problem& p) { return static_cast<double>(p.rows) * static_cast<double>(p.cols); }

template <const double& kPerNs> Guess guess_rows(const Quantize::Problem& p, const Device& device) {
  return {.config = {}, .us = row_pass_us(device, Quantize::cost(p).bytes, elements_of(p), kPerNs)};
}

QuantizeTask quantize_task(const QuantizeArgs& args, const Quantize::Problem& p) {
  return {.x = static_cast<const std::byte*>(args.x.data),
          .x_stride = args.x.stride[0] * bits(p.x) / 8,
          .x_dtype = p.x,
          .q = static_cast<int8_t*>(args.q.data),
          .q_stride = args.q.stride[0],
          .scale = static_cast<float*>(args.scale.data),
          .cols = p.cols,
          .sorted_ids = p.sorted ? static_cast<const int32_t*>(args.sorted_ids.data) : nullptr,
          .tokens = args.tokens};
}

template <Rows kRows, Blocks kBlocks, Amax kAmax>
void launch_rows(const QuantizeArgs& args, const Quantize::Problem& p, const Config&, Launch& launch) {
  // Beyond num_valid nothing is real: sizing the team by the rows that are keeps decode steps on one thread.
  const int64_t rows = p.sorted ? std::clamp<int64_t>(static_cast<const int32_t*>(args.num_valid.data)[0], 0, p.rows) : p.rows;
  const Quantize::Problem real{.rows = rows, .cols = p.cols, .x = p.x, .q = p.q, .quant = p.quant};
  const double us = row_pass_us_on_one(launch.device, Quantize::cost(real).bytes, elements_of(real), kAvx2PerNs);
  const auto spread = [&](auto&& body) {
    parallel(static_cast<int>(std::min<int64_t>(rows, threads_for(us, launch.threads))),
             [&](int thread, int threads) { body(split(rows, thread, threads)); });
  };
  if (p.q == DType::i8 && p.quant == Quant::per_token) {
    const QuantizeTask task = quantize_task(args, p);
    spread([&](Span part) { kRows(task, part.begin, part.end); });
    return;
  }
  QuantizeBlocksTask task = quantize_blocks_task(args, p);
  float scale = 0;
  if (p.quant == Quant::per_tensor) {
    std::atomic<uint32_t> amax = 0;  // bits of a magnitude, ordered as integers
    spread([&](Span part) {
      const uint32_t mine = float_bits(kAmax(task, part.begin, part.end));
      uint32_t seen = amax.load();
      while (seen < mine && !amax.compare_exchange_weak(seen, mine)) {
      }
    });
    const float largest = p.q == DType::i8 ? kI8Max : p.q == DType::f8e4m3 ? F8e4m3::max : F8e4m3fnuz::max;
    scale = scale_from_amax(bits_float(amax.load()), largest);
    std::memcpy(args.scale.data, &scale, sizeof scale);
    task.tensor_scale = &scale;
  }
  spread([&](Span part) { kBlocks(task, part.begin, part.end); });
}

Guess guess_reference(const Quantize::Problem& p, const Device&) {
  return {.config = {}, .us = 10 + elements_of(p) / kReferencePerNs * 1e-3};
}

}  // namespace

std::span<const Kernel<Quantize>> Quantize::kernels() {
  static const Kernel<Quantize> kTable[] = {
#if EITRI_X86
    cpu_row<Quantize>("quantize.x86_avx512.rows", Target::x86_avx512, guess_rows<kAvx512PerNs>,
                      launch_rows<avx512::quantize_rows, avx512::quantize_blocks, avx512::quantize_amax>),
    cpu_row<Quantize>("quantize.x86_avx2.rows", Target::x86_avx2, guess_rows<kAvx2PerNs>,
                      launch_rows<avx2::quantize_rows, avx2::quantize_blocks, avx2::quantize_amax>),
#endif
    quantize_one_pass_row(),
    quantize_simt_row(),
    cpu_row<Quantize>("quantize.portable.rows", Target::any_cpu, guess_rows<kPortablePerNs>,
                      launch_rows<portable::quantize_rows, portable::quantize_blocks, portable::quantize_amax>),
    reference_row<Quantize>("quantize.reference", guess_reference),
  };
  return kTable;
}

}  // namespace eitri
