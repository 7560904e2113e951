// TMA descriptors and clusters: what the matrix kernels to come stand on. Skipped where there is no GPU that has them.
#include "backend/cuda/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/cuda/graph.h"
#include "backend/cuda/memory.h"
#include "harness/caller.h"
#include "jit/cache.h"

namespace eitri {
namespace {

using harness::test_gpu;
using testing::HasSubstr;

// Copies one box to shared memory and from there, as it lies, to memory; the second kernel says how large its cluster is.
constexpr const char* kKernels = R"(
struct alignas(64) Map { unsigned long long opaque[16]; };
struct Box { Map map; float* out; int x, y; };
extern "C" __global__ void __launch_bounds__(32) copy_box(const __grid_constant__ Box box) {
  __shared__ alignas(128) float tile[8 * 16];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.proxy.async.shared::cta;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" ::"r"(at));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(tile))),
                 "l"(&box.map), "r"(box.x), "r"(box.y), "r"(at)
                 : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (done == 0)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
  for (int i = threadIdx.x; i < 128; i += 32) box.out[i] = tile[i];
}
struct Out { int* sizes; };
extern "C" __global__ void cluster_size(const Out out) {
  unsigned size;
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) out.sizes[blockIdx.x] = static_cast<int>(size);
}
)";

class TensorMaps : public testing::Test {
 protected:
  void SetUp() override {
    if (test_gpu() == nullptr) GTEST_SKIP() << "no NVIDIA GPU: " << cuda::absence();
    if (test_gpu()->arch() != "sm_90a") GTEST_SKIP() << "the GPU is no sm_90";
    gpu_ = test_gpu();
    context_.emplace(*gpu_);
  }
  const cuda::Function& kernel(const char* entry) {
    const auto binary = jit::default_cache().get(
        {.label = "test", .source = {.name = "box.cu", .text = kKernels, .headers = {}}, .target = &jit::target_named("sm_90a")});
    return cuda::load(binary->bytes, binary->key, entry, *gpu_);
  }
  const Device* gpu_ = nullptr;
  std::optional<cuda::ContextScope> context_;
};

TEST_F(TensorMaps, boxes_are_copied_and_beyond_the_tensor_lie_zeros) {
  constexpr int kCols = 100, kRows = 21, kStride = 104;  // floats
  std::vector<float> host(kRows * kStride), got(128);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i + 1);
  const cuda::Buffer data(*gpu_, host.size() * 4), out(*gpu_, 512);
  cuda::copy_to_device(data.data(), host.data(), host.size() * 4, nullptr);
  const cuda::TensorBox box{.data = data.data(),
                            .dtype = DType::f32,
                            .rank = 2,
                            .swizzle = cuda::Swizzle::none,
                            .extent = {kCols, kRows},
                            .stride = {kStride * 4},
                            .box = {16, 8}};
  for (const auto& [x, y] : {std::pair{0, 0}, {16, 8}, {96, 16}}) {
    struct Argument {
      cuda::TensorMapBits map;
      std::byte* out;
      int x, y;
    } const argument{cuda::tensor_map(box), out.data(), x, y};
    cuda::launch(kernel("copy_box"), {.blocks = 1, .threads = 32}, nullptr, &argument);
    cuda::copy_to_host(got.data(), out.data(), 512, nullptr);
    cuda::synchronize(nullptr);
    for (int r = 0; r < 8; ++r)
      for (int c = 0; c < 16; ++c) {
        const bool inside = x + c < kCols && y + r < kRows;
        EXPECT_EQ(got[static_cast<size_t>(r * 16 + c)], inside ? host[static_cast<size_t>((y + r) * kStride + x + c)] : 0.0f)
            << "box at " << x << ", " << y << ": row " << r << ", column " << c;
      }
  }
}

TEST_F(TensorMaps, are_kept_by_what_they_describe) {
  const cuda::Buffer data(*gpu_, 1 << 20);
  cuda::TensorBox box{.data = data.data(), .dtype = DType::bf16, .rank = 2, .extent = {512, 64}, .stride = {1024}, .box = {64, 64}};
  const cuda::TensorMapBits first = cuda::tensor_map(box);
  EXPECT_EQ(&cuda::tensor_map(box), &cuda::tensor_map(box));
  EXPECT_EQ(std::memcmp(&first, &cuda::tensor_map(box), sizeof first), 0);
  for (const auto change :
       {+[](cuda::TensorBox& b) { b.data = static_cast<const std::byte*>(b.data) + 1024; }, +[](cuda::TensorBox& b) { b.extent[1] = 63; },
        +[](cuda::TensorBox& b) { b.box[1] = 32; }, +[](cuda::TensorBox& b) { b.swizzle = cuda::Swizzle::b64, b.box[0] = 32; },
        +[](cuda::TensorBox& b) { b.dtype = DType::f16; }}) {
    cuda::TensorBox other = box;
    change(other);
    const cuda::TensorMapBits bits = cuda::tensor_map(other);
    EXPECT_NE(std::memcmp(&first, &bits, sizeof first), 0);
    EXPECT_EQ(std::memcmp(&first, &cuda::tensor_map(box), sizeof first), 0) << "another tensor's descriptor was returned";
  }
  const auto refusal = [&](auto&& change) -> std::string {
    cuda::TensorBox wrong = box;
    change(wrong);
    try {
      cuda::tensor_map(wrong);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal([](auto& b) { b.stride[0] = 1000; }), HasSubstr("stride 0 is 1000 bytes; expected a multiple of 16"));
  EXPECT_THAT(refusal([](auto& b) { b.box[1] = 257; }), HasSubstr("box 1 is 257; expected 1 to 256"));
  EXPECT_THAT(refusal([](auto& b) { b.data = static_cast<const std::byte*>(b.data) + 8; }), HasSubstr("not aligned to 16 bytes"));
}

TEST_F(TensorMaps, clusters_are_launched_as_asked) {
  const cuda::Buffer out(*gpu_, 64);
  std::byte* argument = out.data();
  for (const int size : {1, 2, 4, 8}) {
    cuda::launch(kernel("cluster_size"), {.blocks = 16, .threads = 32, .cluster = size}, nullptr, &argument);
    std::vector<int> got(16);
    cuda::copy_to_host(got.data(), out.data(), 64, nullptr);
    cuda::synchronize(nullptr);
    EXPECT_EQ(got, std::vector<int>(16, size));
  }
}

}  // namespace
}  // namespace eitri
