#include "ops/prebuild_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "dispatch/scoped_settings.h"

namespace eitri {
namespace {

constexpr const char* kProblem = "tokens=4096,hidden=7168";

std::set<std::string> labels(const PrebuildRequests& list) {
  std::set<std::string> out;
  for (const auto& request : list.requests()) out.insert(request.label.substr(0, request.label.find('.')));
  return out;
}

TEST(PrebuildRequests, each_kernel_once_per_target) {
  PrebuildRequests one(parse_gpu_targets("targets", "sm_90a")), two(parse_gpu_targets("targets", "gfx942,sm_90a,gfx942"));
  one.add("rmsnorm", kProblem);
  const size_t kernels = one.requests().size();
  ASSERT_GT(kernels, 0u);
  one.add("rmsnorm", kProblem);
  EXPECT_EQ(one.requests().size(), kernels);
  EXPECT_EQ(one.problems(), 2u);
  two.add("rmsnorm", kProblem);
  std::set<std::string> targets;
  for (const auto& request : two.requests()) targets.insert(request.target->name);
  EXPECT_EQ(targets, (std::set<std::string>{"sm_90a", "gfx942"}));
}

TEST(PrebuildRequests, recipes_bring_the_kernels_of_their_calls) {
  PrebuildRequests list(parse_gpu_targets("targets", "sm_90a"));
  list.add("fused_moe", "tokens=16,hidden=2048,inter=768,local_experts=128,experts=128,top_k=8,w1_format=strided,w2_format=strided");
  const std::set<std::string> all = labels(list);
  for (const char* op : {"moe_sort", "grouped_gemm", "moe_combine"}) EXPECT_TRUE(all.contains(op)) << op;
  EXPECT_GT(list.problems(), 1u);
}

TEST(PrebuildRequests, tuned_rows_bring_their_config) {
  PrebuildRequests plain(parse_gpu_targets("targets", "sm_90a"));
  plain.add("rmsnorm", kProblem);

  // The same kernel with the first of its configs that needs another source.
  const Device& device = nominal_gpu("sm_90a");
  const auto problem = parse_problem<RmsNorm::Problem>("rmsnorm", kProblem);
  const Kernel<RmsNorm>* row = nullptr;
  for (const auto& kernel : RmsNorm::kernels())
    if (row == nullptr && kernel.sources != nullptr && !kernel.knobs.empty()) row = &kernel;
  ASSERT_NE(row, nullptr);
  const Config guessed = row->guess(problem, device).config;
  Config tuned = guessed;
  for (size_t knob = 0; knob < row->knobs.size() && tuned == guessed; ++knob) {
    for (const int value : row->knobs[knob].values) {
      Config other = guessed;
      other.value[knob] = value;
      if (row->sources(problem, other, device)[0].defines != row->sources(problem, guessed, device)[0].defines) tuned = other;
    }
  }
  ASSERT_FALSE(tuned == guessed);

  all_ops();
  const FolderScope folder;
  std::string header = "arch,units,", values = str("sm_90a,", device.units, ",");
  problem.fields([&](const char* name, const auto& value, Match = Match::exact) {
    header += str(name, ",");
    values += str(value, ",");
  });
  folder.write("rmsnorm.sm_90a.csv", header + "rank,kernel,config,us,spread_us,baseline_us,error,revision,toolchain,date\n" + values +
                                         str("1,", row->name, ",", to_string(tuned, row->knobs), ",1,0.1,9,0,r1,none,2026-11-30\n"));
  const SettingScope scope("EITRI_TUNED", folder.path());
  PrebuildRequests list(parse_gpu_targets("targets", "sm_90a"));
  list.add("rmsnorm", kProblem);
  EXPECT_GT(list.requests().size(), plain.requests().size());
  bool found = false;
  for (const auto& request : list.requests()) found = found || request.defines == row->sources(problem, tuned, device)[0].defines;
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace eitri
