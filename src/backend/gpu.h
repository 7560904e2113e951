// GPUs as the rest of the library sees them: launches, memory and streams of whatever driver there is. One so far.
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/graph.h"
#include "backend/cuda/memory.h"

namespace eitri::gpu {

using cuda::Buffer;
using cuda::ContextScope;
using cuda::copy_on_device;
using cuda::copy_to_device;
using cuda::copy_to_host;
using cuda::device;
using cuda::device_count;
using cuda::Event;
using cuda::Function;
using cuda::Geometry;
using cuda::Graph;
using cuda::is_capturing;
using cuda::kept_memory;
using cuda::kKeptBytes;
using cuda::launch;
using cuda::load;
using cuda::OwnedStream;
using cuda::PinnedScope;
using cuda::synchronize;
using cuda::WithoutLaunches;
using cuda::WorkspaceScope;

/// Its kind of device.
inline constexpr DeviceKind kKind = DeviceKind::cuda;
/// Why there is none; empty when there is one.
inline const std::string& absence() { return cuda::absence(); }
/// Version of the driver, 12040 for 12.4; 0 without one.
inline int driver_version() { return cuda::driver() == nullptr ? 0 : cuda::driver()->version; }

}  // namespace eitri::gpu
