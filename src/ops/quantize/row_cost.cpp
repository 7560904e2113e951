#include "ops/quantize/row_cost.h"

#include <algorithm>

#include "backend/cpu/threads.h"

namespace eitri {

double row_pass_us_on_one(const Device& device, double bytes, double elements, double elements_per_ns) {
  constexpr double kCallUs = 0.1;
  constexpr double kCachedBytesPerUs = 60e3;
  const double threads = std::max(1, device.profile.threads);
  const double read = device.profile.read_bytes > 0 ? device.profile.read_bytes / threads * 1e-6 : 10e3;
  const double bytes_per_us = bytes <= static_cast<double>(device.l2_bytes) ? kCachedBytesPerUs : read;
  return kCallUs + std::max(bytes / bytes_per_us, elements / elements_per_ns * 1e-3);
}

double row_pass_us(const Device& device, double bytes, double elements, double elements_per_ns) {
  const double us = row_pass_us_on_one(device, bytes, elements, elements_per_ns);
  const int threads = threads_for(us, max_threads());
  return threads == 1 ? us : us / threads + 1;
}

}  // namespace eitri
