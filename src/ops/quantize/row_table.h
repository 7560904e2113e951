// Rows of the tables of operators whose CPU kernels take every problem, a row or a piece of one at a time, with the bits of a row
// independent of the others: quantize, activation, rmsnorm, moe_combine, topk_gating.
#pragma once

#include "dispatch/kernel.h"

namespace eitri {

inline constexpr Numerics kRowNumerics{.accumulator = DType::f32, .repeatable = true, .batch_invariant = true};

template <class Op> Support takes_all(const typename Op::Problem&, const Device&) { return Support::yes(); }

/// A kernel of an instruction level, or of any CPU.
template <class Op>
Kernel<Op> cpu_row(const char* name, Target target, decltype(Kernel<Op>::guess) guess, decltype(Kernel<Op>::launch) launch,
                   decltype(Kernel<Op>::workspace) workspace = nullptr) {
  return {.name = name,
          .family = Family::tile_template,
          .target = target,
          .numerics = kRowNumerics,
          .supports = takes_all<Op>,
          .guess = guess,
          .workspace = workspace,
          .launch = launch};
}

/// The last row of the table.
template <class Op> Kernel<Op> reference_row(const char* name, decltype(Kernel<Op>::guess) guess) {
  return {
      .name = name,
      .family = Family::reference,
      .target = Target::any_cpu,
      .numerics = kRowNumerics,
      .supports = takes_all<Op>,
      .guess = guess,
      .launch = [](const typename Op::Args& args, const typename Op::Problem&, const Config&, Launch&) { Op::reference(args, nullptr); }};
}

}  // namespace eitri
