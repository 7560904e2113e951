// Tests derived from the kernel tables: every op x every row x every test case, at the lowest and at the best instruction
// level that runs the row.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"

namespace eitri::harness {

/// Registers them with GoogleTest; call once, between InitGoogleTest and RUN_ALL_TESTS.
void register_kernel_tests();

/// Instruction levels that this machine runs, lowest first. With EITRI_ISA set: that one only.
const std::vector<Isa>& levels();

/// What became of a row when the tests were registered.
struct RowCoverage {
  std::string kernel;
  int tests = 0;       // registered: some level supports the row at the problem
  std::string needs;   // not empty: no level of this machine runs the row's target
};
const std::vector<RowCoverage>& coverage();

/// Forces a level until destroyed, then goes back to the one before.
class LevelScope {
 public:
  explicit LevelScope(Isa isa);
  ~LevelScope();
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;

 private:
  Isa before_;
};

}  // namespace eitri::harness
