#include "backend/cuda/cuda.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/error.h"

namespace eitri::cuda {

namespace {

// CUdevice_attribute
enum Attribute : int {
  kWarpSize = 10,
  kMultiprocessors = 16,
  kMemoryClock = 36,
  kBusWidth = 37,
  kL2Bytes = 38,
  kMajor = 75,
  kMinor = 76,
  kSharedPerMultiprocessor = 81,
  kSharedPerBlock = 97,
};
// CUfunction_attribute
enum FunctionAttribute : int {
  kMaxThreads = 0,
  kStaticShared = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kMaxDynamicShared = 8,
  kNonPortableCluster = 14
};

struct Devices {
  std::vector<Device> list;
  std::unique_ptr<std::atomic<Handle>[]> primary_storage;
  std::span<std::atomic<Handle>> primary;  // contexts, retained for the life of the process on first use
  std::unique_ptr<std::once_flag[]> retained;
};

Device describe(const Driver& d, int index) {
  Device out;
  out.id = {DeviceKind::cuda, index};
  int handle = 0;
  require_ok(d.device_get(&handle, index), "device");
  char name[128] = "";
  require_ok(d.device_get_name(name, sizeof name, handle), "device name");
  out.name = name;
  const auto get = [&](Attribute attribute) {
    int value = 0;
    require_ok(d.device_get_attribute(&value, attribute, handle), "device attribute");
    return value;
  };
  const int major = get(kMajor), minor = get(kMinor);
  // Hopper's matrix instructions need the arch-specific target; other machines have no rows of their own yet.
  out.gpu_arch = str("sm_", major, minor, major == 9 && minor == 0 ? "a" : "");
  out.warp_size = get(kWarpSize);
  out.units = get(kMultiprocessors);
  out.l2_bytes = get(kL2Bytes);
  out.shared_bytes = get(kSharedPerBlock);
  out.profile = nominal_profile(out);
  const double bytes_per_s = 2e3 * get(kMemoryClock) * get(kBusWidth) / 8;
  if (bytes_per_s > 0) out.profile.read_bytes = 0.97 * bytes_per_s;  // what a kernel that only reads reaches
  return out;
}

/// The devices of the driver in use.
Devices& devices() {
  static std::mutex mutex;
  static std::map<const Driver*, std::unique_ptr<Devices>> by_driver;
  // Every call asks; what a thread has found once it need not look for again.
  static thread_local constinit const Driver* known = nullptr;
  static thread_local constinit Devices* known_devices = nullptr;
  const Driver* const d = driver();
  if (known_devices != nullptr && known == d) return *known_devices;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Devices>& found = by_driver[d];
  if (found == nullptr) {
    auto made = std::make_unique<Devices>();
    int count = 0;
    if (d != nullptr) require_ok(d->device_get_count(&count), "device count");
    for (int i = 0; i < count; ++i) made->list.push_back(describe(*d, i));
    made->primary_storage = std::make_unique<std::atomic<Handle>[]>(static_cast<size_t>(count));
    made->primary = {made->primary_storage.get(), static_cast<size_t>(count)};
    made->retained = std::make_unique<std::once_flag[]>(static_cast<size_t>(count));
    found = std::move(made);
  }
  known = d;
  known_devices = found.get();
  return *found;
}

/// The device's primary context if this process has retained it, else null.
Handle retained_context(int index) {
  const auto& primary = devices().primary;
  const auto i = static_cast<size_t>(index);
  return i < primary.size() ? primary[i].load(std::memory_order_acquire) : nullptr;
}
Handle primary_context(int index) {
  Devices& all = devices();
  const auto i = static_cast<size_t>(index);
  std::call_once(all.retained[i], [&] {
    int handle = 0;
    require_ok(driver()->device_get(&handle, index), "device");
    Handle context = nullptr;
    require_ok(driver()->primary_retain(&context, handle), "primary context");
    all.primary[i].store(context, std::memory_order_release);
  });
  return all.primary[i].load(std::memory_order_relaxed);
}

/// Whether the current context, which is of the device, is its primary one. That is retained only if somebody uses it already.
bool is_primary(Handle context, int index) {
  static thread_local constinit Handle foreign = nullptr;  // asked before
  if (context == foreign) return false;
  int handle = 0, active = 0;
  unsigned flags = 0;
  require_ok(driver()->device_get(&handle, index), "device");
  require_ok(driver()->primary_get_state(handle, &flags, &active), "state of the primary context");
  if (active != 0 && context == primary_context(index)) return true;
  foreign = context;
  return false;
}

/// Of the innermost ContextScope.
struct Current {
  int device = -1;
  bool primary = false;  // its context is the device's primary one
};
thread_local constinit Current current;

std::atomic<bool> dependent_allowed = true;

/// The streams that this thread has launched on last; a launch there may overlap the one before.
struct LastLaunch {
  static constexpr size_t kSlots = 16;
  int device[kSlots] = {};  // plus 1; 0: none
  Stream stream[kSlots] = {};
  bool follows(int index, Stream s) {
    const size_t i = (reinterpret_cast<uintptr_t>(s) >> 4 ^ reinterpret_cast<uintptr_t>(s) >> 12) % kSlots;
    const bool same = device[i] == index + 1 && stream[i] == s;
    device[i] = index + 1;
    stream[i] = s;
    return same;
  }
};
thread_local constinit LastLaunch last_launch;

struct Libraries {
  std::mutex mutex;
  std::map<std::string, Handle, std::less<>> libraries;                     // by the binary's key
  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions;  // by key and entry
};
Libraries& libraries() {
  static Libraries all;
  return all;
}

}  // namespace

void require_ok(int result, const char* what) {
  if (result != 0) [[unlikely]]
    fail(result == 2 ? Code::out_of_memory : Code::device_error, str("cuda: ", what, ": ", error_text(result)));
}

int device_count() { return static_cast<int>(devices().list.size()); }

const Device& device(int index) {
  const auto& list = devices().list;
  if (index < 0 || index >= static_cast<int>(list.size())) {
    if (driver() == nullptr) fail(Code::device_error, str("cuda: no device ", index, ": ", absence()));
    fail(Code::device_error, str("cuda: no device ", index, "; there are ", list.size()));
  }
  return list[static_cast<size_t>(index)];
}

ContextScope::ContextScope(const Device& device) : before_(current.device), primary_before_(current.primary) {
  // Asked for every time: the caller may have changed it.
  const Driver& d = *driver();
  const int index = device.id.index;
  Handle context = nullptr;
  require_ok(d.ctx_get_current(&context), "current context");
  bool primary = context != nullptr && context == retained_context(index);
  if (!primary) {
    int of = -1;
    if (context != nullptr) require_ok(d.ctx_get_device(&of), "device of the current context");
    if (of == index) {
      primary = is_primary(context, index);
    } else {
      require_ok(d.ctx_push(primary_context(index)), "make the device's context current");
      pushed_ = primary = true;
    }
  }
  current = {index, primary};
}
ContextScope::~ContextScope() {
  Handle popped = nullptr;
  if (pushed_) driver()->ctx_pop(&popped);
  current = {before_, primary_before_};
}

const Function& load(std::string_view binary, std::string_view key, const char* entry, const Device& device) {
  const ContextScope scope(device);
  const Driver& d = *driver();
  Libraries& all = libraries();
  std::lock_guard lock(all.mutex);
  const std::string id = str(reinterpret_cast<uintptr_t>(&d), ":", key);  // tests use several drivers
  auto library = all.libraries.find(id);
  if (library == all.libraries.end()) {
    Handle handle = nullptr;
    require_ok(d.library_load(&handle, binary.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "load a kernel binary");
    library = all.libraries.emplace(id, handle).first;
  }
  const std::string name = str(id, ":", entry);
  auto& slot = all.functions[name];
  if (slot == nullptr) {
    auto made = std::make_unique<Function>();
    made->name = entry;
    require_ok(d.library_get_kernel(&made->kernel, library->second, entry), entry);
    slot = std::move(made);
  }
  // Code is copied to a device on its first use there; that must not be the first launch, which may be under capture.
  Handle function = nullptr;
  require_ok(d.kernel_get_function(&function, slot->kernel), entry);
  if (d.func_load != nullptr) require_ok(d.func_load(function), entry);
  if (current.primary && device.id.index < Function::kDevices) slot->in_primary[device.id.index].store(function, std::memory_order_relaxed);
  int handle = 0;
  require_ok(d.device_get(&handle, device.id.index), "device");
  const auto get = [&](FunctionAttribute attribute) {
    int value = 0;
    require_ok(d.kernel_get_attribute(&value, attribute, slot->kernel, handle), entry);
    return value;
  };
  slot->registers = get(kRegisters);
  slot->local_bytes = get(kLocalBytes);
  slot->shared_bytes = get(kStaticShared);
  slot->max_threads = get(kMaxThreads);
  require_ok(d.kernel_set_attribute(kMaxDynamicShared, device.shared_bytes - slot->shared_bytes, slot->kernel, handle), entry);
  return *slot;
}

void launch(const Function& function, const Geometry& g, Stream stream, const void* argument) {
  if (g.blocks <= 0) return;
  LaunchAttribute attributes[2] = {};
  uint32_t count = 0;
  if (g.cluster > 1) {
    attributes[count].id = kClusterDimension;
    attributes[count++].cluster = {static_cast<uint32_t>(g.cluster), 1, 1};
  }
  if (last_launch.follows(current.device, stream) && dependent_allowed.load(std::memory_order_relaxed)) {
    attributes[count].id = kProgrammaticSerialization;
    attributes[count++].programmatic = 1;
  }
  const LaunchConfig config = {.grid_x = static_cast<uint32_t>(g.blocks),
                               .grid_y = 1,
                               .grid_z = 1,
                               .block_x = static_cast<uint32_t>(g.threads),
                               .block_y = 1,
                               .block_z = 1,
                               .shared_bytes = static_cast<uint32_t>(g.shared_bytes),
                               .stream = stream,
                               .attributes = attributes,
                               .attribute_count = count};
  void* arguments[1] = {const_cast<void*>(argument)};
  // The function of a context is 70 ns cheaper to launch than the kernel, which the driver has to look up.
  Handle code = function.kernel;
  if (current.primary && current.device < Function::kDevices)
    if (const Handle known = function.in_primary[current.device].load(std::memory_order_relaxed); known != nullptr) code = known;
  int result = driver()->launch(&config, code, arguments, nullptr);
  // The stream of another context of the device, or a device that was reset: the kernel serves there still.
  if (result != 0 && code != function.kernel) [[unlikely]]
    result = driver()->launch(&config, function.kernel, arguments, nullptr);
  if (result != 0) [[unlikely]]
    fail(Code::device_error, str("cuda: launch of ", function.name, " with ", g.blocks, " blocks of ", g.threads, " threads, ",
                                 g.shared_bytes, " bytes of shared memory, clusters of ", g.cluster, ": ", error_text(result)));
}

namespace {
const Driver& driver_without_launches() {
  static const Driver table = [] {
    Driver made = *driver();
    made.launch = [](const LaunchConfig*, Handle, void**, void**) { return 0; };
    return made;
  }();
  return table;
}
}  // namespace
WithoutLaunches::WithoutLaunches() {
  require(driver() != nullptr, "cuda: there is no driver: ", absence());
  use_driver(&driver_without_launches());
}
WithoutLaunches::~WithoutLaunches() { use_driver(nullptr); }

void allow_dependent_launches(bool on) { dependent_allowed.store(on, std::memory_order_relaxed); }

bool is_capturing(Stream stream) {
  if (driver() == nullptr) return false;
  int status = 0;
  // The legacy stream cannot be asked while another stream captures; that it cannot is the answer.
  return driver()->stream_is_capturing(stream, &status) != 0 || status != 0;
}
void synchronize(Stream stream) { require_ok(driver()->stream_synchronize(stream), "wait for the stream"); }
void copy_to_device(void* device, const void* host, size_t bytes, Stream stream) {
  if (bytes > 0) require_ok(driver()->copy_to_device(reinterpret_cast<Address>(device), host, bytes, stream), "copy to the device");
}
void copy_to_host(void* host, const void* device, size_t bytes, Stream stream) {
  if (bytes > 0) require_ok(driver()->copy_to_host(host, reinterpret_cast<Address>(device), bytes, stream), "copy to the host");
}
void copy_on_device(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0)
    require_ok(driver()->copy_on_device(reinterpret_cast<Address>(to), reinterpret_cast<Address>(from), bytes, stream),
               "copy on the device");
}

}  // namespace eitri::cuda
