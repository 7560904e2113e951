// `eitri doctor`: what the library sees of this machine, and the settings in effect.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu.h"
#include "backend/cpu/threads.h"
#include "backend/gpu.h"
#include "base/settings.h"
#include "cli/command.h"
#include "dispatch/database.h"
#include "dispatch/tune_on_miss.h"
#include "eitri/eitri.hpp"
#include "jit/compiler.h"
#include "ops/gemm/gpu_library.h"
#include "ops/gemm/library.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {
namespace fs = std::filesystem;

struct DoctorOptions {
  bool json = false, measure = false, settings_markdown = false;
};

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  return std::getline(file, line) ? line : std::string();
}

/// "madvise": the choice in brackets in "always [madvise] never".
std::string huge_pages() {
  const std::string line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? "unknown" : line.substr(begin + 1, end - begin - 1);
}

std::string cache_state(const std::string& folder) {
  if (folder.empty()) return "none: nothing is kept on disk";
  std::error_code error;
  fs::path parent = folder;
  while (!parent.empty() && !fs::exists(parent, error) && parent != parent.parent_path()) parent = parent.parent_path();
  const bool writable = access(parent.c_str(), W_OK) == 0;
  return fs::exists(folder, error) ? (writable ? "ready" : "not writable") : (writable ? "made on first use" : "cannot be made");
}

/// "gemm.x86_amx.csv".
bool names_an_op(const std::string& file) {
  return std::ranges::any_of(all_ops(), [&](const OpEntry& op) { return file.starts_with(str(op.name, ".")); });
}

struct TunedState {
  std::vector<std::string> lines, entries;  // what is wrong with lines of files, and with entries of EITRI_TUNED
  std::vector<std::string> notes;           // rows for machines of other sizes
};
TunedState tuned_state(const Device& device) {
  TunedState out;
  for (const OpEntry& op : all_ops()) {
    for (const TunedProblem& problem : tuned_problems(op.name, device)) {
      (problem.is_note ? out.notes : out.lines).push_back(str(problem.origin, ": ", problem.text));
    }
  }
  // What EITRI_TUNED names and is not there, or could not be looked into.
  for (const std::string& path : settings().tuned) {
    std::error_code error;
    const bool is_folder = fs::is_directory(path, error);
    std::string wrong;
    if (!fs::exists(path, error)) wrong = error ? error.message() : "there is no such file or folder";
    else if (is_folder && ::access(path.c_str(), R_OK | X_OK) != 0) wrong = "the folder cannot be read";
    else if (!is_folder && fs::path(path).extension() != ".csv") wrong = "it is neither a folder nor a .csv file";
    else if (!is_folder && !names_an_op(fs::path(path).filename().string()))
      wrong = "no operator has a file of this name; expected <op>.<arch>.csv";
    if (!wrong.empty()) out.entries.push_back(str("EITRI_TUNED: ", path, ": ", wrong));
  }
  return out;
}

std::string library_version() {
  const uint16_t version = library::version();
  return version == 0 ? "not built in" : fmt::format("{}.{}", version / 100, version % 100);
}

/// What EITRI_TUNE needs, and what it is set to.
std::string tune_state() {
  const Settings& s = settings();
  const std::string mode = s.tune == TuneMode::off      ? "off"
                           : s.tune == TuneMode::online ? str("online, ", s.tune_percent, " % of the time")
                                                        : str("block, ", s.tune_seconds, " s a problem");
  std::string looked;
  const std::string command = find_tune_command(&looked);
  return str(mode, "; ", command.empty() ? str("its command eitri is not found; looked for ", looked) : command);
}

const char* jit_name(JitMode mode) { return mode == JitMode::on ? "on" : mode == JitMode::cached ? "cached" : "off"; }

nlohmann::ordered_json gpu_json() {
  auto devices = nlohmann::ordered_json::array();
  for (int i = 0; i < gpu::device_count(); ++i) {
    const Device& gpu = gpu::device(i);
    devices.push_back({{"name", gpu.name}, {"arch", gpu.arch()}, {"units", gpu.units}});
  }
  return {{"devices", devices}, {"driver", gpu::driver_version()}, {"reason", gpu::absence()}};
}

nlohmann::ordered_json compilers_json() {
  auto out = nlohmann::ordered_json::array();
  for (const jit::CompilerState& c : jit::compiler_states())
    out.push_back({{"name", c.name}, {"path", c.path}, {"identity", c.identity}, {"reason", c.reason}});
  return out;
}

int run(const DoctorOptions& options) {
  if (options.settings_markdown) {
    fmt::print("{}", settings_markdown());
    return kOk;
  }
  const int threads = max_threads();
  if (options.measure) {
    const Progress progress("measuring the machine");
    set_profile(cached_profile(cpu_device(), threads, true));
  }
  const Device& device = cpu_device();
  const Settings& s = settings();
  const Profile& p = device.profile;
  const TunedState tuned = tuned_state(device);
  const std::string amx = amx_status();
  const auto giga = [](double value) { return value / 1e9; };

  if (options.json) {
    nlohmann::ordered_json force = nlohmann::ordered_json::object();
    for (const auto& [op, kernel] : s.force) force[op] = kernel;
    const nlohmann::ordered_json out = {
        {"version", version()},
        {"device", device.name},
        {"isa", to_string(device.isa)},
        {"best_isa", to_string(best_isa())},
        {"amx", {{"in_use", amx.empty()}, {"reason", amx}}},
        {"avx512_bf16", device.avx512_bf16},
        {"avx512_fp16", device.avx512_fp16},
        {"avx512_vbmi", device.avx512_vbmi},
        {"units", device.units},
        {"threads", threads},
        {"cache_bytes", {{"l1", device.l1_bytes}, {"l2", device.l2_bytes}, {"l3", device.l3_bytes}}},
        {"huge_pages", huge_pages()},
        {"available_memory_bytes", available_memory()},
        {"profile",
         {{"measured", p.measured},
          {"noisy", p.noisy},
          {"threads", p.threads},
          {"bf16_gflop_s", giga(p.bf16_flops)},
          {"i8_gop_s", giga(p.i8_ops)},
          {"f32_gflop_s", giga(p.f32_flops)},
          {"read_gb_s", giga(p.read_bytes)},
          {"l2_gb_s", giga(p.l2_bytes)}}},
        {"cache_dir", {{"path", s.cache_dir}, {"state", cache_state(s.cache_dir)}}},
        {"onednn", library_version()},
        {"cuda", gpu_json()},
        {"gpu_library", gpu_library_state()},
        {"compilers", compilers_json()},
        {"tuned", {{"paths", s.tuned}, {"unreadable_lines", tuned.lines}, {"unknown_entries", tuned.entries}, {"notes", tuned.notes}}},
        {"tune", tune_state()},
        {"settings", {{"force", force}, {"isa", s.isa}, {"threads", s.threads}, {"check", s.check}, {"jit", jit_name(s.jit)}}}};
    fmt::print("{}\n", out.dump(2));
    return kOk;
  }

  Table table({"eitri", std::string(version())}, 2);
  table.add({"device", device.name});
  table.add({"level in use", fmt::format("{} (this machine can do {})", to_string(device.isa), to_string(best_isa()))});
  table.add({"AMX", amx.empty() ? "in use" : amx});
  const auto yes = [](bool has) { return has ? "yes" : "no"; };
  table.add(
      {"AVX-512 bf16, fp16, vbmi", fmt::format("{}, {}, {}", yes(device.avx512_bf16), yes(device.avx512_fp16), yes(device.avx512_vbmi))});
  table.add({"cores, threads", fmt::format("{}, {}", device.units, threads)});
  table.add(
      {"caches", fmt::format("L1 {} KiB, L2 {} KiB, L3 {} MiB", device.l1_bytes >> 10, device.l2_bytes >> 10, device.l3_bytes >> 20)});
  table.add({"huge pages", huge_pages()});
  table.add({"available memory", fmt::format("{:.1f} GiB", static_cast<double>(available_memory()) / (1 << 30))});
  table.add({"machine profile", p.measured ? fmt::format("measured, {} threads{}", p.threads,
                                                         p.noisy ? ", while other programs had the cores: rates are too low" : "")
                                           : "nominal; `eitri doctor --measure` measures it"});
  table.add({"  bf16, int8, f32",
             fmt::format("{:.0f} GFLOP/s, {:.0f} GOP/s, {:.0f} GFLOP/s", giga(p.bf16_flops), giga(p.i8_ops), giga(p.f32_flops))});
  table.add({"  memory, L2", fmt::format("{:.1f} GB/s, {:.0f} GB/s", giga(p.read_bytes), giga(p.l2_bytes))});
  table.add({"cache folder", fmt::format("{} ({})", s.cache_dir.empty() ? "-" : s.cache_dir, cache_state(s.cache_dir))});
  table.add({"oneDNN", library_version()});
  if (gpu::device_count() == 0) table.add({"GPUs", gpu::absence().empty() ? "none" : "none: " + gpu::absence()});
  for (int i = 0; i < gpu::device_count(); ++i) {
    const Device& gpu = gpu::device(i);
    table.add({str(gpu.id), fmt::format("{} ({}), {} multiprocessors", gpu.name, gpu.arch(), gpu.units)});
  }
  table.add({"GPU library", gpu_library_state()});
  for (const jit::CompilerState& c : jit::compiler_states())
    table.add({"compiler " + c.name, c.reason.empty() ? c.path : "no: " + c.reason});
  std::string paths;
  for (const std::string& path : s.tuned) paths += (paths.empty() ? "" : ":") + path;
  table.add({"tuned rows", fmt::format("{}; {} unreadable lines", paths.empty() ? "shipped ones only" : paths, tuned.lines.size())});
  for (const auto* messages : {&tuned.entries, &tuned.lines, &tuned.notes})
    for (const std::string& message : *messages) table.add({"", message});
  table.add({"tuning by calls", tune_state()});
  std::string force;
  for (const auto& [op, kernel] : s.force) force += fmt::format("{}{}={}", force.empty() ? "" : ",", op, kernel);
  table.add({"settings",
             fmt::format("isa={} threads={} force={} check={} jit={}", s.isa.empty() ? "best" : s.isa,
                         s.threads == 0 ? "OpenMP's" : str(s.threads), force.empty() ? "-" : force, s.check ? "1" : "0", jit_name(s.jit))});
  fmt::print("{}", table.text());
  return kOk;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* doctor = app.add_subcommand("doctor", "This machine as the library sees it, and the settings in effect");
  doctor->add_flag("--json", options->json, "One JSON object");
  doctor->add_flag("--measure", options->measure, "Measure the machine's limits again");
  doctor->add_flag("--settings-markdown", options->settings_markdown, "The table of settings, as the page docs/generated/settings.md");
  doctor->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
