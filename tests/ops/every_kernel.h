// For golden tests: the same literal call through every row that this machine runs.
#pragma once

#include <gtest/gtest.h>

#include "dispatch/op.h"

namespace eitri::golden {

/// Runs `body` once for each row that takes the call, that row being forced.
template <Operator Op, class Body> void with_every_kernel(const typename Op::Args& args, Body&& body) {
  const auto problem = Op::check(args);
  for (const Kernel<Op>& kernel : Op::kernels()) {
    if (!target_runs_on(kernel.target, cpu_device()) || !kernel.supports(problem, cpu_device())) continue;
    SCOPED_TRACE(kernel.name);
    const ForceScope force(Op::name, kernel.name);
    body();
  }
}

/// The message of the Error that a call throws; "" when it throws none.
template <Operator Op> std::string refusal(const typename Op::Args& args) {
  try {
    call<Op>(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace eitri::golden
