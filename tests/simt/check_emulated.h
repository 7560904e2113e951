// Runs an operator's SIMT kernel, emulated, on the operator's own cases and judges it by the operator's own reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "harness/check_row.h"
#include "ops/quantize/simt_shape.h"
#include "simt/emulator.h"
#include "simt/op_kernels.h"

namespace eitri::simt_emulation {

/// The shape of the tables in *_kernels_body.h for rows of `columns`.
inline RowShape tested_shape(int64_t columns, int wide) {
  const int64_t one = int64_t{kOneChunkThreads} * wide;
  if (columns <= one) return {kOneChunkThreads, 1};
  if (columns <= 4 * one) return {kOneChunkThreads, 4};
  return {kLongRowThreads, 0};
}

/// A launch: `blocks` is how many there would be; the emulation takes fewer, so that blocks loop over their work.
struct EmulatedLaunch {
  int threads = 0;
  int64_t blocks = 0;
  std::function<void()> lane = {};  // empty: the form is not in the tables
  int cluster = 1;
  bool idle = false;  // the problem is passed over
};

/// Problems that have an extent of 0. Where outputs can have elements then, kernels must write them.
enum class EmptyProblems : uint8_t { skip, run };

inline std::vector<EmulatedLaunch> as_list(EmulatedLaunch launch) { return {std::move(launch)}; }
inline std::vector<EmulatedLaunch> as_list(std::vector<EmulatedLaunch> launches) { return launches; }

/// prepare(args, problem, warp_size, most_blocks) -> EmulatedLaunch, or a list of them in order. Every case dense and with odd strides, with warps of 32 and of
/// 64; the schedule changes from run to run. `most_tokens`: for kernels that take a block a token. `row`: only the cases that it takes.
template <Operator Op, class Prepare>
void check_emulated(Prepare&& prepare, EmptyProblems empty = EmptyProblems::skip, int64_t most_tokens = INT64_MAX,
                    const Kernel<Op>* row = nullptr) {
  std::set<std::string> keys;
  int64_t runs = 0;
  for (const auto& [problem, note] : Op::cases().test) {
    if constexpr (requires { problem.tokens; })
      if (problem.tokens > most_tokens) continue;
    if (row != nullptr && !row->supports(problem, cpu_device())) continue;
    const std::string key = key_of(problem);
    if ((empty == EmptyProblems::skip && Op::empty(problem)) || !keys.insert(key).second) continue;
    for (const bool strided : {false, true}) {
      SCOPED_TRACE(testing::Message() << Op::name << " " << key << (strided ? " strided" : " dense"));
      Maker maker({.seed = strided ? 2u : 1u, .guards = true, .strided = strided, .poison = true});
      const auto args = Op::make(problem, maker);
      maker.seal();
      const Oracle& oracle = harness::oracle_of<Op>(problem, args, strided ? 2 : 1);
      for (const int warp_size : {32, 64}) {
        maker.poison_outputs();
        const std::vector<EmulatedLaunch> launches = as_list(prepare(args, problem, warp_size, 1 + runs % 4));
        if (!launches.empty() && launches.front().idle) continue;
        for (const EmulatedLaunch& launch : launches) {
          ASSERT_TRUE(launch.lane) << "no such form in the tables of tests/simt";
          const auto order = static_cast<Order>(runs % 3);
          const std::string fault = run({.blocks = launch.blocks,
                                         .threads = launch.threads,
                                         .cluster = launch.cluster,
                                         .warp_size = warp_size,
                                         .order = order,
                                         .seed = static_cast<uint64_t>(runs)},
                                        launch.lane);
          ASSERT_EQ(fault, "") << "warp " << warp_size;
        }
        ++runs;
        ASSERT_EQ(harness::judge_all(Op::outputs(args), oracle, Op::tolerance(problem)), "") << "warp " << warp_size;
        ASSERT_EQ(maker.damage(), "") << "warp " << warp_size;
      }
    }
  }
  EXPECT_GT(runs, 50);
}

}  // namespace eitri::simt_emulation
