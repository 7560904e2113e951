// How the kernel of a user op gets onto a GPU. A table of functions, so that tests can stand in for a device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/types.hpp"
#include "jit/cache.h"

namespace eitri::jit {

struct GpuLauncher {
  /// What to compile for. Throws Error{device_error} when there is no such device.
  const Target& (*target)(DeviceId device);
  bool (*is_capturing)(DeviceId device, Stream stream);
  /// The loaded kernel; valid for ever.
  const void* (*load)(DeviceId device, const Binary& binary, const char* entry);
  /// Starts `blocks` blocks with one argument of `bytes` bytes, by value.
  void (*launch)(DeviceId device, const void* kernel, int64_t blocks, int threads, Stream stream, const void* argument, size_t bytes);
};

/// On the devices of this machine.
const GpuLauncher& gpu_launcher();

}  // namespace eitri::jit
