// Trace bookkeeping and the fraction of the machine's limit that a step reached.
#include "dispatch/trace.h"

#include <algorithm>

#include "backend/gpu.h"

namespace eitri {

thread_local constinit Trace* Trace::current_ = nullptr;

size_t Trace::begin() {
  steps_.emplace_back();
  steps_.back().depth = depth_++;
  starts_.push_back(std::chrono::steady_clock::now());
  return steps_.size() - 1;
}

void Trace::end(size_t index, Step step) {
  const auto now = std::chrono::steady_clock::now();
  step.us = std::chrono::duration<double, std::micro>(now - starts_.back()).count();
  starts_.pop_back();
  step.depth = --depth_;
  steps_[index] = std::move(step);
}

void Trace::wait(const Device& device, Stream stream) {
  if (!device.is_gpu()) return;
  const gpu::ContextScope scope(device);
  if (!gpu::is_capturing(stream)) gpu::synchronize(stream);
}

void Trace::drop(size_t index) {
  starts_.pop_back();
  --depth_;
  steps_.resize(index);
}

double limit_fraction(const Step& step, const Device& device) {
  const double peak = device.peak(step.math);
  const double floor_s = std::max(step.bytes / device.profile.read_bytes, peak > 0 ? step.flops / peak : 0);
  return step.us > 0 ? floor_s * 1e6 / step.us : 0;
}

}  // namespace eitri
