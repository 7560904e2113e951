// scale_add: a small operator whose rows carry known faults, to prove that every demand of the harness can fail, and to
// test routing without the weight of a real op. out[r, c] = x[r, c] * weight[c] + bias[c]; scale[r] = max |x[r, :]| / 127, exact.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"

namespace eitri {

struct ScaleAdd {
  static constexpr const char* name = "scale_add";
  struct Args {
    View x, weight, bias;  // f32 [rows, cols], [cols], [cols]
    View out, scale;       // f32 [rows, cols], [rows]
  };
  struct Problem {
    int64_t rows = 4, cols = 33;
    bool nan_row = false;  // row 1 of x is NaN, and so is row 1 of out
    void fields(auto&& f) const {
      f("rows", rows, Match::bucketed);
      f("cols", cols);
      f("nan_row", nan_row);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.rows == 0 || p.cols == 0; }
  static void reference(const Args& args, Oracle* oracle);
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("weight", args.weight);
    f("bias", args.bias);
    f("out", args.out);
    f("scale", args.scale);
  }
  static std::vector<Output> outputs(const Args& args) { return {{"out", args.out}, {"scale", args.scale}}; }
  static std::vector<Tolerance> tolerance(const Problem&) { return {{.bound_eps = 2 * 0x1p-24}, {}}; }
  static Cost cost(const Problem& p) { return {2.0 * double(p.rows * p.cols), 8.0 * double(p.rows * p.cols), DType::f32}; }
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<ScaleAdd>> kernels();
  static int64_t row_count(const Args& args) { return args.x.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
};

/// Forgets the state of the faults that remember calls.
void reset_scale_add_faults();

}  // namespace eitri
