// The machine profile: peak rates and read bandwidth, measured once per machine, level and thread count, kept in the
// cache folder as <cache>/profile/<hash>.json.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cpu/limits.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/probe.h"
#include "backend/cpu/threads.h"
#include "base/atomic_file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"

namespace eitri {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kProfileVersion = 2;

/// CPU time of the calling thread: waiting for a core, on a machine that others use too, is not the kernel's time.
double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Upper quartile: other tenants of a machine only ever slow a window down, and the very best one may be a clock boost.
double upper_quartile(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() * 3 / 4];
}

/// Runs body(thread, threads) -> work done on all threads and returns the sum of the threads' rates (work per second of
/// their own CPU time). `waited` becomes the worst ratio of wall to CPU time.
template <class Body> double team_rate(int threads, double& waited, Body&& body) {
  std::vector<double> rate(static_cast<size_t>(threads)), wait(static_cast<size_t>(threads));
  parallel(threads, [&](int t, int n) {
    const auto wall = Clock::now();
    const double cpu = thread_seconds();
    const double work = body(t, n);
    const double spent = std::max(thread_seconds() - cpu, 1e-9);
    rate[static_cast<size_t>(t)] = work / spent;
    wait[static_cast<size_t>(t)] = std::chrono::duration<double>(Clock::now() - wall).count() / spent;
  });
  waited = std::max(waited, *std::max_element(wait.begin(), wait.end()));
  double sum = 0;
  for (const double r : rate) sum += r;
  return sum;
}

/// Operations per second of `probe` on all threads together, in windows of about 3 ms.
double peak_rate(int threads, double& waited, double (*probe)(int64_t)) {
  int64_t rounds = 1000;
  while (true) {  // find rounds for 3 ms; also warms up
    const double start = thread_seconds();
    probe(rounds);
    const double s = thread_seconds() - start;
    if (s > 2e-3) break;
    rounds = static_cast<int64_t>(static_cast<double>(rounds) * std::clamp(3e-3 / std::max(s, 1e-7), 2.0, 50.0));
  }
  std::vector<double> rates;
  for (int window = 0; window < 12; ++window) rates.push_back(team_rate(threads, waited, [&](int, int) { return probe(rounds); }));
  return upper_quartile(std::move(rates));
}

using ReadFn = uint64_t (*)(const std::byte*, size_t);

/// Bytes per second of reading `bytes` of the buffer once; `repeat` times in each window for what fits a cache.
double read_rate(int threads, double& waited, const Buffer& buffer, size_t bytes, int windows, int repeat, ReadFn read) {
  std::vector<double> rates;
  for (int window = 0; window < windows; ++window) {
    rates.push_back(team_rate(threads, waited, [&](int t, int n) {
      const Span part = split(static_cast<int64_t>(bytes), t, n, 4096);
      for (int i = 0; i < repeat; ++i) {
        volatile uint64_t sink = read(buffer.data() + part.begin, static_cast<size_t>(part.end - part.begin));
        (void)sink;
      }
      return static_cast<double>(part.end - part.begin) * repeat;
    }));
  }
  return upper_quartile(std::move(rates));
}

std::string identity(const Device& device, int threads) {
  return str(device.name, "|", device.arch(), "|units=", device.units, "|threads=", threads, "|l2=", device.l2_bytes,
             "|l3=", device.l3_bytes, "|v=", kProfileVersion);
}

std::string file_for(const Device& device, int threads) {
  const std::string& folder = settings().cache_dir;
  if (folder.empty()) return {};
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.json", static_cast<unsigned long long>(hash_bytes(identity(device, threads))));
  return folder + "/profile/" + name;
}

/// The loop whose rate is device.peak(math); null: none.
double (*peak_loop(const Device& device, DType math))(int64_t) {
#if EITRI_X86
  if (device.isa == Isa::x86_avx2) return math == DType::i8 ? probe::i8_avx2 : probe::fma_avx2;
  if (device.isa != Isa::portable) {
    if (math == DType::i8) return device.amx ? probe::i8_amx : probe::i8_avx512;
    if (math != DType::bf16) return probe::fma_avx512;
    // AVX512-BF16 has half the rate of f32 on some machines.
    return device.amx ? probe::bf16_amx : device.peak(math) > device.peak(DType::f32) ? probe::bf16_avx512bf16 : probe::fma_avx512;
  }
#endif
  return math == DType::i8 ? nullptr : probe::fma_portable;
}
ReadFn read_loop(const Device& device) {
#if EITRI_X86
  if (device.isa != Isa::portable && device.isa != Isa::x86_avx2) return probe::read_avx512;
#endif
  return probe::read_portable;
}

}  // namespace

bool run_at_peak(const Device& device, DType math, double ops) {
  const auto loop = peak_loop(device, math);
  if (loop == nullptr) return false;
  const double of_round = loop(1);
  if (ops > of_round) loop(static_cast<int64_t>(ops / of_round));
  return true;
}

void read_once(const Device& device, const std::byte* data, size_t bytes) {
  volatile uint64_t sink = read_loop(device)(data, bytes / 512 * 512);
  (void)sink;
}

Profile measure_profile(const Device& device, int threads) {
  Profile p{.threads = threads, .measured = true};
  double waited = 1;  // wall time over CPU time, the worst window
  const ReadFn read = read_loop(device);
  switch (device.isa) {
    case Isa::portable:
      p.f32_flops = peak_rate(threads, waited, probe::fma_portable);
      p.bf16_flops = p.i8_ops = p.f32_flops;
      break;
#if EITRI_X86
    case Isa::x86_avx2:
      p.f32_flops = p.bf16_flops = peak_rate(threads, waited, probe::fma_avx2);
      p.i8_ops = peak_rate(threads, waited, probe::i8_avx2);
      break;
    case Isa::x86_avx512:
    case Isa::x86_amx_emulated:
    case Isa::x86_amx:
      p.f32_flops = p.bf16_flops = peak_rate(threads, waited, probe::fma_avx512);
      if (device.avx512_bf16) p.bf16_flops = std::max(p.bf16_flops, peak_rate(threads, waited, probe::bf16_avx512bf16));
      p.i8_ops = peak_rate(threads, waited, probe::i8_avx512);
      if (device.amx) {
        p.bf16_flops = peak_rate(threads, waited, probe::bf16_amx);
        p.i8_ops = peak_rate(threads, waited, probe::i8_amx);
      }
      break;
#else
    default: break;
#endif
  }
  // Memory that no cache holds: larger than the L3 where that is affordable. A virtual machine may see the whole socket's
  // L3 but own a part of it, so 1 GiB is taken as enough.
  const auto want = static_cast<size_t>(std::clamp<int64_t>(2 * device.l3_bytes, int64_t{512} << 20, int64_t{1} << 30));
  Buffer memory(want);
  parallel(threads, [&](int t, int n) {
    const Span part = split(static_cast<int64_t>(want), t, n, 4096);
    std::fill(memory.data() + part.begin, memory.data() + part.end, std::byte{0x5a});
  });
  p.read_bytes = read_rate(threads, waited, memory, want, 5, 1, read);
  const size_t in_l2 = static_cast<size_t>(std::max<int64_t>(device.l2_bytes / 2, 128 << 10)) * static_cast<size_t>(threads);
  p.l2_bytes = read_rate(threads, waited, memory, in_l2 / 4096 * 4096, 12, 100, read);
  constexpr double kQuiet = 1.3;  // a fair share of a busy core shows as 2 and more
  p.noisy = waited > kQuiet;
  return p;
}

std::optional<Profile> stored_profile(const Device& device, int threads) {
  const std::string path = file_for(device, threads);
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    const auto j = nlohmann::json::parse(read_file(path, 1 << 16));
    if (j.at("identity").get<std::string>() != identity(device, threads)) return std::nullopt;  // hash collision
    Profile p{.threads = threads,
              .bf16_flops = j.at("bf16_flops").get<double>(),
              .i8_ops = j.at("i8_ops").get<double>(),
              .f32_flops = j.at("f32_flops").get<double>(),
              .read_bytes = j.at("read_bytes").get<double>(),
              .l2_bytes = j.at("l2_bytes").get<double>(),
              .measured = true,
              .noisy = j.at("noisy").get<bool>()};
    for (const double v : {p.bf16_flops, p.i8_ops, p.f32_flops, p.read_bytes, p.l2_bytes})
      if (!(v > 0 && v < 1e18)) throw std::runtime_error("a rate is not positive");
    return p;
  } catch (const std::exception& e) {
    warn_once(LogTopic::backend, path, "machine profile ", path, " is unusable (", e.what(), "); measuring again replaces it");
    return std::nullopt;
  }
}

Profile cached_profile(const Device& device, int threads, bool refresh) {
  if (!refresh)
    if (const auto stored = stored_profile(device, threads); stored && !stored->noisy) return *stored;
  const Profile p = measure_profile(device, threads);
  const std::string path = file_for(device, threads);
  if (path.empty()) return p;
  const nlohmann::ordered_json j = {{"identity", identity(device, threads)},
                                    {"threads", threads},
                                    {"bf16_flops", p.bf16_flops},
                                    {"i8_ops", p.i8_ops},
                                    {"f32_flops", p.f32_flops},
                                    {"read_bytes", p.read_bytes},
                                    {"l2_bytes", p.l2_bytes},
                                    {"noisy", p.noisy}};
  try {
    make_private_dir(path.substr(0, path.rfind('/')));
    write_file_atomic(path, j.dump(2) + "\n", FileAccess::owner_only);
  } catch (const Error& e) {  // a read-only home is no reason to fail
    warn_once(LogTopic::backend, path, "machine profile could not be stored: ", e.what());
  }
  return p;
}

}  // namespace eitri
