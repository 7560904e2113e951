#include "ops/gemm/panel_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/view.h"
#include "ops/gemm/panel_blocking.h"
#include "ops/gemm/widen_rows.h"

namespace eitri {

namespace {

/// The kernel for operands of `dtype`.
struct KernelOf {
  DType dtype;
  PanelFn operator()(PanelFn f32, PanelFn bf16, PanelFn f16, PanelFn i8) const {
    switch (dtype) {
      case DType::f32: return f32;
      case DType::bf16: return bf16;
      case DType::f16: return f16;
      case DType::i8: return i8;
      default: return nullptr;
    }
  }
};

}  // namespace

PanelFn panel_kernel(Target target, DType dtype, const Device& device) {
  const KernelOf pick{dtype};
  switch (target) {
#if EITRI_X86
    case Target::x86_amx:
      return device.amx ? pick(nullptr, amx::panel_bf16, nullptr, amx::panel_i8)
                        : pick(nullptr, amx_emulated::panel_bf16, nullptr, amx_emulated::panel_i8);
    case Target::x86_avx512: return pick(avx512::panel_f32, avx512::panel_bf16, avx512::panel_f16, avx512::panel_i8);
    case Target::x86_avx2: return pick(avx2::panel_f32, avx2::panel_bf16, avx2::panel_f16, avx2::panel_i8);
#endif
    case Target::any_cpu: return pick(portable::panel_f32, portable::panel_bf16, portable::panel_f16, portable::panel_i8);
    default: (void)device; return nullptr;
  }
}

PanelFn coded_kernel(Target target, DType dtype, const Device& device) {
  const KernelOf pick{dtype};
  switch (target) {
#if EITRI_X86
    case Target::x86_amx:
      return device.amx ? pick(nullptr, amx::coded_bf16, nullptr, amx::coded_i8)
                        : pick(nullptr, amx_emulated::coded_bf16, nullptr, amx_emulated::coded_i8);
    case Target::x86_avx512:
      return device.avx512_vbmi ? pick(avx512vbmi::coded_f32, avx512vbmi::coded_bf16, avx512vbmi::coded_f16, avx512::coded_i8)
                                : pick(avx512::coded_f32, avx512::coded_bf16, avx512::coded_f16, avx512::coded_i8);
    case Target::x86_avx2: return pick(avx2::coded_f32, avx2::coded_bf16, avx2::coded_f16, avx2::coded_i8);
#endif
    case Target::any_cpu: return pick(portable::coded_f32, portable::coded_bf16, portable::coded_f16, portable::coded_i8);
    default: (void)device; return nullptr;
  }
}

DType multiplied_type(Target target, DType a, Quant a_quant) {
  if (a != DType::f8e4m3) return a;
  return target != Target::x86_amx && rounds_in_bf16(a, a_quant) ? DType::f32 : DType::bf16;
}

namespace panel_rows {

namespace {

int64_t panels_of(const Gemm::Problem& p) { return panel_count(p.n_out(), p.gate); }
/// Bytes of an element of a as kernels get it, at most.
int64_t width_of(const Gemm::Problem& p) { return bits(multiplied_type(Target::any_cpu, p.a, p.a_quant)) / 8; }
/// Kernels pack plain rows as they go; codes are packed before.
bool packs_in_kernel(const Gemm::Problem& p) { return p.b_format == WeightFormat::strided && !p.coded(); }
bool packs_before(const Gemm::Problem& p) { return p.b_format == WeightFormat::strided && p.coded(); }
double weight_bytes(const Gemm::Problem& p) { return static_cast<double>(p.batch * p.n * p.k) * bits(p.weight()) / 8.0; }
constexpr int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Rows whose multiplication, at the shares of peak below, takes as long as decoding the weights once for `rows` rows. AVX-512 and AMX: from
/// bench/panel_bench.cpp on one core of a Xeon with AMX and VBMI, 2026-11-30, weights in L2 (AMX for many rows: n = k = 4096, m = 256
/// against bf16 in turn). Of a k-step of 1024 codes a row takes 46 and 4.4 cycles there. The others are estimates from operations.
double decode_rows(Target target, DType weight, Quant quant, double rows, const Device& device) {
  const bool nibbles = bits(weight) == 4, fp8 = weight == DType::f8e4m3, scaled = is_block(quant), short_groups = quant == Quant::per_1x16;
  switch (target) {
    case Target::x86_amx:
      // Up to 16 rows, beside a tile product of 16: f32 scales meet the sums of their group, row by row; others meet the codes.
      if (rows <= static_cast<double>(kFewRows)) {
        if (short_groups) return rows <= 1 ? 12 : 18 + 0.2 * rows;
        const bool with_codes = quant == Quant::per_1x32 && block_scale_dtype(weight, quant) == DType::f8e8m0;
        const double groups = !scaled || with_codes ? 0 : block_k(quant) == 32 ? 1 : 0.25;
        return (nibbles ? -2.5 : 10) + 0.7 * rows + (with_codes ? 4 : 0) + groups * (5 + 0.6 * rows);
      }
      if (fp8) return quant == Quant::per_1x128 ? 44 : quant == Quant::per_1x32 ? 28 : scaled ? 20 : 15;
      if (!nibbles) return scaled ? 38 : 15;
      return !scaled ? 4 : weight == DType::i4 ? 28 : short_groups ? 25 : 4;
    case Target::x86_avx512: return fp8 ? (device.avx512_vbmi ? 3 : 5) : short_groups ? 2.6 : 2.1;
    case Target::x86_avx2: return nibbles ? 8 : 14;
    default: return 60;
  }
}

/// f32 lanes x operations of a level, in units of the portable one (four lanes, no fused multiply-add).
double level_width(Isa isa) {
  switch (isa) {
    case Isa::portable: return 1;
    case Isa::x86_avx2: return 4;
    default: return 8;
  }
}
double level_width(Target target) {
  switch (target) {
    case Target::any_cpu: return 1;
    case Target::x86_avx2: return 4;
    default: return 8;
  }
}

/// How a row's kernel relates to its peak: `of_peak` for many rows; below `full_rows` the time no longer shrinks with m,
/// because a panel costs as much to load and decode as that many rows cost to multiply.
struct Efficiency {
  double of_peak;
  double full_rows;
};
// Where the numbers come from. AMX: the head of x86_amx.cpp, M >= 256; the tile design's study below. The others: best of repeated calls of one thread at
// n = 768, k = 2048 on a busy two-core AVX-512 machine without AMX, 2026-11-29, so they are rough: AVX-512 165 Gflop/s in f32
// and bf16, 125 to 160 in f16, 715 in i8; AVX2 80 to 97; portable 17 to 20 (f32, bf16). The shares divide by peaks that
// were not measured on that machine: 230 (f32) and 895 (i8) for AVX-512 from the published CPU comparison, half of 230 for AVX2.
// full_rows of AVX2 is t(1) / (t(64) / 64) of those runs; of AVX-512 and portable it is an estimate.
Efficiency efficiency(Target target, DType dtype, double m) {
  const bool f32 = dtype == DType::f32;
  switch (target) {
    case Target::x86_amx: return {0.45 + 0.13 * std::clamp((m - 64) / 192, 0.0, 1.0), 16};
    case Target::x86_avx512: return dtype == DType::i8 ? Efficiency{0.8, 5} : Efficiency{dtype == DType::f16 ? 0.6 : 0.7, 4};
    case Target::x86_avx2: return dtype == DType::i8 ? Efficiency{0.8, 3} : Efficiency{0.7, f32 ? 1.5 : dtype == DType::f16 ? 7.0 : 5.0};
    default: return {0.7, f32 ? 1.5 : dtype == DType::f16 ? 16.0 : 4.0};
  }
}

constexpr double kPackBytesPerUs = 4e3, kPackCodesPerUs = 1e3;  // plain b into a panel, one thread; bytes
constexpr double kCallUs = 0.3, kTeamUs = 1.5;

/// What decides whether a team is worth starting: compute, or the weights at L2 speed, on one thread.
double us_on_one(Target target, const Gemm::Problem& p, const Device& device) {
  const double bytes = weight_bytes(p);
  const double l2 = device.profile.l2_bytes / std::max(1, device.profile.threads);
  return std::max(compute_us(target, p, device), bytes / std::max(l2, 1e9) * 1e6);
}

int threads_of(Target target, const Gemm::Problem& p, const Device& device, int threads) {
  constexpr int64_t kTinyProducts = 10000;  // 2 us at the slowest level: the estimate itself would be the larger part
  const int available = std::min(threads, device.units);
  return available <= 1 || p.batch * p.m * p.n * p.k <= kTinyProducts ? 1 : threads_for(us_on_one(target, p, device), available);
}

/// Bytes of workspace for bias vectors that have to be converted to f32.
int64_t bias_bytes(const Gemm::Problem& p) {
  if (p.bias == DType::none || p.bias == DType::f32) return 0;
  return align64(p.batch * p.n * 4);
}
/// And for a as kernels multiply it, when it is f8e4m3, and for codes that have to be packed.
int64_t wide_a_bytes(const Gemm::Problem& p) { return p.a == DType::f8e4m3 ? align64(p.batch * p.m * p.k * width_of(p)) : 0; }
int64_t packed_b_bytes(const Gemm::Problem& p) {
  if (!packs_before(p)) return 0;
  const int64_t panel = coded_panel_bytes(panel_codes(p.weight(), p.b_quant), p.k);
  return align64(int64_t{sizeof(PackedHeader)} + p.batch * panels_of(p) * panel);
}

const float* f32_row(const View& view, int64_t batch) {
  if (!view.given()) return nullptr;
  const auto* data = static_cast<const float*>(view.data);
  return view.rank == 2 ? data + batch * view.stride[0] : data;
}

/// bias as f32, [batch, n] contiguous, in the workspace; a batch of one when all matrices share it.
void widen_bias(const View& bias, int64_t n, float* to) {
  const int64_t rows = bias.rank == 2 ? bias.shape[0] : 1;
  for (int64_t r = 0; r < rows; ++r) {
    const void* from = bias.rank == 2 ? row(bias, r) : bias.data;
    for (int64_t i = 0; i < n; ++i) to[r * n + i] = static_cast<float>(load_at(from, bias.dtype, i));
  }
}

}  // namespace

double rate_of_one(Target target, DType dtype, const Device& device) {
  const Profile& profile = device.profile;
  const double threads = std::max(1, profile.threads);
  if (target == Target::x86_amx) return device.peak(dtype) / threads;
  const double f32 = profile.f32_flops / threads * level_width(target) / level_width(device.isa);
  // dpbusd takes four products a lane: 895 against 231 G/s, measured (anchors); vpmaddwd with its add as many as an FMA.
  return target == Target::x86_avx512 && dtype == DType::i8 ? 3.9 * f32 : f32;
}

double reached_rate(Target target, DType dtype, double rows, const Device& device) {
  return std::max(rate_of_one(target, dtype, device) * efficiency(target, dtype, rows).of_peak, 1e6);
}

double plain_flops(Target target, DType dtype, double rows, double weights) {
  return 2 * std::max(rows, efficiency(target, dtype, rows).full_rows) * weights;
}

double decoding_flops(Target target, DType weight, Quant quant, double rows, double codes, const Device& device) {
  if (rows <= 0) return 0;
  constexpr double kBlockRows = 96, kTileBlockRows = 512;  // decoded for at a time
  const double blocks = std::ceil(rows / (target == Target::x86_amx ? kTileBlockRows : kBlockRows));
  // A tile product takes its time whatever it holds.
  const double idle = target == Target::x86_amx ? std::max(0.0, static_cast<double>(kFewRows) - rows) : 0;
  return 2 * (idle + blocks * decode_rows(target, weight, quant, rows, device)) * codes;
}

double compute_us(Target target, const Gemm::Problem& p, const Device& device) {
  const DType math = multiplied_type(target, p.a, p.a_quant);
  const double m = static_cast<double>(p.m), weights = static_cast<double>(p.batch * p.n) * static_cast<double>(p.k);
  // Decoding takes the place of what a panel costs to load.
  const double flops = p.coded() ? 2 * m * weights + decoding_flops(target, p.weight(), p.b_quant, m, weights, device)
                                 : plain_flops(target, math, m, weights);
  return flops / reached_rate(target, math, m, device) * 1e6;
}

// By rows each thread reads all weights, by panels it packs all of a: whichever is less. Where the two meet for packed weights was
// measured on eight cores with AMX over 233 products (2026-12-01; `eitri tune gemm --shapes bench/tuned_gemm_shapes.csv`): at n = 6 m to 8 m
// (up to 1.8 times faster than by panels at n = m to 3 m, 1.1 to 1.8 times at 4 m to 5.6 m). Weights that no cache holds are
// read once only by panels. Where every thread would decode or pack the weights as well, by rows takes at least 128 rows a thread and
// weights that are small against them (cpu study, section 1 point 9). With fewer panels than threads the rows are shared out as well.
Partition partition(const Gemm::Problem& p, int split_knob, int threads) {
  const int64_t panels = panels_of(p) * p.batch, t = std::max(threads, 1);
  const int64_t row_groups = (p.m + 31) / 32;
  Partition out;
  bool by_rows = split_knob == 1;
  if (t == 1) {
    out.rows = p.m;
    out.panels = panels_of(p);
    out.scratch = panel_scratch(p.m, p.k, out.panels, width_of(p), packs_in_kernel(p));
    return out;
  }
  if (split_knob == 0) {
    const int64_t rows_each = p.m / t, weight = p.n * p.k * bits(p.weight()) / 8;
    constexpr int64_t kShared = int64_t{32} << 20;  // bytes that a cache which the threads share may hold
    if (p.coded() || packs_in_kernel(p)) by_rows = rows_each >= 128 && weight <= kShared / 4 * (rows_each / 128);
    else by_rows = row_groups >= t && p.n <= (rows_each >= 128 ? 8 : 6) * p.m && weight <= kShared * std::max<int64_t>(1, rows_each / 128);
  }
  if (by_rows && p.batch == 1) {
    out.row_parts = static_cast<int>(std::min(t, row_groups));
  } else {
    out.panel_parts = static_cast<int>(std::clamp<int64_t>(panels, 1, t));
    if (split_knob == 0) out.row_parts = static_cast<int>(std::clamp<int64_t>(t / out.panel_parts, 1, std::max<int64_t>(row_groups, 1)));
  }
  const auto rows_of_part = [&] { return std::min(p.m, (row_groups + out.row_parts - 1) / out.row_parts * 32); };
  out.rows = rows_of_part();
  // Few rows meet coded weights in another way (x86_amx_few.cpp). A last part of few would make bits depend on the number of threads.
  while (p.coded() && p.m > kFewRows && out.row_parts > 1 && p.m - out.rows * (out.row_parts - 1) <= kFewRows) {
    --out.row_parts;
    out.rows = rows_of_part();
  }
  // A part's panels of one matrix: its scratch is used again for the next one.
  out.panels = std::min(panels_of(p), (panels + out.panel_parts - 1) / out.panel_parts);
  out.scratch = panel_scratch(out.rows, p.k, out.panels, width_of(p), packs_in_kernel(p));
  return out;
}

namespace {

/// What a kernel makes of the blocking knobs for tasks of so many rows; equal values, equal work.
PanelBlocking blocking_of(Target target, const Gemm::Problem& p, const Device& device, int64_t rows, int block_m, int chunk_k) {
  PanelTask task;
  task.m = rows;
  task.k = p.k;
  task.block_m = block_m;
  task.chunk_k = chunk_k;
  if (p.coded()) task.codes = panel_codes(p.weight(), p.b_quant);
#if EITRI_X86
  const int bytes = multiplied_type(target, p.a, p.a_quant) == DType::i8 ? 1 : 2;
  if (target == Target::x86_amx) return device.amx ? amx::blocking(task, bytes) : amx_emulated::blocking(task, bytes);
  if (target == Target::x86_avx512) return avx512::blocking(task);
#endif
  (void)device;
  return {.rows = std::min<int64_t>(block_m > 0 ? block_m : 96, rows), .chunk = chunk_k > 0 ? chunk_k : 8};  // panel_blocked.h
}

}  // namespace

Config plain_config(Target target, const Gemm::Problem& p, const Config& config, const Device& device, int threads) {
  const int t = threads_of(target, p, device, threads);
  const Partition part = partition(p, config[kSplit], t);
  Config out = config;
  for (const int split : kSplitValues) {
    const Partition other = partition(p, split, t);
    if (other.row_parts != part.row_parts || other.panel_parts != part.panel_parts) continue;
    out.value[kSplit] = split;
    break;
  }
  std::vector<int64_t> sizes;  // rows of the parts
  for (int i = 0; i < part.row_parts; ++i) {
    const Span rows = split(p.m, i, part.row_parts, 32);
    if (const int64_t size = rows.end - rows.begin; std::ranges::find(sizes, size) == sizes.end()) sizes.push_back(size);
  }
  const auto same = [&](int block_m, int chunk_k) {
    return std::ranges::all_of(sizes, [&](int64_t rows) {
      return blocking_of(target, p, device, rows, block_m, chunk_k) ==
             blocking_of(target, p, device, rows, config[kBlockM], config[kChunkK]);
    });
  };
  for (const int block_m : kBlockValues)
    for (const int chunk_k : kChunkValues)
      if (same(block_m, chunk_k)) {
        out.value[kBlockM] = block_m;
        out.value[kChunkK] = chunk_k;
        return out;
      }
  return out;
}

template <Target kTarget> Support supports(const Gemm::Problem& p, const Device& device) {
  if (p.b_format == WeightFormat::onednn) return Support::no("b is packed for oneDNN; this row reads panel32 or plain rows");
  if (p.coded()) {
    if (coded_kernel(kTarget, multiplied_type(kTarget, p.a, p.a_quant), device) == nullptr)
      return Support::no("the tile unit multiplies bf16 and i8 by codes, not ", p.a);
  } else if (panel_kernel(kTarget, p.a, device) == nullptr) {
    return Support::no("the tile unit multiplies bf16 and i8, not ", p.a);
  }
  if (p.a == DType::i8 && p.k > kMaxI8K) return Support::no("k = ", p.k, " could overflow i32 sums of i8 products; at most ", kMaxI8K);
  return Support::yes();
}

namespace {

/// What neither hides, in calls of few rows whose weights come from a shared cache: AMX packs a tile of 16 rows of a whatever there is of
/// them, the others multiply every row after the first. Measured at m = 1 to 16 on two and eight cores with AMX (2026-11-30,
/// bench/results/tune-cpu-amx.json): for one row AVX-512 is 2 % (weights from memory) to 50 % faster.
double few_rows_us(Target target, const Gemm::Problem& p, double parts, const Device& device) {
  constexpr double kTileRows = 16, kPackRowsPerUs = 18e3;  // bytes
  const double m = static_cast<double>(p.m), k = static_cast<double>(p.k), batch = static_cast<double>(p.batch);
  if (p.coded() || m > kTileRows) return 0;
  const DType math = multiplied_type(target, p.a, p.a_quant);
  if (target == Target::x86_amx) return std::max(1.0, batch / parts) * kTileRows * k * (bits(math) / 8.0) / kPackRowsPerUs;
  const double flops = 2 * (m - 1) * batch * static_cast<double>(p.n) * k / parts;
  return flops / (std::max(rate_of_one(target, math, device), 1e6) * efficiency(target, math, m).of_peak) * 1e6;
}

}  // namespace

// Two limits, whichever is longer: multiplying at the row's share of the peak, and reading every operand once at the
// machine's bandwidth. Plain weights are packed once by each part that reads them.
template <Target kTarget> Guess guess(const Gemm::Problem& p, const Device& device) {
  const Profile& profile = device.profile;
  const int threads = threads_of(kTarget, p, device, std::max(1, profile.threads));
  const Partition parts = partition(p, 0, threads);
  const double busy = std::min(parts.parts(), threads);
  const double compute = compute_us(kTarget, p, device) / busy;
  const double bandwidth = profile.read_bytes * std::min(1.0, busy / std::max(1, profile.threads));
  const double memory = Gemm::cost(p).bytes / std::max(bandwidth, 1e8) * 1e6;
  double pack = 0;
  if (p.b_format == WeightFormat::strided) {
    pack = p.coded() ? weight_bytes(p) / kPackCodesPerUs / threads : weight_bytes(p) * parts.row_parts / kPackBytesPerUs / busy;
  }
  // Few panels hardly repay a large block of a: 4 to 10 % with 192 rows at n <= 256, measured on two cores with AMX (2026-11-30,
  // bench/results/tune-cpu-amx.json); where b is wider, the kernel's own choice is as good.
  Config config = {};
  if (kTarget == Target::x86_amx && !p.coded() && parts.rows >= 256 && parts.panels <= 8) config.value[kBlockM] = 192;
  return {.config = config,
          .us = kCallUs + (threads > 1 ? kTeamUs : 0) + std::max(compute, memory + few_rows_us(kTarget, p, busy, device)) + pack};
}

// Enough for any number of threads up to the device's: fewer threads can mean larger parts.
template <Target kTarget> size_t workspace(const Gemm::Problem& p, const Config& config, const Device& device) {
  const int most = threads_of(kTarget, p, device, device.units);
  int64_t scratch = 0;
  for (int t = 1; t <= most; ++t) {
    const Partition part = partition(p, config[kSplit], t);
    scratch = std::max(scratch, part.scratch * part.parts());
  }
  return static_cast<size_t>(scratch + bias_bytes(p) + wide_a_bytes(p) + packed_b_bytes(p));
}

namespace {

/// The operands as the kernels take them.
struct Operands {
  View a, b;
  PanelFn kernel = nullptr;
};
Operands operands_of(Target target, const GemmArgs& args, const Gemm::Problem& p, std::byte* workspace, Launch& launch) {
  Operands out{.a = args.a, .b = args.b};
  const DType a_type = multiplied_type(target, p.a, p.a_quant);
  if (a_type != p.a) {
    const bool batched = args.a.rank == 3;
    out.a = batched ? View(workspace, a_type, {p.batch, p.m, p.k}) : View(workspace, a_type, {p.m, p.k});
    for (int64_t i = 0; i < p.batch; ++i) {
      const View scale = batched && is_block(p.a_quant) ? slice(args.a_scale, i) : args.a_scale;
      widen_rows(batched ? slice(args.a, i) : args.a, scale, p.a_quant, a_type, workspace + i * p.m * p.k * (bits(a_type) / 8),
                 launch.threads);
    }
  }
  out.kernel = p.coded() ? coded_kernel(target, a_type, launch.device) : panel_kernel(target, p.a, launch.device);
  if (packs_before(p)) {
    PackArgs pack{.weights = args.b, .gate = p.gate};
    if (is_block(p.b_quant)) pack.quant = p.b_quant, pack.scale = args.b_scale;
    out.b = pack_weights(pack, workspace + wide_a_bytes(p));
  }
  return out;
}

/// Scales of matrix `index`, row by row from `row` on, or one factor for all.
void set_scales(PanelTask& task, const GemmArgs& args, const Gemm::Problem& p, int64_t index, int64_t row) {
  task.sum_scale = 1;
  task.a_scale = task.b_scale = nullptr;
  const auto set = [&](const View& scale, Quant quant, const float*& to, int64_t begin) {
    if (!scale.given() || is_block(quant)) return;
    const float* from = f32_row(scale, index);
    if (quant == Quant::per_tensor) task.sum_scale *= *from;
    else to = from + begin;
  };
  set(args.a_scale, p.a_quant, task.a_scale, row);
  set(args.b_scale, p.b_quant, task.b_scale, 0);
  set(args.b_global_scale, Quant::per_tensor, task.b_scale, 0);
}

}  // namespace

template <Target kTarget> void launch(const GemmArgs& args, const Gemm::Problem& p, const Config& config, Launch& launch) {
  const int threads = threads_of(kTarget, p, launch.device, launch.threads);
  const Partition part = partition(p, config[kSplit], threads);
  const int64_t panels = panels_of(p);
  const bool batched = args.a.rank == 3;
  const int row_dim = args.a.rank - 2;

  auto* bias = bias_bytes(p) > 0 ? reinterpret_cast<float*>(launch.workspace) : nullptr;
  if (bias != nullptr) widen_bias(args.bias, p.n, bias);
  const auto [a, b, kernel] = operands_of(kTarget, args, p, launch.workspace + bias_bytes(p), launch);
  std::byte* const scratch = launch.workspace + bias_bytes(p) + wide_a_bytes(p) + packed_b_bytes(p);
  const int64_t width = bits(a.dtype) / 8;

  PanelTask call;
  call.n = p.n_out();
  call.k = p.k;
  call.a_stride = a.stride[row_dim] * width;
  call.c_stride = args.c.stride[row_dim] * (bits(p.c) / 8);
  call.c_dtype = p.c;
  call.gate = p.gate;
  call.activation = args.activation;
  if (p.coded()) call.codes = panel_codes(p.weight(), p.b_quant);
  // A single plain row has no stride of its own, but 0 would mean packed.
  if (packs_in_kernel(p)) call.b_row_stride = p.n > 1 ? b.stride[row_dim] * width : kStepBytes;
  call.block_m = config[kBlockM];
  call.chunk_k = config[kChunkK];

  parallel(std::min(threads, part.parts()), [&, &a = a, &b = b, kernel = kernel](int thread, int team) {
    // A team may come out smaller than asked for: parts are dealt out, not assumed.
    for (int index = thread; index < part.parts(); index += team) {
      PanelTask task = call;
      task.scratch = scratch + index * part.scratch;
      Span rows{0, p.m}, mine{0, panels * p.batch};
      if (part.parts() > 1) {
        rows = split(p.m, index / part.panel_parts, part.row_parts, 32);
        mine = split(panels * p.batch, index % part.panel_parts, part.panel_parts);
      }
      if (rows.begin >= rows.end) continue;
      task.m = rows.end - rows.begin;
      int64_t matrix = mine.begin == 0 ? 0 : mine.begin / panels;
      for (int64_t at = mine.begin; at < mine.end; ++matrix) {
        task.panel_begin = at - matrix * panels;
        task.panel_end = std::min(panels, task.panel_begin + mine.end - at);
        const int64_t a_matrix = batched ? matrix * a.stride[0] * width : 0;
        const int64_t c_matrix = batched ? matrix * args.c.stride[0] * (bits(p.c) / 8) : 0;
        task.a = static_cast<const std::byte*>(a.data) + a_matrix + rows.begin * call.a_stride;
        task.c = static_cast<std::byte*>(args.c.data) + c_matrix + rows.begin * call.c_stride;
        if (packs_in_kernel(p)) task.b = static_cast<const std::byte*>(b.data) + (batched ? matrix * b.stride[0] * width : 0);
        else task.b = packed_matrix(b, matrix);
        set_scales(task, args, p, matrix, rows.begin);
        task.bias = bias == nullptr ? f32_row(args.bias, matrix) : bias + (args.bias.rank == 2 ? matrix * p.n : 0);
        kernel(task);
        at += task.panel_end - task.panel_begin;
      }
    }
  });
}

#define EITRI_PANEL_ROW(target)                                                          \
  template Support supports<target>(const Gemm::Problem&, const Device&);                \
  template Guess guess<target>(const Gemm::Problem&, const Device&);                     \
  template size_t workspace<target>(const Gemm::Problem&, const Config&, const Device&); \
  template void launch<target>(const GemmArgs&, const Gemm::Problem&, const Config&, Launch&)
#if EITRI_X86
EITRI_PANEL_ROW(Target::x86_amx);
EITRI_PANEL_ROW(Target::x86_avx512);
EITRI_PANEL_ROW(Target::x86_avx2);
#endif
EITRI_PANEL_ROW(Target::any_cpu);
#undef EITRI_PANEL_ROW

}  // namespace panel_rows
}  // namespace eitri
