#include "cuda/fake_driver.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace eitri::cuda {

namespace {

struct UserObject {
  void* pointer;
  void (*destroy)(void*);
};
struct State {
  std::mutex mutex;
  std::vector<FakeLaunch> launches;
  std::map<Address, size_t> memory;
  std::map<Handle, std::pair<uint64_t, Handle>> captures;  // by stream: id and graph
  std::map<Handle, std::vector<UserObject>> graphs;
  uint64_t next = 1;
  Handle handle() { return reinterpret_cast<Handle>(static_cast<uintptr_t>(0x10000 + 16 * next++)); }
};
State& state() {
  static State s;
  return s;
}
std::atomic<bool> recording = true;
std::atomic<int> launch_result = 0;
thread_local std::vector<Handle> contexts;

Handle context_of(int device) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(0x100 + device)); }
int device_of_context(Handle context) { return static_cast<int>((reinterpret_cast<uintptr_t>(context) - 0x100) % 0x1000); }

int allocate(Address* address, size_t bytes) {
  void* const p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<Address>(p);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.memory[*address] = bytes;
  return 0;
}
int release(Address address) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.memory.erase(address) == 0) return 1;
  std::free(reinterpret_cast<void*>(address));
  return 0;
}

int launch(const LaunchConfig* config, Handle code, void**, void**) {
  if (const int result = launch_result.load(std::memory_order_relaxed); result != 0) return result;
  if (!recording.load(std::memory_order_relaxed)) return 0;
  FakeLaunch made{
      .stream = config->stream, .code = code, .blocks = config->grid_x, .threads = config->block_x, .shared_bytes = config->shared_bytes};
  for (uint32_t i = 0; i < config->attribute_count; ++i) {
    if (config->attributes[i].id == kClusterDimension) made.cluster = config->attributes[i].cluster.x;
    if (config->attributes[i].id == kProgrammaticSerialization) made.dependent = config->attributes[i].programmatic == 1;
  }
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.launches.push_back(made);
  return 0;
}

int attribute(int* value, int which, int) {
  switch (which) {
    case 10: return *value = 32, 0;
    case 16: return *value = 132, 0;
    case 36: return *value = 3201000, 0;
    case 37: return *value = 6144, 0;
    case 38: return *value = 60 << 20, 0;
    case 75: return *value = 9, 0;
    case 76: return *value = 0, 0;
    case 97: return *value = 227 << 10, 0;
    default: return *value = 0, 0;
  }
}

int end_capture(Handle stream, Handle* graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto at = s.captures.find(stream);
  if (at == s.captures.end()) return 1;
  *graph = at->second.second;
  s.captures.erase(at);
  return 0;
}

/// A graph and its executable are one here.
int destroy_graph(Handle graph) {
  std::vector<UserObject> objects;
  {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    objects.swap(s.graphs[graph]);
    s.graphs.erase(graph);
  }
  for (const UserObject& object : objects) object.destroy(object.pointer);
  return 0;
}

Driver make_table() {
  Driver d;
  d.version = 13000;
  d.get_error_name = [](int result, const char** out) { return *out = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE", 0; };
  d.get_error_string = [](int, const char** out) { return *out = "as asked by the test", 0; };
  d.device_get = [](int* device, int index) { return *device = index, 0; };
  d.device_get_count = [](int* count) { return *count = FakeDriver::kDevices, 0; };
  d.device_get_name = [](char* name, int size, int) { return std::strncpy(name, "a fake GPU", static_cast<size_t>(size)), 0; };
  d.device_get_attribute = attribute;
  d.primary_retain = [](Handle* context, int device) { return *context = context_of(device), 0; };
  d.primary_get_state = [](int, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; };
  d.ctx_get_current = [](Handle* context) { return *context = contexts.empty() ? nullptr : contexts.back(), 0; };
  d.ctx_get_device = [](int* device) { return contexts.empty() ? 201 : (*device = device_of_context(contexts.back()), 0); };
  d.ctx_push = [](Handle context) { return contexts.push_back(context), 0; };
  d.ctx_pop = [](Handle* context) { return *context = contexts.back(), contexts.pop_back(), 0; };
  d.library_load = [](Handle* library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
    return *library = state().handle(), 0;
  };
  d.library_get_kernel = [](Handle* kernel, Handle, const char*) { return *kernel = state().handle(), 0; };
  d.kernel_get_function = [](Handle* function, Handle kernel) { return *function = FakeDriver::function_of(kernel), 0; };
  d.kernel_get_attribute = [](int* value, int, Handle, int) { return *value = 0, 0; };
  d.kernel_set_attribute = [](int, int, Handle, int) { return 0; };
  d.func_load = [](Handle) { return 0; };
  d.launch = launch;
  d.mem_alloc = allocate;
  d.mem_free = release;
  d.mem_alloc_async = [](Address* address, size_t bytes, Handle) { return allocate(address, bytes); };
  d.mem_free_async = [](Address address, Handle) { return release(address); };
  d.copy_to_device = [](Address to, const void* from, size_t bytes, Handle) {
    return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
  };
  d.copy_to_host = [](void* to, Address from, size_t bytes, Handle) { return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0; };
  d.copy_on_device = [](Address to, Address from, size_t bytes, Handle) {
    return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), 0;
  };
  d.host_register = [](void*, size_t, unsigned) { return 0; };
  d.host_unregister = [](void*) { return 0; };
  d.set_bytes = [](Address to, unsigned char value, size_t bytes, Handle) {
    return std::memset(reinterpret_cast<void*>(to), value, bytes), 0;
  };
  d.stream_create = [](Handle* stream, unsigned) { return *stream = state().handle(), 0; };
  d.stream_destroy = [](Handle) { return 0; };
  d.stream_synchronize = [](Handle) { return 0; };
  d.stream_is_capturing = [](Handle stream, int* status) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return *status = s.captures.contains(stream) ? 1 : 0, 0;
  };
  d.stream_capture_info = [](Handle stream, int* status, uint64_t* id, Handle* graph, const Handle**, size_t*) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto at = s.captures.find(stream);
    *status = at != s.captures.end() ? 1 : 0;
    if (*status != 0) *id = at->second.first, *graph = at->second.second;
    return 0;
  };
  d.stream_begin_capture = [](Handle stream, int) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const Handle graph = s.handle();
    s.graphs[graph] = {};
    s.captures[stream] = {s.next++, graph};
    return 0;
  };
  d.stream_end_capture = end_capture;
  d.thread_exchange_capture_mode = [](int*) { return 0; };
  d.graph_destroy = destroy_graph;
  d.user_object_create = [](Handle* object, void* pointer, void (*destroy)(void*), unsigned, unsigned) {
    return *object = new UserObject{pointer, destroy}, 0;
  };
  d.graph_retain_user_object = [](Handle graph, Handle object, unsigned, unsigned) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.graphs[graph].push_back(*static_cast<UserObject*>(object));
    delete static_cast<UserObject*>(object);
    return 0;
  };
  d.tensor_map_encode = [](TensorMapBits*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                           int, int, int) { return 0; };
  return d;
}

}  // namespace

FakeDriver::FakeDriver() {
  static const Driver driver = make_table();
  state().launches.clear();
  launch_result = 0;
  recording = true;
  use_driver(&driver);
}
FakeDriver::~FakeDriver() { use_driver(nullptr); }

std::vector<FakeLaunch> FakeDriver::take_launches() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  std::vector<FakeLaunch> out;
  out.swap(s.launches);
  return out;
}
void FakeDriver::record_launches(bool on) { recording = on; }
void FakeDriver::fail_launches(int result) { launch_result = result; }
int64_t FakeDriver::bytes_allocated() const {
  int64_t bytes = 0;
  for (const auto& [address, size] : state().memory) bytes += static_cast<int64_t>(size);
  return bytes;
}
int64_t FakeDriver::blocks_allocated() const { return static_cast<int64_t>(state().memory.size()); }
int FakeDriver::contexts_of_thread() const { return static_cast<int>(contexts.size()); }

}  // namespace eitri::cuda
