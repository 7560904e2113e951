// Huge-page aligned buffers and the per-thread workspace.
#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cpu/kept_pages.h"
#include "backend/cpu/threads.h"
#include "base/error.h"

namespace eitri {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlign = 64;
std::atomic<bool> poison_on = false;

constexpr size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/// Mappings of buffers that are gone.
struct Kept {
  struct Pages {
    std::byte* data;
    size_t bytes;
  };
  std::mutex mutex;
  std::vector<Pages> pages;
  size_t bytes = 0, most_bytes = 0;

  /// The smallest that `bytes` fit in and that is not much larger; none: null.
  Pages take(size_t wanted) {
    const std::lock_guard lock(mutex);
    auto best = pages.end();
    for (auto it = pages.begin(); it != pages.end(); ++it)
      if (it->bytes >= wanted && it->bytes <= wanted + wanted / 4 + 2 * kHugePage && (best == pages.end() || it->bytes < best->bytes))
        best = it;
    if (best == pages.end()) return {nullptr, 0};
    const Pages found = *best;
    pages.erase(best);
    bytes -= found.bytes;
    return found;
  }
  bool keep(Pages some) {
    const std::lock_guard lock(mutex);
    if (bytes + some.bytes > most_bytes) return false;
    pages.push_back(some);
    bytes += some.bytes;
    return true;
  }
};
Kept& kept() {
  static Kept& all = *new Kept;  // outlives every buffer
  return all;
}

void zero(std::byte* data, size_t bytes) {
  parallel(bytes < size_t{8} << 20 ? 1 : max_threads(), [&](int thread, int threads) {
    const Span mine = split(static_cast<int64_t>(bytes), thread, threads, 4096);
    std::memset(data + mine.begin, 0, static_cast<size_t>(mine.end - mine.begin));
  });
}

}  // namespace

void keep_pages(size_t most_bytes) {
  std::vector<Kept::Pages> dropped;
  {
    const std::lock_guard lock(kept().mutex);
    kept().most_bytes = most_bytes;
    if (kept().bytes > most_bytes) {
      dropped.swap(kept().pages);
      kept().bytes = 0;
    }
  }
  for (const Kept::Pages& pages : dropped) munmap(pages.data, pages.bytes);
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  // mmap for everything: zero-filled lazily, and a huge mapping can be placed on a 2 MiB boundary. Huge pages are worth
  // 1.5x (memory) to 2.6x (a big L3) of read bandwidth, and malloc does not ask for them.
  const bool huge = bytes >= kHugePage;
  if (huge) {
    if (const Kept::Pages pages = kept().take(bytes); pages.data != nullptr) {
      data_ = pages.data;
      mapped_ = pages.bytes;
      zero(data_, bytes);
      return;
    }
  }
  mapped_ = huge ? round_up(bytes, kHugePage) + kHugePage : round_up(bytes, 4096);
  void* p = bytes > (size_t{1} << 62) ? MAP_FAILED : mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail(Code::out_of_memory, str("buffer: ", bytes, " bytes could not be mapped"));
  data_ = static_cast<std::byte*>(p);
  if (huge) {
    auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(p), kHugePage));
    if (aligned > data_) munmap(data_, size_t(aligned - data_));
    mapped_ -= size_t(aligned - data_);
    data_ = aligned;
    madvise(data_, mapped_, MADV_HUGEPAGE);  // advice: small pages also work
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr || (size_ >= kHugePage && kept().keep({data_, mapped_}))) return;
  munmap(data_, mapped_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), mapped_(std::exchange(other.mapped_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

namespace {

/// A stack of blocks; scopes are strictly nested, so freeing is moving the top back.
struct Arena {
  std::vector<Buffer> blocks;
  size_t block = 0, offset = 0;  // the top
  int depth = 0;                 // scopes that hold something
};
// The bare pointer keeps the guard of a thread_local with a destructor off the hot path.
thread_local constinit Arena* arena = nullptr;

Arena& make_arena() {
  static thread_local std::unique_ptr<Arena> owner;
  owner = std::make_unique<Arena>();
  return *(arena = owner.get());
}

/// Moves the top to where `bytes` fit, on a new block if need be.
void make_room(Arena& a, size_t bytes) {
  if (a.depth == 0 && a.blocks.size() > 1) {  // nothing is lent: one block of the whole size replaces them
    size_t total = 0;
    for (const Buffer& b : a.blocks) total += b.size();
    a.blocks.clear();
    a.block = a.offset = 0;
    a.blocks.emplace_back(std::max(total, round_up(bytes, kHugePage)));
    return;
  }
  while (a.block < a.blocks.size() && a.blocks[a.block].size() - a.offset < bytes) {
    ++a.block;
    a.offset = 0;
  }
  if (a.block == a.blocks.size()) a.blocks.emplace_back(round_up(std::max(bytes, size_t{256} << 10), kHugePage));
}

}  // namespace

WorkspaceScope::WorkspaceScope(size_t bytes) {
  if (bytes == 0) return;
  Arena& a = arena != nullptr ? *arena : make_arena();
  bytes = round_up(bytes, kAlign);
  block_ = a.block;
  offset_ = a.offset;
  if (a.block >= a.blocks.size() || a.blocks[a.block].size() - a.offset < bytes) [[unlikely]] {
    try {
      make_room(a, bytes);
    } catch (...) {  // the destructor of a half-made scope does not run
      a.block = a.blocks.empty() ? 0 : block_;
      a.offset = a.blocks.empty() ? 0 : offset_;
      throw;
    }
    if (a.depth == 0) block_ = offset_ = 0;
  }
  data_ = a.blocks[a.block].data() + a.offset;
  a.offset += bytes;
  ++a.depth;
  if (poison_on.load(std::memory_order_relaxed)) std::memset(data_, 0xff, bytes);
}

WorkspaceScope::~WorkspaceScope() {
  if (data_ == nullptr) return;
  arena->block = block_;
  arena->offset = offset_;
  --arena->depth;
}

void poison_workspace(bool on) { poison_on = on; }
bool workspace_is_poisoned() { return poison_on.load(std::memory_order_relaxed); }

}  // namespace eitri
