// Times every panel kernel on one thread, weights warm (one copy again and again) or cold (a ring of copies larger than
// the caches), packed or plain, bf16 times codes too. Counters: G of operations and GB of weights per second.
//
//   eitri_bench --benchmark_filter='amx/bf16/.*m16/cold/packed' --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "base/numeric.h"
#include "base/settings.h"
#include "ops/gemm/panel_kernels.h"

namespace eitri {
namespace {

constexpr int64_t kRingBytes = int64_t{1} << 30;

struct Kernel {
  std::string name;
  PanelFn function;
  DType dtype;
  PanelCodes codes = {};  // of coded panels
};

void add_coded(std::vector<Kernel>& found, const char* level, PanelFn function) {
  struct Coding {
    const char* name;
    PanelCodes codes;
  };
  for (const Coding& c : {Coding{"f8", {DType::f8e4m3, DType::none, 0}},
                          {"f8_128", {DType::f8e4m3, DType::f32, 128}},
                          {"mxf8", {DType::f8e4m3, DType::f8e8m0, 32}},
                          {"i8_codes", {DType::i8, DType::none, 0}},
                          {"i8_32", {DType::i8, DType::f32, 32}},
                          {"i4", {DType::i4, DType::none, 0}},
                          {"i4_32", {DType::i4, DType::f32, 32}},
                          {"mxf4", {DType::f4e2m1, DType::f8e8m0, 32}},
                          {"nvf4", {DType::f4e2m1, DType::f8e4m3, 16}}})
    found.push_back({std::string(level) + "/" + c.name, function, DType::bf16, c.codes});
}

std::vector<Kernel> kernels() {
  std::vector<Kernel> found;
#if EITRI_X86
  const Isa isa = best_isa();
  if (isa == Isa::x86_amx) {
    found.push_back({"amx/bf16", amx::panel_bf16, DType::bf16});
    found.push_back({"amx/i8", amx::panel_i8, DType::i8});
    add_coded(found, "amx", amx::coded_bf16);
  }
  if (isa == Isa::x86_amx || isa == Isa::x86_amx_emulated || isa == Isa::x86_avx512) {
    found.push_back({"avx512/bf16", avx512::panel_bf16, DType::bf16});
    found.push_back({"avx512/i8", avx512::panel_i8, DType::i8});
    found.push_back({"avx512/f16", avx512::panel_f16, DType::f16});
    found.push_back({"avx512/f32", avx512::panel_f32, DType::f32});
    add_coded(found, "avx512", cpu_device().avx512_vbmi ? avx512vbmi::coded_bf16 : avx512::coded_bf16);
  }
  if (isa != Isa::portable) {
    found.push_back({"avx2/bf16", avx2::panel_bf16, DType::bf16});
    found.push_back({"avx2/i8", avx2::panel_i8, DType::i8});
    found.push_back({"avx2/f16", avx2::panel_f16, DType::f16});
    found.push_back({"avx2/f32", avx2::panel_f32, DType::f32});
  }
#endif
  found.push_back({"portable/bf16", portable::panel_bf16, DType::bf16});
  return found;
}

// Random finite values: zeros flatter a kernel.
void fill(Buffer& buffer, DType dtype) {
  std::mt19937 random(1);
  auto* words = reinterpret_cast<uint32_t*>(buffer.data());
  // Exponents near that of 1 for two 16-bit floats, or one f32, per word; i8 takes any byte.
  const uint32_t keep = dtype == DType::i8 ? 0xffffffffu : dtype == DType::f32 ? 0x807fffffu : 0x807f807fu;
  const uint32_t set = dtype == DType::i8 ? 0 : dtype == DType::f32 ? 0x3f000000u : dtype == DType::f16 ? 0x3c003c00u : 0x3f003f00u;
  for (size_t i = 0; i < buffer.size() / 4; ++i) words[i] = (random() & keep) | set;
}

// Codes of any value but NaN; scales near 1/64.
void fill_codes(Buffer& buffer, const PanelCodes& codes) {
  std::mt19937 random(1);
  const auto span = static_cast<size_t>(span_bytes(codes)), scales = static_cast<size_t>(span_scale_bytes(codes));
  for (size_t at = 0; at < buffer.size() / 4 * 4; at += 4) {
    uint32_t word = random();
    if (at % span < scales)
      word = codes.scale == DType::f32      ? float_bits(0x1p-6f) | (word & 0x7fffffu)
             : codes.scale == DType::f8e8m0 ? 0x78787878u | (word & 0x03030303u)
                                            : 0x08080808u | (word & 0x07070707u);
    else if (codes.dtype == DType::f8e4m3) word &= 0xf7f7f7f7u;
    std::memcpy(buffer.data() + at, &word, 4);
  }
}

void run(benchmark::State& state, const Kernel& kernel, int64_t n, int64_t k, int64_t m, bool cold, bool plain) {
  const int64_t width = kernel.dtype == DType::f32 ? 4 : kernel.dtype == DType::i8 ? 1 : 2;
  const bool coded = kernel.codes.dtype != DType::none;
  const int64_t panels = panel_count(n, GateLayout::none), panel = coded ? coded_panel_bytes(kernel.codes, k) : panel_bytes(k, width);
  const int64_t weights = plain ? n * k * width : panels * panel;
  const int64_t copies = cold ? kRingBytes / weights + 1 : 1;
  Buffer a(static_cast<size_t>(m * k * width)), b(static_cast<size_t>(copies * weights)), c(static_cast<size_t>(m * n * 2));
  Buffer scratch(static_cast<size_t>(panel_scratch(m, k, panels, width, plain)));
  fill(a, kernel.dtype);
  if (coded) fill_codes(b, kernel.codes);
  else fill(b, kernel.dtype);
  std::vector<float> a_scale(static_cast<size_t>(m), 0.01f), b_scale(static_cast<size_t>(n), 0.01f);
  PanelTask task;
  task.a = a.data(), task.a_stride = k * width;
  task.m = m, task.n = n, task.k = k;
  task.panel_end = panels;
  task.b_row_stride = plain ? k * width : 0;
  task.codes = kernel.codes;
  if (kernel.dtype == DType::i8) task.a_scale = a_scale.data(), task.b_scale = b_scale.data();
  task.c = c.data(), task.c_stride = n * 2, task.c_dtype = DType::bf16;
  task.scratch = scratch.data();
  int64_t copy = 0;
  for (auto _ : state) {
    task.b = b.data() + copy * weights;
    kernel.function(task);
    if (++copy == copies) copy = 0;
  }
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["G_op/s"] = benchmark::Counter(2e-9 * static_cast<double>(m * n * k), per_second);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(weights), per_second);
}

}  // namespace
}  // namespace eitri

int main(int argc, char** argv) {
  using namespace eitri;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  struct Shape {
    int64_t n, k;
  };
  for (const Kernel& kernel : kernels())
    for (Shape shape : {Shape{4096, 4096}, {14336, 4096}, {4096, 14336}, {2048, 7168}, {768, 2048}, {2048, 768}})
      for (int64_t m : {1, 4, 16, 32, 48, 64, 256, 512, 1024})
        for (bool cold : {false, true})
          for (bool plain : {false, true}) {
            if ((cold && m > 64) || (plain && kernel.codes.dtype != DType::none)) continue;
            const std::string name = kernel.name + "/n" + std::to_string(shape.n) + "/k" + std::to_string(shape.k) + "/m" +
                                     std::to_string(m) + (cold ? "/cold" : "/warm") + (plain ? "/plain" : "/packed");
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
              run(state, kernel, shape.n, shape.k, m, cold, plain);
            })->Unit(benchmark::kMicrosecond);
          }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
