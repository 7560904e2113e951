// Everything between a call and the driver, on any machine: launches, contexts, workspace, captures, errors, and what a call costs.
#include "cuda/fake_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "backend/cuda/graph.h"
#include "backend/cuda/memory.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tuned_table.h"
#include "eitri/eitri.hpp"
#include "harness/fake_op.h"
#include "jit/compiler.h"
#include "ops/ops.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__) || defined(_GLIBCXX_ASSERTIONS)
inline constexpr bool kTimed = false;
#else
inline constexpr bool kTimed = true;
#endif

namespace eitri {
namespace {

using testing::HasSubstr;

class FakeCuda : public testing::Test {
 protected:
  const Device& gpu(int back = 1) const { return cuda::device(cuda::FakeDriver::kDevices - back); }
  /// Rows in host memory that say they are on the device.
  View rows(DType dtype, int64_t tokens, int64_t hidden, int back = 1) {
    memory_.emplace_back(static_cast<size_t>(tokens * hidden * 4));
    View view(memory_.back().data(), dtype, {tokens, hidden});
    view.device = gpu(back).id;
    return view;
  }
  static void need_compiler() {
    if (const auto found = jit::find_nvrtc(); !found.compiler) GTEST_SKIP() << found.reason;
  }
  static Stream stream(uintptr_t number) { return reinterpret_cast<Stream>(number << 12); }

  cuda::FakeDriver driver_;
  std::vector<Buffer> memory_;
};

TEST_F(FakeCuda, devices_are_described) {
  EXPECT_EQ(cuda::device_count(), cuda::FakeDriver::kDevices);
  EXPECT_EQ(gpu().arch(), "sm_90a");
  EXPECT_EQ(gpu().units, 132);
  EXPECT_EQ(gpu().warp_size, 32);
  EXPECT_NEAR(gpu().profile.read_bytes, 0.97 * 4.917e12, 1e10);
  EXPECT_THROW(cuda::device(cuda::FakeDriver::kDevices), Error);
  EXPECT_THROW(cuda::device(-1), Error);
}

TEST_F(FakeCuda, launches_depend_only_on_launches_of_ours) {
  const cuda::Function function{.kernel = stream(1), .name = "kernel"};
  const int argument = 0;
  const cuda::ContextScope context(gpu());
  const auto launch = [&](Stream s, int cluster = 1) {
    cuda::launch(function, {.blocks = 8, .threads = 64, .cluster = cluster}, s, &argument);
  };
  launch(stream(7));
  launch(stream(7));
  launch(stream(8));
  launch(stream(7), 4);
  {
    const cuda::ContextScope other(gpu(2));
    launch(stream(7));  // the same handle on another device
  }
  cuda::allow_dependent_launches(false);
  launch(stream(7));
  cuda::allow_dependent_launches(true);
  cuda::launch(function, {.blocks = 0, .threads = 64}, stream(7), &argument);
  const auto made = driver_.take_launches();
  ASSERT_EQ(made.size(), 6u) << "a grid without blocks is not launched";
  EXPECT_FALSE(made[0].dependent);
  EXPECT_TRUE(made[1].dependent);
  EXPECT_FALSE(made[2].dependent);
  EXPECT_TRUE(made[3].dependent);
  EXPECT_EQ(made[3].cluster, 4u);
  EXPECT_FALSE(made[4].dependent);
  EXPECT_FALSE(made[5].dependent);
}

TEST_F(FakeCuda, contexts_are_put_back) {
  EXPECT_EQ(driver_.contexts_of_thread(), 0);
  {
    const cuda::ContextScope outer(gpu());
    EXPECT_EQ(driver_.contexts_of_thread(), 1);
    {
      const cuda::ContextScope same(gpu());
      EXPECT_EQ(driver_.contexts_of_thread(), 1) << "the caller's context serves";
      const cuda::ContextScope other(gpu(2));
      EXPECT_EQ(driver_.contexts_of_thread(), 2);
    }
    EXPECT_EQ(driver_.contexts_of_thread(), 1);
  }
  EXPECT_EQ(driver_.contexts_of_thread(), 0);
}

TEST_F(FakeCuda, in_the_primary_context_its_function_is_launched_elsewhere_the_kernel) {
  constexpr int kNear = cuda::FakeDriver::kDevices - 3;  // functions are kept for the first devices only
  const cuda::Function& function = cuda::load("binary", "in_the_primary_context", "entry", gpu(kNear));
  const int argument = 0;
  const auto launched = [&] {
    const cuda::ContextScope context(gpu(kNear));
    cuda::launch(function, {.blocks = 1, .threads = 32, .shared_bytes = 4096}, stream(9), &argument);
    return driver_.take_launches().back();
  };
  EXPECT_EQ(launched().code, cuda::FakeDriver::function_of(function.kernel));
  EXPECT_EQ(launched().shared_bytes, 4096u);
  const cuda::Driver& d = *cuda::driver();
  d.ctx_push(cuda::FakeDriver::foreign_context(gpu(kNear).id.index));
  EXPECT_EQ(launched().code, function.kernel) << "the caller's own context of the device stays current";
  EXPECT_EQ(launched().code, function.kernel);
  cuda::Handle popped = nullptr;
  d.ctx_pop(&popped);
  d.ctx_push(cuda::FakeDriver::foreign_context(gpu(2).id.index));
  EXPECT_EQ(launched().code, cuda::FakeDriver::function_of(function.kernel)) << "a context of another device gives way";
  d.ctx_pop(&popped);
  EXPECT_EQ(popped, cuda::FakeDriver::foreign_context(gpu(2).id.index));
}

TEST_F(FakeCuda, workspace_grows_nests_and_allocates_no_more) {
  const cuda::ContextScope context(gpu());
  const Stream s = stream(20);
  const int64_t before = driver_.blocks_allocated();
  std::byte* first = nullptr;
  {
    const cuda::WorkspaceScope outer(gpu(), s, 1000);
    first = outer.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
    const cuda::WorkspaceScope inner(gpu(), s, 5 << 20);  // does not fit beside it: a second block, and the first stays where it is
    EXPECT_NE(inner.data(), nullptr);
    EXPECT_EQ(driver_.blocks_allocated(), before + 2);
  }
  { const cuda::WorkspaceScope again(gpu(), s, 1000); }
  EXPECT_EQ(driver_.blocks_allocated(), before + 2);
  { const cuda::WorkspaceScope larger(gpu(), s, 20 << 20); }  // nothing is lent: one block replaces all
  EXPECT_EQ(driver_.blocks_allocated(), before + 1);
  for (int i = 0; i < 100; ++i) {
    const cuda::WorkspaceScope outer(gpu(), s, 5 << 20);
    const cuda::WorkspaceScope inner(gpu(), s, 5 << 20);
    EXPECT_EQ(inner.data() - outer.data(), 5 << 20);
  }
  EXPECT_EQ(driver_.blocks_allocated(), before + 1);
  const cuda::WorkspaceScope none(gpu(), s, 0);
  EXPECT_EQ(none.data(), nullptr);
}

TEST_F(FakeCuda, workspace_of_a_capture_belongs_to_its_graph) {
  const cuda::ContextScope context(gpu());
  const Stream s = stream(21), other = stream(22);
  const cuda::Driver& d = *cuda::driver();
  std::byte* eager = nullptr;
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    eager = scope.data();
  }
  std::byte *captured = nullptr, *second = nullptr;
  cuda::Handle graph = nullptr;
  d.stream_begin_capture(s, 1);
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    captured = scope.data();
    EXPECT_NE(captured, eager);
    const cuda::WorkspaceScope meanwhile(gpu(), other, 4096);  // a stream that does not capture
    EXPECT_NE(meanwhile.data(), captured);
  }
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    EXPECT_EQ(scope.data(), captured) << "calls of one capture follow each other";
  }
  d.stream_end_capture(s, &graph);
  cuda::Handle graph2 = nullptr;
  d.stream_begin_capture(s, 1);
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    second = scope.data();
    EXPECT_NE(second, captured) << "another graph";
  }
  d.stream_end_capture(s, &graph2);
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    EXPECT_EQ(scope.data(), eager);
  }
  const int64_t blocks = driver_.blocks_allocated();
  d.graph_destroy(graph);
  d.stream_begin_capture(s, 1);
  {
    const cuda::WorkspaceScope scope(gpu(), s, 4096);
    EXPECT_EQ(scope.data(), captured) << "a destroyed graph's memory is used again";
  }
  d.stream_end_capture(s, &graph);
  EXPECT_EQ(driver_.blocks_allocated(), blocks);
  d.graph_destroy(graph);
  d.graph_destroy(graph2);
}

TEST_F(FakeCuda, kept_memory_is_zero_at_first_and_then_what_launches_leave) {
  const cuda::ContextScope context(gpu());
  const Stream s = stream(24), other = stream(25);
  const cuda::Driver& d = *cuda::driver();
  const auto is_zero = [](const std::byte* p) {
    return std::all_of(p, p + cuda::kKeptBytes, [](std::byte b) { return b == std::byte{0}; });
  };
  std::byte* const kept = cuda::kept_memory(gpu(), s);
  EXPECT_TRUE(is_zero(kept));
  kept[7] = std::byte{1};
  {
    const cuda::WorkspaceScope scope(gpu(), s, 20 << 20);  // whatever else is lent
    EXPECT_EQ(cuda::kept_memory(gpu(), s), kept);
    EXPECT_TRUE(scope.data() + (20 << 20) <= kept || kept + cuda::kKeptBytes <= scope.data());
  }
  EXPECT_EQ(kept[7], std::byte{1});
  EXPECT_NE(cuda::kept_memory(gpu(), other), kept);
  for (int i = 0; i < 2; ++i) {  // the second graph gets memory of the first, which is dirty
    cuda::Handle graph = nullptr;
    d.stream_begin_capture(s, 1);
    std::byte* const captured = cuda::kept_memory(gpu(), s);
    EXPECT_NE(captured, kept);
    EXPECT_TRUE(is_zero(captured));
    std::fill_n(captured, cuda::kKeptBytes, std::byte{0xff});
    EXPECT_EQ(cuda::kept_memory(gpu(), s), captured);
    d.stream_end_capture(s, &graph);
    d.graph_destroy(graph);
  }
  EXPECT_EQ(cuda::kept_memory(gpu(), s), kept);
  EXPECT_EQ(kept[7], std::byte{1});
}

TEST_F(FakeCuda, threads_of_one_stream_do_not_mix) {
  const Stream s = stream(23);
  std::atomic<int> inside = 0;
  std::atomic<bool> mixed = false;
  std::vector<std::thread> team;
  for (int t = 0; t < 4; ++t)
    team.emplace_back([&] {
      const cuda::ContextScope context(gpu());
      for (int i = 0; i < 200; ++i) {
        const cuda::WorkspaceScope scope(gpu(), s, 1000);
        if (inside.fetch_add(1) != 0) mixed = true;
        std::this_thread::yield();
        inside.fetch_sub(1);
      }
    });
  for (auto& thread : team) thread.join();
  EXPECT_FALSE(mixed);
}

TEST_F(FakeCuda, calls_go_to_the_device_of_their_tensors) {
  ASSERT_NO_FATAL_FAILURE(need_compiler());
  if (IsSkipped()) return;
  for (const int back : {1, 2}) {
    rmsnorm({.x = rows(DType::bf16, 3, 64, back), .out = rows(DType::bf16, 3, 64, back)}, stream(30));
    const auto made = driver_.take_launches();
    ASSERT_EQ(made.size(), 1u);
    EXPECT_EQ(made[0].stream, stream(30));
    EXPECT_EQ(made[0].blocks, 3u);
  }
  EXPECT_EQ(driver_.contexts_of_thread(), 0);
  View elsewhere = rows(DType::bf16, 3, 64, 2);
  try {
    rmsnorm({.x = rows(DType::bf16, 3, 64), .out = elsewhere});
    ADD_FAILURE() << "tensors on two devices were taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rmsnorm: out is on cuda:62; expected cuda:63 (device of x)"));
  }
  // Nothing to write: nothing is launched. Rows without columns but with scales: they are.
  rmsnorm({.x = rows(DType::bf16, 0, 64), .out = rows(DType::bf16, 0, 64)});
  EXPECT_TRUE(driver_.take_launches().empty());
  View scale = rows(DType::f32, 3, 1);
  scale.rank = 1;
  quantize({.x = rows(DType::bf16, 3, 0), .q = rows(DType::i8, 3, 0), .scale = scale});
  EXPECT_EQ(driver_.take_launches().size(), 1u);
}

TEST_F(FakeCuda, errors_of_the_driver_say_what_ran) {
  ASSERT_NO_FATAL_FAILURE(need_compiler());
  if (IsSkipped()) return;
  const RmsNormArgs args{.x = rows(DType::bf16, 3, 64), .out = rows(DType::bf16, 3, 64)};
  rmsnorm(args);
  for (const int result : {700, 2}) {
    driver_.fail_launches(result);
    try {
      rmsnorm(args);
      ADD_FAILURE() << "a failed launch went unnoticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::device_error) << error.what();
      for (const char* part : {"rmsnorm: rmsnorm.simt.block_per_row with chunks=1;registers=", "tokens=3,hidden=64", "on cuda:63",
                               "launch of rmsnorm_block_per_row", "(as asked by the test)"})
        EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  driver_.fail_launches(0);
  rmsnorm(args);
}

TEST_F(FakeCuda, what_is_not_loaded_is_refused_while_capturing) {
  ASSERT_NO_FATAL_FAILURE(need_compiler());
  if (IsSkipped()) return;
  const cuda::Driver& d = *cuda::driver();
  const Stream s = stream(40);
  const RmsNormArgs known{.x = rows(DType::bf16, 3, 64), .out = rows(DType::bf16, 3, 64)};
  rmsnorm(known, s);
  d.stream_begin_capture(s, 1);
  rmsnorm(known, s);
  try {
    rmsnorm({.x = rows(DType::f16, 2, 72), .out = rows(DType::f32, 2, 72)}, s);
    ADD_FAILURE() << "a kernel was compiled during a capture";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("its kernel is not loaded yet, and the stream captures a graph"));
  }
  cuda::Handle graph = nullptr;
  d.stream_end_capture(s, &graph);
  d.graph_destroy(graph);
}

TEST_F(FakeCuda, rows_that_change_meanwhile_leave_a_capture_what_any_thread_has_warmed_up) {
  set_tuned_fields("scale_add", tuned_fields<ScaleAdd::Problem>());
  const FolderScope folder;
  const SettingScope setting("EITRI_TUNED", folder.path());
  const ScaleAdd::Problem problem{.rows = 5, .cols = 33}, never_called{.rows = 6, .cols = 33};
  folder.write("scale_add.sm_90a.csv", tuned_header(fields_of("scale_add")) +
                                           "\nsm_90a,132,5,33,0,1,scale_add.any_gpu.rows,,1,0,2,0,,,\n"
                                           "sm_90a,132,6,33,0,1,scale_add.any_gpu.rows,,1,0,2,0,,,\n");
  reload_tuned();
  const Stream s = stream(41);
  const auto origin = [&](const ScaleAdd::Problem& p) { return route<ScaleAdd>(p, gpu().id, s).origin; };
  std::thread([&] { EXPECT_EQ(origin(problem), Origin::tuned); }).join();  // warms up; its own memory of routes goes with it
  const cuda::Driver& d = *cuda::driver();
  d.stream_begin_capture(s, 1);
  std::filesystem::remove(folder.path() + "/scale_add.sm_90a.csv");
  for (int i = 0; i < 2; ++i) {  // two changes, with other routes made between them
    tuned_rows_changed();
    std::thread([&] { EXPECT_EQ(route<ScaleAdd>({.rows = 7 + i, .cols = 33}, gpu().id, stream(42)).origin, Origin::predicted); }).join();
    EXPECT_EQ(origin(problem), Origin::tuned) << "the capture was routed anew";
  }
  EXPECT_EQ(origin(never_called), Origin::predicted);
  cuda::Handle graph = nullptr;
  d.stream_end_capture(s, &graph);
  d.graph_destroy(graph);
  EXPECT_EQ(origin(problem), Origin::predicted);
}

TEST_F(FakeCuda, a_row_of_a_device_with_other_units_serves_and_is_recorded_as_missing) {
  set_tuned_fields("scale_add", tuned_fields<ScaleAdd::Problem>());
  const FolderScope folder;
  const SettingScope record("EITRI_RECORD", folder.path());
  const SettingScope setting("EITRI_TUNED", folder.path());
  folder.write("scale_add.sm_90a.csv", tuned_header(fields_of("scale_add")) +
                                           "\nsm_90a,120,15,33,0,1,scale_add.any_gpu.rows,,1,0,2,0,,,\n"
                                           "sm_90a,132,15,40,0,1,scale_add.any_gpu.rows,,1,0,2,0,,,\n");
  reload_tuned();
  const Route<ScaleAdd> near = route<ScaleAdd>({.rows = 15, .cols = 33}, gpu().id);
  EXPECT_EQ(near.origin, Origin::tuned);
  EXPECT_NE(near.miss, nullptr);
  EXPECT_EQ(route<ScaleAdd>({.rows = 15, .cols = 40}, gpu().id).miss, nullptr);
}

TEST_F(FakeCuda, what_a_call_costs_without_the_driver) {
  ASSERT_NO_FATAL_FAILURE(need_compiler());
  if (IsSkipped()) return;
  const cuda::ContextScope context(gpu());
  driver_.record_launches(false);
  const auto best_ns = [](auto&& f) {
    double best = 1e30;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 2000; ++i) f();
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 2000);
    }
    return best;
  };
  const RmsNormArgs norm{.x = rows(DType::bf16, 3, 64), .out = rows(DType::bf16, 3, 64)};
  const ActivationArgs act{.x = rows(DType::bf16, 3, 64), .out = rows(DType::bf16, 3, 64), .activation = {.kind = ActivationKind::silu}};
  rmsnorm(norm);
  activation(act);
  const double norm_ns = best_ns([&] { rmsnorm(norm); }), act_ns = best_ns([&] { activation(act); });
  std::printf("rmsnorm on a GPU, without the driver's launch: %.0f ns; activation: %.0f ns\n", norm_ns, act_ns);
  RecordProperty("rmsnorm_ns", std::to_string(norm_ns));
  if (kTimed) {
    EXPECT_LT(norm_ns, 1500);
    EXPECT_LT(act_ns, 1500);
  }
}

}  // namespace
}  // namespace eitri
