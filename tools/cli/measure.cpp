#include "cli/measure.h"

#include <algorithm>

#include "backend/cpu/cpu.h"
#include "backend/cpu/limits.h"
#include "backend/cpu/threads.h"

namespace eitri::cli {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle] + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle))) / 2;
}

CacheEvictor::CacheEvictor() : buffer_(std::clamp<size_t>(2 * static_cast<size_t>(cpu_device().l3_bytes), 64 << 20, size_t{1} << 30)) {
  auto* words = reinterpret_cast<uint64_t*>(buffer_.data());
  for (size_t i = 0; i < buffer_.size() / 8; i += 8) words[i] = i;  // pages of zeros would all be one page
}

void CacheEvictor::evict() {
  const auto* words = reinterpret_cast<const uint64_t*>(buffer_.data());
  parallel(max_threads(), [&](int part, int parts) {
    const Span span = split(static_cast<int64_t>(buffer_.size() / 8), part, parts, 8);
    uint64_t sum = 0;
    for (int64_t i = span.begin; i < span.end; i += 8) sum += words[i];
    asm volatile("" : : "r"(sum));  // the sum counts as used
  });
}

size_t cold_bytes() { return std::max(size_t{3} << 29, 4 * static_cast<size_t>(cpu_device().l3_bytes)); }

std::optional<Side> limit_side(const Step& step, std::vector<View> ring, size_t bytes) {
  const Device& device = cpu_device();
  const double peak = device.peak(step.math);
  if (peak <= 0 || step.bytes / device.profile.read_bytes > step.flops / peak) {
    return Side{.call = [&device, bytes, ring = std::move(ring)](int64_t i) {
      const auto* const data = static_cast<const std::byte*>(ring[static_cast<size_t>(i) % ring.size()].data);
      parallel(max_threads(), [&](int part, int parts) {
        const Span span = split(static_cast<int64_t>(bytes), part, parts, 4096);
        read_once(device, data + span.begin, static_cast<size_t>(span.end - span.begin));
      });
    }};
  }
  if (!run_at_peak(device, step.math, 0)) return std::nullopt;
  return Side{.call = [&device, step](int64_t) {
    parallel(max_threads(), [&](int, int parts) { run_at_peak(device, step.math, step.flops / parts); });
  }};
}

void alternate(std::vector<Side>& sides, double budget_ms) {
  constexpr int64_t kLeast = 5, kMost = 1000;
  constexpr int kRounds = 5;
  std::vector<int64_t> per_round(sides.size(), 1), made(sides.size(), 0);
  for (size_t s = 0; s < sides.size(); ++s) {  // two calls that make routes, caches and clocks ready, and one for an estimate
    sides[s].enter();
    for (int i = 0; i < 2; ++i) sides[s].call(made[s]++);
    const double start = now_us();
    sides[s].call(made[s]++);
    const double us = std::max(0.1, now_us() - start);
    sides[s].leave();
    per_round[s] = (std::clamp(static_cast<int64_t>(budget_ms * 1e3 / us), kLeast, kMost) + kRounds - 1) / kRounds;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (size_t s = 0; s < sides.size(); ++s) {
      sides[s].enter();
      sides[s].call(made[s]++);
      for (int64_t i = 0; i < per_round[s]; ++i) {
        const double start = now_us();
        sides[s].call(made[s]++);
        sides[s].us.push_back(now_us() - start);
      }
      sides[s].leave();
    }
  }
}

}  // namespace eitri::cli
