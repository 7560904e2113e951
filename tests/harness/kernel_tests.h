// Tests derived from the kernel tables: every op x every row x every test case, at the lowest and at the best instruction
// level that runs the row.
#pragma once

#include <string>
#include <vector>

namespace eitri::harness {

/// Registers them with GoogleTest; call once, between InitGoogleTest and RUN_ALL_TESTS.
void register_kernel_tests();

/// What became of a row when the tests were registered.
struct RowCoverage {
  std::string kernel;
  int tests = 0;      // registered: some level supports the row at the problem
  std::string needs;  // not empty: no level of this machine runs the row's target
};
const std::vector<RowCoverage>& coverage();

}  // namespace eitri::harness
