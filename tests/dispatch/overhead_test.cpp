// Host time of a call with a cached route: check, hash, lookup, workspace, launch. The goal is < 100 ns for gemm; the limit
// here is generous, for it must hold on a busy machine; the number itself is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "eitri/eitri.hpp"
#include "harness/fake_op.h"
#include "harness/levels.h"
#include "ops/ops.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__) || defined(_GLIBCXX_ASSERTIONS)
inline constexpr bool kTimed = false;
#else
inline constexpr bool kTimed = true;
#endif

namespace eitri {
namespace {

/// The best of 20 rounds of 2000 calls, in ns a call.
template <class F> double best_ns(F&& f) {
  double best = 1e30;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2000; ++i) f();
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 2000);
  }
  return best;
}

void report(const char* what, double ns, double limit_ns) {
  std::printf("%s: %.0f ns\n", what, ns);
  testing::Test::RecordProperty(what, std::to_string(ns));
  if (kTimed) {
    EXPECT_LT(ns, limit_ns) << what;
  }
}

TEST(Overhead, cached_route_of_a_call_that_does_nothing) {
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 1, .cols = 1}, maker);
  const harness::LevelScope level(Isa::portable);
  report("check, route and launch of scale_add 1x1", best_ns([&] { call<ScaleAdd>(args); }), 1000);
  report("route lookup alone", best_ns([&] { route<ScaleAdd>({.rows = 1, .cols = 1}); }), 200);
}

TEST(Overhead, gemm) {
  Maker maker;
  const GemmArgs args = Gemm::make(parse_problem<Gemm::Problem>("gemm", "m=1,n=32,k=32"), maker);
  report("gemm 1x32x32, kernel included", best_ns([&] { gemm(args); }), 5000);
  report("gemm check", best_ns([&] { Gemm::check(args); }), 1000);
  const Gemm::Problem problem = Gemm::check(args);
  report("gemm route", best_ns([&] { route<Gemm>(problem); }), 500);
  const Plan<GemmArgs> plan(args);
  report("gemm 1x32x32 by a plan, kernel included", best_ns([&] { plan.run(args); }), 5000);
}

TEST(Overhead, route_miss) {
  const Gemm::Problem problem = parse_problem<Gemm::Problem>("gemm", "m=3,n=96,k=160");
  route<Gemm>(problem);
  double best = 1e30;
  for (int i = 0; i < 50; ++i) {
    bump_route_generation();
    const auto start = std::chrono::steady_clock::now();
    route<Gemm>(problem);
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
  }
  report("gemm route miss", best, 100e3);
}

}  // namespace
}  // namespace eitri
