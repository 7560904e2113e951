// activation: out = act(x), or act(gate, up) with a gate layout; optionally quantised per row to i8 (of the fp32
// activation, nothing is rounded in between).
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

/// The activation in double, and what an fp32 evaluation from exact arguments may be off by, in units of fp32's epsilon
/// (2^-23): the rounding of each step, and how far a rounded argument moves the step after it. Without a gate `up` is ignored.
/// For results written as `out`: GPU kernels take a shorter sigmoid for those of 16 bits or fewer (Precision in device/vec_math.h).
struct ExactActivation {
  double value = 0;
  double error_eps = 0;
};
ExactActivation activate_exact(const ActivationParams& params, bool gated, double gate, double up, DType out = DType::f32);
/// How far the value moves when gate and up are off by at most `gate_error` and `up_error`: evaluated, not linearised.
double activation_spread(const ActivationParams& params, bool gated, double gate, double up, double gate_error, double up_error);
/// Refuses a kind that does not go with the gate layout (swiglu and situv2 need one; none and relu take none) and bad
/// parameters.
void check_activation(const ActivationParams& params, GateLayout gate, const char* op);

struct Activation {
  static constexpr const char* name = "activation";
  using Args = ActivationArgs;
  struct Problem {
    int64_t rows = 1, inter = 0;
    DType x = DType::bf16, out = DType::bf16;
    ActivationKind kind = ActivationKind::silu;
    GateLayout gate = GateLayout::separated;
    bool limited = false;  // ActivationParams::limit is not 0
    bool sorted = false;   // sorted_ids say which rows are padding
    void fields(auto&& f) const {
      f("rows", rows, Match::bucketed);
      f("inter", inter);
      f("x", x);
      f("out", out);
      f("kind", kind);
      f("gate", gate);
      f("limited", limited);
      f("sorted", sorted);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.rows == 0 || p.inter == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("out", args.out);
    f("scale", args.scale);
    f("sorted_ids", args.sorted_ids);
    f("num_valid", args.num_valid);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  /// The call for rows [begin, end) alone, on the same memory: a row's bits do not depend on the others. With sorted_ids, for one
  /// row: none when it is padding, else without the lists.
  static int64_t row_count(const Args& args) { return args.x.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
  static std::span<const Kernel<Activation>> kernels();
};

}  // namespace eitri
