// NVIDIA GPUs: devices, kernels, launches. Everything works in the caller's current context when that belongs to the device,
// else in the device's primary context, which is the one that the CUDA runtime and PyTorch use.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/cuda/driver.h"

namespace eitri::cuda {

/// Number of devices; 0 where there is no driver (absence() says why).
int device_count();
/// Throws Error{device_error} that says which devices there are.
const Device& device(int index);
/// Throws Error{device_error} "cuda: <what>: CUDA_ERROR_... (...)" unless `result` is 0.
void require_ok(int result, const char* what);

/// Makes a context of the device current for the calling thread, and puts back what was there before.
class ContextScope {
 public:
  explicit ContextScope(const Device& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const int before_;
  const bool primary_before_;
  bool pushed_ = false;
};

/// A kernel, loaded. It serves every context and device that its binary runs on, and is never unloaded.
struct Function {
  static constexpr int kDevices = 16;  // later ones are launched through the kernel
  Handle kernel = nullptr;
  std::atomic<Handle> in_primary[kDevices] = {};  // the kernel's function in the primary context of a device
  std::string name;
  int registers = 0, shared_bytes = 0, local_bytes = 0, max_threads = 0;  // as compiled
};
/// `entry` of a binary that jit::Cache has verified; `key` names the binary's content. The code is on the device when this
/// returns: nothing is left for the first launch. Throws Error{device_error}.
const Function& load(std::string_view binary, std::string_view key, const char* entry, const Device& device);

/// Blocks and threads have one dimension.
struct Geometry {
  int64_t blocks = 1;
  int threads = 32;
  int shared_bytes = 0;  // dynamic
  int cluster = 1;       // blocks of a cluster
};
/// Starts the kernel with one argument, passed by value. 0 blocks: nothing. Within a ContextScope of the device.
///
/// Behind another launch of ours on the stream the kernel may start before that one has ended (programmatic dependent launch):
/// every kernel of ours waits for the kernels before it before it touches memory that they may touch, and lets the next one
/// start. What this thread launched last is remembered; a foreign kernel in between costs time at most, never correctness.
void launch(const Function& function, const Geometry& geometry, Stream stream, const void* argument);
/// Dependent launches on or off for the process: tests compare both.
void allow_dependent_launches(bool on);

/// For measuring what a call costs beside the driver's launch: while it lives, launches of this process do nothing. All else is done,
/// the library's products included. Not while other threads launch.
class WithoutLaunches {
 public:
  WithoutLaunches();
  ~WithoutLaunches();
  WithoutLaunches(const WithoutLaunches&) = delete;
  WithoutLaunches& operator=(const WithoutLaunches&) = delete;
};

bool is_capturing(Stream stream);
/// While it lives the thread may allocate although a stream captures: what it allocates is no part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver()->thread_exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { driver()->thread_exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = 2;  // relaxed; afterwards what it was
};
void synchronize(Stream stream);
void copy_to_device(void* device, const void* host, size_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, size_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, size_t bytes, Stream stream);

}  // namespace eitri::cuda
