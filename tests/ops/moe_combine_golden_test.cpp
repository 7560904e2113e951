// moe_combine against sums worked out by hand, and rows that 32-bit offsets do not reach.
#include "ops/moe_combine/moe_combine.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <limits>

#include "base/numeric.h"
#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using golden::with_every_kernel;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(MoeCombineGolden, WeightsSharedAndMissingRows) {
  // Row 2 of y is nobody's and full of NaN; indices -1, 4 (of 4 rows) and the extremes add nothing.
  const std::vector<float> y = {1, 2, 10, 20, kNaN, kNaN, 100, 200}, weights = {.5f, .25f, 2, kNaN, kNaN, kNaN};
  const std::vector<float> shared = {1000, 2000, 3000, 4000};
  const std::vector<int32_t> reverse = {0, 3, 1, -1, 4, INT32_MIN};
  std::vector<float> out(4);
  MoeCombineArgs args;
  args.y = View(y.data(), DType::f32, {4, 2});
  args.reverse = View(reverse.data(), DType::i32, {2, 3});
  args.out = View(out.data(), DType::f32, {2, 2});
  const auto run = [&](auto expected) {
    with_every_kernel<MoeCombine>(args, [&] {
      out.assign(4, kNaN);
      call<MoeCombine>(args);
      EXPECT_THAT(out, expected);
    });
  };
  run(ElementsAre(111, 222, 0, 0));
  args.weights = View(weights.data(), DType::f32, {2, 3});
  run(ElementsAre(45.5f, 91, 0, 0));
  args.shared = View(shared.data(), DType::f32, {2, 2});
  run(ElementsAre(1045.5f, 2091, 3000, 4000));
}

TEST(MoeCombineGolden, SlotsAddInAscendingOrder) {
  // (1e8 + 1) - 1e8 is 0 in fp32, (1e8 - 1e8) + 1 would be 1.
  const std::vector<float> y = {1e8f, 1, -1e8f};
  const std::vector<int32_t> reverse = {0, 1, 2};
  std::vector<float> out(1);
  MoeCombineArgs args;
  args.y = View(y.data(), DType::f32, {3, 1});
  args.reverse = View(reverse.data(), DType::i32, {1, 3});
  args.out = View(out.data(), DType::f32, {1, 1});
  with_every_kernel<MoeCombine>(args, [&] {
    call<MoeCombine>(args);
    const bool in_double = forced_kernel("moe_combine") == "moe_combine.reference";
    EXPECT_EQ(out[0], in_double ? 1 : 0);
  });
}

TEST(MoeCombineGolden, B25RowsBeyond32BitOffsets) {
  // Element 1,525,201 * 2816 + 2570 = 4,294,968,831 wraps at 2^32. Untouched pages of the mapping cost nothing.
  constexpr int64_t kRows = 1525202, kHidden = 2816;
  constexpr size_t kBytes = static_cast<size_t>(kRows) * kHidden * 2;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system does not lend 8.6 GB of address space";
  auto* y = static_cast<uint16_t*>(memory);
  const auto fill = [&](int64_t row, float value) {
    for (int64_t j = 0; j < kHidden; ++j) y[row * kHidden + j] = encode_bf16(value);
  };
  fill(kRows - 1, 3);
  fill(762601, 5);  // 762601 * 2816 is just beyond 2^31
  const std::vector<int32_t> reverse = {static_cast<int32_t>(kRows - 1), 762601};
  std::vector<float> out(static_cast<size_t>(kHidden));
  MoeCombineArgs args;
  args.y = View(memory, DType::bf16, {kRows, kHidden});
  args.reverse = View(reverse.data(), DType::i32, {1, 2});
  args.out = View(out.data(), DType::f32, {1, kHidden});
  with_every_kernel<MoeCombine>(args, [&] {
    out.assign(out.size(), kNaN);
    call<MoeCombine>(args);
    EXPECT_THAT(out, testing::Each(8));
  });
  munmap(memory, kBytes);
}

TEST(MoeCombineGolden, Refusals) {
  std::vector<float> y(4), out(4);
  std::vector<int32_t> reverse(2);
  MoeCombineArgs args;
  args.y = View(y.data(), DType::f32, {2, 2});
  args.reverse = View(reverse.data(), DType::i32, {2, 1});
  args.out = View(out.data(), DType::f32, {2, 3});
  EXPECT_THAT(refusal<MoeCombine>(args), HasSubstr("moe_combine: out is f32[2, 3]; expected f32, bf16 or f16 [2, 2]"));
  args.out = View(y.data(), DType::f32, {2, 2});
  EXPECT_THAT(refusal<MoeCombine>(args), HasSubstr("shares memory with y"));
  args.out = View(out.data(), DType::f32, {2, 2});
  args.reverse.dtype = DType::i64;
  EXPECT_THAT(refusal<MoeCombine>(args), HasSubstr("reverse is i64[2, 1]; expected i32[any, any]"));
  args.reverse.dtype = DType::i32;
  args.shared = View(y.data(), DType::f16, {2, 2});
  EXPECT_THAT(refusal<MoeCombine>(args), HasSubstr("shared is f16[2, 2]; expected f32[2, 2]"));
}

}  // namespace
}  // namespace eitri
