// Timing: medians, cold caches, call counts that fit a budget.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backend/cpu/memory.h"
#include "dispatch/trace.h"
#include "eitri/eitri.hpp"

namespace eitri::cli {

double median(std::vector<double> values);

inline double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Pushes what the caches hold out by reading other memory, twice the last level.
class CacheEvictor {
 public:
  CacheEvictor();
  void evict();

 private:
  Buffer buffer_;
};

/// Bytes that copies of an operand must have together before the caches cannot keep them: 1.5 GiB, or four times the last
/// level if that is more.
size_t cold_bytes();

/// One of the two things that are compared. `call(i)` makes call number i; inputs may depend on i.
struct Side {
  std::function<void(int64_t)> call;
  std::function<void()> enter = [] {}, leave = [] {};  // around each round of this side, untimed
  std::vector<double> us = {};
};

/// What the machine allows at the moment, for the case that `step` is a call of: reading its weights (`ring`: copies of `bytes` bytes), or its
/// operations from registers, whichever takes longer by the profile, on the calling team. Nothing: the level has no such loop.
std::optional<Side> limit_side(const Step& step, std::vector<View> ring, size_t bytes);

/// Times the sides in alternating rounds, so that a slow moment of the machine hits both, until each had about
/// `budget_ms`, but at least 5 and at most 1000 calls. A round starts with an untimed call.
void alternate(std::vector<Side>& sides, double budget_ms);

}  // namespace eitri::cli
