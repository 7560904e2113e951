#include "backend/cuda/driver.h"

#include <dlfcn.h>

#include <atomic>

#include "base/str.h"

namespace eitri::cuda {

namespace {

struct Loaded {
  Driver driver;
  bool ok = false;
  std::string why;
};

constexpr int kOldestDriver = 12000;  // cuLibraryLoadData, cuLaunchKernelEx

template <class F> void find(void* library, F*& function, const char* name, std::string& missing) {
  function = reinterpret_cast<F*>(::dlsym(library, name));
  if (function == nullptr) missing += str(missing.empty() ? "" : ", ", name);
}

void find_all(void* library, Driver& d, std::string& missing) {
  find(library, d.get_error_name, "cuGetErrorName", missing);
  find(library, d.get_error_string, "cuGetErrorString", missing);
  find(library, d.device_get, "cuDeviceGet", missing);
  find(library, d.device_get_count, "cuDeviceGetCount", missing);
  find(library, d.device_get_name, "cuDeviceGetName", missing);
  find(library, d.device_get_attribute, "cuDeviceGetAttribute", missing);
  find(library, d.device_total_mem, "cuDeviceTotalMem_v2", missing);
  find(library, d.primary_retain, "cuDevicePrimaryCtxRetain", missing);
  find(library, d.primary_get_state, "cuDevicePrimaryCtxGetState", missing);
  find(library, d.ctx_get_current, "cuCtxGetCurrent", missing);
  find(library, d.ctx_get_device, "cuCtxGetDevice", missing);
  find(library, d.ctx_push, "cuCtxPushCurrent_v2", missing);
  find(library, d.ctx_pop, "cuCtxPopCurrent_v2", missing);
  find(library, d.library_load, "cuLibraryLoadData", missing);
  find(library, d.library_get_kernel, "cuLibraryGetKernel", missing);
  find(library, d.kernel_get_function, "cuKernelGetFunction", missing);
  find(library, d.kernel_get_attribute, "cuKernelGetAttribute", missing);
  find(library, d.kernel_set_attribute, "cuKernelSetAttribute", missing);
  find(library, d.launch, "cuLaunchKernelEx", missing);
  find(library, d.mem_alloc, "cuMemAlloc_v2", missing);
  find(library, d.mem_free, "cuMemFree_v2", missing);
  find(library, d.mem_alloc_async, "cuMemAllocAsync", missing);
  find(library, d.mem_free_async, "cuMemFreeAsync", missing);
  find(library, d.copy_to_device, "cuMemcpyHtoDAsync_v2", missing);
  find(library, d.copy_to_host, "cuMemcpyDtoHAsync_v2", missing);
  find(library, d.copy_on_device, "cuMemcpyDtoDAsync_v2", missing);
  find(library, d.host_register, "cuMemHostRegister_v2", missing);
  find(library, d.host_unregister, "cuMemHostUnregister", missing);
  find(library, d.set_bytes, "cuMemsetD8Async", missing);
  find(library, d.stream_create, "cuStreamCreate", missing);
  find(library, d.stream_destroy, "cuStreamDestroy_v2", missing);
  find(library, d.stream_synchronize, "cuStreamSynchronize", missing);
  find(library, d.stream_wait_event, "cuStreamWaitEvent", missing);
  find(library, d.stream_is_capturing, "cuStreamIsCapturing", missing);
  find(library, d.stream_capture_info, "cuStreamGetCaptureInfo_v2", missing);
  find(library, d.stream_begin_capture, "cuStreamBeginCapture_v2", missing);
  find(library, d.stream_end_capture, "cuStreamEndCapture", missing);
  find(library, d.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", missing);
  find(library, d.event_create, "cuEventCreate", missing);
  find(library, d.event_record, "cuEventRecord", missing);
  find(library, d.event_synchronize, "cuEventSynchronize", missing);
  find(library, d.event_elapsed, "cuEventElapsedTime", missing);
  find(library, d.event_destroy, "cuEventDestroy_v2", missing);
  find(library, d.graph_instantiate, "cuGraphInstantiateWithFlags", missing);
  find(library, d.graph_launch, "cuGraphLaunch", missing);
  find(library, d.graph_exec_destroy, "cuGraphExecDestroy", missing);
  find(library, d.graph_destroy, "cuGraphDestroy", missing);
  find(library, d.user_object_create, "cuUserObjectCreate", missing);
  find(library, d.graph_retain_user_object, "cuGraphRetainUserObject", missing);
  find(library, d.tensor_map_encode, "cuTensorMapEncodeTiled", missing);
  std::string ignored;
  find(library, d.func_load, "cuFuncLoad", ignored);
}

Loaded load() {
  Loaded out;
  // Never closed: other libraries of the process use the same driver.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    out.why = "libcuda.so.1 cannot be loaded: there is no NVIDIA driver";
    return out;
  }
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  std::string missing;
  find(library, init, "cuInit", missing);
  find(library, version, "cuDriverGetVersion", missing);
  if (!missing.empty()) {
    out.why = str("libcuda.so.1 lacks ", missing);
    return out;
  }
  version(&out.driver.version);
  if (out.driver.version < kOldestDriver) {
    out.why =
        str("the NVIDIA driver is for CUDA ", out.driver.version / 1000, ".", out.driver.version % 1000 / 10, "; expected 12.0 or newer");
    return out;
  }
  find_all(library, out.driver, missing);
  if (!missing.empty()) {
    out.why = str("libcuda.so.1 lacks ", missing);
    return out;
  }
  if (const int result = init(0); result != 0) {
    const char* name = nullptr;
    out.driver.get_error_name(result, &name);
    out.why = str("the NVIDIA driver does not start: ", name == nullptr ? "unknown error" : name);
    return out;
  }
  out.ok = true;
  return out;
}

const Loaded& loaded() {
  static const Loaded state = load();
  return state;
}

std::atomic<const Driver*> instead = nullptr;

}  // namespace

const Driver* driver() {
  if (const Driver* const other = instead.load(std::memory_order_acquire); other != nullptr) [[unlikely]]
    return other;
  return loaded().ok ? &loaded().driver : nullptr;
}
const std::string& absence() { return loaded().why; }
void use_driver(const Driver* driver) { instead.store(driver, std::memory_order_release); }

std::string error_text(int result) {
  const char *name = nullptr, *text = nullptr;
  if (const Driver* d = driver(); d != nullptr) {
    d->get_error_name(result, &name);
    d->get_error_string(result, &text);
  }
  return str(name == nullptr ? str("CUDA error ", result) : std::string(name), " (", text == nullptr ? "no text" : text, ")");
}

}  // namespace eitri::cuda
