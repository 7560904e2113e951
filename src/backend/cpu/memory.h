// Host memory for kernels: huge-page aligned buffers, and the per-thread workspace that launches borrow from.
#pragma once

#include <cstddef>
#include <memory>

namespace eitri {

/// Zero-filled memory, 2 MiB aligned and advised to huge pages when at least that large, else 64-byte aligned.
/// Error{out_of_memory} names the size.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

/// A slice of the calling thread's workspace, given back at the end of the scope; scopes nest (a recipe's children
/// borrow above their parent). Blocks never move while borrowed. Grows to the largest need seen, then allocates no more.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(size_t bytes);
  ~WorkspaceScope();
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t block_ = 0, offset_ = 0;
};
/// Fills every free byte of the calling thread's workspace with NaN patterns from now on before it is lent: tests.
void poison_workspace(bool on);
bool workspace_is_poisoned();

}  // namespace eitri
