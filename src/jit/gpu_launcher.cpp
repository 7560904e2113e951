#include "jit/gpu_launcher.h"

#include "backend/cuda/cuda.h"
#include "base/error.h"

namespace eitri::jit {

namespace {

const Device& launchable(DeviceId id) {
  if (id.kind != DeviceKind::cuda)
    fail(Code::unsupported, "user op: no backend launches kernels on AMD GPUs yet; expected tensors on an NVIDIA GPU");
  return device_for(id);
}

constexpr GpuLauncher kLauncher = {
    .target = [](DeviceId id) -> const Target& { return target_named(launchable(id).arch()); },
    .is_capturing =
        [](DeviceId id, Stream stream) {
          const cuda::ContextScope scope(launchable(id));
          return cuda::is_capturing(stream);
        },
    .load = [](DeviceId id, const Binary& binary, const char* entry) -> const void* {
      const Device& device = launchable(id);
      const cuda::ContextScope scope(device);
      return &cuda::load(binary.bytes, binary.key, entry, device);
    },
    .launch =
        [](DeviceId id, const void* kernel, int64_t blocks, int threads, Stream stream, const void* argument, size_t) {
          const cuda::ContextScope scope(launchable(id));
          cuda::launch(*static_cast<const cuda::Function*>(kernel), {.blocks = blocks, .threads = threads}, stream, argument);
        },
};

}  // namespace

const GpuLauncher& gpu_launcher() { return kLauncher; }

}  // namespace eitri::jit
