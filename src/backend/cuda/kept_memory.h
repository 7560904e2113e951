// Device memory in which the launches of a stream leave word for each other.
#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace eitri::cuda {

/// kKeptBytes of device memory, 256-byte aligned, that all launches on the stream share, or all that its capture puts into one graph:
/// zero at first, afterwards what they leave. The same bytes every time; WorkspaceScope does not lend them.
inline constexpr size_t kKeptBytes = size_t{16} << 10;
std::byte* kept_memory(const Device& device, Stream stream);

}  // namespace eitri::cuda

namespace eitri::gpu {
using cuda::kept_memory;
using cuda::kKeptBytes;
}  // namespace eitri::gpu
