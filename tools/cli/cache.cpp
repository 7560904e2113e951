// `eitri cache`: what is compiled and kept, and cleaning it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/settings.h"
#include "cli/command.h"
#include "jit/cache.h"

namespace eitri::cli {
namespace {

using jit::Cache;
using jit::EntryInfo;

struct CacheCommand {
  bool json = false, repair = false;
  std::string key;
  std::string max_size = "4G";
};

std::string size_text(uint64_t bytes) {
  if (bytes >= 10 << 20) return fmt::format("{} MiB", bytes >> 20);
  return bytes >= 10 << 10 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} B", bytes);
}

/// "3 h": how long ago a time in seconds since 1970 was.
std::string age_text(int64_t when) {
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const int64_t age = now - when;
  if (when <= 0 || age < 0) return "-";
  if (age < 120) return fmt::format("{} s", age);
  if (age < 7200) return fmt::format("{} min", age / 60);
  return age < 48 * 3600 ? fmt::format("{} h", age / 3600) : fmt::format("{} d", age / 86400);
}

/// "512M" as bytes.
uint64_t parse_size(const std::string& text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(std::min(used, text.size()));
  const double scale = unit.empty() ? 1 : unit == "K" ? 1 << 10 : unit == "M" ? 1 << 20 : unit == "G" ? 1 << 30 : 0;
  require(value >= 0 && scale > 0 && value * scale < 1e18, "--max-size: is \"", text,
          "\"; expected a number of bytes, or one with K, M or G");
  return static_cast<uint64_t>(value * scale);
}

std::string state_of(const EntryInfo& entry) {
  if (!entry.problem.empty()) return "damaged";
  return entry.manifest.failed ? "does not compile" : "good";
}

nlohmann::ordered_json to_json(const EntryInfo& entry) {
  const jit::Manifest& m = entry.manifest;
  nlohmann::ordered_json closure = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : m.closure) closure[name] = sum;
  return {{"key", entry.key},
          {"state", state_of(entry)},
          {"problem", entry.problem},
          {"label", m.label},
          {"target", m.target},
          {"compiler", m.compiler},
          {"identity", m.identity},
          {"source", m.source},
          {"defines", m.defines},
          {"flags", m.flags},
          {"sha256_of_texts", closure},
          {"system_headers", m.system},
          {"command", m.command},
          {"created", m.created},
          {"compile_seconds", m.seconds},
          {"used", entry.used_ns / 1'000'000'000},
          {"bytes", entry.bytes},
          {"folder", entry.folder},
          {"log", m.log}};
}

void print_json(const std::vector<EntryInfo>& entries) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const EntryInfo& entry : entries) out.push_back(to_json(entry));
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

/// The cache on disk, to read or to change. A folder that does not let us is an error, not an empty list.
enum class Want : uint8_t { read, write };
Cache& the_cache(Want want = Want::read) {
  require(!settings().cache_dir.empty(), "cache: there is no folder; expected EITRI_CACHE_DIR or a home directory");
  Cache& cache = jit::default_cache();
  const std::string problem = cache.disk_problem();
  const bool readable = ::access((settings().cache_dir + "/jit").c_str(), R_OK | X_OK) == 0;
  if (!problem.empty() && (want == Want::write || !readable)) fail(Code::io_error, str("cache: ", problem));
  return cache;
}

int list(const CacheCommand& command) {
  const std::vector<EntryInfo> entries = the_cache().list();
  if (command.json) return print_json(entries), kOk;
  Table table({"key", "kernel", "target", "compiler", "state", "size", "compile", "last used"}, 5);
  uint64_t total = 0;
  for (const EntryInfo& e : entries) {
    total += e.bytes;
    table.add({e.key.substr(0, 12), e.manifest.label, e.manifest.target, e.manifest.compiler, state_of(e), size_text(e.bytes),
               fmt::format("{:.2f} s", e.manifest.seconds), age_text(e.used_ns / 1'000'000'000)});
  }
  if (!entries.empty()) fmt::print("{}", table.text());
  fmt::print("{} entries, {}, in {}/jit\n", entries.size(), size_text(total), settings().cache_dir);
  return kOk;
}

int show(const CacheCommand& command) {
  require(!command.key.empty(), "cache show: key is empty; expected the first digits of one");
  const std::vector<EntryInfo> entries = the_cache().show(command.key);
  require(!entries.empty(), "cache show: no key starts with \"", command.key, "\"; expected one that `eitri cache ls` lists");
  if (command.json) return print_json(entries), kOk;
  for (const EntryInfo& e : entries) {
    const jit::Manifest& m = e.manifest;
    fmt::print("key       {}\nstate     {}{}{}\nfolder    {}\n", e.key, state_of(e), e.problem.empty() ? "" : ": ", e.problem, e.folder);
    if (!e.problem.empty()) continue;
    fmt::print("kernel    {} for {}\ncompiler  {}\n", m.label, m.target, m.identity);
    for (const auto& [name, sum] : m.closure) fmt::print("text      {}  sha256 {}\n", name, sum);
    for (const std::string& name : m.system) fmt::print("system    <{}>\n", name);
    for (const std::string& define : m.defines) fmt::print("define    {}\n", define);
    for (const std::string& flag : m.flags) fmt::print("flag      {}\n", flag);
    fmt::print("command   {}\ncompiled  {} ago in {:.3f} s\nused      {} ago\nsize      {} bytes\n", m.command, age_text(m.created),
               m.seconds, age_text(e.used_ns / 1'000'000'000), m.size);
    if (!m.log.empty()) fmt::print("{}{}", m.log, m.log.back() == '\n' ? "" : "\n");
  }
  return kOk;
}

int verify(const CacheCommand& command) {
  const std::vector<EntryInfo> damaged =
      the_cache(command.repair ? Want::write : Want::read).verify(command.repair ? Cache::Repair::yes : Cache::Repair::no);
  if (command.json) print_json(damaged);
  else
    for (const EntryInfo& e : damaged) fmt::print("{}  {}\n", e.key.substr(0, 12), e.problem);
  if (!command.json) {
    fmt::print("{} damaged entries{}\n", damaged.size(),
               damaged.empty()  ? ""
               : command.repair ? ", set aside"
                                : "; --repair sets them aside");
  }
  return damaged.empty() || command.repair ? kOk : kFailed;
}

int report(const char* verb, const Cache::Removed& removed) {
  fmt::print("{} entries {}, {}\n", removed.entries, verb, size_text(removed.bytes));
  return kOk;
}

}  // namespace

void add_cache(CLI::App& app, Action& action) {
  auto command = std::make_shared<CacheCommand>();
  CLI::App* cache = app.add_subcommand("cache", "Kernels that were compiled at run time and kept");
  cache->require_subcommand(1);
  const auto sub = [&](const char* name, const char* doc, auto&& run) {
    CLI::App* out = cache->add_subcommand(name, doc);
    out->callback([command, run, &action] { action = [command, run](Common&) { return run(*command); }; });
    return out;
  };
  CLI::App* ls = sub("ls", "All entries", list);
  CLI::App* one = sub("show", "Everything about the entries whose key starts so", show);
  CLI::App* check = sub("verify", "Reads every entry; exit code 1 when one is damaged", verify);
  CLI::App* prune = sub("prune", "Removes the longest unused entries and all leftovers", [](const CacheCommand& c) {
    const uint64_t size = parse_size(c.max_size);
    return report("removed", the_cache(Want::write).prune(size));
  });
  sub("clear", "Removes everything", [](const CacheCommand&) { return report("removed", the_cache(Want::write).clear()); });
  for (CLI::App* with_json : {ls, one, check}) with_json->add_flag("--json", command->json, "An array of JSON objects");
  one->add_option("key", command->key, "The first digits of a key")->required();
  check->add_flag("--repair", command->repair, "Set damaged entries aside; they are then compiled again when needed");
  prune->add_option("--max-size", command->max_size, "What may be left: bytes, or with K, M, G")->capture_default_str();
}

}  // namespace eitri::cli
