// gemm.library.onednn: matrix products by oneDNN 2.6 or 3.x, the row that our own kernels are measured against.
//
// The library computes a * b^T straight into c when nothing but a bias or relu follows; else into f32 (i8: i32) sums in the
// workspace, and one pass of ours (the panel kernels' epilogue) applies scales, bias, activation and gate and rounds once.
// One matrix of the batch at a time. Primitives are kept in a bounded table, keyed by shape, strides, dtypes and threads.
#include "ops/gemm/library.h"

#include <algorithm>
#include <cstring>

#include "ops/gemm/panel_rows.h"

#if defined(EITRI_HAVE_ONEDNN) && EITRI_HAVE_ONEDNN
#include "backend/cpu/threads.h"
#include "base/view.h"
#include "ops/gemm/onednn_primitives.h"
#endif

namespace eitri::library {

#if defined(EITRI_HAVE_ONEDNN) && EITRI_HAVE_ONEDNN

namespace {

/// What the library writes: c itself, or sums for our epilogue.
bool writes_c(const Gemm::Problem& p) {
  const bool simple = p.activation == ActivationKind::none || p.activation == ActivationKind::relu;
  return p.a != DType::i8 && p.gate == GateLayout::none && simple;
}

constexpr int64_t kSumsSlack = 128;  // bytes behind the sums that the epilogue may read

int64_t sums_bytes(const Gemm::Problem& p) { return writes_c(p) ? 0 : (p.m * p.n * 4 + kSumsSlack + 63) / 64 * 64; }
int64_t bias_bytes(const Gemm::Problem& p) {
  return writes_c(p) || p.bias == DType::none || p.bias == DType::f32 ? 0 : (p.n * 4 + 63) / 64 * 64;
}

View matrix(const View& view, int64_t index) { return view.rank == 3 ? slice(view, index) : view; }
/// The vector of one matrix: [n] is shared by the batch.
View vector(const View& view, int64_t index) { return view.rank == 2 ? slice(view, index) : view; }

/// Sums of rows [begin, end) become rows of c. Gated sums lie as the weight's rows do, so gate and up are first brought
/// together as a panel has them, 16 and 16, a few rows at a time.
void finish(const PanelTask& call, const Gemm::Problem& p, const std::byte* sums, Span rows, FinishFn kernel) {
  PanelTask task = call;
  const bool i32 = p.a == DType::i8;
  const int64_t stride = p.n * 4, panels = panel_count(p.n_out(), p.gate);
  const auto shift = [&](int64_t begin, int64_t count) {
    task.m = count;
    task.c = call.c + begin * call.c_stride;
    task.a_scale = call.a_scale == nullptr ? nullptr : call.a_scale + begin;
  };
  if (p.gate == GateLayout::none) {
    shift(rows.begin, rows.end - rows.begin);
    task.panel_end = panels;
    kernel(task, sums + rows.begin * stride, stride, i32);
    return;
  }
  constexpr int64_t kRows = 32;
  alignas(64) uint32_t block[kRows][kPanelColumns];
  for (int64_t begin = rows.begin; begin < rows.end; begin += kRows) {
    shift(begin, std::min(kRows, rows.end - begin));
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (int64_t r = 0; r < task.m; ++r) {
        const auto* from = reinterpret_cast<const uint32_t*>(sums + (begin + r) * stride);
        for (int64_t column = 0; column < kPanelColumns; ++column) {
          const int64_t row = weight_row(p.n_out(), p.gate, panel, column);
          block[r][column] = row < 0 ? 0 : from[row];
        }
      }
      task.panel_begin = panel;
      task.panel_end = panel + 1;
      kernel(task, block, sizeof block[0], i32);
    }
  }
}

}  // namespace

uint16_t version() { return onednn::version(); }

size_t matrix_bytes(const PackArgs& args) {
  const int64_t n = args.weights.shape[args.weights.rank - 2], k = args.weights.shape[args.weights.rank - 1];
  return n == 0 || k == 0 ? 0 : onednn::packed_bytes(args.weights.dtype, n, k, args.m_hint);
}

void pack_matrix(const PackArgs& args, int64_t index, std::byte* to) {
  const View rows = matrix(args.weights, index);
  if (rows.size() > 0) onednn::pack(rows, args.m_hint, to);
}

void unpack_matrix(const View& weights, int64_t index, std::byte* rows) {
  if (weights.shape[weights.rank - 2] == 0 || weights.shape[weights.rank - 1] == 0) return;
  onednn::unpack(packed_matrix(weights, index), static_cast<const PackedHeader*>(weights.data)->matrix_bytes, weights.dtype,
                 weights.shape[weights.rank - 2], weights.shape[weights.rank - 1], rows);
}

Support supports(const Gemm::Problem& p, const Device& device) {
  if (p.b_format == WeightFormat::panel32) return Support::no("b is packed as panel32, which oneDNN does not read");
  if (p.a == DType::f8e4m3) return Support::no("f8e4m3 is not handed to oneDNN yet");
  if (!p.common()) return Support::no("b is ", p.b, " and a is ", p.a, ", which oneDNN is not handed; it takes operands of one type");
  const Isa native = best_isa() == Isa::x86_amx_emulated ? Isa::x86_avx512 : best_isa();
  if (device.isa < native) return Support::no("the level is held down to ", device.arch(), ", but oneDNN picks its instructions itself");
  if (p.a == DType::i8 && p.k > kMaxI8K) return Support::no("k = ", p.k, " could overflow i32 sums of i8 products; at most ", kMaxI8K);
  const std::string reason = onednn::refusal(p.a, writes_c(p) ? p.c : p.a == DType::i8 ? DType::i32 : DType::f32);
  return reason.empty() ? Support::yes() : Support::no(reason);
}

size_t workspace(const Gemm::Problem& p, const Config&, const Device&) { return static_cast<size_t>(sums_bytes(p) + bias_bytes(p)); }

void launch(const GemmArgs& args, const Gemm::Problem& p, const Config&, Launch& launch) {
  const bool packed = p.b_format == WeightFormat::onednn;
  launch_products(args, p, packed ? static_cast<const PackedHeader*>(args.b.data)->matrix_bytes : 0, launch);
}

void launch_products(const GemmArgs& args, const Gemm::Problem& p, int64_t packed_bytes, Launch& launch) {
  const bool direct = writes_c(p);
  auto* const sums = launch.workspace;
  auto* const wide_bias = reinterpret_cast<float*>(launch.workspace + sums_bytes(p));
  FinishFn kernel = portable::finish_panels;
#if EITRI_X86
  if (launch.device.isa >= Isa::x86_avx2) kernel = avx2::finish_panels;
#endif
  for (int64_t i = 0; i < p.batch; ++i) {
    const View a = matrix(args.a, i), c = matrix(args.c, i);
    View bias = vector(args.bias, i);
    onednn::Product product{.a = a, .b = matrix(args.b, i), .packed = nullptr, .packed_bytes = packed_bytes, .n = p.n, .c = c};
    if (p.b_format == WeightFormat::onednn) product.packed = packed_matrix(args.b, i);
    product.threads = launch.threads;
    if (direct) {
      product.bias = bias;
      product.relu = p.activation == ActivationKind::relu;
      onednn::multiply(product);
      continue;
    }
    product.c = View(sums, p.a == DType::i8 ? DType::i32 : DType::f32, {p.m, p.n});
    onednn::multiply(product);

    PanelTask task;
    task.n = p.n_out();
    task.gate = p.gate;
    task.activation = args.activation;
    if (args.a_scale.given()) {
      task.a_scale = static_cast<const float*>(vector(args.a_scale, i).data);
      task.b_scale = static_cast<const float*>(vector(args.b_scale, i).data);
    }
    if (bias.given() && bias_bytes(p) > 0) {
      for (int64_t j = 0; j < p.n; ++j) wide_bias[j] = static_cast<float>(load_at(bias.data, bias.dtype, j));
      task.bias = wide_bias;
    } else if (bias.given()) {
      task.bias = static_cast<const float*>(bias.data);
    }
    task.c = static_cast<std::byte*>(c.data);
    task.c_stride = c.stride[0] * (bits(p.c) / 8);
    task.c_dtype = p.c;
    const double us = static_cast<double>(p.m * p.n) / 1e3;  // about one sum a nanosecond
    parallel(threads_for(us, launch.threads), [&](int thread, int threads) {
      const Span rows = split(p.m, thread, threads);
      if (rows.begin < rows.end) finish(task, p, sums, rows, kernel);
    });
  }
}

#else  // no oneDNN at build time

uint16_t version() { return 0; }
namespace {
[[noreturn]] void refuse() { fail(Code::unsupported, "pack_weights: format is onednn; expected panel32 (this build has no oneDNN)"); }
}  // namespace
size_t matrix_bytes(const PackArgs&) { refuse(); }
void pack_matrix(const PackArgs&, int64_t, std::byte*) { refuse(); }
void unpack_matrix(const View&, int64_t, std::byte*) { refuse(); }
Support supports(const Gemm::Problem&, const Device&) { return Support::no("this build has no oneDNN"); }
size_t workspace(const Gemm::Problem&, const Config&, const Device&) { return 0; }
void launch(const GemmArgs&, const Gemm::Problem&, const Config&, Launch&) { refuse(); }
void launch_products(const GemmArgs&, const Gemm::Problem&, int64_t, Launch&) { refuse(); }

#endif

// The library's share of the same limits as ours. AMX: 25-40 % of the peak from 64 rows on (2.6.3 and 3.14, published CPU
// comparison). AVX-512: 158 Gflop/s in f32, 87 in bf16, 546 in i8 with 2.6.3, packed weights, in the runs that panel_rows.cpp
// describes, over the same peaks. The copy of plain weights in every call is an assumption, not a measurement.
Guess guess(const Gemm::Problem& p, const Device& device) {
  constexpr double kCallUs = 3, kMatrixUs = 2, kSumsPerUs = 1e3;
  const Profile& profile = device.profile;
  const double threads = std::max(1, profile.threads);
  const Target target = device.amx && (p.a == DType::bf16 || p.a == DType::i8) ? Target::x86_amx
                        : device.isa >= Isa::x86_avx512                        ? Target::x86_avx512
                        : device.isa >= Isa::x86_avx2                          ? Target::x86_avx2
                                                                               : Target::any_cpu;
  const double share = target == Target::x86_amx ? 0.3 : p.a == DType::bf16 ? 0.38 : p.a == DType::i8 ? 0.6 : 0.68;
  const double rows = static_cast<double>(std::max<int64_t>(p.m, 8));
  const double flops = 2.0 * static_cast<double>(p.batch) * rows * static_cast<double>(p.n) * static_cast<double>(p.k);
  const double compute = flops / (std::max(panel_rows::rate_of_one(target, p.a, device), 1e6) * threads * share) * 1e6;
  const double memory = Gemm::cost(p).bytes / std::max(profile.read_bytes, 1e8) * 1e6;
  const bool in_place = p.a != DType::i8 && p.gate == GateLayout::none && p.activation <= ActivationKind::relu;
  const double sums = in_place ? 0 : static_cast<double>(p.batch * p.m * p.n) / kSumsPerUs / threads;
  const double copy = p.b_format == WeightFormat::strided ? Gemm::cost(p).bytes / 8e3 / threads : 0;
  return {.config = {}, .us = kCallUs + kMatrixUs * static_cast<double>(p.batch) + std::max(compute, memory) + sums + copy};
}

}  // namespace eitri::library
