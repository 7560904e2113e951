// Trace: records every routed call of the calling thread while it is alive. `moe run` prints it; costs one branch if off.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dispatch/kernel.h"

namespace eitri {

struct Step {
  const char* op = "";
  const char* kernel = "";
  Family family = Family::reference;
  std::string problem;
  double us = 0;
  double flops = 0;
  double bytes = 0;
  DType math = DType::f32;
  int depth = 0;  // 0 = called by the user, 1 = child of a recipe, ...
};

class Trace {
 public:
  Trace() : outer_(current_) { current_ = this; }
  ~Trace() { current_ = outer_; }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  static Trace* current() { return current_; }
  /// Steps in call order, parents before their children.
  const std::vector<Step>& steps() const { return steps_; }
  void clear() { steps_.clear(); }

  size_t begin();
  void end(size_t index, Step step);
  /// A GPU's steps are timed from an idle stream to an idle stream: waits for it. Not while it captures a graph.
  void wait(const Device& device, Stream stream);
  /// Instead of end(), when the step threw: it and its children are forgotten.
  void drop(size_t index);

 private:
  static thread_local constinit Trace* current_;  // constinit: read without a guard on every call
  Trace* outer_;
  int depth_ = 0;
  std::vector<Step> steps_;
  std::vector<std::chrono::steady_clock::time_point> starts_;
};

/// Time of the floor (bytes at the read bandwidth, flops at the peak, whichever is more) over the measured time.
double limit_fraction(const Step& step, const Device& device);

}  // namespace eitri
