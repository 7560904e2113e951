// Configs that make a kernel of gemm do the same work: the tuner tries one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "backend/cpu/cpu.h"
#include "ops/gemm/panel_rows.h"
#include "tune/ops.h"

namespace eitri::tune {
namespace {

using panel_rows::kKnobs;

/// Plain configs of the problem as text, and how many configs each stands for.
std::map<std::string, int> plain(Target target, const Gemm::Problem& problem, int threads) {
  std::map<std::string, int> out;
  for (const Config& config : every_config(kKnobs)) {
    const Config found = panel_rows::plain_config(target, problem, config, cpu_device(), threads);
    EXPECT_EQ(panel_rows::plain_config(target, problem, found, cpu_device(), threads), found) << to_string(config, kKnobs);
    ++out[to_string(found, kKnobs)];
  }
  EXPECT_TRUE(out.contains("split=0;block_m=0;chunk_k=0")) << "the default stands for itself";
  return out;
}

TEST(PlainConfig, one_thread_and_few_rows_leave_nothing_to_choose) {
#if EITRI_X86
  EXPECT_THAT(plain(Target::x86_avx512, {.m = 16, .n = 4096, .k = 4096}, 1),
              testing::ElementsAre(testing::Pair("split=0;block_m=0;chunk_k=0", 75)));
  // The portable loop decodes chunk by chunk.
  EXPECT_THAT(plain(Target::any_cpu, {.m = 16, .n = 4096, .k = 4096}, 1), testing::SizeIs(4));
  // The tile unit's blocks of 16 rows are what they are; the chunk of k is not.
  for (const auto& [config, count] : plain(Target::x86_amx, {.m = 16, .n = 4096, .k = 4096}, 1))
    EXPECT_THAT(config, testing::HasSubstr("split=0;block_m=0;"));
#endif
}

TEST(PlainConfig, blocks_shorter_than_the_rows_matter) {
#if EITRI_X86
  const auto many = plain(Target::x86_avx512, {.m = 1000, .n = 256, .k = 512}, 1);
  for (const char* block : {"0", "64", "192", "352"}) EXPECT_TRUE(many.contains(str("split=0;block_m=", block, ";chunk_k=0"))) << block;
  EXPECT_FALSE(many.contains("split=0;block_m=96;chunk_k=0")) << "that is the kernel's own choice";
  EXPECT_EQ(many.at("split=0;block_m=64;chunk_k=0"), 15) << "AVX-512 has no chunks";
  EXPECT_THAT(plain(Target::x86_amx, {.m = 1000, .n = 256, .k = 2048}, 1), testing::SizeIs(testing::Gt(10u)));
#endif
}

TEST(PlainConfig, every_config_of_the_default_kernel_is_counted) {
  for (const TunedOp& op : all_tuned_ops()) {
    if (op.name != "gemm") continue;
    const Choices choices = op.choices(key_of(Gemm::Problem{.m = 8, .n = 64, .k = 96}), cpu_device(), {});
    ASSERT_LT(choices.control, choices.all.size());
    int configs = 0;
    for (const Choice& c : choices.all)
      if (c.kernel == choices.all[choices.control].kernel) configs += c.configs;
    EXPECT_EQ(configs, static_cast<int>(every_config(kKnobs).size()));
    EXPECT_EQ(op.plain(key_of(Gemm::Problem{.m = 8, .n = 64, .k = 96}), choices.all[choices.control].kernel,
                       "split=0;block_m=352;chunk_k=0", cpu_device()),
              choices.all[choices.control].config);
    EXPECT_EQ(op.plain(key_of(Gemm::Problem{.m = 8, .n = 64, .k = 96}), "no kernel", "x=1", cpu_device()), "x=1");
  }
}

}  // namespace
}  // namespace eitri::tune
