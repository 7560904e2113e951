// Detection of the CPU, the level in force, and the route generation.
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "backend/cpu/threads.h"
#include "base/error.h"
#include "base/settings.h"
#if EITRI_X86
#include <cpuid.h>
#endif

namespace eitri {

std::span<const char* const> enum_names(Isa) {
  static constexpr const char* kNames[] = {"portable", "x86_avx2", "x86_avx512", "x86_amx_emulated", "x86_amx"};
  return kNames;
}

std::string_view Device::arch() const { return is_gpu() ? std::string_view(gpu_arch) : enum_names(isa)[static_cast<size_t>(isa)]; }

double Device::peak(DType math) const {
  switch (math) {
    case DType::i8: return profile.i8_ops;
    case DType::bf16: return profile.bf16_flops;
    case DType::f16: return is_gpu() ? profile.bf16_flops : profile.f32_flops;
    case DType::f8e4m3: return is_gpu() ? profile.i8_ops : profile.f32_flops;  // tensor cores run both 8-bit types at one rate
    default: return profile.f32_flops;
  }
}

namespace {

struct Features {
  Isa best = Isa::portable;
  bool amx = false, avx512_bf16 = false, avx512_fp16 = false, avx512_vbmi = false;
  std::string amx_status = "this build has no x86 kernels";
  std::string name = "unknown CPU";
};

#if EITRI_X86
uint64_t xgetbv0() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

/// Linux gives AMX state to a process only on request; threads made later inherit the permission, existing ones share it.
std::string ask_for_amx() {
#if defined(__linux__)
  constexpr long kReqXcompPerm = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0) return {};
  return "the CPU has AMX, but the OS refused permission for its tile state (arch_prctl)";
#else
  return "permission for AMX tile state can only be asked on Linux";
#endif
}

Features detect() {
  Features f;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  f.amx_status = "the CPU has no AMX (CPUID 7: amx_tile, amx_bf16, amx_int8)";
  if (__get_cpuid(0x80000004, &a, &b, &c, &d) != 0) {
    char brand[49] = {};
    for (uint32_t i = 0; i < 3; ++i) {
      uint32_t r[4];
      __get_cpuid(0x80000002 + i, &r[0], &r[1], &r[2], &r[3]);
      __builtin_memcpy(brand + 16 * i, r, 16);
    }
    f.name = brand;
    f.name.erase(0, f.name.find_first_not_of(' '));
    f.name.erase(f.name.find_last_not_of(' ') + 1);
  }
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return f;
  const bool fma = (c >> 12 & 1) != 0, osxsave = (c >> 27 & 1) != 0, f16c = (c >> 29 & 1) != 0;
  if (!osxsave || !fma || !f16c) return f;
  const uint64_t xcr0 = xgetbv0();
  if ((xcr0 & 0x6) != 0x6 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return f;
  const auto bit = [](uint32_t word, int i) { return (word >> i & 1) != 0; };
  if (!bit(b, 5)) return f;
  f.best = Isa::x86_avx2;
  const bool f_bw_dq_vl = bit(b, 16) && bit(b, 30) && bit(b, 17) && bit(b, 31), vnni = bit(c, 11);
  if ((xcr0 & 0xe6) != 0xe6 || !f_bw_dq_vl || !vnni) return f;
  f.avx512_fp16 = bit(d, 23);
  f.avx512_vbmi = bit(c, 1);
  const bool amx_here = bit(d, 22) && bit(d, 24) && bit(d, 25) && (xcr0 & 0x60000) == 0x60000;
  if (uint32_t a1 = 0, b1 = 0, c1 = 0, d1 = 0; __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) != 0) f.avx512_bf16 = bit(a1, 5);
  // The AMX kernels round their results with AVX512-BF16 and look codes up with VBMI, so the emulated level needs both too.
  const bool beside_tiles = f.avx512_bf16 && f.avx512_vbmi;
  f.best = beside_tiles ? Isa::x86_amx_emulated : Isa::x86_avx512;
  if (amx_here && beside_tiles) {
    f.amx_status = ask_for_amx();
    f.amx = f.amx_status.empty();
    if (f.amx) f.best = Isa::x86_amx;
  }
  return f;
}
#else
Features detect() { return {}; }
#endif

const Features& features() {
  static const Features f = detect();
  return f;
}

/// The level used without any forcing: emulation is for tests, never picked by itself.
Isa default_isa() {
  const Isa best = features().best;
  return best == Isa::x86_amx_emulated ? Isa::x86_avx512 : best;
}

int usable_cores() {
  // Where OpenMP binds threads, the calling one is on a single core already: the places say what the process may use.
  if (omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0) {
    std::set<int> processors;
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> ids(static_cast<size_t>(std::max(0, omp_get_place_num_procs(place))));
      omp_get_place_proc_ids(place, ids.data());
      processors.insert(ids.begin(), ids.end());
    }
    return std::max(1, static_cast<int>(processors.size()));
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

/// Used until the machine was measured: about half of what one core of a 2023 server reaches.
Profile nominal_profile(Isa isa, int threads) {
  Profile p{.threads = threads};
  const double t = threads;
  switch (isa) {
    case Isa::x86_amx: p = {threads, 2.5e12 * t, 5.0e12 * t, 2.0e11 * t}; break;
    case Isa::x86_amx_emulated: p = {threads, 1e10 * t, 1e10 * t, 2.0e11 * t}; break;
    case Isa::x86_avx512: p = {threads, 2.0e11 * t, 8.0e11 * t, 2.0e11 * t}; break;
    case Isa::x86_avx2: p = {threads, 9.0e10 * t, 1.6e11 * t, 9.0e10 * t}; break;
    case Isa::portable: p = {threads, 1.0e10 * t, 1.0e10 * t, 1.0e10 * t}; break;
  }
  p.read_bytes = 1.2e10 * std::min(threads, 16);
  p.l2_bytes = 1.0e11 * t;
  return p;
}

struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<const Device>> all;  // kept for ever: callers hold references
  std::atomic<const Device*> current = nullptr;
  std::atomic<uint32_t> generation = 1;
};
State& state() {
  static State s;
  return s;
}

const Device& install(Device device) {  // mutex is held
  State& s = state();
  s.all.push_back(std::make_unique<const Device>(std::move(device)));
  s.current.store(s.all.back().get(), std::memory_order_release);
  s.generation.fetch_add(1, std::memory_order_release);
  return *s.all.back();
}

void check_runs(Isa isa) {
  require(isa <= features().best, "isa is ", to_string(isa), "; expected a level that this machine runs, at most ",
          to_string(features().best), isa == Isa::x86_amx ? str(" (", features().amx_status, ")") : std::string());
}

Device device_at(Isa isa) {
  const Features& f = features();
  Device d;
  d.name = f.name;
  d.isa = isa;
  d.units = usable_cores();
  d.amx = isa == Isa::x86_amx;
  d.avx512_bf16 = isa >= Isa::x86_avx512 && f.avx512_bf16;
  d.avx512_vbmi = isa >= Isa::x86_avx512 && f.avx512_vbmi;
  d.avx512_fp16 = isa >= Isa::x86_avx512 && f.avx512_fp16;
  const auto cache = [](int name, int64_t fallback) {
    const int64_t bytes = sysconf(name);
    return bytes > 0 ? bytes : fallback;
  };
  d.l1_bytes = cache(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  d.l2_bytes = cache(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
  d.l3_bytes = cache(_SC_LEVEL3_CACHE_SIZE, 0);
  const int threads = settings().threads > 0 ? settings().threads : omp_get_max_threads();
  // Only the cache file counts here: measuring takes half a second and is not done behind a caller's back.
  d.profile = stored_profile(d, threads).value_or(nominal_profile(isa, threads));
  return d;
}

}  // namespace

Isa best_isa() { return features().best; }
std::string amx_status() { return features().amx_status; }
uint32_t route_generation() { return state().generation.load(std::memory_order_acquire); }
void bump_route_generation() { state().generation.fetch_add(1, std::memory_order_acq_rel); }

const Device& cpu_device() {
  State& s = state();
  if (const Device* d = s.current.load(std::memory_order_acquire); d != nullptr) [[likely]]
    return *d;
  std::lock_guard lock(s.mutex);
  if (const Device* d = s.current.load(std::memory_order_acquire); d != nullptr) return *d;
  Isa isa = default_isa();
  if (const std::string& wanted = settings().isa; !wanted.empty()) {
    const auto names = enum_names(Isa{});
    const auto it = std::find_if(names.begin(), names.end(), [&](const char* n) { return wanted == n; });
    require(it != names.end(), "EITRI_ISA is ", wanted, "; expected portable, x86_avx2, x86_avx512, x86_amx_emulated or x86_amx");
    isa = static_cast<Isa>(it - names.begin());
    check_runs(isa);
  }
  return install(device_at(isa));
}

void force_isa(Isa isa) {
  check_runs(isa);
  State& s = state();
  std::lock_guard lock(s.mutex);
  for (auto it = s.all.rbegin(); it != s.all.rend(); ++it) {  // forcing to and fro does not pile devices up
    if (const auto& d = *it; d->isa == isa) {
      s.current.store(d.get(), std::memory_order_release);
      s.generation.fetch_add(1, std::memory_order_release);
      return;
    }
  }
  install(device_at(isa));
}

void set_profile(const Profile& profile) {
  State& s = state();
  Device d = cpu_device();
  std::lock_guard lock(s.mutex);
  d.profile = profile;
  install(std::move(d));
}

}  // namespace eitri
