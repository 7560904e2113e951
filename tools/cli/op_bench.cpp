// `eitri bench OP`: an operator's kernels on a GPU, timed in graphs over a ring of cold buffers.
//
// A time is the median of nine replays of a graph that holds calls of about 3 ms in all; every call takes the next of several sets
// of tensors, 256 MiB or more together (at most 48 sets), so that inputs come from memory and not from the cache.
//
// What a call costs the host beside the launch depends on the core, which neighbours slow to less than half its speed for seconds: it is
// measured after each replay, every time on another core, and the least of the nine medians counts.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/gpu.h"
#include "base/error.h"
#include "cli/command.h"
#include "dispatch/mirror.h"
#include "ops/ops.h"
#include "ops/plain_weights.h"
#include "tune/tuned_op.h"

namespace eitri::cli {
namespace {

struct Options {
  std::string op;
  std::vector<std::string> problems;
  int device = 0;
  bool all_kernels = false, all_configs = false, json = false;
};

struct Timing {
  std::string problem, kernel, config;
  std::vector<double> us;  // a call, of each replay
  int64_t calls = 0;
  size_t sets = 0;
  double host_ns = 0;  // of a call, on the calling thread; its route known
  double own_ns = 0;   // without the driver's launch of the kernel, least of the medians on nine cores; both 0 for slow calls
  Cost cost;
  double median() const {
    auto sorted = us;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

constexpr size_t kRingBytes = size_t{256} << 20, kMostSets = 48, kMostMemory = size_t{24} << 30;
constexpr int kReplays = 9;
constexpr double kGraphUs = 3000;

/// While it lives the thread runs on one of the cores that it may run on, the `number`th.
class CoreScope {
 public:
  explicit CoreScope(int number) {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    int left = number % CPU_COUNT(&before_), core = 0;
    while (!CPU_ISSET(core, &before_) || left-- > 0) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pinned_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~CoreScope() {
    if (pinned_) sched_setaffinity(0, sizeof before_, &before_);
  }
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

/// Nanoseconds that the thread spends on putting a call into the stream: the median of batches that the stream's queue holds.
template <class Body> double host_ns(Stream stream, Body&& body) {
  constexpr int kBatches = 31, kCalls = 64;
  std::vector<double> ns;
  for (int batch = 0; batch < kBatches; ++batch) {
    gpu::synchronize(stream);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    ns.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
  }
  gpu::synchronize(stream);
  std::ranges::sort(ns);
  return ns[ns.size() / 2];
}

template <Operator Op> std::vector<Timing> time_problem(const typename Op::Problem& problem, const Device& device, const Options& options) {
  if (const auto all = candidates<Op>(problem, device); std::ranges::none_of(all, [](const auto& c) { return c.support.ok; }))
    fail_unsupported<Op>(problem, all);
  const gpu::ContextScope context(device);
  const gpu::OwnedStream stream(device);
  Maker maker({.seed = 1, .special_rows = false});
  const auto args = Op::make(problem, maker);
  size_t bytes = 0;
  for (const auto& range : maker.ranges()) bytes += range.bytes;
  require(bytes <= kMostMemory, Op::name, ": ", key_of(problem), " takes ", bytes >> 20, " MiB; expected at most ", kMostMemory >> 20);
  const size_t sets = std::clamp<size_t>((kRingBytes + bytes - 1) / std::max<size_t>(bytes, 1), 1, kMostSets);
  std::vector<Mirror> ring;
  std::vector<typename Op::Args> calls;
  for (size_t i = 0; i < sets; ++i) {
    ring.push_back(Mirror::on_device(maker.ranges(), device));
    ring.back().upload(stream);
    calls.push_back(args);
    Op::tensors(calls.back(), [&](const char*, View& view) { view = ring.back().copy_of(view); });
  }
  gpu::synchronize(stream);

  std::vector<Timing> out;
  for (const auto& candidate : candidates<Op>(problem, device)) {
    if (!candidate.support) continue;
    std::optional<ForceScope> force;
    if (options.all_kernels) force.emplace(Op::name, candidate.kernel->name);
    Route<Op> chosen = route<Op>(problem, device.id, stream);
    for (const Config& config : options.all_configs ? tune::every_config(chosen.kernel->knobs) : std::vector<Config>{chosen.config}) {
      chosen.config = config;
      if (chosen.kernel->workspace != nullptr) chosen.workspace = chosen.kernel->workspace(problem, config, device);
      if (chosen.kernel->sources != nullptr)
        chosen.functions = load_sources(chosen.kernel->sources(problem, config, device), chosen.kernel->name, device, stream);
      const auto run = [&](int64_t n) {
        for (int64_t i = 0; i < n; ++i) detail::launch<Op>(chosen, calls[static_cast<size_t>(i) % sets], problem, stream);
      };
      gpu::Event start(device), stop(device);
      const auto time = [&](auto&& body, int64_t n) {
        start.record(stream);
        body();
        stop.record(stream);
        stop.wait();
        return stop.us_since(start) / static_cast<double>(n);
      };
      run(static_cast<int64_t>(sets));
      const double first = time([&] { run(8); }, 8);
      const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(kGraphUs / std::max(first, 1.0)), 8, 2000);
      gpu::Graph graph(device, stream, [&] { run(count); });
      graph.launch(stream);
      // Of calls that the stream's queue does not hold up.
      const bool fast = first < 100;
      const auto body = [&] { call<Op>(calls[0], stream); };
      Timing timing{.problem = key_of(problem),
                    .kernel = chosen.kernel->name,
                    .config = to_string(chosen.config, chosen.kernel->knobs),
                    .us = {},
                    .calls = count,
                    .sets = sets,
                    .host_ns = fast ? host_ns(stream, body) : 0,
                    .cost = Op::cost(problem)};
      for (int i = 0; i < kReplays; ++i) {
        timing.us.push_back(time([&] { graph.launch(stream); }, count));
        if (!fast) continue;
        const gpu::WithoutLaunches scope;
        const CoreScope core(i);
        const double ns = host_ns(stream, body);
        timing.own_ns = i == 0 ? ns : std::min(timing.own_ns, ns);
      }
      out.push_back(std::move(timing));
    }
    if (!options.all_kernels) break;
  }
  return out;
}

int run(const Options& options) {
  find_op(options.op);  // throws, and lists the known ones
  require(!check_calls(), "bench: EITRI_CHECK is set; expected it to be unset: calls that are compared with the reference cannot be timed");
  std::vector<Timing> all;
  for_each_op([&]<Operator Op>() {
    if (options.op != Op::name) return;
    std::vector<typename Op::Problem> problems;
    for (const std::string& text : options.problems)
      problems.push_back(with_plain_weights(parse_problem<typename Op::Problem>(Op::name, text), text));
    if (problems.empty())
      for (const auto& c : Op::cases().bench) problems.push_back(with_plain_weights(c.problem));
    const Device& device = gpu::device(options.device);
    for (const auto& problem : problems) {
      const Progress progress(key_of(problem));
      for (Timing& timing : time_problem<Op>(problem, device, options)) all.push_back(std::move(timing));
    }
  });
  const Device& device = gpu::device(options.device);
  const double bandwidth = device.profile.read_bytes;
  if (options.json) {
    auto rows = nlohmann::ordered_json::array();
    for (const Timing& t : all) {
      auto us = t.us;
      for (double& x : us) x = std::round(x * 1000) / 1000;
      rows.push_back({{"op", options.op},
                      {"problem", t.problem},
                      {"kernel", t.kernel},
                      {"config", t.config},
                      {"us", us},
                      {"median_us", std::round(t.median() * 1000) / 1000},
                      {"calls_in_graph", t.calls},
                      {"buffer_sets", t.sets},
                      {"host_ns", std::round(t.host_ns)},
                      {"own_ns", std::round(t.own_ns)},
                      {"bytes", t.cost.bytes},
                      {"flops", t.cost.flops},
                      {"tb_per_s", std::round(t.cost.bytes / t.median() / 1e3) / 1e3},
                      {"tflop_per_s", std::round(t.cost.flops / t.median() / 1e3) / 1e3}});
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"device", device.name}, {"arch", device.arch()}, {"rows", rows}}.dump(1));
    return kOk;
  }
  Table table({"problem", "kernel", "config", "us", "TB/s", "TFLOP/s", "of the limit", "host ns", "own ns"}, 3);
  for (const Timing& t : all) {
    const double floor_us = std::max(t.cost.bytes / bandwidth, t.cost.flops / device.peak(t.cost.math)) * 1e6;
    table.add({t.problem, t.kernel, t.config, fmt::format("{:.2f}", t.median()), fmt::format("{:.2f}", t.cost.bytes / t.median() / 1e6),
               fmt::format("{:.1f}", t.cost.flops / t.median() / 1e6), fmt::format("{:.0f} %", 100 * floor_us / t.median()),
               fmt::format("{:.0f}", t.host_ns), fmt::format("{:.0f}", t.own_ns)});
  }
  fmt::print("{} on {} ({})\n{}", options.op, device.name, device.id.index, table.text());
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* bench = app.add_subcommand("bench", "Time an operator's kernels on a GPU, in graphs over cold buffers");
  bench->add_option("op", options->op, "The operator")->required();
  bench->add_option("--problem", options->problems, "\"tokens=4096,hidden=7168\"; may be repeated (default: the operator's own cases)")
      ->allow_extra_args(false);
  bench->add_option("--device", options->device, "Which GPU (default 0)")->check(CLI::Range(0, 1023));
  bench->add_flag("--all-kernels", options->all_kernels, "Every kernel that takes the problem, not the chosen one alone");
  bench->add_flag("--all-configs", options->all_configs, "Every value of the kernel's knobs");
  bench->add_flag("--json", options->json, "For machines: every replay's time");
  bench->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
