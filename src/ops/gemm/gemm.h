// gemm: c = act(a b^T * scales + bias), batched, with gated weights. See GemmArgs in eitri/ops.hpp.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"
#include "ops/gemm/pack.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

struct Gemm {
  static constexpr const char* name = "gemm";
  using Args = GemmArgs;

  /// `n` counts rows of b: with a gate, c has n / 2 columns.
  struct Problem {
    int64_t batch = 1, m = 1, n = 1, k = 1;
    DType a = DType::bf16;  // of both operands, unless b says otherwise
    DType c = DType::bf16;
    WeightFormat b_format = WeightFormat::panel32;
    DType bias = DType::none;  // none: no bias
    ActivationKind activation = ActivationKind::none;
    GateLayout gate = GateLayout::none;
    // Scales of f8e4m3, and of a b of fewer bits than a: per_tensor (one), per_token (one for each row of a, of b), or blocks. none:
    // i8 x i8 always has one for each row, the rest has none. An extent of 1 is per_tensor.
    Quant a_quant = Quant::none, b_quant = Quant::none;
    DType b = DType::none;  // none: b is of a's type

    void fields(auto&& f) const {
      f("batch", batch);
      f("m", m, Match::bucketed);
      f("n", n);
      f("k", k);
      f("a", a);
      f("c", c);
      f("b_format", b_format);
      f("bias", bias);
      f("activation", activation);
      f("gate", gate);
      f("a_quant", a_quant);
      f("b_quant", b_quant);
      f("b", b);
    }
    bool operator==(const Problem&) const = default;
    /// Columns of c.
    int64_t n_out() const { return gate == GateLayout::none ? n : n / 2; }
    /// a has scales.
    bool scaled() const { return a == DType::i8 || a == DType::f8e4m3; }
    /// b has scales.
    bool b_scaled() const { return scaled() || b != DType::none; }
    /// The dtype of b.
    DType weight() const { return b == DType::none ? a : b; }
    /// Kernels decode b, into a's type or, of an f8e4m3 a, the type that a is widened to.
    bool coded() const { return b != DType::none || a == DType::f8e4m3; }
    /// Operands of one type, with at most a scale for each row: what libraries and GPU rows take.
    bool common() const { return b == DType::none && !is_block(a_quant) && !is_block(b_quant); }
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& problem);
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("a", args.a);
    f("b", args.b);
    f("c", args.c);
    f("bias", args.bias);
    f("a_scale", args.a_scale);
    f("b_scale", args.b_scale);
    f("b_global_scale", args.b_global_scale);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<Gemm>> kernels();
};

/// Allowed error of a sum of k products and its epilogue, written in `c`, for every op that is made of the panel
/// kernels. The reference's bound carries the activation's slope. The derivation is in gemm.cpp.
Tolerance gemm_tolerance(DType a, DType c, int64_t k, bool coded);
/// What rounding block-scaled operands to bf16 adds, relative to each product: the operand_error of rows that multiply bf16.
double bf16_operand_error(DType a, Quant a_quant, DType b, Quant b_quant);

/// act(gate, up), or act(gate) without a gate layout, for references: the value, and the bound such that
/// bound_eps * bound covers arguments off by bound_eps times their own bounds and the activation's own rounding.
struct Activated {
  double value, bound;
};
Activated activated(const ActivationParams& params, bool gated, double gate, double gate_bound, double up, double up_bound,
                    double bound_eps);

/// The panel kernel of an instruction level for operands of `dtype`; null when there is none.
PanelFn panel_kernel(Target target, DType dtype, const Device& device);
/// The same for a of `dtype` and coded panels.
PanelFn coded_kernel(Target target, DType dtype, const Device& device);
/// What the panel kernels of a level multiply a by coded panels as: f8e4m3 is widened, with its block scales, if any, folded in.
DType multiplied_type(Target target, DType a, Quant a_quant);

}  // namespace eitri
