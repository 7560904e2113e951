#include "jit/prebuild.h"

#include <gmock/gmock.h>

#include <set>
#include <stdexcept>
#include <thread>

#include "jit/fake_compiler.h"
#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct PrebuildTest : testing::Test {
  TemporaryFolder folder;
  FakeCompiler compiler;
  Cache cache{options()};

  CacheOptions options(JitMode mode = JitMode::on) {
    std::filesystem::create_directories(folder / "locks");
    return {.root = folder / "cache/jit", .lock_folder = folder / "locks", .mode = mode};
  }
  static std::vector<CompileRequest> some(int count) {
    std::vector<CompileRequest> out;
    for (int i = 0; i < count; ++i) {
      out.push_back(fake_request(str("kernel ", i)));
      out.back().label = str("op_", i);
    }
    return out;
  }
};

TEST_F(PrebuildTest, CompilesEachKeyOnceOnManyThreads) {
  std::vector<CompileRequest> requests = some(40);
  std::vector<CompileRequest> again = some(40);  // other labels, the same kernels
  for (CompileRequest& request : again) request.label += "_again";
  requests.insert(requests.end(), again.begin(), again.end());
  requests.push_back(fake_request("kernel 0", "gfx942"));
  compiler.seconds = 0.002;
  std::set<std::thread::id> threads;
  std::vector<size_t> steps;
  const PrebuildReport report =
      prebuild(cache, requests, {.jobs = 4, .compiler = &compiler, .progress = [&](size_t done, size_t total, const PrebuildItem&) {
                                   threads.insert(std::this_thread::get_id());
                                   steps.push_back(done);
                                   EXPECT_EQ(total, 41u);
                                 }});
  EXPECT_EQ(report.requests, 81u);
  ASSERT_EQ(report.items.size(), 41u);
  EXPECT_EQ(compiler.compiles, 41);
  EXPECT_EQ(report.failures(), "");
  EXPECT_GT(threads.size(), 1u);
  ASSERT_EQ(steps.size(), 41u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], i + 1);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(report.items[i].label, str("op_", i));
    EXPECT_EQ(report.items[i].origin, Origin::compiled);
    EXPECT_GE(report.items[i].compile_s, 0.002);
    EXPECT_TRUE(cache.has(compiler, requests[i]));
  }
  EXPECT_STREQ(report.items[40].target->name, "gfx942");

  // Another process would find all of it.
  Cache second(options(JitMode::cached));
  const PrebuildReport warm = prebuild(second, requests, {.jobs = 2, .compiler = &compiler});
  EXPECT_EQ(warm.failures(), "");
  EXPECT_EQ(compiler.compiles, 41);
  for (const PrebuildItem& item : warm.items) EXPECT_EQ(item.origin, Origin::disk);
}

TEST_F(PrebuildTest, FailuresAreCollectedWithWhatTheCompilerSaid) {
  std::vector<CompileRequest> requests = some(6);
  requests[1].source.text = "#error one";
  requests[4].source.text = "#error four";
  requests[5].source.text = "#include \"missing.h\"\n";
  const PrebuildReport report = prebuild(cache, requests, {.jobs = 3, .compiler = &compiler});
  ASSERT_EQ(report.items.size(), 6u);
  int good = 0;
  for (const PrebuildItem& item : report.items) good += item.error.empty();
  EXPECT_EQ(good, 3);
  EXPECT_THAT(report.failures(), AllOf(HasSubstr("op_1 for sm_90a: "), HasSubstr("op_4 for sm_90a: "), HasSubstr("error: as asked"),
                                       HasSubstr("missing.h"), HasSubstr("command: /opt/fake"), Not(HasSubstr("op_0"))));
}

TEST_F(PrebuildTest, WhatIsMissingIsNamedWhereNothingMayBeCompiled) {
  const std::vector<CompileRequest> requests = some(3);
  prebuild(cache, std::span(requests).first(2), {.compiler = &compiler});
  Cache sealed(options(JitMode::cached));
  const PrebuildReport report = prebuild(sealed, requests, {.compiler = &compiler});
  EXPECT_EQ(compiler.compiles, 2);
  EXPECT_THAT(report.failures(), AllOf(HasSubstr("op_2"), HasSubstr("not in the cache"), Not(HasSubstr("op_1"))));
}

TEST_F(PrebuildTest, OneReasonIsToldOnce) {
  std::vector<CompileRequest> requests = some(5);
  for (CompileRequest& request : requests) request.source.text = "#include \"missing.h\"\n";
  const PrebuildReport report = prebuild(cache, requests, {.compiler = &compiler});
  EXPECT_EQ(report.items.size(), 5u);
  EXPECT_THAT(report.failures(), AllOf(HasSubstr("op_0 for sm_90a and 4 more: "), Not(HasSubstr("op_1"))));
}

TEST_F(PrebuildTest, StopsWhenTheCallerThrows) {
  const std::vector<CompileRequest> requests = some(50);
  EXPECT_THROW(
      prebuild(
          cache, requests,
          {.jobs = 2, .compiler = &compiler, .progress = [](size_t, size_t, const PrebuildItem&) { throw std::runtime_error("enough"); }}),
      std::runtime_error);
  EXPECT_LE(compiler.compiles, 4);
}

TEST_F(PrebuildTest, NoRequestsAndImpossibleOnes) {
  EXPECT_TRUE(prebuild(cache, {}, {.compiler = &compiler}).items.empty());
  std::vector<CompileRequest> requests = some(1);
  requests[0].target = nullptr;
  EXPECT_THAT(error_of([&] { prebuild(cache, requests, {.compiler = &compiler}); }), HasSubstr("no target"));
  EXPECT_THAT(error_of([&] { prebuild(cache, {}, {.jobs = -1}); }), HasSubstr("jobs is -1"));
}

}  // namespace
}  // namespace eitri::jit
