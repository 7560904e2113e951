// gemm: c = act(a b^T * scales + bias), batched, with gated weights. See GemmArgs in eitri/ops.hpp.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"
#include "ops/gemm/pack.h"

namespace eitri {

struct Gemm {
  static constexpr const char* name = "gemm";
  using Args = GemmArgs;

  /// `n` counts rows of b: with a gate, c has n / 2 columns.
  struct Problem {
    int64_t batch = 1, m = 1, n = 1, k = 1;
    DType a = DType::bf16;  // of both operands
    DType c = DType::bf16;
    WeightFormat b_format = WeightFormat::panel32;
    DType bias = DType::none;  // none: no bias
    ActivationKind activation = ActivationKind::none;
    GateLayout gate = GateLayout::none;
    // Scales of f8e4m3: per_tensor (one) or per_token (one for each row of a, of b). none for the other dtypes: i8 always has
    // one for each row, the rest has none. An extent of 1 is per_tensor.
    Quant a_quant = Quant::none, b_quant = Quant::none;

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
    }
    bool operator==(const Problem&) const = default;
    /// Columns of c.
    int64_t n_out() const { return gate == GateLayout::none ? n : n / 2; }
    /// Both operands have scales.
    bool scaled() const { return a == DType::i8 || a == DType::f8e4m3; }
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
Tolerance gemm_tolerance(DType a, DType c, int64_t k);

/// act(gate, up), or act(gate) without a gate layout, for references: the value, and the bound such that
/// bound_eps * bound covers arguments off by bound_eps times their own bounds and the activation's own rounding.
struct Activated {
  double value, bound;
};
Activated activated(const ActivationParams& params, bool gated, double gate, double gate_bound, double up, double up_bound,
                    double bound_eps);

/// The panel kernel of an instruction level for operands of `dtype`; null when there is none.
PanelFn panel_kernel(Target target, DType dtype, const Device& device);

}  // namespace eitri
