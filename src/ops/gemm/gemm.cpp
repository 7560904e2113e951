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

/// Scales of codes: one for each of an operand's `extent` rows, or one for all; `quant` none: the shape says which.
Quant check_scale(const View& view, const char* arg, Quant quant, int64_t extent, int64_t batch, bool batched) {
  if (quant == Quant::per_tensor) extent = 1;
  const bool one = view.rank >= 1 && view.shape[view.rank - 1] == 1 && (quant != Quant::per_token || extent == 1);
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

/// How b's codes are scaled.
Quant check_b_scale(const GemmArgs& args, const Gemm::Problem& p, bool batched) {
  const Quant quant =
      check_block_quant({kOp, "b", "b_scale", "b_quant"}, args.b, args.b_scale, args.b_quant, batched ? p.batch : -1, p.n, p.k);
  if (is_block(quant)) return quant;
  require(args.b_scale.given(), kOp, ": b_scale is none; expected f32 (b is ", p.weight(), ")");
  return check_scale(args.b_scale, "b_scale", quant, p.n, p.batch, batched);
}

/// What goes with a's codes.
Quant check_a_scale(const GemmArgs& args, const Gemm::Problem& p, bool batched) {
  const Quant quant = args.a_quant;
  const bool known = quant <= Quant::per_token || quant == Quant::per_1x128 || quant == Quant::per_1x32;
  if (!known || !quants_go_together(quant, p.b_quant)) [[unlikely]]
    require(false, kOp, ": a_quant is ", quant, " and b_quant is ", p.b_quant,
            "; expected per_tensor or per_token for both, per_1x128 with per_128x128, or per_1x32 for both (a is f8e4m3)");
  if (is_block(quant)) {
    check_block_scale(args.a_scale, kOp, "a_scale", p.a, quant, batched ? p.batch : -1, p.m, p.k);
    return quant;
  }
  return check_scale(args.a_scale, "a_scale", quant, p.m, p.batch, batched);
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
  if (!goes_with(a.dtype, b.dtype)) [[unlikely]]
    require(false, kOp, ": b is ", b, "; expected dtype ", a.dtype, " (that of a)",
            is_result(a.dtype)         ? ", f8e4m3, i8, i4 or f4e2m1"
            : a.dtype == DType::f8e4m3 ? " or f4e2m1"
                                       : "");
  require(is_result(c.dtype), kOp, ": c is ", c, "; expected f32, bf16 or f16");

  Problem p;
  const int row = a.rank - 2, column = a.rank - 1;
  p.batch = batched ? a.shape[0] : 1;
  p.m = a.shape[row];
  p.k = a.shape[column];
  p.n = b.shape[row];
  p.a = a.dtype;
  p.c = c.dtype;
  if (b.dtype != a.dtype) p.b = b.dtype;
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

  const bool scaled = p.scaled(), b_scaled = p.b_scaled();
  const auto check_none = [&](const View& scale, const char* arg, const char* operand, DType dtype) {
    if (scale.given()) [[unlikely]]
      require(false, kOp, ": ", arg, " is ", scale, "; expected none (", operand, " is ", dtype, ")");
  };
  if (p.a == DType::i8) {
    require(args.a_scale.given(), kOp, ": a_scale is none; expected f32 (a is i8)");
    require(args.b_scale.given(), kOp, ": b_scale is none; expected f32 (b is i8)");
    require((args.a_quant == Quant::none || args.a_quant == Quant::per_token) &&
                (args.b_quant == Quant::none || args.b_quant == Quant::per_token) && packed_quant(b) == Quant::none,
            kOp, ": a_quant is ", args.a_quant, " and b_quant is ", packed_quant(b) == Quant::none ? args.b_quant : packed_quant(b),
            "; expected per_token (a and b are whole numbers)");
    if (p.b != DType::none) p.b_quant = Quant::per_token;
    check_vector(args.a_scale, "a_scale", p.m, p.batch, batched, DType::f32);
    check_vector(args.b_scale, "b_scale", p.n, p.batch, batched, DType::f32);
  } else {
    require(!scaled || args.a_scale.given(), kOp, ": a_scale is none; expected f32 (a is ", p.a, ")");
    if (b_scaled) {
      p.b_quant = check_b_scale(args, p, batched);
    } else {
      check_none(args.b_scale, "b_scale", "b", b.dtype);
      require(args.b_quant == Quant::none, kOp, ": b_quant is ", args.b_quant, "; expected none (b is ", b.dtype, ")");
    }
    if (scaled) {
      p.a_quant = check_a_scale(args, p, batched);
    } else {
      check_none(args.a_scale, "a_scale", "a", p.a);
      require(args.a_quant == Quant::none, kOp, ": a_quant is ", args.a_quant, "; expected none (a is ", p.a, ")");
    }
  }
  if (p.b_quant == Quant::per_1x16) {
    require(args.b_global_scale.given(), kOp, ": b_global_scale is none; expected f32[1] (b_quant is per_1x16)");
    check_scale(args.b_global_scale, "b_global_scale", Quant::per_tensor, 1, p.batch, batched);
  } else if (args.b_global_scale.given()) [[unlikely]] {
    require(false, kOp, ": b_global_scale is ", args.b_global_scale, "; expected none (b_quant is ", p.b_quant, ")");
  }
  if (args.bias.given()) {
    check_vector(args.bias, "bias", p.n, p.batch, batched, p.c);
    p.bias = args.bias.dtype;
  }
  const ByteRange c_range = byte_range(c);
  check_apart(c, c_range, byte_range(a), "a");
  check_apart(c, c_range, b_range, "b");
  if (args.bias.given()) check_apart(c, c_range, byte_range(args.bias), "bias");
  if (scaled) check_apart(c, c_range, byte_range(args.a_scale), "a_scale");
  if (args.b_scale.given()) check_apart(c, c_range, byte_range(args.b_scale), "b_scale");
  if (args.b_global_scale.given()) check_apart(c, c_range, byte_range(args.b_global_scale), "b_global_scale");
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
//   epilogue   two scales, row weight, bias: 4 roundings; the activation is in the reference's bound. Of codes 4 more: the product of
//              scales of whole tensors, and block scales of both operands, folded into f32 codes or into a product with them
//   c          half a unit in the last place: 2^-24, 2^-11, 2^-8 of the value, or of the smallest subnormal
// The tile and bf16 dot product instructions flush subnormal results to zero: below 2^-126 per product; operands that
// are subnormal count as zero there, for which the reference raises the bound.
Tolerance gemm_tolerance(DType a, DType c, int64_t k, bool coded) {
  constexpr double kUnit = 0x1p-24, kLambda = 4;
  const double epilogue = coded ? 10 : 6;
  const double terms = static_cast<double>(k);
  const double sums = a == DType::i8 ? 1 : std::min(terms, kLambda * std::sqrt(terms));
  const double half_ulp = epsilon(c) / 2;
  const double half_subnormal = c == DType::f16 ? 0x1p-25 : c == DType::bf16 ? 0x1p-134 : 0x1p-150;
  // c rounds a value that is already off: its own share grows by at most half_ulp of that.
  return {.absolute = half_subnormal + (terms + epilogue) * 0x1p-126,
          .relative = half_ulp,
          .bound_eps = kUnit * (sums + epilogue) * (1 + half_ulp)};
}

std::vector<Tolerance> Gemm::tolerance(const Problem& p) { return {gemm_tolerance(p.a, p.c, p.k, p.coded())}; }

// A product of a code and an f32 scale, rounded to the nearest bf16, is off by at most 2^-8 of itself.
double bf16_operand_error(DType a, Quant a_quant, DType b, Quant b_quant) {
  constexpr double kUnit = 0x1p-8;
  const double of_a = rounds_in_bf16(a, a_quant) ? kUnit : 0, of_b = rounds_in_bf16(b, b_quant) ? kUnit : 0;
  return (1 + of_a) * (1 + of_b) - 1;
}

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
  const double a_bytes = bits(p.a) / 8.0, b_bytes = bits(p.weight()) / 8.0, c_bytes = bits(p.c) / 8, bias_bytes = bits(p.bias) / 8;
  const auto scales = [&](bool scaled, DType dtype, Quant quant, int64_t rows) {
    if (!scaled) return 0.0;
    return is_block(quant) ? block_scale_bytes(dtype, quant, rows, p.k) : 4.0 * static_cast<double>(quant == Quant::per_tensor ? 1 : rows);
  };
  const double all_scales = scales(p.scaled(), p.a, p.a_quant, p.m) + scales(p.b_scaled(), p.weight(), p.b_quant, p.n);
  return {.flops = 2 * batch * m * n * k,
          .bytes = batch * (a_bytes * m * k + b_bytes * n * k + c_bytes * m * out + bias_bytes * n + all_scales),
          .math = p.a};
}

namespace {

// Repeatable: every split over threads sums a given element of c in the same order. Rows of one call share nothing, but
// the order of k within a row depends on m (blocks of k, tile shapes), so no row claims batch invariance yet.
constexpr Numerics kSums = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false};

double operand_error(const Gemm::Problem& p) { return bf16_operand_error(p.a, p.a_quant, p.weight(), p.b_quant); }
template <Target kTarget> constexpr Kernel<Gemm> panel_row(const char* name, Family family) {
  return {.name = name,
          .family = family,
          .target = kTarget,
          .numerics = kSums,
          .supports = panel_rows::supports<kTarget>,
          .knobs = panel_rows::kKnobs,
          .guess = panel_rows::guess<kTarget>,
          .workspace = panel_rows::workspace<kTarget>,
          .launch = panel_rows::launch<kTarget>,
          .operand_error = kTarget == Target::x86_amx ? operand_error : nullptr};
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
