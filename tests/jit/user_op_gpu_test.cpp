// User ops on a stand-in for a GPU: what is compiled for the host with lanes emulated one after another, so that the generated
// kernels run here. tests/compile compiles them for GPUs.
#include <dlfcn.h>

#include <gmock/gmock.h>

#include <list>
#include <numeric>

#include "base/numeric.h"
#include "jit/temporary_folder.h"
#include "jit/user_op.h"

namespace eitri::jit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The emulation's functions for one lane at a time: enough for kernels without barriers. The kernel becomes a plain function.
constexpr const char* kLanes = R"(#pragma once
struct Place { int thread; long block; int block_size; long grid; };
extern "C" __attribute__((visibility("default"))) Place eitri_place;
Place eitri_place;
namespace eitri::simt_emulation {
int thread() { return eitri_place.thread; }
int64_t block() { return eitri_place.block; }
int block_size() { return eitri_place.block_size; }
int64_t grid_size() { return eitri_place.grid; }
}
#undef EITRI_KERNEL
#define EITRI_KERNEL(threads) extern "C" __attribute__((visibility("default"))) void
)";
struct Place {
  int thread;
  long block;
  int block_size;
  long grid;
};

/// As the generated kernels take them: UserArguments of device/user_op.h.
template <int kArguments> struct Arguments { int64_t words[18 + 11 * kArguments]; };

struct Kernel {
  void* function;
  Place* place;
};
struct Launched {
  DeviceId device;
  int64_t blocks;
  int threads;
  Stream stream;
  size_t bytes;
};
std::vector<Launched> launched;
int loads = 0;
bool capturing = false;

template <int kArguments> void run(const Kernel& kernel, int64_t blocks, int threads, const void* argument) {
  Arguments<kArguments> copy;
  memcpy(&copy, argument, sizeof copy);
  const auto function = reinterpret_cast<void (*)(Arguments<kArguments>)>(kernel.function);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int t = 0; t < threads; ++t) {
      *kernel.place = {t, b, threads, blocks};
      function(copy);
    }
  }
}

const GpuLauncher kEmulation = {
    .target = [](DeviceId) -> const Target& { return host_target(); },
    .is_capturing = [](DeviceId, Stream) { return capturing; },
    .load = [](DeviceId, const Binary& binary, const char* entry) -> const void* {
      ++loads;
      void* const library = ::dlopen(binary.path.c_str(), RTLD_NOW | RTLD_LOCAL);
      EXPECT_NE(library, nullptr) << ::dlerror();
      // As real ones, they are never unloaded.
      static auto& kernels = *new std::list<Kernel>;
      kernels.push_back({::dlsym(library, entry), static_cast<Place*>(::dlsym(library, "eitri_place"))});
      auto* const kernel = &kernels.back();
      EXPECT_NE(kernel->function, nullptr);
      return kernel;
    },
    .launch =
        [](DeviceId device, const void* kernel, int64_t blocks, int threads, Stream stream, const void* argument, size_t bytes) {
          launched.push_back({device, blocks, threads, stream, bytes});
          const auto& k = *static_cast<const Kernel*>(kernel);
          if (bytes == sizeof(Arguments<2>)) run<2>(k, blocks, threads, argument);
          else if (bytes == sizeof(Arguments<3>)) run<3>(k, blocks, threads, argument);
          else ADD_FAILURE() << "no argument of " << bytes << " bytes is known here";
        },
};

class UserOpsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const FoundCompiler found = find_host_cxx();
    if (!found.compiler) GTEST_SKIP() << found.reason;
    launched.clear();
    loads = 0;
    capturing = false;
  }
  UserGpuSource gpu(UserGpuSource source) const {
    source.before = "#include \"lanes.h\"\n" + source.before;
    source.headers.add("lanes.h", kLanes);
    return source;
  }
  static View on_gpu(View view, int index = 0) {
    view.device = {DeviceKind::cuda, index};
    return view;
  }
  const TemporaryFolder folder;
  Cache cache{{.root = folder / "cache/jit", .lock_folder = ""}};
};

TEST_F(UserOpsOnGpu, OncePerElement) {
  const UserOp scale("scale(x: f32[n, k], y: out f32[n, k], alpha: f32)",
                     {.gpu = gpu({.body = "if (element % k == 1) return;\ny[element] = alpha * x[element];", .threads = 64})}, &cache,
                     kEmulation);
  std::vector<float> x(150), y(150, -1.0f);
  std::iota(x.begin(), x.end(), 1.0f);
  int stream = 0;
  scale.on(&stream, on_gpu(View(x.data(), DType::f32, {50, 3})), on_gpu(View(y.data(), DType::f32, {50, 3})), 0.5f);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], i % 3 == 1 ? -1.0f : 0.5f * x[i]) << i;
  ASSERT_EQ(launched.size(), 1u);
  EXPECT_EQ(launched[0].blocks, 3);
  EXPECT_EQ(launched[0].threads, 64);
  EXPECT_EQ(launched[0].stream, &stream);
  // Another size, another device: compiled once, loaded once per device.
  scale(on_gpu(View(x.data(), DType::f32, {1, 3}), 1), on_gpu(View(y.data(), DType::f32, {1, 3}), 1), 2);
  scale(on_gpu(View(x.data(), DType::f32, {1, 3}), 1), on_gpu(View(y.data(), DType::f32, {1, 3}), 1), 3);
  EXPECT_EQ(y[0], 3.0f);
  EXPECT_EQ(loads, 2);
  EXPECT_EQ(launched[1].device.index, 1);
  EXPECT_EQ(launched[1].blocks, 1);
  EXPECT_EQ(cache.counters().compiled, 1u);
  // Nothing to do is nothing launched.
  scale(on_gpu(View(x.data(), DType::f32, {0, 3})), on_gpu(View(y.data(), DType::f32, {0, 3})), 2);
  EXPECT_EQ(launched.size(), 3u);
}

TEST_F(UserOpsOnGpu, ABlockPerRowOfStridedTensors) {
  const UserOp op("gather(x: strided bf16[n, k], row: i32[m], y: out strided f16[m, k])",
                  {.gpu = gpu({.body = "const int64_t from = row(block());\n"
                                       "for (int64_t j = thread(); j < k; j += block_size()) y(block(), j) = twice(x(from, j));",
                               .before = "EITRI_INLINE float twice(float v) { return fma(v, 1.0f, v); }",
                               .threads = 128,
                               .blocks = "m"})},
                  &cache, kEmulation);
  constexpr int64_t kCols = 200;
  std::vector<uint16_t> x(4 * kCols), y(3 * 210, 0xffff);
  for (size_t i = 0; i < x.size(); ++i) x[i] = encode_bf16(static_cast<float>(i % 250));
  const std::vector<int32_t> rows = {3, 0, 3};
  View out(y.data(), DType::f16, {3, kCols});
  out.stride[0] = 210;
  op(on_gpu(View(x.data(), DType::bf16, {4, kCols})), on_gpu(View(rows.data(), DType::i32, {3})), on_gpu(out));
  EXPECT_EQ(launched.at(0).blocks, 3);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 210; ++j) {
      const uint16_t got = y[static_cast<size_t>(i * 210 + j)];
      const auto from = static_cast<size_t>(rows[static_cast<size_t>(i)] * kCols + j);
      EXPECT_EQ(got, j < kCols ? encode_f16(2 * decode_bf16(x[from])) : 0xffff) << i << ", " << j;
    }
  }
}

TEST_F(UserOpsOnGpu, AKernelInFull) {
  const UserOp op("add(x: i32[n], y: inout i32[n], by: i64)",
                  {.gpu = gpu({.entry = "add_all",
                               .before = "EITRI_KERNEL(64) add_all(const eitri_arguments arguments) {\n"
                                         "  launch_dependents();\n  wait_for_dependencies();\n"
                                         "  const eitri_call c(arguments);\n"
                                         "  const int64_t i = block() * block_size() + thread();\n"
                                         "  if (i < c.n) c.y(i) += c.x(i) + int32_t(c.by);\n}",
                               .threads = 64,
                               .blocks = "(n + 63) / 64"})},
                  &cache, kEmulation);
  std::vector<int32_t> x(100, 5), y(100, 1);
  op(on_gpu(View(x.data(), DType::i32, {100})), on_gpu(View(y.data(), DType::i32, {100})), int64_t{-7});
  EXPECT_THAT(y, testing::Each(-1));
  EXPECT_EQ(launched.at(0).blocks, 2);
}

TEST_F(UserOpsOnGpu, ArgumentsAreChecked) {
  const UserOp both("f(x: f32[n], y: out f32[n])",
                    {.body = "for (int64_t i = 0; i < n; ++i) y(i) = x(i);", .gpu = gpu({.body = "y[element] = x[element];"})}, &cache,
                    kEmulation);
  const UserOp gpu_only("f(x: f32[n], y: out f32[n])", {.gpu = gpu({.body = "y[element] = x[element];"})}, &cache, kEmulation);
  float a[4] = {1, 2, 3, 4}, b[4] = {};
  const View x(a, DType::f32, {4}), y(b, DType::f32, {4});
  both(x, y);
  EXPECT_THAT(b, ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(launched.empty());
  EXPECT_EQ(error_of([&] { both(on_gpu(x), y); }), "f: y is on another device than that; expected f32[n] where the first tensor is");
  EXPECT_NE(error_of([&] { both(on_gpu(x, 0), on_gpu(y, 1)); }), "");
  EXPECT_THAT(error_of([&] { gpu_only(x, y); }), HasSubstr("f: x is in host memory; expected f32[n] on a GPU"));
  EXPECT_THAT(error_of([&] { gpu_only(on_gpu(View(a, DType::i32, {4})), on_gpu(y)); }), HasSubstr("x is i32[4]"));
  EXPECT_THAT(error_of([&] { gpu_only(on_gpu(x), on_gpu(View(b, DType::f32, {3}))); }), HasSubstr("with n = "));
  EXPECT_THAT(error_of([&] { gpu_only(on_gpu(x), on_gpu(x)); }), HasSubstr("overlaps"));
  int stream = 0;
  EXPECT_THAT(error_of([&] { both.on(&stream, x, y); }), HasSubstr("a stream is given"));
  EXPECT_TRUE(launched.empty());
  capturing = true;
  EXPECT_THAT(error_of([&] { gpu_only(on_gpu(x), on_gpu(y)); }), HasSubstr("the stream captures a graph"));
  capturing = false;
  gpu_only(on_gpu(x), on_gpu(y));
  capturing = true;
  gpu_only(on_gpu(x), on_gpu(y));  // loaded by now
  EXPECT_EQ(launched.size(), 2u);
}

TEST(UserOpGpuSource, WhatCannotBeLaunchedIsRefused) {
  const auto refused = [](const char* declaration, UserGpuSource source) {
    return error_of([&] { UserOp(declaration, {.gpu = std::move(source)}); });
  };
  const char* const ok = "f(x: f32[n], y: out f32[n])";
  EXPECT_EQ(refused(ok, {.body = "y[element] = 0;"}), "");
  for (const int threads : {0, 32, 100, 1088}) EXPECT_THAT(refused(ok, {.body = ";", .threads = threads}), HasSubstr("gpu.threads is"));
  EXPECT_THAT(refused(ok, {.body = ";", .blocks = "m"}), HasSubstr("f: gpu.blocks is \"m\""));
  EXPECT_THAT(refused(ok, {.body = ";", .entry = "f"}), HasSubstr("a body and an entry"));
  EXPECT_THAT(refused(ok, {.before = "int a;"}), HasSubstr("neither body nor entry"));
  EXPECT_THAT(refused(ok, {.entry = "g", .before = "f", .blocks = "n"}), HasSubstr("name of a kernel in gpu.before"));
  EXPECT_THAT(refused(ok, {.entry = "g", .before = "g", .blocks = "n"}), HasSubstr("wait_for_dependencies"));
  EXPECT_THAT(refused(ok, {.entry = "g", .before = "g wait_for_dependencies"}), HasSubstr("\"elements\""));
  EXPECT_THAT(refused("f(x: f32[n])", {.body = ";"}), HasSubstr("no parameter is out"));
  EXPECT_THAT(refused("f(x: out f32[element])", {.body = ";"}), HasSubstr("called element"));
  const UserOp op(ok, {.gpu = {.body = "y[element] = 0;", .blocks = "n / (n - 3)"}});
  float a[4], b[4];
  View x(a, DType::f32, {3}), y(b, DType::f32, {3});
  x.device = y.device = {DeviceKind::cuda, 0};
  EXPECT_THAT(error_of([&] { op(x, y); }), HasSubstr("divides by 0"));
}

}  // namespace
}  // namespace eitri::jit
