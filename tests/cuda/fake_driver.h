// A driver without a GPU: memory is the host's, kernels do nothing but are counted, streams and captures are bookkeeping. It lets
// everything above the driver be tested and timed anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/driver.h"

namespace eitri::cuda {

/// What a launch was asked for.
struct FakeLaunch {
  Handle stream = nullptr;
  uint32_t blocks = 0, threads = 0, cluster = 1;
  bool dependent = false;
};

/// In use while it lives; one at a time. It has more devices than any machine: tests take the last ones, so that what the process
/// remembers of real ones stays true.
class FakeDriver {
 public:
  static constexpr int kDevices = 64;
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;

  /// Launches since the last call.
  std::vector<FakeLaunch> take_launches();
  void record_launches(bool on);   // off: only for timing
  void fail_launches(int result);  // 0: they succeed
  int64_t bytes_allocated() const;
  int64_t blocks_allocated() const;
  int contexts_of_thread() const;  // pushed and not popped
};

}  // namespace eitri::cuda
