// The instruction levels of the machine, for tests that go through them.
#pragma once

#include <vector>

#include "backend/cpu/cpu.h"

namespace eitri::harness {

/// Instruction levels that this machine runs, lowest first. With EITRI_ISA set: that one only.
const std::vector<Isa>& levels();

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
