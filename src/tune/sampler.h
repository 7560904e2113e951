// Times a candidate's calls: over a ring of tensors that no cache holds, on CPUs one after the other, on GPUs as a graph.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/available_memory.h"
#include "backend/cpu/threads.h"
#include "tune/bench_call.h"
#include "tune/tuned_op.h"

namespace eitri::tune {

/// Of a ring of tensors, where a call reads little of its own.
inline constexpr double kRingBytes = 1e9;
/// Of a GPU, before the first sample: until its clocks are up, or, where calls compute for longer than they read, until it draws so much power
/// that its clocks go down again. An H200 takes 40 to 75 ms for that; a product of 82 us takes 98 from then on, and another algorithm of it,
/// which had 83, takes 90.
inline constexpr double kWarmUpUs = 25e3, kPowerUs = 100e3;

/// Of the process: pages that are there need not be made for the next problem.
inline Buffer& ring_arena() {
  static Buffer arena;
  return arena;
}

/// Copies of calls' tensors, for kernels to go round: the same numbers at other places.
template <Operator Op> class Ring {
 public:
  using Args = typename Op::Args;
  /// `bases`: taken in turn, and kept by the caller; on a GPU they are there. `arena`: of the host, memory that is used again, for
  /// problem after problem.
  Ring(const std::vector<Call<Op>*>& bases, size_t sets, const Device& device, Stream stream, Buffer& arena) {
    size_t bytes = 0;
    for (size_t i = bases.size(); i < sets; ++i)
      for (const Mirror::Range& range : bases[i % bases.size()]->maker().ranges()) bytes += room_of(range);
    if (device.is_gpu()) {
      on_device_ = gpu::Buffer(device, bytes);
    } else if (arena.size() < bytes) {
      arena = {};  // first the old one goes
      // Pages that nobody touches cost nothing, and those of the first ring serve a larger one after it.
      arena = Buffer(std::max(bytes, std::min(static_cast<size_t>(kRingBytes), available_memory() / 8)));
    }
    std::byte* to = device.is_gpu() ? on_device_.data() : arena.data();
    for (size_t i = 0; i < sets; ++i) {
      Call<Op>& base = *bases[i % bases.size()];
      args_.push_back(base.args());
      if (i < bases.size()) continue;                           // itself
      std::vector<std::pair<Mirror::Range, std::byte*>> moved;  // where the host has them, and the copies
      for (const Mirror::Range& range : base.maker().ranges()) {
        if (device.is_gpu()) gpu::copy_on_device(to, base.on_device(range.data), range.bytes, stream);
        else copy(range, to);
        moved.emplace_back(range, to);
        to += room_of(range);
      }
      args_.back() = base.host();
      Op::tensors(args_.back(), [&](const char*, View& view) {
        auto* const data = static_cast<std::byte*>(view.data);
        for (const auto& [range, at] : moved)
          if (data >= range.data && data < range.data + range.bytes) view.data = at + (data - range.data);
        if (device.is_gpu() && view.given()) view.device = device.id;
      });
    }
  }
  size_t size() const { return args_.size(); }
  const Args& next() { return args_[next_++ % args_.size()]; }

 private:
  /// Large tensors begin where a huge page does, as they do elsewhere.
  static size_t room_of(const Mirror::Range& range) {
    const size_t step = range.bytes >= size_t{2} << 20 ? size_t{2} << 20 : 4096;
    return (range.bytes + step - 1) / step * step;
  }
  static void copy(const Mirror::Range& from, std::byte* to) {
    parallel(from.bytes < size_t{1} << 20 ? 1 : max_threads(), [&](int thread, int threads) {
      const Span mine = split(static_cast<int64_t>(from.bytes), thread, threads, 4096);
      std::memcpy(to + mine.begin, from.data + mine.begin, static_cast<size_t>(mine.end - mine.begin));
    });
  }

  gpu::Buffer on_device_;
  std::vector<Args> args_;
  size_t next_ = 0;
};

template <Operator Op> class Sampler {
 public:
  using Problem = typename Op::Problem;
  Sampler(const Problem& problem, const Device& device) : problem_(problem), device_(device) {}

  /// Sets of tensors that calls take in turn, so that no cache holds them: by what a call reads, within what memory and patience allow.
  /// A call that reads little of its tensors (a few of many experts) may find some of it in a large cache.
  /// `made`: a call of these tensors that is there already, or null. `lenders`: calls whose weights may be used again.
  void make_ring(Call<Op>* made, const std::vector<Call<Op>*>& lenders, Stream stream) {
    if (ring_) return;
    Buffer& arena = ring_arena();
    const double bytes = std::max(1.0, Op::cost(problem_).bytes);
    const double wanted = device_.is_gpu() ? 160e6 : std::max(64e6, 2.0 * static_cast<double>(device_.l3_bytes));
    const double room = static_cast<double>(available_memory() + arena.size()) / 2;
    auto sets = static_cast<size_t>(std::clamp(std::min(std::ceil(wanted / bytes), room / (3 * bytes)), 1.0, 48.0));
    // Balanced and skewed ones, as many of each, where memory holds two.
    const bool in_pairs = is_routed() && room >= 6 * bytes;
    const auto whole = [&](size_t count) { return in_pairs ? std::max<size_t>(2, count & ~size_t{1}) : count; };
    sets = whole(sets);
    std::vector<Call<Op>*> bases;
    const auto add = [&](MakerOptions options) {
      options.poison = options.special_rows = false;
      bases_.push_back(std::make_unique<Call<Op>>(problem_, device_, options, lenders));
      bases_.back()->upload(stream);
      bases.push_back(bases_.back().get());
    };
    if (made != nullptr) bases.push_back(made);
    else add({.seed = 1});
    if (in_pairs) add({.seed = 2, .skew = kSkew});
    double of_one = 0;
    for (const auto& range : bases[0]->maker().ranges()) of_one += static_cast<double>(range.bytes);
    const auto most = static_cast<size_t>(std::max(wanted, kRingBytes) / std::max(1.0, of_one));
    ring_.emplace(bases, whole(std::clamp<size_t>(most, 1, sets)), device_, stream, arena);
  }

  /// What a call takes, about: then the first sample needs no call to find out.
  void expect(const std::string& name, double us) { expected_us_[name] = us; }
  /// Microseconds of a call, from one sample of about `sample_us`. `name` tells candidates apart.
  double time(const Route<Op>& route, const std::string& name, double sample_us, Stream stream) {
    return device_.is_gpu() ? time_on_gpu(route, name, sample_us, stream) : time_on_cpu(route, name, sample_us);
  }

 private:
  bool is_routed() const {
    bool routed = false;
    problem_.fields([&](const char* name, const auto&, Match = Match::exact) { routed = routed || name == std::string_view("experts"); });
    return routed;
  }
  /// Calls of a sample: where tokens have experts, each has as many skewed sets as balanced ones.
  int64_t whole_pairs(int64_t calls) const { return is_routed() && ring_->size() > 1 ? calls + calls % 2 : calls; }

  double time_on_cpu(const Route<Op>& route, const std::string& name, double sample_us) {
    const auto calls = [&](int64_t n) {
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < n; ++i) eitri::detail::launch_unchecked<Op>(route, ring_->next(), problem_, nullptr);
      return us_since(start) / static_cast<double>(n);
    };
    double& expected = expected_us_[name];
    if (expected == 0) expected = calls(1);
    const int64_t n = whole_pairs(std::clamp<int64_t>(static_cast<int64_t>(sample_us / std::max(expected, 0.1)), 1, 2000));
    if (n >= 4) calls(1);  // its code and its threads come back
    return expected = calls(n);
  }

  double time_on_gpu(const Route<Op>& route, const std::string& name, double sample_us, Stream stream) {
    gpu::Event start(device_), stop(device_);
    const auto timed = [&](auto&& body, int64_t n) {
      start.record(stream);
      body();
      stop.record(stream);
      stop.wait();
      return stop.us_since(start) / static_cast<double>(n);
    };
    const auto calls = [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) eitri::detail::launch_unchecked<Op>(route, ring_->next(), problem_, stream);
    };
    Replay& replay = replays_[name];
    if (replay.graph == nullptr) {
      calls(1);
      const double us = timed([&] { calls(4); }, 4);
      replay.calls = whole_pairs(std::clamp<int64_t>(static_cast<int64_t>(2 * sample_us / std::max(us, 1.0)), 4, 2000));
      replay.graph = std::make_unique<gpu::Graph>(device_, stream, [&] { calls(replay.calls); });
      replay.graph->launch(stream);
    }
    const auto sample = [&] { return timed([&] { replay.graph->launch(stream); }, replay.calls); };
    // A device that idled has low clocks, which kernels suffer from differently: it works for a while before anything counts.
    const auto now = std::chrono::steady_clock::now();
    if (now - last_sample_ > std::chrono::milliseconds(50))
      while (us_since(now) < (compute_over_read<Op>(problem_, device_) > 1 ? kPowerUs : kWarmUpUs)) sample();
    const double us = sample();
    last_sample_ = std::chrono::steady_clock::now();
    return us;
  }

  const Problem& problem_;
  const Device& device_;
  std::vector<std::unique_ptr<Call<Op>>> bases_;
  std::optional<Ring<Op>> ring_;
  std::map<std::string, double> expected_us_;
  struct Replay {
    std::unique_ptr<gpu::Graph> graph;
    int64_t calls = 0;
  };
  std::map<std::string, Replay> replays_;
  std::chrono::steady_clock::time_point last_sample_ = {};  // of a GPU
};

}  // namespace eitri::tune
