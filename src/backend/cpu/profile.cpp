// The machine profile: peak rates and read bandwidth, measured once per machine, level and thread count, kept in the
// cache folder as <cache>/profile/<hash>.json.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/cpu/cpu.h"
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
constexpr int kProfileVersion = 1;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Operations per second of `probe` on all threads together: windows of about 3 ms, the upper quartile, because other
/// tenants of a shared machine only ever slow a window down.
double peak_rate(int threads, double (*probe)(int64_t)) {
  int64_t rounds = 1000;
  while (true) {  // find rounds for 3 ms; also warms up
    const auto start = Clock::now();
    probe(rounds);
    const double s = seconds_since(start);
    if (s > 2e-3) break;
    rounds = static_cast<int64_t>(static_cast<double>(rounds) * std::clamp(3e-3 / std::max(s, 1e-7), 2.0, 50.0));
  }
  std::vector<double> rates;
  for (int window = 0; window < 12; ++window) {
    std::vector<double> ops(static_cast<size_t>(threads));
    const auto start = Clock::now();
    parallel(threads, [&](int t, int) { ops[static_cast<size_t>(t)] = probe(rounds); });
    const double s = seconds_since(start);
    double sum = 0;
    for (const double o : ops) sum += o;
    rates.push_back(sum / s);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() * 3 / 4];
}

using ReadFn = uint64_t (*)(const std::byte*, size_t);

double read_rate(int threads, const Buffer& buffer, size_t bytes, int passes, ReadFn read) {
  std::vector<double> rates;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = Clock::now();
    parallel(threads, [&](int t, int n) {
      const Span part = split(static_cast<int64_t>(bytes), t, n, 4096);
      volatile uint64_t sink = read(buffer.data() + part.begin, static_cast<size_t>(part.end - part.begin));
      (void)sink;
    });
    rates.push_back(static_cast<double>(bytes) / seconds_since(start));
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() * 3 / 4];
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

}  // namespace

Profile measure_profile(const Device& device, int threads) {
  Profile p{.threads = threads, .measured = true};
  ReadFn read = probe::read_portable;
  switch (device.isa) {
    case Isa::portable:
      p.f32_flops = peak_rate(threads, probe::fma_portable);
      p.bf16_flops = p.i8_ops = p.f32_flops;
      break;
#if EITRI_X86
    case Isa::x86_avx2:
      p.f32_flops = p.bf16_flops = peak_rate(threads, probe::fma_avx2);
      p.i8_ops = peak_rate(threads, probe::i8_avx2);
      break;
    case Isa::x86_avx512:
    case Isa::x86_amx_emulated:
    case Isa::x86_amx:
      read = probe::read_avx512;
      p.f32_flops = p.bf16_flops = peak_rate(threads, probe::fma_avx512);
      if (device.avx512_bf16) p.bf16_flops = std::max(p.bf16_flops, peak_rate(threads, probe::bf16_avx512bf16));
      p.i8_ops = peak_rate(threads, probe::i8_avx512);
      if (device.amx) {
        p.bf16_flops = peak_rate(threads, probe::bf16_amx);
        p.i8_ops = peak_rate(threads, probe::i8_amx);
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
  p.read_bytes = read_rate(threads, memory, want, 5, read);
  const size_t in_l2 = static_cast<size_t>(std::max<int64_t>(device.l2_bytes / 2, 128 << 10)) * static_cast<size_t>(threads);
  p.l2_bytes = read_rate(threads, memory, in_l2 / 4096 * 4096, 200, read);
  return p;
}

std::optional<Profile> stored_profile(const Device& device, int threads) {
  const std::string path = file_for(device, threads);
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    const auto j = nlohmann::json::parse(read_file(path, 1 << 16));
    if (j.at("identity").get<std::string>() != identity(device, threads)) return std::nullopt;  // hash collision
    Profile p{.threads = threads, .bf16_flops = j.at("bf16_flops").get<double>(), .i8_ops = j.at("i8_ops").get<double>(),
              .f32_flops = j.at("f32_flops").get<double>(), .read_bytes = j.at("read_bytes").get<double>(),
              .l2_bytes = j.at("l2_bytes").get<double>(), .measured = true};
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
    if (const auto stored = stored_profile(device, threads)) return *stored;
  const Profile p = measure_profile(device, threads);
  const std::string path = file_for(device, threads);
  if (path.empty()) return p;
  const nlohmann::ordered_json j = {{"identity", identity(device, threads)}, {"threads", threads},
                                    {"bf16_flops", p.bf16_flops}, {"i8_ops", p.i8_ops}, {"f32_flops", p.f32_flops},
                                    {"read_bytes", p.read_bytes}, {"l2_bytes", p.l2_bytes}};
  try {
    make_private_dir(path.substr(0, path.rfind('/')));
    write_file_atomic(path, j.dump(2) + "\n", FileAccess::owner_only);
  } catch (const Error& e) {  // a read-only home is no reason to fail
    warn_once(LogTopic::backend, path, "machine profile could not be stored: ", e.what());
  }
  return p;
}

}  // namespace eitri
