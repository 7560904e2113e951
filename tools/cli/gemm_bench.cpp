// `eitri gemm bench`: gemm with packed weights, alone or against oneDNN's matmul or any other kernel.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "backend/cpu/cpu.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/view.h"
#include "checkpoint/moe_layer.h"
#include "cli/bench_report.h"
#include "cli/codes.h"
#include "cli/measure.h"
#include "ops/gemm/library.h"
#include "ops/gemm/pack.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {
using checkpoint::Arena;

struct BenchOptions {
  std::string shapes, m = "1,4,16,64,256,1024", n, k;
  std::string dtype = "bf16", vs;
  std::string weights;  // "i4:per_1x32"; empty: of `dtype`
  bool cold = false, json = false;
  double budget_ms = 200;
};
struct Shape {
  int64_t m, n, k;
};
constexpr std::pair<int64_t, int64_t> kDefaultMatrices[] = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {2048, 7168},
                                                            {7168, 2048}, {768, 2048},   {2048, 768}};

/// Fields of one CSV line; a field in double quotes may hold commas.
std::vector<std::string> split_csv(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    else if (c == ',' && !quoted) out.emplace_back();
    else if (c != '\r') out.back() += c;
  }
  return out;
}

/// A CSV with a header that names n and k, and may name m; other columns are passed over. Without m: every m of --m.
std::vector<Shape> read_shapes(const std::string& path, const std::vector<int64_t>& m) {
  std::istringstream lines(read_file(path, size_t{16} << 20));
  std::string line;
  std::getline(lines, line);
  const auto header = split_csv(line);
  const auto column = [&](const char* name) { return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin()); };
  const size_t cm = column("m"), cn = column("n"), ck = column("k");
  require(cn < header.size() && ck < header.size(), path, ": the first line is '", line, "'; expected a header with the columns n and k");
  std::vector<Shape> out;
  for (int number = 2; std::getline(lines, line); ++number) {
    if (line.empty() || line == "\r") continue;
    const auto fields = split_csv(line);
    const std::string where = str(path, ":", number);
    const auto value = [&](size_t c) {
      require(c < fields.size(), where, ": has ", fields.size(), " columns; expected ", header.size());
      return parse_numbers(fields[c], where.c_str()).front();
    };
    if (cm < header.size()) out.push_back({value(cm), value(cn), value(ck)});
    else
      for (const int64_t rows : m) out.push_back({rows, value(cn), value(ck)});
  }
  require(!out.empty(), path, ": has no shapes");
  return out;
}

std::vector<Shape> wanted_shapes(const BenchOptions& options) {
  const auto m = parse_numbers(options.m, "--m");
  if (!options.shapes.empty()) return read_shapes(options.shapes, m);
  std::vector<Shape> out;
  if (options.n.empty()) {
    for (const auto& [n, k] : kDefaultMatrices)
      for (const int64_t rows : m) out.push_back({rows, n, k});
    return out;
  }
  for (const int64_t n : parse_numbers(options.n, "--n"))
    for (const int64_t k : parse_numbers(options.k, "--k"))
      for (const int64_t rows : m) out.push_back({rows, n, k});
  return out;
}

void fill(const View& view, uint64_t seed) {
  if (view.dtype == DType::i8) {
    auto* p = static_cast<int8_t*>(view.data);
    for (int64_t i = 0; i < view.size(); ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      p[i] = static_cast<int8_t>(static_cast<int64_t>(seed >> 56) % 128 * ((seed >> 40 & 1) != 0 ? 1 : -1));
    }
  } else {
    checkpoint::fill_normal(view, seed);
  }
}

/// Packed copies of one matrix. The bytes are the same, the addresses are not.
std::vector<View> packed_ring(const PackArgs& args, size_t count, Arena& arena) {
  const size_t bytes = packed_bytes(args);
  std::vector<View> out = {pack_weights(args, arena.raw(bytes))};
  for (size_t i = 1; i < count; ++i) {
    std::byte* copy = arena.raw(bytes);
    std::memcpy(copy, out[0].data, bytes);
    out.push_back(packed_view(copy, bytes));
  }
  return out;
}

/// Weights that the cases of one n and k share: making a ring of them takes longer than most cases.
struct Weights {
  int64_t n = 0, k = 0;
  Arena arena;
  View plain;              // [n, k]; with codes only to compare with
  std::vector<View> ring;  // packed, what is measured
  std::vector<View> wide;  // with codes: `plain`, packed
  GemmArgs scales;         // of codes: those of rows, tensors and all blocks
};
using WeightsPtr = std::unique_ptr<Weights>;

size_t ring_copies(const BenchOptions& options, size_t bytes) { return options.cold ? (cold_bytes() + bytes - 1) / bytes : 1; }

/// Random codes and scales of [n, k], packed.
WeightsPtr coded_weights(const BenchOptions& options, const Coding& coding, int64_t n, int64_t k, DType dtype) {
  const auto bytes = static_cast<size_t>(bytes_for(coding.dtype, n * k)), plain_bytes = static_cast<size_t>(bytes_for(dtype, n * k));
  const bool compare = !options.vs.empty();
  const size_t copies = ring_copies(options, bytes), plain_copies = ring_copies(options, plain_bytes);
  require_memory(bytes * copies * 3 / 2 + (compare ? plain_bytes * (plain_copies + 1) : 0), fmt::format("n={},k={}", n, k), "");
  auto out = std::make_unique<Weights>();
  out->n = n, out->k = k;
  Arena unpacked;
  const CodedWeight weight = random_codes(coding, 0, n, k, unpacked, out->arena);
  out->scales.b_scale = weight.scale;
  out->scales.b_global_scale = weight.global_scale;
  const PackArgs pack{.weights = weight.codes, .quant = is_block(coding.quant) ? coding.quant : Quant::none, .scale = weight.block_scale};
  out->ring = packed_ring(pack, copies, out->arena);
  if (compare) {
    out->plain = unpacked.make(dtype, {n, k});
    fill(out->plain, 2);
    out->wide = packed_ring({.weights = out->plain}, plain_copies, out->arena);
    out->plain = {};
  }
  return out;
}
/// Random weights of `dtype`, packed.
WeightsPtr plain_weights(const BenchOptions& options, int64_t n, int64_t k, DType dtype) {
  const auto bytes = static_cast<size_t>(bytes_for(dtype, n * k));
  const size_t sides = options.vs.empty() ? 1 : 2;
  const size_t copies =
      options.cold ? std::clamp<size_t>(available_memory() / 10 * 7 / (bytes * sides), 1, ring_copies(options, bytes)) : 1;
  require_memory(bytes * (sides * copies + 1), fmt::format("n={},k={}", n, k), "");
  auto out = std::make_unique<Weights>();
  out->n = n, out->k = k;
  out->plain = out->arena.make(dtype, {n, k});
  fill(out->plain, 2);
  out->ring = packed_ring({.weights = out->plain}, copies, out->arena);
  return out;
}

std::function<void(int64_t)> caller(GemmArgs args, std::vector<View> ring) {
  return [args, ring = std::move(ring)](int64_t i) mutable {
    args.b = ring[static_cast<size_t>(i) % ring.size()];
    gemm(args);
  };
}

/// Completes a row: times the sides, the first of which multiplies with `ring`, and in turn with them what the machine allows.
BenchRow measured(std::vector<Side> sides, const std::vector<View>& ring, double budget_ms, BenchRow row) {
  Step step = traced([&] { sides[0].call(0); });
  std::optional<Side> limit = limit_side(step, ring, static_cast<size_t>(packed_header(ring[0], Gemm::name, "b").matrix_bytes));
  if (limit) sides.push_back(std::move(*limit));
  alternate(sides, budget_ms);
  row.kernel = step.kernel;
  row.us = step.us = median(sides[0].us);
  if (!row.vs.empty()) row.vs_us = median(sides[1].us);
  row.limit_fraction = limit ? median(sides.back().us) / row.us : limit_fraction(step, cpu_device());
  return row;
}

/// Medians of weights of few bits, against the same product with plain ones of `dtype` when asked (--vs NAME: that row).
void bench_codes(const BenchOptions& options, const Coding& coding, int64_t m, const Weights& weights, DType dtype, BenchReport& report) {
  const auto [n, k] = std::pair(weights.n, weights.k);
  Arena arena;
  GemmArgs args = weights.scales, wide;
  args.a = wide.a = arena.make(dtype, {m, k});
  args.c = wide.c = arena.make(dtype, {m, n});
  fill(args.a, 1);
  std::vector<Side> sides = {{.call = caller(args, weights.ring)}};
  std::optional<ForceScope> force;
  if (!options.vs.empty()) {
    Side side{.call = caller(wide, weights.wide)};
    if (options.vs != "plain") {
      side.enter = [&] { force.emplace(Gemm::name, options.vs); };
      side.leave = [&] { force.reset(); };
    }
    sides.push_back(std::move(side));
  }
  report.add(measured(std::move(sides), weights.ring, options.budget_ms,
                      {.op = Gemm::name,
                       .name = fmt::format("m={},n={},k={},a={},c={},b_quant={},b={}", m, n, k, to_string(dtype), to_string(dtype),
                                           enum_names(coding.quant)[static_cast<size_t>(coding.quant)], to_string(coding.dtype)),
                       .kernel = {},
                       .vs = options.vs}));
}

void bench_plain(const BenchOptions& options, int64_t m, const Weights& weights, DType dtype, BenchReport& report) {
  const auto [n, k] = std::pair(weights.n, weights.k);
  Arena arena;
  const DType out_type = dtype == DType::i8 ? DType::bf16 : dtype;
  GemmArgs args;
  args.a = arena.make(dtype, {m, k});
  args.c = arena.make(out_type, {m, n});
  fill(args.a, 1);
  if (dtype == DType::i8) {
    args.a_scale = arena.make(DType::f32, {m});
    args.b_scale = arena.make(DType::f32, {n});
    std::fill_n(static_cast<float*>(args.a_scale.data), m, 0.01f);
    std::fill_n(static_cast<float*>(args.b_scale.data), n, 0.01f);
  }
  std::vector<Side> sides = {{.call = caller(args, weights.ring)}};
  std::optional<ForceScope> force;
  const std::string library_kernel = kernel_of_family(Gemm::name, Family::library);
  const std::string other = options.vs == "library" ? library_kernel : options.vs;
  if (!other.empty()) {
    const PackFormat format = other == library_kernel ? PackFormat::onednn : PackFormat::panel32;
    Side side{.call = caller(args, packed_ring({.weights = weights.plain, .format = format, .m_hint = m}, weights.ring.size(), arena))};
    side.enter = [&] { force.emplace(Gemm::name, other); };
    side.leave = [&] { force.reset(); };
    sides.push_back(std::move(side));
  }
  report.add(measured(
      std::move(sides), weights.ring, options.budget_ms,
      {.op = Gemm::name, .name = fmt::format("m={},n={},k={},a={},c={}", m, n, k, to_string(dtype), to_string(out_type)), .kernel = {},
                       .vs = other}));
}

int run(const BenchOptions& options) {
  const Coding coding = parse_weights(options.weights);
  const bool coded = coding.dtype != DType::none;
  if (coded) {
    require(options.vs != "library", "--vs library: the library takes no weights of few bits; expected plain, or a kernel for plain ones");
    require(options.dtype != "i8", "--dtype i8 with --weights: expected bf16, f16 or f32");
  }
  require(coded || options.vs != "plain", "--vs plain compares --weights with plain ones of --dtype; expected --weights");
  if (options.vs == "library") {
    require(library::version() != 0, "--vs library: oneDNN is not built in (Debian: libdnnl-dev)");
  } else if (!options.vs.empty() && options.vs != "plain") {
    std::string known = "library";
    bool found = false;
    for (const KernelInfo& kernel : find_op(Gemm::name).kernels) {
      known += str(", ", kernel.name);
      found |= options.vs == kernel.name;
    }
    require(found, "--vs is '", options.vs, "'; expected one of ", known);
  }
  const auto shapes = wanted_shapes(options);
  const DType dtype = dtype_from(options.dtype).value_or(DType::none);
  use_profile();
  BenchReport report(options.json);
  WeightsPtr weights;
  for (const auto& [m, n, k] : shapes) {
    const Progress progress(fmt::format("m={} n={} k={}", m, n, k));
    if (weights == nullptr || weights->n != n || weights->k != k) {
      weights.reset();  // before there are others
      weights = coded ? coded_weights(options, coding, n, k, dtype) : plain_weights(options, n, k, dtype);
    }
    if (coded) bench_codes(options, coding, m, *weights, dtype, report);
    else bench_plain(options, m, *weights, dtype, report);
  }
  report.finish();
  return kOk;
}

}  // namespace

void add_gemm(CLI::App& app, Action& action) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* gemm = app.add_subcommand("gemm", "Matrix multiplication with packed weights");
  gemm->require_subcommand(1);
  CLI::App* bench = gemm->add_subcommand("bench", "Time gemm: medians, both sides in alternating rounds of one process");
  auto* shapes = bench->add_option("--shapes", options->shapes, "A CSV file with columns n, k and maybe m")->check(CLI::ExistingFile);
  bench->add_option("--m", options->m, "Rows of a (default 1,4,16,64,256,1024)")->type_name("M,M,...");
  auto* n = bench->add_option("--n", options->n, "Rows of b (default: matrices of 7 shapes)")->type_name("N,N,...")->excludes(shapes);
  auto* k = bench->add_option("--k", options->k, "Columns of both")->type_name("K,K,...")->excludes(shapes);
  n->needs(k);
  k->needs(n);
  bench->add_option("--dtype", options->dtype, "bf16 (default), i8, f32 or f16")->check(CLI::IsMember({"bf16", "i8", "f32", "f16"}));
  bench->add_option("--weights", options->weights,
                    "Weights of few bits, DTYPE:QUANT (i4:per_1x32, f4e2m1:per_1x16, f8e4m3:per_128x128, ...)");
  bench->add_option("--vs", options->vs, "Compare with: library (oneDNN), a kernel of `eitri ops`, or with --weights: plain (of --dtype)");
  bench->add_flag("--cold", options->cold, "A ring of copies of the weights, larger than the caches (default: one copy)");
  bench->add_option("--budget-ms", options->budget_ms, "Time for each side of a case (default 200)")->check(CLI::Range(1.0, 600000.0));
  bench->add_flag("--json", options->json, "One JSON object a case");
  bench->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
