// `eitri moe bench`: fused_moe with cold weights and routing that changes with every call, alone, against the recipe made of
// oneDNN matmuls, or each row of the table against the others.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "backend/cpu/cpu.h"
#include "backend/cpu/limits.h"
#include "backend/cpu/threads.h"
#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/codes.h"
#include "cli/measure.h"
#include "cli/moe.h"
#include "ops/gemm/library.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {
using checkpoint::Arena;
using checkpoint::MoeLayer;
using checkpoint::MoeWeights;
using checkpoint::Routing;

struct BenchOptions {
  BlockChoice block;
  std::string tokens = "1,16,128,1024";
  std::string vs;
  std::string weights;  // "i4:per_1x32"; empty: of the block
  bool warm = false, cold = false, json = false;
  double budget_ms = 1500;
};

/// Copies of a block's weights at different addresses, so that no cache keeps what a call reads.
struct Ring {
  Arena arena;
  std::vector<MoeWeights> copies;
  View w1_global_scale, w2_global_scale, shared_w1_global_scale, shared_w2_global_scale;
};

Ring make_ring(const MoeLayer& layer, PackFormat format, int64_t m_hint, size_t count) {
  Ring ring;
  for (size_t i = 0; i < count; ++i) ring.copies.push_back(pack_weights_of(layer.weights, layer.model.gate, format, m_hint, ring.arena));
  return ring;
}

/// Random codes in the shapes of the block's weights, packed.
Ring make_coded_ring(const MoeLayer& layer, const Coding& coding, size_t count) {
  Ring ring;
  const checkpoint::MoeModel& m = layer.model;
  MoeWeights weights = layer.weights;
  size_t bytes[4] = {};
  View* const views[4] = {&weights.w1, &weights.w2, &weights.shared_w1, &weights.shared_w2};
  const auto pack = [&](int which, int64_t experts, int64_t n, int64_t k, GateLayout gate, View& scale, View& global_scale) {
    if (n == 0 || k == 0) return;
    Arena plain;
    const CodedWeight coded = random_codes(coding, experts, n, k, plain, ring.arena);
    const PackArgs args{
        .weights = coded.codes, .gate = gate, .quant = is_block(coding.quant) ? coding.quant : Quant::none, .scale = coded.block_scale};
    bytes[which] = packed_bytes(args);
    *views[which] = pack_weights(args, ring.arena.raw(bytes[which]));
    scale = coded.scale;
    global_scale = coded.global_scale;
  };
  pack(0, m.experts, m.w1_rows(), m.hidden, m.gate, weights.w1_scale, ring.w1_global_scale);
  pack(1, m.experts, m.hidden, m.inter, GateLayout::none, weights.w2_scale, ring.w2_global_scale);
  pack(2, 0, m.shared_w1_rows(), m.hidden, m.gate, weights.shared_w1_scale, ring.shared_w1_global_scale);
  pack(3, 0, m.shared_inter > 0 ? m.hidden : 0, m.shared_inter, GateLayout::none, weights.shared_w2_scale, ring.shared_w2_global_scale);
  ring.copies.push_back(weights);
  for (size_t i = 1; i < count; ++i) {
    for (int which = 0; which < 4; ++which) {
      if (bytes[which] == 0) continue;
      std::byte* const copy = ring.arena.raw(bytes[which]);
      std::memcpy(copy, views[which]->data, bytes[which]);
      *views[which] = packed_view(copy, bytes[which]);
    }
    ring.copies.push_back(weights);
  }
  return ring;
}

size_t ring_size(const MoeLayer& layer, DType dtype, bool warm, size_t sides) {
  const size_t bytes = checkpoint::weight_bytes(layer.model, dtype);
  const size_t wanted = warm ? 1 : (cold_bytes() + bytes - 1) / bytes;
  const size_t room = available_memory() / 10 * 8 / (bytes * sides);
  require_memory(bytes * sides + (size_t{1} << 29), fmt::format("{}: packed weights", layer.model.name),
                 " (--experts N keeps fewer experts)");
  return std::max<size_t>(1, std::min(wanted, room));
}

/// What the machine allows at the moment: as in gemm's bench, but that weights are those of the experts that a call touches.
std::optional<Side> limit_of_experts(const Step& step, const Ring& ring, const std::vector<Routing>& routings) {
  const Device& device = cpu_device();
  const double peak = device.peak(step.math);
  if (peak > 0 && step.bytes / device.profile.read_bytes <= step.flops / peak) return limit_side(step, {}, 0);
  std::vector<std::vector<int64_t>> touched;  // by routing, ascending
  for (const Routing& routing : routings) {
    const auto* const ids = static_cast<const int32_t*>(routing.ids.data);
    std::vector<int64_t> experts(ids, ids + routing.ids.size());
    std::ranges::sort(experts);
    experts.erase(std::ranges::unique(experts).begin(), experts.end());
    touched.push_back(std::move(experts));
  }
  return Side{.call = [&device, &ring, touched = std::move(touched)](int64_t i) {
    const MoeWeights& weights = ring.copies[static_cast<size_t>(i) % ring.copies.size()];
    parallel(max_threads(), [&](int part, int parts) {
      const auto read = [&](const View& matrices, int64_t index) {
        const Span span = split(packed_header(matrices, FusedMoe::name, "weights").matrix_bytes, part, parts, 4096);
        read_once(device, packed_matrix(matrices, index) + span.begin, static_cast<size_t>(span.end - span.begin));
      };
      for (const int64_t expert : touched[static_cast<size_t>(i) % touched.size()]) {
        read(weights.w1, expert);
        read(weights.w2, expert);
      }
      for (const View* shared : {&weights.shared_w1, &weights.shared_w2})
        if (shared->given()) read(*shared, 0);
    });
  }};
}

/// Every row that takes the call and is not hopeless, each against the others; expected times are those of the cost models, whatever tuned
/// rows say.
RowRace race_rows(const std::string& name, const std::function<void(int64_t)>& call, const FusedMoe::Problem& problem, double budget_ms) {
  constexpr double kHopeless = 4;  // times the least expected
  auto all = candidates<FusedMoe>(problem, cpu_device());
  std::erase_if(all, [](const auto& c) { return !c.support.ok || c.kernel->family == Family::reference; });
  double least = std::numeric_limits<double>::infinity();
  for (const auto& c : all) least = std::min(least, c.guess.us);
  std::erase_if(all, [&](const auto& c) { return c.guess.us > kHopeless * least; });
  std::optional<ForceScope> forced;
  std::vector<Side> sides;
  for (const auto& c : all)
    sides.push_back({.call = call,
                     .enter = [&forced, kernel = c.kernel->name] { forced.emplace(FusedMoe::name, kernel); },
                     .leave = [&forced] { forced.reset(); }});
  alternate(sides, budget_ms);
  RowRace race{.op = FusedMoe::name, .name = name, .runners = {}};
  for (size_t i = 0; i < sides.size(); ++i)
    race.runners.push_back({.kernel = all[i].kernel->name, .us = median(sides[i].us), .expected_us = all[i].guess.us});
  return race;
}

void bench_case(const BenchOptions& options, const MoeLayer& layer, const Coding& weights, const Ring& ours, int64_t tokens,
                BenchReport& report) {
  Arena arena;
  const View x = arena.make(layer.dtype, {tokens, layer.model.hidden});
  const View out = arena.make(layer.dtype, {tokens, layer.model.hidden});
  checkpoint::fill_normal(x, options.block.seed + 100);
  std::vector<Routing> routings;
  constexpr int64_t kRoutings = 17;  // prime to every ring size: all pairs of weights and routing occur
  for (int64_t i = 0; i < kRoutings; ++i)
    routings.push_back(random_routing(layer.model, tokens, options.block.seed * 1000 + static_cast<uint64_t>(i)));
  const auto args_of = [&](const Ring& ring, int64_t i) {
    FusedMoeArgs args = moe_args(layer.model, ring.copies[static_cast<size_t>(i) % ring.copies.size()], x,
                                 routings[static_cast<size_t>(i % kRoutings)], out);
    args.w_quant = weights.quant;
    args.w1_global_scale = ring.w1_global_scale, args.w2_global_scale = ring.w2_global_scale;
    args.shared_w1_global_scale = ring.shared_w1_global_scale, args.shared_w2_global_scale = ring.shared_w2_global_scale;
    return args;
  };
  const auto caller = [&](const Ring& ring) { return [&args_of, from = &ring](int64_t i) { fused_moe(args_of(*from, i)); }; };
  const std::string name = fmt::format("model={},tokens={},quant={}", layer.model.name, tokens,
                                       weights.dtype == DType::none ? options.block.quant : options.weights);
  if (options.vs == "rows") {
    const Progress progress(fmt::format("timing {} tokens", tokens));
    return report.add(race_rows(name, caller(ours), FusedMoe::check(args_of(ours, 0)), options.budget_ms));
  }

  std::vector<Side> sides;
  sides.push_back({.call = caller(ours)});
  Ring theirs;
  std::optional<ForceScope> recipe, library;
  const std::string recipe_kernel = kernel_of_family(FusedMoe::name, Family::recipe);
  const std::string library_kernel = kernel_of_family(GroupedGemm::name, Family::library);
  if (options.vs == "library") {
    const Progress progress("packing the weights for oneDNN");
    const int64_t rows = std::max<int64_t>(1, tokens * layer.model.top_k / layer.model.experts);
    theirs = make_ring(layer, PackFormat::onednn, rows, ours.copies.size());
    Side side{.call = caller(theirs)};
    side.enter = [&] {
      recipe.emplace(FusedMoe::name, recipe_kernel);
      library.emplace(GroupedGemm::name, library_kernel);
    };
    side.leave = [&] {
      library.reset();
      recipe.reset();
    };
    sides.push_back(std::move(side));
  }
  const Step step = traced([&] { sides[0].call(0); });
  const size_t compared = sides.size();
  if (auto limit = limit_of_experts(step, ours, routings)) sides.push_back(std::move(*limit));
  {
    const Progress progress(fmt::format("timing {} tokens", tokens));
    alternate(sides, options.budget_ms);
  }
  BenchRow row{
      .op = FusedMoe::name, .name = name, .kernel = step.kernel, .us = median(sides[0].us), .vs = {}, .vs_us = 0, .limit_fraction = 0};
  Step timed = step;
  timed.us = row.us;
  row.limit_fraction = sides.size() > compared ? median(sides.back().us) / row.us : limit_fraction(timed, cpu_device());
  if (compared > 1) {
    row.vs = fmt::format("{} of {}", recipe_kernel, library_kernel);
    row.vs_us = median(sides[1].us);
  }
  report.add(row);
}

int run(const BenchOptions& options) {
  const bool beside_library = options.vs == "library";
  require(!beside_library || library::version() != 0, "--vs library: oneDNN is not built in (Debian: libdnnl-dev)");
  const auto tokens = parse_numbers(options.tokens, "--tokens");
  use_profile();
  const Coding weights = parse_weights(options.weights);
  const bool coded = weights.dtype != DType::none;
  require(!coded || !beside_library, "--weights excludes --vs library: the library is not handed weights of few bits");
  MoeLayer layer = load_block(options.block, beside_library ? 3 : 2);
  if (coded) layer.weight_arena = {};
  const DType dtype = coded ? weights.dtype : options.block.quant == "int8" ? DType::i8 : DType::bf16;
  const size_t copies = ring_size(layer, dtype, options.warm, beside_library ? 2 : 1);
  Ring ours;
  {
    const Progress progress("packing the weights");
    ours = coded ? make_coded_ring(layer, weights, copies) : make_ring(layer, PackFormat::panel32, 1, copies);
  }
  BenchReport report(options.json);
  for (const int64_t count : tokens) bench_case(options, layer, weights, ours, count, report);
  report.finish();
  return kOk;
}

}  // namespace

void add_moe_bench(CLI::App& moe, Action& action) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = moe.add_subcommand("bench", "Time fused_moe: medians, cold weights, other experts in every call");
  add_block_options(*command, options->block);
  command->add_option("--tokens", options->tokens, "Token counts (default 1,16,128,1024)")->type_name("N,N,...");
  command
      ->add_option(
          "--vs", options->vs,
          "Compare with: library (the recipe made of oneDNN matmuls), or rows (each row of the table with the others, and their times "
          "with what the cost models expect)")
      ->check(CLI::IsMember({"library", "rows"}));
  command
      ->add_option("--weights", options->weights,
                   "Random weights of few bits in the block's shapes, DTYPE:QUANT (f8e4m3:per_128x128, i4:per_1x32, ...)")
      ->excludes("--quant");
  auto* warm = command->add_flag("--warm", options->warm, "One copy of the weights, which caches may hold");
  command->add_flag("--cold", options->cold, "A ring of copies of the weights, larger than the caches (the default)")->excludes(warm);
  command->add_option("--budget-ms", options->budget_ms, "Time for each side of a case (default 1500)")->check(CLI::Range(1.0, 600000.0));
  command->add_flag("--json", options->json, "One JSON object a case");
  command->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
