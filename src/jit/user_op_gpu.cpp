// A user op on a GPU: its kernel, compiled once per architecture and loaded once per device, and the geometry of a call.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "jit/embedded.h"
#include "jit/user_op.h"

namespace eitri::jit {

CompileRequest UserOp::gpu_request(const Target& target) const {
  require(source_.gpu.given(), declaration_.name, ": there is no source for GPUs; expected gpu.body or gpu.entry");
  CompileRequest request = {.label = declaration_.name, .flags = source_.gpu.flags, .target = &target};
  request.source = {.name = declaration_.name + ".cu", .text = generated_gpu_source(), .headers = embedded_sources()};
  request.source.headers.add(source_.gpu.headers);
  return request;
}

const void* UserOp::kernel_on(DeviceId device, Stream stream) const {
  const auto find = [&]() -> const void* {
    for (const Loaded* at = loaded_.load(std::memory_order_acquire); at != nullptr; at = at->next)
      if (at->device == device) return at->kernel;
    return nullptr;
  };
  if (const void* kernel = find()) return kernel;
  const std::lock_guard lock(mutex_);
  if (const void* kernel = find()) return kernel;
  if (launcher_.is_capturing(device, stream))
    fail(Code::unsupported, str(declaration_.name, ": its kernel is not loaded yet, and the stream captures a graph; call it once before"));
  const auto binary = (cache_ != nullptr ? *cache_ : default_cache()).get(gpu_request(launcher_.target(device)));
  const void* const kernel = launcher_.load(device, *binary, user_op_gpu_entry(source_.gpu).c_str());
  loaded_.store(new Loaded{device, kernel, loaded_.load()}, std::memory_order_release);
  return kernel;
}

void UserOp::call_on_gpu(DeviceId device, Stream stream, const Argument* arguments, const int64_t* extents) const {
  // As UserArguments in device/user_op.h, whose size depends on the number of arguments.
  struct {
    int64_t elements = 0, blocks = 0;
    int64_t extent[kMaxUserExtents] = {};
    Argument argument[kMaxUserArguments];
  } packed;
  const Declaration& d = declaration_;
  const size_t count = d.parameters.size();
  std::copy_n(extents, d.extents.size(), packed.extent);
  std::copy_n(arguments, count, packed.argument);
  const auto output = std::find_if(d.parameters.begin(), d.parameters.end(), [](const UserParameter& p) { return p.use != UserUse::in; });
  const Argument& first = arguments[output - d.parameters.begin()];
  packed.elements = 1;
  for (size_t i = 0; i < output->shape.size(); ++i) packed.elements *= first.shape[i];

  const int threads = source_.gpu.threads;
  constexpr int64_t kLoopsBeyond = 1 << 20;  // a body per element goes over the rest in a loop
  const int64_t blocks =
      blocks_ ? blocks_->value({extents, d.extents.size()}) : std::min((packed.elements + threads - 1) / threads, kLoopsBeyond);
  require(blocks >= 0 && blocks <= INT32_MAX, d.name, ": gpu.blocks is ", blocks, " (\"", source_.gpu.blocks,
          "\"); expected 0 to 2^31 - 1");
  if (blocks == 0) return;
  packed.blocks = blocks;
  launcher_.launch(device, kernel_on(device, stream), blocks, threads, stream, &packed,
                   sizeof packed - (kMaxUserArguments - count) * sizeof(Argument));
}

}  // namespace eitri::jit
