#include "tune/sabotage_op.h"

#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include <atomic>
#include <chrono>
#include <cmath>

namespace eitri {
namespace {

using Problem = Probe::Problem;
using Args = Probe::Args;
using Clock = std::chrono::steady_clock;

float* row_of(const View& view, int64_t r) { return static_cast<float*>(view.data) + r * view.stride[0]; }
float* out_of(const Args& a) { return static_cast<float*>(a.out.data); }

void right(const Args& a, int64_t k_end) {
  for (int64_t m = 0; m < a.x.shape[0]; ++m) {
    float sum = 0;
    for (int64_t k = 0; k < k_end; ++k) sum += row_of(a.x, m)[k] * static_cast<const float*>(a.w.data)[k];
    out_of(a)[m] = sum;
  }
}
void right(const Args& a) { right(a, a.x.shape[1]); }

/// Right, and takes this long on every machine.
void taking(const Args& a, double us) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(us));
  right(a);
  while (Clock::now() < end) {
  }
}

enum class Fault {
  drops_k_tail,
  writes_half,
  writes_after,
  writes_far,
  writes_input,
  races,
  nearly_right,
  right_once,
  never_ends,
  faults,
  aborts,
  exits,
  throws,
  allocates_200_gb,
};

template <Fault kFault> void faulty(const Args& a, const Problem&, const Config&, Launch&) {
  using enum Fault;
  static std::atomic<int> calls = 0;
  const int call = calls.fetch_add(1);
  if constexpr (kFault == never_ends) {
    for (volatile bool on = true; on;) {
    }
  }
  if constexpr (kFault == faults) *static_cast<volatile int*>(nullptr) = 1;
  if constexpr (kFault == aborts) std::abort();
  if constexpr (kFault == exits) ::_exit(0);
  if constexpr (kFault == throws) fail(Code::internal, "a fault");
  if constexpr (kFault == allocates_200_gb) {
    auto* bytes = new char[size_t{200} << 30];
    for (size_t i = 0; i < size_t{200} << 30; i += 4096) static_cast<volatile char*>(bytes)[i] = 1;
    delete[] bytes;
  }
  if constexpr (kFault == drops_k_tail) return right(a, a.x.shape[1] / 8 * 8);
  if constexpr (kFault == writes_half) {
    Args half = a;
    half.x.shape[0] = (a.x.shape[0] + 1) / 2;
    return right(half);
  }
  right(a);
  if constexpr (kFault == writes_after) out_of(a)[a.out.shape[0]] = 0;
  if constexpr (kFault == writes_far) static_cast<volatile float*>(out_of(a))[int64_t{1} << 40] = 0;
  if constexpr (kFault == writes_input) row_of(a.x, 0)[0] = 0;
  if constexpr (kFault == races) {
    if (call % 16 == 15) out_of(a)[0] = std::nextafter(out_of(a)[0], 0.0f);
  }
  if constexpr (kFault == nearly_right) {
    double bound = 0;
    for (int64_t k = 0; k < a.x.shape[1]; ++k) bound += std::fabs(double(row_of(a.x, 0)[k]) * static_cast<const float*>(a.w.data)[k]);
    out_of(a)[0] += static_cast<float>(2.5 * double(a.x.shape[1] + 1) * 0x1p-24 * bound);
  }
  if constexpr (kFault == right_once) {
    if (call > 0) out_of(a)[0] += 1;
  }
}

/// Right and slow for up to 32 rows: what is wrong shows only where the reference would take too long, were m * k larger.
enum class LargeFault { wrong_first_row, unwritten_last_row, wrong_last_row };
template <LargeFault kFault> void faulty_when_large(const Args& a, const Problem& p, const Config&, Launch&) {
  if (p.m <= 32) return taking(a, 2000);
  const float last = out_of(a)[p.m - 1];
  right(a);
  if constexpr (kFault == LargeFault::wrong_first_row) out_of(a)[0] += 1;
  else if constexpr (kFault == LargeFault::unwritten_last_row) out_of(a)[p.m - 1] = last;
  else out_of(a)[p.m - 1] += 1;
}

template <int kMicroseconds> void waits(const Args& a, const Problem&, const Config&, Launch&) { taking(a, kMicroseconds); }
/// Its knob is its time.
void waits_as_told(const Args& a, const Problem&, const Config& config, Launch&) { taking(a, config[0]); }

constexpr int kTimes[] = {400, 100, 800, 200};
constexpr Knob kKnobs[] = {{"us", kTimes}};

Support any(const Problem&, const Device&) { return Support::yes(); }
template <int kMicroseconds> Guess takes(const Problem&, const Device&) { return {.config = {{800}}, .us = kMicroseconds}; }
size_t terabytes(const Problem&, const Config&, const Device&) { return size_t{200} << 30; }
void reference_row(const Args& a, const Problem&, const Config&, Launch&) { Probe::reference(a, nullptr); }

template <Fault kFault> constexpr Kernel<Probe> fault_row(const char* name) {
  return {.name = name, .family = Family::simt, .target = Target::any_cpu, .supports = any, .guess = takes<12>, .launch = faulty<kFault>};
}

constexpr Kernel<Probe> kRows[] = {
    {.name = "probe.right.slow",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<10>,
     .launch = waits<400>},
    {.name = "probe.right.knob",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .knobs = kKnobs,
     .guess = takes<12>,
     .launch = waits_as_told},
    {.name = "probe.right.same_as_slow",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<12>,
     .launch = waits<400>},
    fault_row<Fault::drops_k_tail>("probe.fault.drops_k_tail"),
    fault_row<Fault::writes_half>("probe.fault.writes_half"),
    fault_row<Fault::writes_after>("probe.fault.writes_after"),
    fault_row<Fault::writes_far>("probe.fault.writes_far"),
    fault_row<Fault::writes_input>("probe.fault.writes_input"),
    fault_row<Fault::races>("probe.fault.races"),
    fault_row<Fault::nearly_right>("probe.fault.nearly_right"),
    fault_row<Fault::right_once>("probe.fault.right_once"),
    fault_row<Fault::never_ends>("probe.fault.never_ends"),
    fault_row<Fault::faults>("probe.fault.faults"),
    fault_row<Fault::aborts>("probe.fault.aborts"),
    fault_row<Fault::exits>("probe.fault.exits"),
    fault_row<Fault::throws>("probe.fault.throws"),
    fault_row<Fault::allocates_200_gb>("probe.fault.allocates_200_gb"),
    {.name = "probe.fault.workspace_of_200_gb",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<12>,
     .workspace = terabytes,
     .launch = waits<1>},
    {.name = "probe.large.wrong_first_row",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<12>,
     .launch = faulty_when_large<LargeFault::wrong_first_row>},
    {.name = "probe.large.unwritten_last_row",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<12>,
     .launch = faulty_when_large<LargeFault::unwritten_last_row>},
    {.name = "probe.large.wrong_last_row",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<12>,
     .launch = faulty_when_large<LargeFault::wrong_last_row>},
    {.name = "probe.right.hopeless",
     .family = Family::simt,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<1000>,
     .launch = waits<1>},
    {.name = "probe.reference",
     .family = Family::reference,
     .target = Target::any_cpu,
     .supports = any,
     .guess = takes<100000>,
     .launch = reference_row},
};

}  // namespace

std::span<const Kernel<Probe>> Probe::kernels() { return kRows; }

Probe::Problem Probe::check(const Args& a) {
  check_view(a.x, name, "x", 2);
  check_view(a.w, name, "w", 1);
  check_output(a.out, name, "out", 1);
  return {.m = a.x.shape[0], .k = a.x.shape[1]};
}

void Probe::reference(const Args& a, Oracle* oracle) {
  Expected out;
  for (int64_t m = 0; m < a.x.shape[0]; ++m) {
    double sum = 0, bound = 0;
    for (int64_t k = 0; k < a.x.shape[1]; ++k) {
      const double product = double(row_of(a.x, m)[k]) * static_cast<const float*>(a.w.data)[k];
      sum += product;
      bound += std::fabs(product);
    }
    out_of(a)[m] = static_cast<float>(sum);
    out.value.push_back(sum);
    out.bound.push_back(bound);
  }
  if (oracle != nullptr) *oracle = {std::move(out)};
}

Probe::Args Probe::make(const Problem& p, Maker& maker) {
  Args a;
  a.x = maker.input("x", DType::f32, {p.m, p.k}, Fill::normal);
  a.w = maker.input("w", DType::f32, {p.k}, Fill::normal);
  a.out = maker.output("out", DType::f32, {p.m});
  return a;
}

}  // namespace eitri
