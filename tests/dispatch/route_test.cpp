// Routing: who is chosen and when it is asked again; forced kernels, levels, counters, threads, EITRI_CHECK.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "dispatch/explain.h"
#include "dispatch/scoped_settings.h"
#include "harness/fake_op.h"
#include "harness/levels.h"

namespace eitri {
namespace {

using testing::HasSubstr;

std::string chosen(const ScaleAdd::Problem& problem) { return route<ScaleAdd>(problem).kernel->name; }
int64_t misses() { return counter("route.miss").load(); }

TEST(Route, least_predicted_time_wins) {
  const harness::LevelScope level(Isa::portable);
  EXPECT_EQ(chosen({.rows = 4, .cols = 33}), "scale_add.portable.rows");
  const auto& r = route<ScaleAdd>({.rows = 4, .cols = 33});
  EXPECT_EQ(r.origin, Origin::predicted);
  EXPECT_EQ(r.predicted_us, 10);
  EXPECT_EQ(r.config[0], 2);
}

TEST(Route, hits_ask_nobody) {
  const ScaleAdd::Problem problem{.rows = 4, .cols = 1001};
  route<ScaleAdd>(problem);
  const int64_t before = misses();
  for (int i = 0; i < 10; ++i) route<ScaleAdd>(problem);
  EXPECT_EQ(misses(), before);
  route<ScaleAdd>({.rows = 4, .cols = 1002});
  EXPECT_EQ(misses(), before + 1);
}

TEST(Route, level_change_is_seen_at_once) {
  if (best_isa() < Isa::x86_avx2) GTEST_SKIP() << "needs x86_avx2";
  const ScaleAdd::Problem problem{.rows = 4, .cols = 9};
  for (int i = 0; i < 3; ++i) {
    {
      const harness::LevelScope level(Isa::x86_avx2);
      EXPECT_EQ(chosen(problem), "scale_add.x86_avx2.rows");
    }
    const harness::LevelScope level(Isa::portable);
    EXPECT_EQ(chosen(problem), "scale_add.portable.rows");
  }
}

TEST(Route, force_scopes_nest) {
  const ScaleAdd::Problem problem{.rows = 4, .cols = 10};
  const std::string free_choice = chosen(problem);
  {
    const ForceScope outer("scale_add", "scale_add.portable.narrow");
    EXPECT_EQ(chosen(problem), "scale_add.portable.narrow");
    EXPECT_EQ(route<ScaleAdd>(problem).origin, Origin::forced);
    {
      const ForceScope inner("scale_add", "scale_add.reference");
      EXPECT_EQ(chosen(problem), "scale_add.reference");
    }
    EXPECT_EQ(chosen(problem), "scale_add.portable.narrow");
  }
  EXPECT_EQ(chosen(problem), free_choice);
}

TEST(Route, forced_kernel_that_refuses_says_why) {
  const ForceScope force("scale_add", "scale_add.portable.narrow");
  try {
    chosen({.rows = 4, .cols = 65});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("scale_add.portable.narrow does not take rows=4,cols=65,nan_row=0: cols is 65"));
  }
}

TEST(Route, setting_forces_too) {
  const SettingScope setting("EITRI_FORCE", "scale_add=scale_add.portable.workspace");
  EXPECT_EQ(chosen({.rows = 4, .cols = 11}), "scale_add.portable.workspace");
}

TEST(Route, unknown_forced_kernel_lists_the_known_ones) {
  const SettingScope setting("EITRI_FORCE", "scale_add=scale_add.x86.rows");
  try {
    chosen({.rows = 4, .cols = 12});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("forced kernel is scale_add.x86.rows; expected one of"));
    EXPECT_THAT(error.what(), HasSubstr("scale_add.portable.narrow, "));
  }
}

TEST(Route, launches_are_counted_by_name) {
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 2, .cols = 5}, maker);
  const ForceScope force("scale_add", "scale_add.portable.narrow");
  const int64_t before = counter("scale_add.portable.narrow").load();
  for (int i = 0; i < 3; ++i) call<ScaleAdd>(args);
  EXPECT_EQ(counter("scale_add.portable.narrow").load(), before + 3);
  EXPECT_THAT(counters(), testing::Contains(testing::Pair("scale_add.portable.narrow", before + 3)));
}

TEST(Route, workspace_is_what_the_row_asked_for) {
  const ForceScope force("scale_add", "scale_add.portable.workspace");
  EXPECT_EQ(route<ScaleAdd>({.rows = 3, .cols = 7}).workspace, size_t{3 * 7 * 4});
}

TEST(Route, eight_threads_share_routes_while_the_choice_changes) {
  constexpr int kThreads = 8;
  std::atomic<int> running = 0, wrong = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ++running;
      for (int64_t i = t; !stop || i < t + 2000; ++i) {
        const ScaleAdd::Problem problem{.rows = 1 + i % 7, .cols = 1 + (i * 13) % 300};
        const Route<ScaleAdd>& r = route<ScaleAdd>(problem);
        const std::string_view name = r.kernel->name;
        const bool known = name == "scale_add.portable.rows" || name == "scale_add.portable.workspace" || name == "scale_add.x86_avx2.rows";
        if (!known || r.launches == nullptr) ++wrong;
        if (name == "scale_add.portable.workspace" && r.workspace != static_cast<size_t>(problem.rows * problem.cols) * 4) ++wrong;
      }
    });
  }
  while (running < kThreads) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    const ForceScope force("scale_add", "scale_add.portable.workspace");
    std::this_thread::yield();
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(chosen({.rows = 1, .cols = 1}).substr(0, 9), "scale_add");
}

TEST(Route, change_of_choice_reaches_other_threads) {
  const ScaleAdd::Problem problem{.rows = 2, .cols = 22};
  std::atomic<int> step = 0;
  std::string seen;
  std::thread other([&] {
    chosen(problem);
    step = 1;
    while (step != 2) std::this_thread::yield();
    seen = chosen(problem);
  });
  while (step != 1) std::this_thread::yield();
  const ForceScope force("scale_add", "scale_add.portable.narrow");
  step = 2;
  other.join();
  EXPECT_EQ(seen, "scale_add.portable.narrow");
}

TEST(Route, nobody_left_lists_every_reason) {
  // The table of an op always ends in a reference that takes everything; the message is made for one that does not.
  auto all = candidates<ScaleAdd>({.rows = 2, .cols = 100}, cpu_device());
  for (auto& c : all) {
    if (c.support) c.support = Support::no("not today");
  }
  try {
    fail_unsupported<ScaleAdd>({.rows = 2, .cols = 100}, all);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("scale_add: no kernel takes rows=2,cols=100,nan_row=0"));
    EXPECT_THAT(error.what(), HasSubstr("scale_add.portable.narrow: cols is 100; this kernel takes at most 64"));
    EXPECT_THAT(error.what(), HasSubstr("scale_add.any_gpu.rows: needs any_gpu"));
    EXPECT_THAT(error.what(), HasSubstr("scale_add.reference: not today"));
  }
}

TEST(Route, empty_problems_are_served_by_the_reference) {
  Maker maker({.guards = true});
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 3, .cols = 0}, maker);
  const int64_t before = misses();
  call<ScaleAdd>(args);
  EXPECT_EQ(misses(), before);
  EXPECT_EQ(load(args.scale, {2}), 0);
  EXPECT_EQ(maker.damage(), "");
}

TEST(CheckCalls, faulty_kernel_is_named) {
  const SettingScope setting("EITRI_CHECK", "1");
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 4, .cols = 33}, maker);
  call<ScaleAdd>(args);
  const ForceScope force("scale_add", "scale_add.fault.wrong_element");
  try {
    call<ScaleAdd>(args);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::internal);
    EXPECT_THAT(error.what(),
                HasSubstr("scale_add.fault.wrong_element differs from the reference at rows=4,cols=33,nan_row=0: out[3, 32] is"));
  }
}

TEST(CheckCalls, kernel_output_is_kept) {
  const SettingScope setting("EITRI_CHECK", "1");
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 4, .cols = 33}, maker);
  const ForceScope force("scale_add", "scale_add.right.within_tolerance");
  call<ScaleAdd>(args);
  const double checked = load(args.out, {3, 32});
  Oracle oracle;
  ScaleAdd::reference(args, &oracle);
  EXPECT_NE(checked, load(args.out, {3, 32})) << "the check left the reference's result in the output";
}

}  // namespace
}  // namespace eitri
