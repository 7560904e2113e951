// The functions of the CUDA driver that Eitri calls, found in libcuda.so.1 when a GPU is first asked for. No header of the
// toolkit is needed to build and no part of it to run: the few types are those of the driver's ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace eitri::cuda {

using Handle = void*;      // CUcontext, CUstream, CUlibrary, CUkernel, CUevent, CUgraph, ...
using Address = uint64_t;  // CUdeviceptr

struct LaunchAttribute {  // CUlaunchAttribute
  int32_t id;
  int32_t pad;
  union {
    char bytes[64];
    struct {
      uint32_t x, y, z;
    } cluster;
    int32_t programmatic;
  };
};
inline constexpr int kClusterDimension = 4, kProgrammaticSerialization = 6;

struct LaunchConfig {  // CUlaunchConfig
  uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Handle stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

struct alignas(64) TensorMapBits {  // CUtensorMap
  uint64_t opaque[16];
};

/// Results are CUresult; 0 is success.
struct Driver {
  int version = 0;  // 12040: CUDA 12.4
  int (*get_error_name)(int, const char**) = nullptr;
  int (*get_error_string)(int, const char**) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*device_get_count)(int*) = nullptr;
  int (*device_get_name)(char*, int, int) = nullptr;
  int (*device_get_attribute)(int*, int, int) = nullptr;
  int (*device_total_mem)(size_t*, int) = nullptr;
  int (*primary_retain)(Handle*, int) = nullptr;
  int (*primary_get_state)(int, unsigned*, int*) = nullptr;
  int (*ctx_get_current)(Handle*) = nullptr;
  int (*ctx_get_device)(int*) = nullptr;
  int (*ctx_push)(Handle) = nullptr;
  int (*ctx_pop)(Handle*) = nullptr;
  int (*library_load)(Handle*, const void*, int*, void**, unsigned, int*, void**, unsigned) = nullptr;
  int (*library_get_kernel)(Handle*, Handle, const char*) = nullptr;
  int (*kernel_get_function)(Handle*, Handle) = nullptr;
  int (*kernel_get_attribute)(int*, int, Handle, int) = nullptr;
  int (*kernel_set_attribute)(int, int, Handle, int) = nullptr;
  int (*func_load)(Handle) = nullptr;  // null before CUDA 12.4
  int (*launch)(const LaunchConfig*, Handle, void**, void**) = nullptr;
  int (*mem_alloc)(Address*, size_t) = nullptr;
  int (*mem_free)(Address) = nullptr;
  int (*mem_alloc_async)(Address*, size_t, Handle) = nullptr;
  int (*mem_free_async)(Address, Handle) = nullptr;
  int (*copy_to_device)(Address, const void*, size_t, Handle) = nullptr;
  int (*copy_to_host)(void*, Address, size_t, Handle) = nullptr;
  int (*set_bytes)(Address, unsigned char, size_t, Handle) = nullptr;
  int (*stream_create)(Handle*, unsigned) = nullptr;
  int (*stream_destroy)(Handle) = nullptr;
  int (*stream_synchronize)(Handle) = nullptr;
  int (*stream_wait_event)(Handle, Handle, unsigned) = nullptr;
  int (*stream_is_capturing)(Handle, int*) = nullptr;
  int (*stream_capture_info)(Handle, int*, uint64_t*, Handle*, const Handle**, size_t*) = nullptr;
  int (*stream_begin_capture)(Handle, int) = nullptr;
  int (*stream_end_capture)(Handle, Handle*) = nullptr;
  int (*thread_exchange_capture_mode)(int*) = nullptr;
  int (*event_create)(Handle*, unsigned) = nullptr;
  int (*event_record)(Handle, Handle) = nullptr;
  int (*event_synchronize)(Handle) = nullptr;
  int (*event_elapsed)(float*, Handle, Handle) = nullptr;
  int (*event_destroy)(Handle) = nullptr;
  int (*graph_instantiate)(Handle*, Handle, unsigned long long) = nullptr;
  int (*graph_launch)(Handle, Handle) = nullptr;
  int (*graph_exec_destroy)(Handle) = nullptr;
  int (*graph_destroy)(Handle) = nullptr;
  int (*user_object_create)(Handle*, void*, void (*)(void*), unsigned, unsigned) = nullptr;
  int (*graph_retain_user_object)(Handle, Handle, unsigned, unsigned) = nullptr;
  int (*tensor_map_encode)(TensorMapBits*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                           int, int, int) = nullptr;
  int (*copy_on_device)(Address, Address, size_t, Handle) = nullptr;
  int (*host_register)(void*, size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
};

/// The driver, loaded on the first call; null where there is none, and `absence()` says why.
const Driver* driver();
const std::string& absence();
/// Tests and measurements only: this driver from now on; null brings the real one back. Devices are asked for anew.
void use_driver(const Driver* driver);

/// "CUDA_ERROR_INVALID_VALUE (invalid argument)".
std::string error_text(int result);

}  // namespace eitri::cuda
