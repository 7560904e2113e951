#include "backend/cuda/memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cpu/memory.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/graph.h"
#include "base/error.h"

namespace eitri::cuda {

namespace {

constexpr size_t kAlign = 256, kSmallest = size_t{1} << 20;
constexpr size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

const Stream kPerThreadStream = reinterpret_cast<Stream>(uintptr_t{2});

struct Block {
  Address address = 0;
  size_t size = 0;
};

/// Blocks whose graphs are gone. A destructor of a graph may not call the driver, so they wait here to be used again.
struct Returned {
  std::mutex mutex;
  std::map<int, std::vector<Block>> blocks;  // by device
};
Returned& returned() {
  static Returned& all = *new Returned;  // outlives every graph
  return all;
}

Block take_returned(int device, size_t bytes) {
  Returned& all = returned();
  std::lock_guard lock(all.mutex);
  auto& blocks = all.blocks[device];
  const auto fits = std::ranges::find_if(blocks, [&](const Block& b) { return b.size >= bytes; });
  if (fits == blocks.end()) return {};
  const Block block = *fits;
  blocks.erase(fits);
  return block;
}

}  // namespace

/// A stack of blocks; what is lent never moves.
struct WorkspaceScope::Arena {
  std::recursive_mutex mutex;
  int device = 0;
  bool of_graph = false;
  Stream stream = nullptr;
  std::vector<Block> blocks;
  size_t block = 0, offset = 0;      // the top
  int depth = 0;                     // scopes that hold something
  Block kept;                        // see kept_memory()
  std::atomic<Address> kept_at = 0;  // the same, once it is there

  Block allocate(size_t bytes) const {
    Block made{0, round_up(bytes, kSmallest)};
    if (of_graph) {
      if (const Block old = take_returned(device, made.size); old.size > 0) return old;
      const RelaxedCapture relaxed;
      require_ok(driver()->mem_alloc(&made.address, made.size), "allocate workspace");
    } else {
      require_ok(driver()->mem_alloc_async(&made.address, made.size, stream), "allocate workspace");
    }
    return made;
  }
  void make_room(size_t bytes) {
    if (depth == 0 && !blocks.empty() && !of_graph) {  // nothing is lent: one block of the whole size replaces all, in stream order
      for (const Block& b : blocks) {
        bytes += b.size;
        require_ok(driver()->mem_free_async(b.address, stream), "free workspace");
      }
      blocks.clear();
      block = offset = 0;
    }
    while (block < blocks.size() && offset + bytes > blocks[block].size) {
      ++block;
      offset = 0;
    }
    if (block == blocks.size()) blocks.push_back(allocate(bytes));
  }
};

namespace {

using Arena = WorkspaceScope::Arena;

void give_back(void* user) {
  const std::unique_ptr<std::shared_ptr<Arena>> owner(static_cast<std::shared_ptr<Arena>*>(user));
  const Arena& arena = **owner;
  Returned& all = returned();
  std::lock_guard lock(all.mutex);
  auto& blocks = all.blocks[arena.device];
  blocks.insert(blocks.end(), arena.blocks.begin(), arena.blocks.end());
  if (arena.kept.size > 0) blocks.push_back(arena.kept);
}

struct Arenas {
  using Key = std::tuple<int, Stream, uint64_t, std::thread::id>;  // device, stream, capture (0: none), thread of a per-thread stream
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Arena>> graphs;
  std::map<Key, std::shared_ptr<Arena>> streams;
};
Arenas& arenas() {
  static Arenas& all = *new Arenas;  // the driver may be gone before static destructors run
  return all;
}

/// The arena of a graph lives as long as the graph does.
std::shared_ptr<Arena> new_graph_arena(int device, Stream stream, Handle graph) {
  auto arena = std::make_shared<Arena>();
  arena->device = device;
  arena->of_graph = true;
  arena->stream = stream;
  Handle object = nullptr;
  auto owner = std::make_unique<std::shared_ptr<Arena>>(arena);
  constexpr unsigned kNoDestructorSync = 1, kMove = 1;
  require_ok(driver()->user_object_create(&object, owner.get(), give_back, 1, kNoDestructorSync), "tie workspace to the graph");
  owner.release();
  require_ok(driver()->graph_retain_user_object(graph, object, 1, kMove), "tie workspace to the graph");
  return arena;
}

std::shared_ptr<Arena> arena_of(int device, Stream stream) {
  int status = 0;
  uint64_t id = 0;
  Handle graph = nullptr;
  const Handle* dependencies = nullptr;
  size_t count = 0;
  require_ok(driver()->stream_capture_info(stream, &status, &id, &graph, &dependencies, &count), "ask whether the stream captures");
  require(status != 2, "cuda: the stream's capture is broken; expected a stream that captures or runs");
  const std::thread::id thread = stream == kPerThreadStream ? std::this_thread::get_id() : std::thread::id{};
  Arenas& all = arenas();
  std::lock_guard lock(all.mutex);
  const Arenas::Key key{device, stream, status == 0 ? 0 : id, thread};
  if (status != 0) {
    auto& known = all.graphs[key];
    if (auto arena = known.lock()) return arena;
    std::erase_if(all.graphs, [&](const auto& item) { return item.first != key && item.second.expired(); });
    auto made = new_graph_arena(device, stream, graph);
    known = made;
    return made;
  }
  auto& slot = all.streams[key];
  if (slot == nullptr) {
    slot = std::make_shared<Arena>();
    slot->device = device;
    slot->stream = stream;
  }
  return slot;
}

}  // namespace

WorkspaceScope::WorkspaceScope(const Device& device, Stream stream, size_t bytes) {
  if (bytes == 0) return;
  arena_ = arena_of(device.id.index, stream);
  arena_->mutex.lock();
  try {
    Arena& a = *arena_;
    bytes = round_up(bytes, kAlign);
    block_ = a.block;
    offset_ = a.offset;
    if (a.block >= a.blocks.size() || a.offset + bytes > a.blocks[a.block].size) a.make_room(bytes);
    if (a.depth == 0) block_ = offset_ = 0;
    data_ = reinterpret_cast<std::byte*>(a.blocks[a.block].address + a.offset);
    a.offset += bytes;
    ++a.depth;
    if (workspace_is_poisoned()) require_ok(driver()->set_bytes(reinterpret_cast<Address>(data_), 0xff, bytes, stream), "poison workspace");
  } catch (...) {
    arena_->mutex.unlock();
    throw;
  }
}

WorkspaceScope::~WorkspaceScope() {
  if (arena_ == nullptr) return;
  --arena_->depth;
  arena_->block = block_;
  arena_->offset = offset_;
  arena_->mutex.unlock();
}

std::byte* kept_memory(const Device& device, Stream stream) {
  const std::shared_ptr<Arena> owner = arena_of(device.id.index, stream);
  Arena& arena = *owner;
  if (const Address known = arena.kept_at.load(std::memory_order_acquire); known != 0) [[likely]]
    return reinterpret_cast<std::byte*>(known);
  const std::lock_guard lock(arena.mutex);
  if (arena.kept.size == 0) {
    const Block made = arena.allocate(kKeptBytes);
    if (arena.of_graph) {  // on the stream this would be a step of every replay
      const RelaxedCapture relaxed;
      const OwnedStream aside(device);
      require_ok(driver()->set_bytes(made.address, 0, kKeptBytes, aside), "clear kept memory");
      synchronize(aside);
    } else {
      require_ok(driver()->set_bytes(made.address, 0, kKeptBytes, stream), "clear kept memory");
    }
    arena.kept = made;
    arena.kept_at.store(made.address, std::memory_order_release);
  }
  return reinterpret_cast<std::byte*>(arena.kept.address);
}

Buffer::Buffer(const Device& device, size_t bytes) : device_(&device), size_(bytes) {
  if (bytes == 0) return;
  const ContextScope scope(device);
  Address address = 0;
  require_ok(driver()->mem_alloc(&address, bytes), "allocate");
  data_ = reinterpret_cast<std::byte*>(address);
}
Buffer::~Buffer() {
  if (data_ == nullptr) return;
  try {
    const ContextScope scope(*device_);
    driver()->mem_free(reinterpret_cast<Address>(data_));
  } catch (const Error&) {  // the context is gone, and the memory with it
  }
}
Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PinnedScope::PinnedScope(const Device& device, std::byte* data, size_t bytes) : device_(device) {
  if (bytes == 0) return;
  const ContextScope scope(device);
  if (driver()->host_register(data, bytes, 0) == 0) data_ = data;
}
PinnedScope::~PinnedScope() {
  if (data_ == nullptr) return;
  try {
    const ContextScope scope(device_);
    driver()->host_unregister(data_);
  } catch (const Error&) {  // the context is gone
  }
}

}  // namespace eitri::cuda
