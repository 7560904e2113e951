// The emulator itself: right kernels pass under every schedule, and every planted fault is found and named.
#include "simt/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "device/simt_emulated.h"
#include "simt/planted_kernels.h"

namespace eitri {
namespace {

using simt_emulation::Grid;
using simt_emulation::Order;
using testing::HasSubstr;

constexpr int kThreads = 192;
using Planted = void (*)(const float*, float*);

struct Outcome {
  std::string fault;
  std::vector<float> out = {};
};

Outcome run(Planted kernel, int warp_size, Order order, uint64_t seed = 1) {
  std::vector<float> in(kThreads), out(kThreads, -1);
  for (int i = 0; i < kThreads; ++i) in[static_cast<size_t>(i)] = static_cast<float>(i % 7 - 2);
  const Grid grid{.blocks = 1, .threads = kThreads, .warp_size = warp_size, .order = order, .seed = seed};
  std::string fault = simt_emulation::run(grid, [&] { kernel(in.data(), out.data()); });
  return {std::move(fault), std::move(out)};
}

/// Both kernels under every schedule, several random ones.
template <class Check> void with_every_schedule(Planted at32, Planted at64, Check&& check) {
  for (const int warp_size : {32, 64}) {
    for (int i = 0; i < 8; ++i) {
      const Order order = i == 0 ? Order::forward : i == 1 ? Order::backward : Order::random;
      SCOPED_TRACE(testing::Message() << "warp " << warp_size << " schedule " << i);
      check(run(warp_size == 32 ? at32 : at64, warp_size, order, static_cast<uint64_t>(i)), warp_size);
    }
  }
}

#define BOTH(kernel) simt32::kernel, simt64::kernel

float value(int i) { return static_cast<float>(i % 7 - 2); }

TEST(SimtEmulator, right_kernels_pass_under_every_schedule) {
  float total = 0;
  int positive = 0;
  for (int i = 0; i < kThreads; ++i) total += value(i), positive += value(i) > 0;
  with_every_schedule(BOTH(reverse), [](const Outcome& o, int) {
    ASSERT_EQ(o.fault, "");
    for (int i = 0; i < kThreads; ++i) ASSERT_EQ(o.out[static_cast<size_t>(i)], value(kThreads - 1 - i));
  });
  with_every_schedule(BOTH(block_total), [&](const Outcome& o, int) {
    ASSERT_EQ(o.fault, "");
    EXPECT_THAT(o.out, testing::Each(total));
  });
  with_every_schedule(BOTH(count_up), [&](const Outcome& o, int) {
    ASSERT_EQ(o.fault, "");
    EXPECT_THAT(o.out, testing::Each(static_cast<float>(positive)));
  });
  with_every_schedule(BOTH(warp_reverse), [](const Outcome& o, int width) {
    ASSERT_EQ(o.fault, "");
    for (int i = 0; i < kThreads; ++i) ASSERT_EQ(o.out[static_cast<size_t>(i)], value(i / width * width + width - 1 - i % width));
  });
}

template <class... Parts> void expect_fault(Planted at32, Planted at64, const Parts&... parts) {
  with_every_schedule(at32, at64, [&](const Outcome& o, int) {
    EXPECT_NE(o.fault, "") << "not found";
    for (const std::string& part : {std::string(parts)...}) EXPECT_THAT(o.fault, HasSubstr(part));
  });
}

TEST(SimtEmulator, finds_missing_barriers) {
  expect_fault(BOTH(missing_barrier), "shared element", "planted_kernels_body.h:");
  expect_fault(BOTH(missing_barrier_before_reuse), "race: lane", "with no barrier between");
  expect_fault(BOTH(missing_warp_barrier), "shared element");
  expect_fault(BOTH(atomic_and_read), "race: lane");
}

TEST(SimtEmulator, finds_races_of_writers) { expect_fault(BOTH(write_twice), "race: lane", "writes shared element", "has written"); }

TEST(SimtEmulator, finds_bad_shared_accesses) {
  expect_fault(BOTH(never_written), "lane 77 reads shared element 77", "which no lane has written");
  expect_fault(BOTH(beyond_the_end), "shared access out of bounds", "by lane 191: 192 of 192");
  expect_fault(BOTH(before_the_begin), "shared access out of bounds", "by lane 0: -1 of 192");
}

TEST(SimtEmulator, finds_barriers_that_not_all_lanes_reach) {
  expect_fault(BOTH(barrier_in_a_branch), "lanes 0-63 wait at sync()", "lanes 64-191 have ended");
  expect_fault(BOTH(two_barriers_in_branches), "different barriers: lanes 0-63 wait", "lanes 64-191 wait");
  expect_fault(BOTH(early_return), "lanes 0-69 wait at sync()", "lane 70 have ended", "lanes 71-191 wait");
}

TEST(SimtEmulator, finds_divergent_warp_functions) {
  with_every_schedule(BOTH(shuffle_in_a_branch), [](const Outcome& o, int width) {
    EXPECT_THAT(o.fault, HasSubstr(width == 32 ? "lanes 0-15 wait at shuffle_xor()" : "lanes 0-31 wait at shuffle_xor()"));
    EXPECT_THAT(o.fault, HasSubstr(width == 32 ? "lanes 16-31 have ended" : "lanes 32-63 have ended"));
  });
  expect_fault(BOTH(loops_of_different_length), "wait at shuffle_xor()", "have ended");
  expect_fault(BOTH(lane_out_of_the_warp), "shuffle_idx at");
}

TEST(SimtEmulator, finds_misaligned_vectors_and_exceptions) {
  expect_fault(BOTH(misaligned), "misaligned load");
  expect_fault(BOTH(throws), "lane 5 threw from a lane");
}

TEST(SimtEmulator, a_hard_coded_warp_size_shows_with_the_other_one) {
  with_every_schedule(BOTH(sum_of_32_lanes), [](const Outcome& o, int width) {
    ASSERT_EQ(o.fault, "");
    int wrong = 0;
    for (int i = 0; i < kThreads; ++i) {
      float sum = 0;
      for (int j = i / width * width; j < i / width * width + width; ++j) sum += value(j);
      wrong += o.out[static_cast<size_t>(i)] != sum;
    }
    if (width == 32) EXPECT_EQ(wrong, 0);
    else EXPECT_GT(wrong, kThreads / 2);
  });
}

TEST(SimtEmulator, a_fault_does_not_spoil_the_next_run) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(run(simt64::missing_barrier, 64, Order::random).fault, "");
    EXPECT_EQ(run(simt64::reverse, 64, Order::random).fault, "");
    EXPECT_NE(run(simt32::early_return, 32, Order::backward).fault, "");
    EXPECT_EQ(run(simt32::block_total, 32, Order::forward).fault, "");
  }
}

TEST(SimtEmulator, every_block_and_lane_runs_once) {
  std::vector<int> seen(5 * 64, 0);
  for (const Order order : {Order::forward, Order::backward, Order::random}) {
    const std::string fault = simt_emulation::run({.blocks = 5, .threads = 64, .warp_size = 32, .order = order}, [&] {
      EXPECT_EQ(simt_emulation::block_size(), 64);
      EXPECT_EQ(simt_emulation::grid_size(), 5);
      ++seen[static_cast<size_t>(simt_emulation::block() * 64 + simt_emulation::thread())];
    });
    EXPECT_EQ(fault, "");
  }
  EXPECT_THAT(seen, testing::Each(3));
}

TEST(SimtEmulator, refuses_impossible_grids) {
  EXPECT_THAT(simt_emulation::run({.threads = 48}, [] {}), HasSubstr("multiple of 32"));
  EXPECT_THAT(simt_emulation::run({.threads = 2048}, [] {}), HasSubstr("at most 1024"));
  EXPECT_THAT(simt_emulation::run({.threads = 64, .warp_size = 16}, [] {}), HasSubstr("expected 32 or 64"));
  EXPECT_THAT(simt_emulation::run({.blocks = 0, .threads = 64}, [] {}), HasSubstr("blocks is 0"));
}

TEST(SimtEmulator, blocks_of_a_cluster_run_together) {
  const auto run_pairs = [](Planted kernel, int warp_size, Order order) {
    std::vector<float> in(2 * kThreads), out(2 * kThreads, -1);
    for (int i = 0; i < 2 * kThreads; ++i) in[static_cast<size_t>(i)] = value(i);
    const Grid grid{.blocks = 2, .threads = kThreads, .cluster = 2, .warp_size = warp_size, .order = order};
    std::string fault = simt_emulation::run(grid, [&] { kernel(in.data(), out.data()); });
    return Outcome{std::move(fault), std::move(out)};
  };
  float total = 0;
  for (int i = 0; i < 2 * kThreads; ++i) total += value(i);
  for (const int warp_size : {32, 64})
    for (const Order order : {Order::forward, Order::backward, Order::random}) {
      const auto of = [=](Planted at32, Planted at64) { return run_pairs(warp_size == 32 ? at32 : at64, warp_size, order); };
      const Outcome right = of(BOTH(pair_total));
      ASSERT_EQ(right.fault, "");
      for (int i = 0; i < 2 * kThreads; ++i) ASSERT_EQ(right.out[static_cast<size_t>(i)], total + static_cast<float>(i / kThreads));
      EXPECT_THAT(of(BOTH(pair_reads_too_early)).fault, testing::AnyOf(HasSubstr("race"), HasSubstr("which no lane has written")));
      EXPECT_THAT(of(BOTH(barrier_of_one_of_a_pair)).fault, HasSubstr("sync() in a cluster"));
    }
  EXPECT_THAT(simt_emulation::run({.blocks = 3, .threads = 32, .cluster = 2}, [] {}), HasSubstr("a multiple of the cluster"));
}

}  // namespace
}  // namespace eitri
