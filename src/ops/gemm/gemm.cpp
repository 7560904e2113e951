#include "ops/gemm/gemm.h"

#include <array>
#include <cmath>

#include "base/view.h"
#include "ops/activation/activation.h"
#include "ops/gemm/gpu_library.h"
#include "ops/gemm/library.h"
#include "ops/gemm/panel_rows.h"
#include "ops/gemm/simt.h"

namespace eitri {

namespace {

constexpr const char* kOp = Gemm::name;

bool is_operand(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::i8 || dtype == DType::f8e4m3;
}
bool is_result(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

/// Kernels address elements of a row one after the other.
void check_rows(const View& view, const char* arg) {
  require(view.layout == Layout::strided, kOp, ": ", arg, " is ", view, "; expected plain rows, not packed ones");
  require(has_unit_inner_stride(view), kOp, ": ", arg, " is ", view, "; expected inner stride 1 (rows may be apart)");
}

/// bias and scales: [extent], or [batch, extent] in a batched call.
void check_vector(const View& view, const char* arg, int64_t extent, int64_t batch, bool batched, DType other) {
  const int rank = batched && view.rank == 2 ? 2 : 1;
  check_view(view, kOp, arg, rank);
  check_rows(view, arg);
  if (view.shape[rank - 1] != extent || (rank == 2 && view.shape[0] != batch)) [[unlikely]]
    require(false, kOp, ": ", arg, " is ", view, "; expected extents [", extent, "]",
            batched ? str(" or [", batch, ", ", extent, "]") : std::string());
  if (view.dtype != DType::f32 && view.dtype != other) [[unlikely]]
    require(false, kOp, ": ", arg, " is ", view, "; expected f32", other != DType::f32 ? str(" or ", other) : std::string());
}

/// Scales of an f8e4m3 operand: one for each of its `extent` rows, or one for all.
Quant check_scale(const View& view, const char* arg, int64_t extent, int64_t batch, bool batched) {
  const bool one = view.rank >= 1 && view.shape[view.rank - 1] == 1;
  if (!one && (view.rank < 1 || view.rank > 2 || view.shape[view.rank - 1] != extent)) [[unlikely]]
    require(false, kOp, ": ", arg, " is ", view, "; expected extents [", extent, "] or [1]",
            batched ? str(", or [", batch, ", ", extent, "] or [", batch, ", 1]") : std::string());
  check_vector(view, arg, one ? 1 : extent, batch, batched, DType::f32);
  return one ? Quant::per_tensor : Quant::per_token;
}

inline void check_apart(const View& c, const ByteRange& c_range, const ByteRange& input, const char* arg) {
  if (c_range.meets(input)) [[unlikely]]
    require(false, kOp, ": c is ", c, " and overlaps ", arg, "; expected memory of its own");
}

/// "[batch, m, n]" or "[m, n]".
std::string shape_text(bool batched, int64_t batch, const std::string& rows, int64_t columns) {
  return str("[", batched ? str(batch, ", ") : std::string(), rows, ", ", columns, "]");
}

}  // namespace

Gemm::Problem Gemm::check(const Args& args) {
  const View &a = args.a, &b = args.b, &c = args.c;
  require(a.rank == 2 || a.rank == 3, kOp, ": a is ", a, "; expected rank 2 or 3");
  const bool batched = a.rank == 3;
  check_view(a, kOp, "a", a.rank);
  check_view(b, kOp, "b", a.rank);
  check_output(c, kOp, "c", a.rank);
  check_rows(a, "a");
  check_rows(c, "c");
  require(is_operand(a.dtype), kOp, ": a is ", a, "; expected f32, bf16, f16, i8 or f8e4m3");
  require(b.dtype == a.dtype, kOp, ": b is ", b, "; expected dtype ", a.dtype, " (that of a)");
  require(is_result(c.dtype), kOp, ": c is ", c, "; expected f32, bf16 or f16");

  Problem p;
  const int row = a.rank - 2, column = a.rank - 1;
  p.batch = batched ? a.shape[0] : 1;
  p.m = a.shape[row];
  p.k = a.shape[column];
  p.n = b.shape[row];
  p.a = a.dtype;
  p.c = c.dtype;
  p.gate = args.gate;
  p.activation = args.activation.kind;
  if (b.shape[column] != p.k || (batched && b.shape[0] != p.batch)) [[unlikely]]
    require(false, kOp, ": b is ", b, "; expected ", shape_text(batched, p.batch, "n", p.k), " (k and batch of a)");
  check_activation(args.activation, args.gate, kOp);
  require(p.gate == GateLayout::none || p.n % 2 == 0, kOp, ": b is ", b, "; expected an even number of rows (gate and up)");
  if (c.shape[row] != p.m || c.shape[column] != p.n_out() || (batched && c.shape[0] != p.batch)) [[unlikely]]
    require(false, kOp, ": c is ", c, "; expected ", shape_text(batched, p.batch, str(p.m), p.n_out()));

  ByteRange b_range;
  if (b.layout == Layout::strided) {
    p.b_format = WeightFormat::strided;
    check_rows(b, "b");
    require(p.n <= 1 || p.k == 0 || b.stride[row] > 0, kOp, ": b is ", b, "; expected row stride > 0");
    b_range = byte_range(b);
  } else {
    const PackedHeader& header = packed_header(b, kOp, "b");
    require(header.gate == static_cast<uint8_t>(p.gate), kOp, ": b is packed with gate layout ", static_cast<GateLayout>(header.gate),
            "; expected ", p.gate, " (the call's)");
    p.b_format = header.format == static_cast<uint8_t>(PackFormat::onednn) ? WeightFormat::onednn : WeightFormat::panel32;
    const auto begin = reinterpret_cast<uintptr_t>(b.data);
    b_range = {begin, begin + sizeof header + static_cast<uintptr_t>(header.batch * header.matrix_bytes)};
  }

  const bool scaled = p.scaled();
  const auto check_given = [&](const View& scale, const char* arg, const char* operand) {
    if (scale.given() != scaled) [[unlikely]]
      require(false, kOp, ": ", arg, " is ", scale, "; expected ", scaled ? "f32 (" : "none (", operand, " is ", p.a, ")");
  };
  check_given(args.a_scale, "a_scale", "a");
  check_given(args.b_scale, "b_scale", "b");
  if (p.a == DType::f8e4m3) {
    p.a_quant = check_scale(args.a_scale, "a_scale", p.m, p.batch, batched);
    p.b_quant = check_scale(args.b_scale, "b_scale", p.n, p.batch, batched);
  } else if (scaled) {
    check_vector(args.a_scale, "a_scale", p.m, p.batch, batched, DType::f32);
    check_vector(args.b_scale, "b_scale", p.n, p.batch, batched, DType::f32);
  }
  if (args.bias.given()) {
    check_vector(args.bias, "bias", p.n, p.batch, batched, p.c);
    p.bias = args.bias.dtype;
  }
  const ByteRange c_range = byte_range(c);
  check_apart(c, c_range, byte_range(a), "a");
  check_apart(c, c_range, b_range, "b");
  if (args.bias.given()) check_apart(c, c_range, byte_range(args.bias), "bias");
  if (scaled) {
    check_apart(c, c_range, byte_range(args.a_scale), "a_scale");
    check_apart(c, c_range, byte_range(args.b_scale), "b_scale");
  }
  return p;
}

bool Gemm::empty(const Problem& p) { return p.batch == 0 || p.m == 0 || p.n == 0 || p.k == 0; }

std::vector<Output> Gemm::outputs(const Args& args) { return {{"c", args.c}}; }

// Where the error of an element may come from, with u = 2^-24 and bound = sum |a b| |scales| + |bias|:
//   products   exact in f32 for bf16, f16 and f8e4m3 (8 + 8, 11 + 11, 4 + 4 bits); rounded once for f32: at most u * bound in all
//   sums       k roundings of f32 partial sums, in any order, each at most u * |partial sum| <= u * bound. The worst case
//              is k u bound, a random walk stays below lambda sqrt(k) u bound: with lambda = 4 an error beyond that has
//              probability below 2 exp(-8) even if every partial sum were as large as the bound, which it is not (Higham
//              and Mary, 2019). The smaller of the two. i8 sums are exact, one rounding when they become f32
//   epilogue   two scales, row weight, bias: 4 roundings; the activation is in the reference's bound
//   c          half a unit in the last place: 2^-24, 2^-11, 2^-8 of the value, or of the smallest subnormal
// The tile and bf16 dot product instructions flush subnormal results to zero: below 2^-126 per product; operands that
// are subnormal count as zero there, for which the reference raises the bound.
Tolerance gemm_tolerance(DType a, DType c, int64_t k) {
  constexpr double kUnit = 0x1p-24, kLambda = 4, kEpilogue = 6;
  const double terms = static_cast<double>(k);
  const double sums = a == DType::i8 ? 1 : std::min(terms, kLambda * std::sqrt(terms));
  const double half_ulp = epsilon(c) / 2;
  const double half_subnormal = c == DType::f16 ? 0x1p-25 : c == DType::bf16 ? 0x1p-134 : 0x1p-150;
  // c rounds a value that is already off: its own share grows by at most half_ulp of that.
  return {.absolute = half_subnormal + (terms + kEpilogue) * 0x1p-126,
          .relative = half_ulp,
          .bound_eps = kUnit * (sums + kEpilogue) * (1 + half_ulp)};
}

std::vector<Tolerance> Gemm::tolerance(const Problem& p) { return {gemm_tolerance(p.a, p.c, p.k)}; }

Activated activated(const ActivationParams& params, bool gated, double gate, double gate_bound, double up, double up_bound,
                    double bound_eps) {
  if (params.kind == ActivationKind::none && !gated) return {gate, gate_bound};
  const ExactActivation exact = activate_exact(params, gated, gate, up);
  const double moved = activation_spread(params, gated, gate, up, bound_eps * gate_bound, bound_eps * up_bound);
  return {exact.value, (moved + exact.error_eps * 0x1p-23) / bound_eps};
}

Cost Gemm::cost(const Problem& p) {
  const double batch = static_cast<double>(p.batch), m = static_cast<double>(p.m), n = static_cast<double>(p.n),
               k = static_cast<double>(p.k), out = static_cast<double>(p.n_out());
  const double a_bytes = bits(p.a) / 8, c_bytes = bits(p.c) / 8, bias_bytes = bits(p.bias) / 8;
  const double a_scales = p.a_quant == Quant::per_tensor ? 1 : m, b_scales = p.b_quant == Quant::per_tensor ? 1 : n;
  const double scales = p.scaled() ? 4 * (a_scales + b_scales) : 0;
  return {.flops = 2 * batch * m * n * k,
          .bytes = batch * (a_bytes * (m * k + n * k) + c_bytes * m * out + bias_bytes * n + scales),
          .math = p.a};
}

namespace {

// Repeatable: every split over threads sums a given element of c in the same order. Rows of one call share nothing, but
// the order of k within a row depends on m (blocks of k, tile shapes), so no row claims batch invariance yet.
constexpr Numerics kSums = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false};

template <Target kTarget> constexpr Kernel<Gemm> panel_row(const char* name, Family family) {
  return {.name = name,
          .family = family,
          .target = kTarget,
          .numerics = kSums,
          .supports = panel_rows::supports<kTarget>,
          .knobs = panel_rows::kKnobs,
          .guess = panel_rows::guess<kTarget>,
          .workspace = panel_rows::workspace<kTarget>,
          .launch = panel_rows::launch<kTarget>};
}

Support reference_supports(const Gemm::Problem&, const Device&) { return Support::yes(); }
Guess reference_guess(const Gemm::Problem& p, const Device&) {
  return {.config = {}, .us = 1 + Gemm::cost(p).flops / 20};  // 2e7 flop/s: only when it is alone
}
void reference_launch(const GemmArgs& args, const Gemm::Problem&, const Config&, Launch&) { Gemm::reference(args, nullptr); }

}  // namespace

std::span<const Kernel<Gemm>> Gemm::kernels() {
  static const std::array kKernels = {
#if EITRI_X86
    panel_row<Target::x86_amx>("gemm.x86_amx.panel", Family::assembly),
    panel_row<Target::x86_avx512>("gemm.x86_avx512.panel", Family::assembly),
#endif
    Kernel<Gemm>{.name = "gemm.library.onednn",
                 .family = Family::library,
                 .target = Target::any_cpu,
                 .numerics = kSums,
                 .supports = library::supports,
                 .knobs = {},
                 .guess = library::guess,
                 .workspace = library::workspace,
                 .launch = library::launch},
#if EITRI_X86
    panel_row<Target::x86_avx2>("gemm.x86_avx2.panel", Family::assembly),
#endif
    gpu_library_row(),
    gpu_library_row_f8(),
    gemm_simt_decode(),
    gemm_simt_tile(),
    panel_row<Target::any_cpu>("gemm.portable.panel", Family::tile_template),
    Kernel<Gemm>{.name = "gemm.reference",
                 .family = Family::reference,
                 .target = Target::any_cpu,
                 .numerics = {.accumulator = DType::none, .repeatable = true, .batch_invariant = true},
                 .supports = reference_supports,
                 .knobs = {},
                 .guess = reference_guess,
                 .launch = reference_launch},
  };
  return kKernels;
}

}  // namespace eitri
