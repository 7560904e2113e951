// A driver without a GPU: memory is the host's, kernels do nothing but are counted, streams and captures are bookkeeping. It lets
// everything above the driver be tested and timed anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/driver.h"

namespace eitri::cuda {

/// What a launch was asked for.
struct FakeLaunch {
  Handle stream = nullptr, code = nullptr;
  uint32_t blocks = 0, threads = 0, cluster = 1, shared_bytes = 0;
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
  /// What a kernel is in a context.
  static Handle function_of(Handle kernel) { return static_cast<std::byte*>(kernel) + 1; }
  /// A context of the device that is not its primary one.
  static Handle foreign_context(int device) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(0x1100 + device)); }
};

}  // namespace eitri::cuda
