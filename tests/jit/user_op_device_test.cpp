// User ops on a real GPU; skipped where there is none.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/cuda/cuda.h"
#include "backend/cuda/memory.h"
#include "jit/temporary_folder.h"
#include "jit/user_op.h"

namespace eitri::jit {
namespace {

TEST(UserOpsOnDevice, ChainsOfBothForms) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "there is no NVIDIA GPU";
  const Device& device = cuda::device(0);
  const TemporaryFolder folder;
  Cache cache({.root = folder / "cache/jit", .lock_folder = ""});
  const UserOp scale("scale(x: f32[n, k], y: out f32[n, k], alpha: f32)", {.gpu = {.body = "y[element] = alpha * x[element];"}}, &cache);
  const UserOp sums("sums(x: f32[n, k], y: out f32[n])",
                    {.gpu = {.body = "EITRI_SHARED BlockReduce<128>::Partials partials;\nBlockReduce<128> reduce(partials);\n"
                                     "float sum = 0.0f;\nfor (int64_t j = thread(); j < k; j += 128) sum += x(block(), j);\n"
                                     "sum = reduce.sum(sum);\nif (thread() == 0) y(block()) = sum;",
                             .before = "#include \"device/reduce.h\"",
                             .threads = 128,
                             .blocks = "n"}},
                    &cache);
  constexpr int64_t kRows = 1000, kCols = 300;
  std::vector<float> host(kRows * kCols), got(kRows);
  std::iota(host.begin(), host.end(), 0.0f);
  for (float& v : host) v = static_cast<float>(static_cast<int>(v) % 7);
  const cuda::ContextScope scope(device);
  const cuda::Buffer a(device, host.size() * 4), b(device, host.size() * 4), c(device, got.size() * 4);
  cuda::copy_to_device(a.data(), host.data(), host.size() * 4, nullptr);
  View x(a.data(), DType::f32, {kRows, kCols}), y(b.data(), DType::f32, {kRows, kCols}), z(c.data(), DType::f32, {kRows});
  x.device = y.device = z.device = device.id;
  // Small integers: sums are exact. Each call reads what the one before has written.
  for (int i = 0; i < 10; ++i) {
    scale(x, y, 2.0f);
    scale(y, x, 0.5f);
    scale(x, y, 3.0f);
    sums(y, z);
  }
  cuda::copy_to_host(got.data(), c.data(), got.size() * 4, nullptr);
  cuda::synchronize(nullptr);
  for (int64_t i = 0; i < kRows; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < kCols; ++j) sum += 3 * host[static_cast<size_t>(i * kCols + j)];
    ASSERT_EQ(got[static_cast<size_t>(i)], sum) << "row " << i;
  }
}

}  // namespace
}  // namespace eitri::jit
