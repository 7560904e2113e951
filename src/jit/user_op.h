// An operator of the user's own: declared in one line, written as the body of a C++ function or of a GPU kernel, compiled on the
// first call and checked on every one.
//
//   UserOp scale("scale(x: f32[n], y: out f32[n], alpha: f32)",
//                {.body = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);"});
//   scale(x, y, 0.5f);
//
// In the body every extent name is an int64_t, every scalar a constant of its type, and every tensor an object with
// x(i, j), x.data, x.shape[d], x.stride(d) and x.size(). Tensors are contiguous (x[i] runs over all elements) unless declared
// `strided`. bf16 and f16 elements convert to and from float. The body runs on the calling thread.
//
// Tensors on a GPU are served by UserSource::gpu, a kernel for all GPUs (see UserGpuSource): op.on(stream, x, y, 0.5f).
// Users have it as eitri::UserOp (eitri/jit.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eitri/jit.hpp"
#include "jit/cache.h"
#include "jit/declaration.h"
#include "jit/extent_expression.h"
#include "jit/gpu_launcher.h"
#include "jit/user_op_source.h"

namespace eitri::jit {

struct UserSource {
  std::string body = {};
  std::string before = {};              // in front of the function: includes, types, functions
  std::vector<std::string> flags = {};  // "-fopenmp", "-ffast-math", …
  HeaderSet headers = {};               // what `before` may include by "name"
  UserGpuSource gpu = {};
};

class UserOp {
 public:
  /// Reads the declaration; nothing is compiled yet. `cache` null: default_cache(). Throws Error{invalid_argument}.
  UserOp(std::string_view declaration, UserSource source, Cache* cache = nullptr, const GpuLauncher& launcher = gpu_launcher());
  ~UserOp();
  UserOp(const UserOp&) = delete;
  UserOp& operator=(const UserOp&) = delete;

  /// Checks the arguments, compiles on the first call, and runs. Any thread. What the body throws passes through.
  template <class... Args> void operator()(const Args&... args) const { on(nullptr, args...); }
  /// The same in a stream of the tensors' GPU; it returns before the kernel has run. The first call on a device compiles and
  /// loads, and is refused while the stream captures a graph.
  template <class... Args> void on(Stream stream, const Args&... args) const {
    if constexpr (sizeof...(Args) == 0) {
      call({}, stream);
    } else {
      const UserValue values[] = {UserValue(args)...};
      call(values, stream);
    }
  }
  void call(std::span<const UserValue> args, Stream stream = nullptr) const;
  /// The checks of call() alone; no memory is read, nothing is compiled.
  void check(std::span<const UserValue> args) const;

  /// Compiles and loads for the CPU now. Throws Error{compile_failed} with the compiler's message, whose lines count from the start of the
  /// body ("<name>") or of the text before it ("<name> before").
  void compile() const;
  const Declaration& declaration() const { return declaration_; }
  /// The whole text that is compiled, for the CPU and for GPUs.
  std::string generated_source() const;
  std::string generated_gpu_source() const { return user_op_gpu_text(declaration_, source_.gpu); }
  /// To compile the GPU kernel ahead (jit::prebuild). Throws Error{invalid_argument} without a GPU source.
  CompileRequest gpu_request(const Target& target) const;

 private:
  /// What the generated function gets per argument; the same struct is in its prelude.
  struct Argument {
    void* data;
    int64_t shape[kMaxRank];
    int64_t stride[kMaxRank];
    double real;
    int64_t integer;
  };
  using Entry = void (*)(const Argument*, const int64_t* extents);

  /// A kernel on one device, in a list that only grows.
  struct Loaded {
    DeviceId device;
    const void* kernel;
    const Loaded* next;
  };

  /// Where the tensors are.
  DeviceId check(std::span<const UserValue> args, Argument* out, int64_t* extents) const;
  void check_scalar(const UserParameter& p, const UserValue& value, Argument& out) const;
  void check_tensor(const UserParameter& p, const UserValue& value, DeviceId where, Argument& out) const;
  void bind_extents(std::span<const UserValue> args, int64_t* extents) const;
  Entry load() const;
  void call_on_gpu(DeviceId device, Stream stream, const Argument* arguments, const int64_t* extents) const;
  const void* kernel_on(DeviceId device, Stream stream) const;

  const Declaration declaration_;
  const UserSource source_;
  Cache* const cache_;
  const GpuLauncher& launcher_;
  std::optional<ExtentExpression> blocks_;  // empty: by elements
  mutable std::mutex mutex_;
  mutable std::atomic<Entry> entry_ = nullptr;
  mutable std::atomic<const Loaded*> loaded_ = nullptr;
};

}  // namespace eitri::jit
