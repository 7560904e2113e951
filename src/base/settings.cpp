#include "base/settings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

extern char** environ;

namespace eitri {

namespace {

constexpr int kMaxThreads = 4096;

/// What one pass over the environment produces. Log levels are applied only if all of it is good.
struct Parsed {
  Settings settings;
  std::array<LogLevel, kLogTopics> levels;
};

struct Setting {
  const char* name;
  const char* type;
  const char* fallback;
  const char* doc;
  void (*parse)(Parsed& out, std::string_view value, const Setting& self);
};

[[noreturn]] void refuse(const Setting& setting, std::string_view value, std::string_view wanted) {
  fail(Code::invalid_argument, str("settings: ", setting.name, " is \"", value, "\"; expected ", wanted));
}

/// Calls f for every part between separators, empty ones included.
template <class F> void split(std::string_view text, char separator, F&& f) {
  for (;;) {
    const size_t end = text.find(separator);
    f(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

void parse_log(Parsed& out, std::string_view value, const Setting& self) {
  constexpr std::string_view kWanted =
      "a level (off, error, warning, info, debug) or topic=level pairs separated by commas "
      "(topics route, jit, tune, backend, settings)";
  split(value, ',', [&](std::string_view part) {
    const size_t equals = part.find('=');
    const bool has_topic = equals != std::string_view::npos;
    const auto level = log_level_from(has_topic ? part.substr(equals + 1) : part);
    if (!level) refuse(self, value, kWanted);
    if (!has_topic) return out.levels.fill(*level);
    const auto topic = log_topic_from(part.substr(0, equals));
    if (!topic) refuse(self, value, kWanted);
    out.levels[static_cast<size_t>(*topic)] = *level;
  });
}

void parse_cache_dir(Parsed& out, std::string_view value, const Setting& self) {
  if (!value.empty() && value.front() != '/') refuse(self, value, "an absolute path, or nothing");
  out.settings.cache_dir = value;
}

void parse_tuned(Parsed& out, std::string_view value, const Setting&) {
  split(value, ':', [&](std::string_view part) {
    if (!part.empty()) out.settings.tuned.emplace_back(part);  // as in PATH, "a::b" is "a:b"
  });
}

void parse_record(Parsed& out, std::string_view value, const Setting& self) {
  if (value.front() != '/') refuse(self, value, "an absolute path");
  out.settings.record = value;
}

void parse_force(Parsed& out, std::string_view value, const Setting& self) {
  split(value, ',', [&](std::string_view part) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      refuse(self, value, "op=kernel pairs separated by commas");
    }
    const std::string_view op = part.substr(0, equals);
    if (!out.settings.forced_kernel(op).empty()) refuse(self, value, "each op at most once");
    out.settings.force.emplace_back(op, part.substr(equals + 1));
  });
}

void parse_isa(Parsed& out, std::string_view value, const Setting& self) {
  bool known = false;
  split(self.type, '|', [&](std::string_view name) { known |= name == value; });
  if (!known) refuse(self, value, self.type);
  out.settings.isa = value;
}

void parse_threads(Parsed& out, std::string_view value, const Setting& self) {
  int threads = 0;
  const auto result = std::from_chars(value.data(), value.data() + value.size(), threads);
  const bool whole = result.ec == std::errc() && result.ptr == value.data() + value.size();
  if (!whole || threads < 0 || threads > kMaxThreads) {
    refuse(self, value, str("an integer in 0..", kMaxThreads));
  }
  out.settings.threads = threads;
}

void parse_check(Parsed& out, std::string_view value, const Setting& self) {
  if (value != "0" && value != "1") refuse(self, value, "0 or 1");
  out.settings.check = value == "1";
}

void parse_jit(Parsed& out, std::string_view value, const Setting& self) {
  if (value == "on") out.settings.jit = JitMode::on;
  else if (value == "cached") out.settings.jit = JitMode::cached;
  else if (value == "off") out.settings.jit = JitMode::off;
  else refuse(self, value, self.type);
}

void parse_tune(Parsed& out, std::string_view value, const Setting& self) {
  const size_t colon = std::min(value.find(':'), value.size());
  const std::string_view mode = value.substr(0, colon);
  int* number = nullptr;
  int most = 100;
  if (mode == "off") {
    out.settings.tune = TuneMode::off;
  } else if (mode == "online") {
    out.settings.tune = TuneMode::online;
    number = &out.settings.tune_percent;
  } else if (mode == "block") {
    out.settings.tune = TuneMode::block;
    number = &out.settings.tune_seconds;
    most = 3600;
  } else {
    refuse(self, value, self.type);
  }
  if (colon == value.size()) return;
  const std::string_view text = value.substr(colon + 1);
  int parsed = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), parsed);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  if (number == nullptr || !whole || parsed < 1 || parsed > most) {
    refuse(self, value, "off, online:1 to online:100 (percent), or block:1 to block:3600 (seconds)");
  }
  *number = parsed;
}

void parse_compiler(Parsed& out, std::string_view value, const Setting& self) {
  split(value, ',', [&](std::string_view part) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view kind = part.substr(0, equals);
    bool good = !kind.empty() && part.substr(equals, 2) == "=/";
    for (const auto& [name, path] : out.settings.compilers) good &= name != kind;
    // Which kinds there are is for src/jit to say.
    if (!good) refuse(self, value, "kind=absolute path pairs separated by commas, each kind once");
    out.settings.compilers.emplace_back(kind, part.substr(equals + 1));
  });
}

constexpr std::array kSettings = {
    Setting{"EITRI_LOG", "level, or topic=level[,...]", "warning",
            "What is logged: off, error, warning, info or debug, for all topics or for single ones "
            "(route, jit, tune, backend, settings)",
            parse_log},
    Setting{"EITRI_CACHE_DIR", "absolute path", "$XDG_CACHE_HOME/eitri, else ~/.cache/eitri",
            "Private folder for compiled kernels and records; set but empty: nothing is cached", parse_cache_dir},
    Setting{"EITRI_TUNED", "path[:...]", "none", "Tuned rows, CSV files or folders of them, searched before the project's and ours",
            parse_tuned},
    Setting{"EITRI_RECORD", "absolute path", "none",
            "Folder: problems without a tuned row are added to its misses.csv, for `eitri tune --from-record`", parse_record},
    Setting{
        "EITRI_TUNE", "off|online[:percent]|block[:seconds]", "off",
        "Problems without a tuned row: online: tuned by a process beside this one, for 5 % of the time; block: tuned before their first "
        "call returns, for 60 s at most",
        parse_tune},
    Setting{"EITRI_FORCE", "op=kernel[,...]", "none",
            "Use this kernel for every call of the op; a call that it does not support is an error", parse_force},
    Setting{"EITRI_ISA", "portable|x86_avx2|x86_avx512|x86_amx_emulated|x86_amx", "what the CPU has",
            "The highest x86 instruction set to use", parse_isa},
    Setting{"EITRI_THREADS", "integer", "0", "Threads of a CPU operator; 0: OpenMP decides", parse_threads},
    Setting{"EITRI_CHECK", "0 or 1", "0", "1: compare the result of every call with the reference", parse_check},
    Setting{"EITRI_JIT", "on|cached|off", "on",
            "Run-time compilation: on; cached: a kernel that is not in the cache is an error; off: no kernel that "
            "was compiled at run time is used",
            parse_jit},
    Setting{"EITRI_COMPILER", "kind=path[,...]", "the usual places",
            "Run-time compilers by file, tried before others for the same target; `eitri doctor` lists the kinds", parse_compiler},
};
static_assert(kSettings.size() <= 12, "remove a setting before you add one");

const char* environment(const char* name) {
  return ::secure_getenv(name);  // a privileged program does not take paths from its caller
}

std::string default_cache_dir() {
  const auto absolute = [](const char* path) { return path != nullptr && path[0] == '/'; };
  const char* const xdg = environment("XDG_CACHE_HOME");
  if (absolute(xdg)) return str(xdg, "/eitri");
  const char* const home = environment("HOME");
  if (absolute(home)) return str(home, "/.cache/eitri");
  return {};  // a service account without a home: no cache
}

void warn_about_unknown_names() {
  std::string known;
  for (const Setting& setting : kSettings) known += str(known.empty() ? "" : ", ", setting.name);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("EITRI_")) continue;
    bool found = false;
    for (const Setting& setting : kSettings) found |= name == setting.name;
    if (found) continue;
    warn_once(LogTopic::settings, name, name, " is set, but it is no setting of eitri; known are ", known);
  }
}

Parsed parse_environment() {
  Parsed out;
  out.levels.fill(LogLevel::warning);
  out.settings.cache_dir = default_cache_dir();
  for (const Setting& setting : kSettings) {
    const char* const value = environment(setting.name);
    if (value == nullptr) continue;
    // An empty value counts as not set, except for the path that may be switched off that way.
    if (value[0] == '\0' && setting.parse != parse_cache_dir) continue;
    setting.parse(out, value, setting);
  }
  return out;
}

std::atomic<const Settings*> current = nullptr;

const Settings& read_environment() {
  static std::mutex& mutex = *new std::mutex;
  // Old versions stay alive for those who hold a reference; only tests ever make a second one.
  static auto& versions = *new std::vector<std::unique_ptr<const Settings>>;
  const std::lock_guard lock(mutex);
  if (const Settings* settings = current.load(std::memory_order_acquire)) return *settings;
  Parsed parsed = parse_environment();
  for (int i = 0; i < kLogTopics; ++i) {
    set_log_level(static_cast<LogTopic>(i), parsed.levels[static_cast<size_t>(i)]);
  }
  warn_about_unknown_names();
  versions.push_back(std::make_unique<const Settings>(std::move(parsed.settings)));
  current.store(versions.back().get(), std::memory_order_release);
  return *versions.back();
}

}  // namespace

std::string_view Settings::forced_kernel(std::string_view op) const {
  for (const auto& [name, kernel] : force) {
    if (name == op) return kernel;
  }
  return {};
}

const Settings& settings() {
  const Settings* known = current.load(std::memory_order_acquire);
  return known != nullptr ? *known : read_environment();
}

void reload_settings() {
  current.store(nullptr, std::memory_order_release);
  read_environment();
}

std::string settings_markdown() {
  const auto escaped = [](std::string_view cell) {
    std::string text;
    for (char c : cell) text += c == '|' ? str("\\|") : str(c);
    return text;
  };
  std::string out =
      "| name | value | default | meaning |\n"
      "|---|---|---|---|\n";
  for (const Setting& setting : kSettings) {
    out += str("| `", setting.name, "` | ", escaped(setting.type), " | ", setting.fallback, " | ", setting.doc, " |\n");
  }
  return out;
}

}  // namespace eitri
