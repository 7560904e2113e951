// Device memory that a launch borrows: one arena a stream, in stream order; under graph capture one that belongs to the graph.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/backend.h"

namespace eitri::cuda {

/// `bytes` of device memory, 256-byte aligned, dirty, for the launches that the scope makes on the stream. Scopes nest (a recipe's
/// children borrow above their parent), and a thread that holds one keeps other threads' scopes of the same stream waiting, so
/// that their launches do not mix. An arena grows to the largest need seen and then allocates no more.
///
/// While the stream captures, memory comes from an arena of that graph: replays on any stream never meet the eager arena. It is
/// given back when the graph is destroyed.
class WorkspaceScope {
 public:
  WorkspaceScope(const Device& device, Stream stream, size_t bytes);
  ~WorkspaceScope();
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;
  std::byte* data() const { return data_; }

  struct Arena;

 private:
  std::shared_ptr<Arena> arena_;
  std::byte* data_ = nullptr;
  size_t block_ = 0, offset_ = 0;
};

/// kKeptBytes of device memory, 256-byte aligned, that all launches on the stream share, or all that its capture puts into one graph:
/// zero at first, afterwards what they leave. The same bytes every time; WorkspaceScope does not lend them.
inline constexpr size_t kKeptBytes = size_t{16} << 10;
std::byte* kept_memory(const Device& device, Stream stream);

/// Device memory with an owner: tests, benchmarks, the tuner. Not for the path of a call.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Device& device, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Host memory that the device reads and writes itself while this lives: copies need no other buffer in between. Best effort: where the
/// driver refuses, copies go the long way.
class PinnedScope {
 public:
  PinnedScope(const Device& device, std::byte* data, size_t bytes);
  ~PinnedScope();
  PinnedScope(const PinnedScope&) = delete;
  PinnedScope& operator=(const PinnedScope&) = delete;

 private:
  const Device& device_;
  std::byte* data_ = nullptr;  // null: it was refused
};

}  // namespace eitri::cuda
