// `eitri moe run`: router and fused_moe on given or random hidden states; every step timed, the result compared with the
// reference.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "backend/cpu/cpu.h"
#include "base/error.h"
#include "base/view.h"
#include "checkpoint/safetensors.h"
#include "cli/measure.h"
#include "cli/moe.h"
#include "cli/verify.h"
#include "dispatch/trace.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {
using checkpoint::Arena;
using checkpoint::MoeLayer;
using checkpoint::Routing;

struct RunOptions {
  BlockChoice block;
  int64_t tokens = 0;  // 0: of --input, else 16
  std::string input, output;
  bool json = false;
};
constexpr int64_t kDefaultTokens = 16;

/// The hidden states of a file: the tensor "hidden_states", or the only one; [tokens, hidden], or [.., tokens, hidden].
View read_hidden_states(const std::string& path, const MoeLayer& layer, Arena& arena) {
  const auto file = checkpoint::SafetensorsFile::open(path);
  const auto* tensor = file.find("hidden_states");
  if (tensor == nullptr && file.tensors().size() == 1) tensor = &file.tensors()[0];
  require(tensor != nullptr, path, ": has no tensor 'hidden_states'");
  require(tensor->dtype == layer.dtype, path, ": tensor '", tensor->name, "' is ", checkpoint::to_string(*tensor), "; expected ",
          layer.dtype, " like the block");
  const bool fits = tensor->shape.size() >= 2 && tensor->shape.back() == layer.model.hidden;
  require(fits, path, ": tensor '", tensor->name, "' is ", checkpoint::to_string(*tensor), "; expected [tokens, ", layer.model.hidden, "]");
  const View x = arena.make(layer.dtype, {tensor->size() / layer.model.hidden, layer.model.hidden});
  std::memcpy(x.data, tensor->data, static_cast<size_t>(tensor->bytes));
  return x;
}

struct TimedStep {
  Step step;
  double own_us = 0;  // without the steps that it called itself
  bool parent = false;
};
struct Timing {
  std::vector<TimedStep> steps;
  double total_us = 0;
  double limit_fraction = 0;
};

/// Medians over the runs, step by step. A recipe's own time is what its children leave over, so the steps add up.
Timing summarise(std::vector<std::vector<Step>>& runs, const Device& device) {
  Timing out;
  const size_t steps = runs.back().size();
  std::erase_if(runs, [&](const auto& run) { return run.size() != steps; });  // a first run may route differently
  double floor_us = 0;
  for (size_t i = 0; i < steps; ++i) {
    std::vector<double> us;
    for (const auto& run : runs) us.push_back(run[i].us);
    TimedStep timed{.step = runs.back()[i]};
    timed.step.us = timed.own_us = median(us);
    out.steps.push_back(timed);
  }
  for (size_t i = 0; i < steps; ++i) {
    TimedStep& timed = out.steps[i];
    for (size_t j = i + 1; j < steps && out.steps[j].step.depth > timed.step.depth; ++j) {
      if (out.steps[j].step.depth != timed.step.depth + 1) continue;
      timed.parent = true;
      timed.own_us -= out.steps[j].step.us;
    }
    timed.own_us = std::max(0.0, timed.own_us);
    if (timed.step.depth > 0) continue;
    out.total_us += timed.step.us;
    floor_us += limit_fraction(timed.step, device) * timed.step.us;
  }
  out.limit_fraction = out.total_us > 0 ? floor_us / out.total_us : 0;
  return out;
}

/// Rows that are compared: all of them, or a random sample where the reference would take minutes.
std::vector<int64_t> sample_rows(const checkpoint::MoeModel& model, int64_t tokens, uint64_t seed) {
  const double per_row = static_cast<double>(model.top_k * (model.w1_rows() + model.inter) + model.shared_w1_rows() + model.shared_inter) *
                         static_cast<double>(model.hidden);
  constexpr double kBudget = 6e8;  // multiplications, about a second or two of double arithmetic
  const auto most = std::max<int64_t>(2, static_cast<int64_t>(kBudget / per_row));
  std::vector<int64_t> rows(static_cast<size_t>(tokens));
  std::iota(rows.begin(), rows.end(), 0);
  if (tokens > most) {
    std::mt19937_64 rng(seed);
    std::shuffle(rows.begin(), rows.end(), rng);
    rows.resize(static_cast<size_t>(most));
    std::sort(rows.begin(), rows.end());
  }
  return rows;
}

View gather(const View& from, const std::vector<int64_t>& indices, Arena& arena) {
  const View to = arena.make(from.dtype, {static_cast<int64_t>(indices.size()), from.shape[1]});
  for (size_t i = 0; i < indices.size(); ++i)
    std::memcpy(row(to, static_cast<int64_t>(i)), row(from, indices[i]), static_cast<size_t>(bytes_for(from.dtype, from.shape[1])));
  return to;
}

Checked check_result(const MoeLayer& layer, const View& x, const Routing& routing, const View& out, uint64_t seed) {
  const Progress progress("comparing with the reference");
  const auto indices = sample_rows(layer.model, x.shape[0], seed);
  Arena arena;
  const View xs = gather(x, indices, arena);
  Routing rs;
  rs.logits = gather(routing.logits, indices, arena);
  rs.weights = gather(routing.weights, indices, arena);
  rs.ids = gather(routing.ids, indices, arena);
  Checked checked;
  // The experts first: each check overwrites its outputs with the reference's.
  verify_call<FusedMoe>(moe_args(layer.model, layer.weights, xs, rs, gather(out, indices, arena)), checked);
  verify_call<TopkGating>(checkpoint::gating_args(layer, rs), checked);
  verify_call<Gemm>(checkpoint::router_args(layer, layer.weights, checkpoint::router_input(layer.weights, xs, arena), rs), checked);
  return checked;
}

void write_output(const std::string& path, const View& out, const Routing& routing) {
  const auto shape = [](const View& view) { return std::vector<int64_t>(view.shape, view.shape + view.rank); };
  const checkpoint::TensorToWrite tensors[] = {{"hidden_states", out.dtype, shape(out), out.data},
                                               {"router_logits", DType::f32, shape(routing.logits), routing.logits.data},
                                               {"topk_weights", DType::f32, shape(routing.weights), routing.weights.data},
                                               {"topk_ids", DType::i32, shape(routing.ids), routing.ids.data}};
  checkpoint::write_safetensors(path, tensors);
}

/// Rates of a step. A recipe's work is done by its children, so its own line has none.
struct Rates {
  double gb_s = 0, gflop_s = 0, limit = 0;
};
Rates rates(const TimedStep& timed, const Device& device) {
  if (timed.parent || timed.step.us <= 0) return {};
  return {timed.step.bytes / timed.step.us / 1e3, timed.step.flops / timed.step.us / 1e3, limit_fraction(timed.step, device)};
}

void print_table(const Timing& timing, const Device& device) {
  Table table({"step", "kernel", "family", "us", "GB/s", "GFLOP/s", "% of limit"}, 3);
  for (const TimedStep& timed : timing.steps) {
    const Step& step = timed.step;
    const Rates r = rates(timed, device);
    std::vector<std::string> line = {std::string(static_cast<size_t>(2 * step.depth), ' ') + step.op, step.kernel,
                                     std::string(to_string(step.family)), fmt::format("{:.1f}", timed.own_us)};
    if (timed.parent) line.insert(line.end(), {"", "", ""});
    else line.insert(line.end(), {fmt::format("{:.1f}", r.gb_s), fmt::format("{:.1f}", r.gflop_s), fmt::format("{:.0f}", 100 * r.limit)});
    table.add(std::move(line));
  }
  fmt::print("{}", table.text());
}

nlohmann::ordered_json number(double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); }

int run(const RunOptions& options) {
  const int threads = use_profile();
  const Device& device = cpu_device();
  const MoeLayer layer = load_block(options.block, 2);
  Arena arena;
  checkpoint::MoeWeights packed;
  {
    const Progress progress("packing the weights");
    packed = pack_weights_of(layer.weights, layer.model.gate, PackFormat::panel32, 1, arena);
  }
  View x;
  if (!options.input.empty()) {
    x = read_hidden_states(options.input, layer, arena);
    require(options.tokens == 0 || options.tokens == x.shape[0], "--tokens is ", options.tokens, "; ", options.input, " has ", x.shape[0]);
  } else {
    x = arena.make(layer.dtype, {options.tokens == 0 ? kDefaultTokens : options.tokens, layer.model.hidden});
    checkpoint::fill_normal(x, options.block.seed + 100);
  }
  const int64_t tokens = x.shape[0];
  Routing routing = checkpoint::make_routing(layer, tokens);
  const View out = arena.make(layer.dtype, {tokens, layer.model.hidden});
  const FusedMoeArgs args = moe_args(layer.model, packed, x, routing, out);
  const auto once = [&] {
    run_router(layer, packed, x, routing);
    fused_moe(args);
  };

  std::vector<std::vector<Step>> runs;
  {
    const Progress progress("running");
    once();
    CacheEvictor evictor;  // in a model, other layers' weights pass through the caches between two runs of this one
    const double start = now_us();
    constexpr size_t kLeast = 3, kMost = 21;
    while (runs.size() < kLeast || (runs.size() < kMost && now_us() - start < 1e6)) {
      evictor.evict();
      Trace trace;
      once();
      runs.push_back(trace.steps());
    }
  }
  const Timing timing = summarise(runs, device);
  Checked checked;
  if (tokens > 0) checked = check_result(layer, x, routing, out, options.block.seed);
  if (!options.output.empty()) write_output(options.output, out, routing);

  if (options.json) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (const TimedStep& timed : timing.steps) {
      const Rates r = rates(timed, device);
      steps.push_back({{"op", timed.step.op},
                       {"kernel", timed.step.kernel},
                       {"family", to_string(timed.step.family)},
                       {"us", timed.own_us},
                       {"gb_s", r.gb_s},
                       {"gflop_s", r.gflop_s},
                       {"limit_fraction", r.limit}});
    }
    const nlohmann::ordered_json object = {{"model", layer.model.name},
                                           {"tokens", tokens},
                                           {"quant", options.block.quant},
                                           {"device", device_name()},
                                           {"threads", threads},
                                           {"steps", std::move(steps)},
                                           {"total_us", timing.total_us},
                                           {"limit_fraction", timing.limit_fraction},
                                           {"max_error_ratio", number(checked.max_error_ratio)},
                                           {"ok", checked.ok}};
    fmt::print("{}\n", object.dump(2));
  } else {
    print_table(timing, device);
    fmt::print("{}, {} tokens, {}, {}, {} threads: {:.1f} us, {:.0f} % of the limit, largest error {:.3f} of the allowed: {}\n",
               layer.model.name, tokens, options.block.quant == "none" ? std::string(to_string(layer.dtype)) : options.block.quant,
               device_name(), threads, timing.total_us, 100 * timing.limit_fraction, checked.max_error_ratio, checked.ok ? "ok" : "WRONG");
  }
  if (!checked.ok) fmt::print(stderr, "eitri: wrong result: {}\n", checked.first);
  return checked.ok ? kOk : kFailed;
}

}  // namespace

void add_moe_run(CLI::App& moe, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = moe.add_subcommand("run", "Run one block, time its steps, compare with the reference");
  add_block_options(*command, options->block);
  command->add_option("--tokens", options->tokens, fmt::format("Random hidden states for N tokens (default {})", kDefaultTokens))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--input", options->input, "Hidden states: a safetensors file with the tensor hidden_states");
  command->add_option("--output", options->output,
                      "Write hidden_states, router_logits, topk_weights and topk_ids to this safetensors file");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
