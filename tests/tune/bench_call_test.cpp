// The tensors that the tuner checks and times with: weights that calls share, and copies on a device, by a driver without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cuda/fake_driver.h"
#include "ops/fused_moe/fused_moe.h"
#include "ops/gemm/gemm.h"
#include "tune/bench_call.h"
#include "tune/bench_judge.h"
#include "tune/sampler.h"

namespace eitri::tune {
namespace {

using testing::HasSubstr;

constexpr Gemm::Problem kWhole{.m = 65, .n = 96, .k = 64, .a = DType::bf16, .c = DType::bf16, .b_format = WeightFormat::strided};
constexpr Gemm::Problem kFewer{.m = 5, .n = 96, .k = 64, .a = DType::bf16, .c = DType::bf16, .b_format = WeightFormat::strided};

bool are_equal(const View& a, const View& b) {
  return a.size() == b.size() && std::memcmp(a.data, b.data, static_cast<size_t>(span_bytes(a))) == 0;
}

TEST(BenchCall, weights_are_made_once_where_they_are_alike) {
  Call<Gemm> few(kFewer, cpu_device(), {.seed = 1, .guards = true});
  Call<Gemm> whole(kWhole, cpu_device(), {.seed = 1, .guards = true}, {&few});
  EXPECT_EQ(whole.host().b.data, few.host().b.data);
  EXPECT_NE(whole.host().a.data, few.host().a.data);
  const Call<Gemm> alone(kWhole, cpu_device(), {.seed = 1});
  EXPECT_TRUE(are_equal(whole.host().b, alone.host().b)) << "the same numbers as without a lender";
  const Call<Gemm> other(kWhole, cpu_device(), {.seed = 2}, {&few, &whole});
  EXPECT_NE(other.host().b.data, few.host().b.data) << "other numbers";
  const Call<Gemm> gaps(kWhole, cpu_device(), {.seed = 1, .strided = true}, {&few});
  EXPECT_NE(gaps.host().b.data, few.host().b.data) << "another layout";
  Gemm::Problem packed = kWhole;
  packed.b_format = WeightFormat::panel32;
  const Call<Gemm> panels(packed, cpu_device(), {.seed = 1}, {&few});
  EXPECT_NE(panels.host().b.data, few.host().b.data);

  // Who made them looks after them.
  few.maker().seal();
  whole.maker().seal();
  static_cast<uint16_t*>(whole.host().b.data)[0] ^= 1;
  EXPECT_EQ(whole.maker().damage(), "");
  EXPECT_THAT(few.maker().damage(), HasSubstr("b (bf16[96, 64]) is an input, but was written to"));
}

TEST(BenchCall, borrowed_weights_outlive_their_lender) {
  FusedMoe::Problem p{.tokens = 3, .hidden = 64, .inter = 32, .local_experts = 4, .experts = 4, .top_k = 2};
  auto lender = std::make_unique<Call<FusedMoe>>(p, cpu_device(), MakerOptions{.seed = 1, .strided = true});
  p.tokens = 7;
  const Call<FusedMoe> call(p, cpu_device(), {.seed = 1}, {lender.get()});
  ASSERT_EQ(call.host().w1.data, lender->host().w1.data) << "packed weights have no gaps";
  lender.reset();
  const Call<FusedMoe> alone(p, cpu_device(), {.seed = 1});
  EXPECT_EQ(std::memcmp(call.host().w1.data, alone.host().w1.data, size_t{4} * 64 * 64 * 2), 0);
}

/// Outputs of a GPU start whole each time, so they are looked at after each call.
TEST(BenchCall, outputs_of_a_device_start_poisoned_and_come_back) {
  const cuda::FakeDriver driver;
  const Device& gpu = gpu::device(cuda::FakeDriver::kDevices - 1);
  const gpu::OwnedStream stream(gpu);
  Call<Gemm> few(kFewer, gpu, {.seed = 1, .guards = true});
  Oracle oracle;
  Gemm::reference(few.host(), &oracle);
  few.upload(stream);
  Call<Gemm> whole(kWhole, gpu, {.seed = 1, .guards = true}, {&few});
  whole.upload(stream);
  EXPECT_EQ(whole.args().b.data, few.args().b.data) << "on the device once";
  EXPECT_EQ(whole.args().b.device, gpu.id);
  EXPECT_TRUE(are_equal(whole.args().a, whole.host().a));

  auto* const there = static_cast<uint16_t*>(few.args().c.data);
  EXPECT_EQ(there[0], 0xffff) << "what the reference wrote stays on the host";
  there[0] = 0x3f80;
  few.download_outputs(stream);
  EXPECT_EQ(static_cast<uint16_t*>(few.host().c.data)[0], 0x3f80);
  EXPECT_EQ(few.maker().damage_of_outputs(), "");
  there[5 * 96] = 0;  // behind its end
  few.download_outputs(stream);
  EXPECT_THAT(few.maker().damage_of_outputs(), HasSubstr("was overwritten 0 bytes after its end"));
  few.poison_outputs(stream);
  EXPECT_EQ(there[0], 0xffff);
  few.download_outputs(stream);
  EXPECT_EQ(few.maker().damage_of_outputs(), "");
}

TEST(BenchCall, a_ring_holds_the_same_numbers_at_other_places) {
  const cuda::FakeDriver driver;
  for (const Device* device : {&cpu_device(), &gpu::device(cuda::FakeDriver::kDevices - 1)}) {
    std::optional<gpu::OwnedStream> stream;
    if (device->is_gpu()) stream.emplace(*device);
    Call<Gemm> few(kFewer, *device, {.seed = 1, .guards = true});
    Call<Gemm> whole(kWhole, *device, {.seed = 1, .guards = true}, {&few});
    const Stream s = stream ? static_cast<Stream>(*stream) : nullptr;
    few.upload(s);
    whole.upload(s);
    Buffer arena;
    Ring<Gemm> ring({&whole}, 3, *device, s, arena);
    ASSERT_EQ(ring.size(), 3u);
    std::vector<void*> places;
    for (int i = 0; i < 3; ++i) {
      const Gemm::Args& args = ring.next();
      EXPECT_TRUE(are_equal(args.a, whole.host().a));
      EXPECT_TRUE(are_equal(args.b, whole.host().b)) << "borrowed weights have copies as well";
      EXPECT_EQ(args.b.device, device->id);
      EXPECT_EQ(Gemm::check(args), kWhole);
      places.insert(places.end(), {args.a.data, args.b.data, args.c.data});
    }
    EXPECT_EQ(std::set<void*>(places.begin(), places.end()).size(), places.size());
  }
}

TEST(BenchJudge, bits_are_compared_to_the_last) {
  std::vector<char> a(9 << 20, 'x'), b = a;
  EXPECT_TRUE(are_same(a.data(), b.data(), a.size()));
  for (const size_t at : {size_t{0}, a.size() / 2, a.size() - 1}) {
    b = a;
    b[at] = 'y';
    EXPECT_FALSE(are_same(a.data(), b.data(), a.size())) << at;
  }
  EXPECT_TRUE(are_same(nullptr, nullptr, 0));
}

}  // namespace
}  // namespace eitri::tune
