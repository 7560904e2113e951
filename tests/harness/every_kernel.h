// Runs a check once for every row that takes a call, at every instruction level: for tests of single reported cases.
#pragma once

#include <gtest/gtest.h>

#include "dispatch/op.h"
#include "harness/levels.h"

namespace eitri::harness {

/// Calls check(kernel name) with each row forced in turn. Fails when no row but the reference was there to be checked.
template <Operator Op, class Check> void with_every_kernel(const typename Op::Args& args, Check&& check) {
  const auto problem = Op::check(args);
  int rows = 0;
  for (const Isa isa : levels()) {
    const LevelScope scope(isa);
    for (const Kernel<Op>& kernel : Op::kernels()) {
      if (!target_runs_on(kernel.target, cpu_device()) || !kernel.supports(problem, cpu_device())) continue;
      // A row that is not bound to instructions gives the same at every level, unless its children do.
      if (kernel.target == Target::any_cpu && kernel.children == nullptr && isa != levels().back()) continue;
      SCOPED_TRACE(testing::Message() << kernel.name << " at EITRI_ISA=" << to_string(isa));
      const ForceScope force(Op::name, kernel.name);
      check(kernel.name);
      rows += kernel.family != Family::reference;
    }
  }
  EXPECT_GT(rows, 0) << "only the reference takes " << key_of(problem);
}

}  // namespace eitri::harness
