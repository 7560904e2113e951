// What only a GPU shows: streams, graphs, dependent launches, workspace, devices, errors. Skipped where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>

#include "backend/cuda/graph.h"
#include "eitri/eitri.hpp"
#include "harness/caller.h"
#include "ops/ops.h"

namespace eitri {
namespace {

using harness::test_gpu;
using testing::HasSubstr;

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (test_gpu() == nullptr) GTEST_SKIP() << "no NVIDIA GPU: " << cuda::absence();
    gpu_ = test_gpu();
    context_.emplace(*gpu_);
  }
  View tensor(DType dtype, std::initializer_list<int64_t> shape, float value = 0) {
    View host(nullptr, dtype, shape);
    std::vector<std::byte> bytes(static_cast<size_t>(bytes_for(dtype, host.size())));
    for (int64_t i = 0; i < host.size(); ++i)
      store_at(bytes.data(), dtype, i, value == 0 ? std::sin(static_cast<double>(i) * 0.37) : value);
    buffers_.emplace_back(*gpu_, bytes.size());
    host.data = buffers_.back().data();
    host.device = gpu_->id;
    cuda::copy_to_device(host.data, bytes.data(), bytes.size(), nullptr);
    cuda::synchronize(nullptr);
    return host;
  }
  static std::vector<std::byte> bytes_of(const View& view, Stream stream) {
    std::vector<std::byte> out(static_cast<size_t>(span_bytes(view)));
    cuda::copy_to_host(out.data(), view.data, out.size(), stream);
    cuda::synchronize(stream);
    return out;
  }

  const Device* gpu_ = nullptr;
  std::optional<cuda::ContextScope> context_;
  std::vector<cuda::Buffer> buffers_;
};

/// 64 calls, each of which reads what the one before has written, of three operators; ends in y.
struct Chain {
  View x, residual, y, q, scale, weight;
  void run(Stream stream) const {
    for (int i = 0; i < 16; ++i) {
      rmsnorm({.x = x, .weight = weight, .residual = residual, .residual_out = residual, .out = y}, stream);
      activation({.x = y, .out = x, .activation = {.kind = ActivationKind::silu}}, stream);
      quantize({.x = x, .q = q, .scale = scale}, stream);
      rmsnorm({.x = x, .weight = weight, .out = y, .scale = {}}, stream);
      // The next round starts from y.
      activation({.x = y, .out = x, .activation = {.kind = ActivationKind::gelu}}, stream);
    }
  }
};

TEST_F(Cuda, dependent_launches_give_the_bits_of_plain_ones) {
  for (const int64_t tokens : {int64_t{1}, int64_t{7}, int64_t{300}, int64_t{5000}}) {
    std::vector<std::vector<std::byte>> plain;
    for (const int way : {0, 1, 2}) {  // plain, dependent, dependent in a graph
      const cuda::OwnedStream stream(*gpu_);
      buffers_.clear();
      const Chain chain{.x = tensor(DType::bf16, {tokens, 1024}),
                        .residual = tensor(DType::bf16, {tokens, 1024}),
                        .y = tensor(DType::bf16, {tokens, 1024}),
                        .q = tensor(DType::i8, {tokens, 1024}),
                        .scale = tensor(DType::f32, {tokens}),
                        .weight = tensor(DType::bf16, {1024}, 1.5f)};
      cuda::allow_dependent_launches(way != 0);
      if (way == 2) {
        cuda::Graph graph(*gpu_, stream, [&] { chain.run(stream); });
        graph.launch(stream);
        cuda::synchronize(stream);
      } else {
        chain.run(stream);
      }
      cuda::allow_dependent_launches(true);
      const std::vector<std::vector<std::byte>> result = {bytes_of(chain.y, stream), bytes_of(chain.residual, stream),
                                                          bytes_of(chain.q, stream)};
      if (way == 0) plain = result;
      else EXPECT_EQ(result, plain) << tokens << " tokens, way " << way;
    }
  }
}

TEST_F(Cuda, foreign_streams_that_fork_and_join) {
  const cuda::OwnedStream a(*gpu_), b(*gpu_);
  cuda::Event forked(*gpu_), joined(*gpu_);
  const View x = tensor(DType::f32, {4096, 1024}), left = tensor(DType::f32, {4096, 1024}), right = tensor(DType::f32, {4096, 1024}),
             sum = tensor(DType::f32, {4096, 1024}), kept = tensor(DType::f32, {4096, 1024});
  const auto run = [&] {
    rmsnorm({.x = x, .out = left}, a);
    forked.record(a);
    forked.hold(b);
    activation({.x = left, .out = right, .activation = {.kind = ActivationKind::silu}}, b);
    joined.record(b);
    activation({.x = left, .out = sum, .activation = {.kind = ActivationKind::gelu}}, a);
    joined.hold(a);
    rmsnorm({.x = sum, .residual = right, .residual_out = kept, .out = sum}, a);
  };
  run();
  const auto eager = bytes_of(sum, a);
  cuda::Graph graph(*gpu_, a, run);
  for (int i = 0; i < 20; ++i) {
    graph.launch(a);
    ASSERT_EQ(bytes_of(sum, a), eager) << "replay " << i;
  }
}

TEST_F(Cuda, a_call_that_is_not_loaded_is_refused_while_capturing_and_leaves_the_capture_whole) {
  const cuda::OwnedStream stream(*gpu_);
  const View x = tensor(DType::bf16, {3, 264}), out = tensor(DType::bf16, {3, 264});
  const View fresh_x = tensor(DType::f16, {2, 1448}), fresh_out = tensor(DType::f32, {2, 1448});
  rmsnorm({.x = x, .out = out}, stream);
  const auto expected = bytes_of(out, stream);
  std::string message;
  cuda::Graph graph(*gpu_, stream, [&] {
    rmsnorm({.x = x, .out = out}, stream);
    try {
      rmsnorm({.x = fresh_x, .out = fresh_out}, stream);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::unsupported);
      message = error.what();
    }
  });
  EXPECT_THAT(message, HasSubstr("rmsnorm.simt.block_per_row: its kernel is not loaded yet, and the stream captures a graph"));
  graph.launch(stream);
  EXPECT_EQ(bytes_of(out, stream), expected);
  rmsnorm({.x = fresh_x, .out = fresh_out}, stream);  // and outside of the capture it works
}

// Blocks that wait for each other's numbers, on three streams at once and beside products that fill the device: nobody waits for ever, and
// launches of different sizes on one stream, or replays of graphs, take no number of another launch.
TEST_F(Cuda, blocks_that_meet_beside_other_work) {
  constexpr size_t kStreams = 3;
  constexpr int64_t kRows[] = {1, 3, 40, 256, 3000}, kCols = 4096;
  const View a = tensor(DType::bf16, {4096, 2048}), b = tensor(DType::bf16, {4096, 2048}), c = tensor(DType::bf16, {4096, 4096});
  struct Quantised {
    QuantizeArgs args;
    std::vector<std::byte> codes, scale;
  };
  std::vector<Quantised> calls[kStreams];
  const cuda::OwnedStream streams[] = {cuda::OwnedStream(*gpu_), cuda::OwnedStream(*gpu_), cuda::OwnedStream(*gpu_)};
  const cuda::OwnedStream busy(*gpu_);
  for (size_t s = 0; s < kStreams; ++s)
    for (const int64_t rows : kRows) {
      // Numbers of one launch only on two of the streams, everything between -1 and 1 on the other.
      const View x = tensor(DType::bf16, {rows + static_cast<int64_t>(s), kCols}, s == 0 ? 0 : static_cast<float>(rows + 7 * s));
      Quantised& call = calls[s].emplace_back();
      call.args = {.x = x, .q = tensor(DType::f8e4m3, {x.shape[0], kCols}), .scale = tensor(DType::f32, {1}), .quant = Quant::per_tensor};
      const ForceScope force("quantize", "quantize.simt.block_per_row");
      quantize(call.args, streams[s]);
      call.codes = bytes_of(call.args.q, streams[s]);
      call.scale = bytes_of(call.args.scale, streams[s]);
    }
  const ForceScope force("quantize", "quantize.simt.one_pass");
  const auto run = [&](size_t s) {
    for (int round = 0; round < 4; ++round)
      for (const Quantised& call : calls[s]) {
        cuda::driver()->set_bytes(reinterpret_cast<cuda::Address>(call.args.q.data), 0x55, call.codes.size(), streams[s]);
        quantize(call.args, streams[s]);
      }
  };
  const auto expect_right = [&](const char* way) {
    for (size_t s = 0; s < kStreams; ++s)
      for (const Quantised& call : calls[s]) {
        EXPECT_EQ(bytes_of(call.args.scale, streams[s]), call.scale) << way << ", stream " << s;
        EXPECT_TRUE(bytes_of(call.args.q, streams[s]) == call.codes) << way << ", stream " << s;
      }
  };
  for (size_t s = 0; s < kStreams; ++s) run(s);  // loads
  expect_right("loading");
  std::vector<std::unique_ptr<cuda::Graph>> graphs;
  for (size_t s = 0; s < kStreams; ++s) graphs.push_back(std::make_unique<cuda::Graph>(*gpu_, streams[s], [&] { run(s); }));
  for (const bool replayed : {false, true})
    for (int i = 0; i < 5; ++i) {
      for (int n = 0; n < 20; ++n) gemm({.a = a, .b = b, .c = c}, busy);
      for (size_t s = 0; s < kStreams; ++s) {
        if (replayed) graphs[s]->launch(streams[s]);
        run(s);  // between replays the stream's own launches
      }
      expect_right(replayed ? "replayed" : "eager");
    }
  cuda::synchronize(busy);
}

TEST_F(Cuda, workspace_of_a_graph_is_its_own_and_comes_back) {
  const cuda::OwnedStream stream(*gpu_);
  std::byte *eager = nullptr, *captured = nullptr, *nested = nullptr, *again = nullptr;
  {
    const cuda::WorkspaceScope scope(*gpu_, stream, 1000);
    eager = scope.data();
    const cuda::WorkspaceScope inner(*gpu_, stream, 1000);
    EXPECT_EQ(inner.data(), eager + 1024);
  }
  {
    cuda::Graph graph(*gpu_, stream, [&] {
      const cuda::WorkspaceScope scope(*gpu_, stream, 5 << 20);
      captured = scope.data();
      const cuda::WorkspaceScope inner(*gpu_, stream, 5 << 20);
      nested = inner.data();
      cuda::driver()->set_bytes(reinterpret_cast<cuda::Address>(captured), 1, 5 << 20, stream);
    });
    EXPECT_NE(captured, eager);
    EXPECT_GE(std::abs(nested - captured), 5 << 20);
    graph.launch(stream);
    cuda::synchronize(stream);
  }
  // The driver tells in its own time that a graph is gone.
  std::vector<std::unique_ptr<cuda::Graph>> later;
  for (int i = 0; i < 100 && again != captured && again != nested; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    later.push_back(std::make_unique<cuda::Graph>(*gpu_, stream, [&] {
      const cuda::WorkspaceScope scope(*gpu_, stream, 5 << 20);
      again = scope.data();
      cuda::driver()->set_bytes(reinterpret_cast<cuda::Address>(again), 1, 5 << 20, stream);
    }));
  }
  EXPECT_TRUE(again == captured || again == nested) << "the first graph's memory was not used again";
  {
    const cuda::WorkspaceScope grown(*gpu_, stream, 64 << 20);
    EXPECT_NE(grown.data(), nullptr);
  }
}

TEST_F(Cuda, threads_share_a_stream) {
  const cuda::OwnedStream stream(*gpu_);
  std::vector<std::thread> team;
  std::vector<View> in, out;
  for (int t = 0; t < 8; ++t) {
    in.push_back(tensor(DType::f32, {64, 512}));
    out.push_back(tensor(DType::f32, {64, 512}));
  }
  for (size_t t = 0; t < 8; ++t)
    team.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) rmsnorm({.x = in[t], .out = out[t]}, stream);
    });
  for (auto& thread : team) thread.join();
  for (size_t t = 1; t < 8; ++t) EXPECT_EQ(bytes_of(out[t], stream), bytes_of(out[0], stream));
}

TEST_F(Cuda, the_current_device_stays_what_it_was) {
  context_.reset();
  std::thread([&] {  // a thread without a context
    const cuda::OwnedStream stream(*gpu_);
    View x, out;
    {
      const cuda::ContextScope scope(*gpu_);
      x = tensor(DType::f32, {4, 64});
      out = tensor(DType::f32, {4, 64});
    }
    cuda::Handle context = nullptr;
    cuda::driver()->ctx_get_current(&context);
    ASSERT_EQ(context, nullptr);
    rmsnorm({.x = x, .out = out}, stream);
    cuda::driver()->ctx_get_current(&context);
    EXPECT_EQ(context, nullptr);
    // A problem that is new, in the null stream, which without a context is nobody's.
    View narrow = x, narrow_out = out;
    narrow.shape[1] = narrow_out.shape[1] = 52;
    rmsnorm({.x = narrow, .out = narrow_out, .eps = 1e-5f});
    cuda::driver()->ctx_get_current(&context);
    EXPECT_EQ(context, nullptr);
  })
      .join();
}

TEST_F(Cuda, weights_that_the_call_before_has_written) {
  const cuda::OwnedStream stream(*gpu_);
  const View source = tensor(DType::f32, {1, 4096}), weight_row = tensor(DType::f32, {1, 4096}), x = tensor(DType::f32, {8, 4096}),
             out = tensor(DType::f32, {8, 4096});
  View weight = weight_row;
  weight.rank = 1;
  weight.shape[0] = 4096;
  weight.stride[0] = 1;
  std::vector<std::vector<std::byte>> results;
  for (const bool dependent : {false, true}) {
    for (int i = 0; i < 20; ++i) {
      cuda::driver()->set_bytes(reinterpret_cast<cuda::Address>(weight.data), 0, 4096 * 4, stream);
      cuda::allow_dependent_launches(dependent);
      rmsnorm({.x = x, .out = out}, stream);
      activation({.x = source, .out = weight_row, .activation = {.kind = ActivationKind::silu}}, stream);
      rmsnorm({.x = x, .weight = weight, .out = out}, stream);
      cuda::allow_dependent_launches(true);
      results.push_back(bytes_of(out, stream));
      ASSERT_EQ(results.back(), results.front()) << "dependent " << dependent << ", round " << i;
    }
  }
}

TEST_F(Cuda, several_devices) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one GPU";
  std::vector<std::vector<std::byte>> results;
  for (int i = 0; i < cuda::device_count(); ++i) {
    const Device& device = cuda::device(i);
    const cuda::ContextScope scope(device);
    gpu_ = &device;
    const cuda::OwnedStream stream(device);
    const View x = tensor(DType::bf16, {33, 4096}), out = tensor(DType::bf16, {33, 4096});
    // The caller's current device is another one: the tensors decide.
    const cuda::ContextScope other(cuda::device((i + 1) % cuda::device_count()));
    rmsnorm({.x = x, .out = out}, stream);
    const cuda::ContextScope back(device);
    results.push_back(bytes_of(out, stream));
    EXPECT_EQ(results.back(), results.front()) << to_string(device.id);
  }
}

TEST_F(Cuda, tensors_elsewhere_are_refused) {
  const View x = tensor(DType::bf16, {4, 64}), out = tensor(DType::bf16, {4, 64});
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  View elsewhere = out;
  elsewhere.device = {};
  EXPECT_THAT(message([&] { rmsnorm({.x = x, .out = elsewhere}); }), HasSubstr("out is on cpu; expected cuda:0 (device of x)"));
  View missing = x, missing_out = out;
  missing.device = missing_out.device = {DeviceKind::cuda, 99};
  EXPECT_THAT(message([&] { rmsnorm({.x = missing, .out = missing_out}); }), HasSubstr("cuda: no device 99; there are"));
  missing.device = missing_out.device = {DeviceKind::hip, 0};
  EXPECT_THAT(message([&] { rmsnorm({.x = missing, .out = missing_out}); }), HasSubstr("AMD GPU"));
}

TEST_F(Cuda, plans) {
  const cuda::OwnedStream stream(*gpu_);
  const View x = tensor(DType::bf16, {5, 96}), out = tensor(DType::bf16, {5, 96});
  const Plan<RmsNormArgs> plan({.x = x, .out = out});
  EXPECT_EQ(plan.kernel(), "rmsnorm.simt.block_per_row");
  cuda::Graph graph(*gpu_, stream, [&] { plan.run({.x = x, .out = out}, stream); });  // loaded by the plan
  graph.launch(stream);
  std::vector<float> host(5 * 96);
  EXPECT_THROW(plan.run({.x = View(host.data(), DType::bf16, {5, 96}), .out = View(host.data(), DType::bf16, {5, 96})}), Error);
}

}  // namespace
}  // namespace eitri
