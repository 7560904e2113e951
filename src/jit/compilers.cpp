// Which compiler serves a target, and what a request may ask of one.
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "jit/compiler.h"

namespace eitri::jit {

namespace {

struct Kind {
  const char* name;  // as in EITRI_COMPILER
  Machine machine;
  FoundCompiler (*find)(const std::string& path);
};

/// In order of preference.
constexpr std::array kKinds = {
    Kind{"nvrtc", Machine::cuda, find_nvrtc},  Kind{"nvcc", Machine::cuda, find_nvcc},     Kind{"clang", Machine::amd, find_clang_amd},
    Kind{"hiprtc", Machine::amd, find_hiprtc}, Kind{"host", Machine::host, find_host_cxx},
};

/// What was found, for one version of the settings. Kept for ever: callers hold references to compilers.
struct Finds {
  explicit Finds(const Settings& s) : settings(s) {}
  const Settings& settings;
  std::array<std::optional<FoundCompiler>, kKinds.size()> found;
};

std::mutex mutex;

/// `mutex` is held.
Finds& finds() {
  // Earlier ones stay alive: what they found is in use. Only tests make a second one.
  static auto& all = *new std::vector<std::unique_ptr<Finds>>;
  static Finds* current = nullptr;
  const Settings& now = settings();
  for (const auto& [name, path] : now.compilers) {
    std::string known;
    bool found = false;
    for (const Kind& kind : kKinds) {
      found |= name == kind.name;
      known += str(known.empty() ? "" : ", ", kind.name);
    }
    require(found, "settings: EITRI_COMPILER names the kind \"", name, "\"; expected one of ", known);
  }
  if (current == nullptr || &current->settings != &now) {
    all.push_back(std::make_unique<Finds>(now));
    current = all.back().get();
  }
  return *current;
}

std::string configured_path(const Settings& settings, std::string_view kind) {
  for (const auto& [name, path] : settings.compilers) {
    if (name == kind) return path;
  }
  return {};
}

const FoundCompiler& look(Finds& finds, size_t kind) {
  std::optional<FoundCompiler>& slot = finds.found[kind];
  if (slot) return *slot;
  const std::string path = configured_path(finds.settings, kKinds[kind].name);
  slot = kKinds[kind].find(path);
  if (slot->compiler) {
    log(LogLevel::info, LogTopic::jit, kKinds[kind].name, " is ", slot->compiler->path(), ": ", slot->compiler->identity());
  } else if (!path.empty()) {
    slot->reason = str("EITRI_COMPILER names it, but ", slot->reason);
  }
  return *slot;
}

bool starts_with_any(std::string_view text, std::span<const std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (text.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

const Compiler& compiler_for(const Target& target) {
  const std::lock_guard lock(mutex);
  Finds& all = finds();
  std::vector<size_t> order;
  for (const auto& [name, path] : all.settings.compilers) {
    for (size_t i = 0; i < kKinds.size(); ++i) {
      if (name == kKinds[i].name) order.push_back(i);
    }
  }
  for (size_t i = 0; i < kKinds.size(); ++i) order.push_back(i);
  std::string reasons;
  for (const size_t i : order) {
    if (kKinds[i].machine != target.machine) continue;
    const FoundCompiler& found = look(all, i);
    if (found.compiler && found.compiler->makes(target)) return *found.compiler;
    const std::string reason =
        str("; ", kKinds[i].name, ": ", found.compiler ? str("version too old, ", found.compiler->identity()) : found.reason);
    if (reasons.find(reason) == std::string::npos) reasons += reason;
  }
  fail(Code::unsupported, str("jit: no compiler for ", target.name, reasons));
}

std::vector<CompilerState> compiler_states() {
  const std::lock_guard lock(mutex);
  Finds& all = finds();
  std::vector<CompilerState> out;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const FoundCompiler& found = look(all, i);
    if (found.compiler) out.push_back({kKinds[i].name, found.compiler->path(), found.compiler->identity(), {}});
    else out.push_back({kKinds[i].name, {}, {}, found.reason});
  }
  return out;
}

void check_request(const CompileRequest& request) {
  // Further files are not in the key; "native" means another machine elsewhere; the rest moves or hides the output.
  static constexpr std::string_view kRefused[] = {"-I",
                                                  "-i",
                                                  "-L",
                                                  "-B",
                                                  "-x",
                                                  "-o",
                                                  "-E",
                                                  "-S",
                                                  "-c",
                                                  "-M",
                                                  "@",
                                                  "-specs",
                                                  "--specs",
                                                  "-wrapper",
                                                  "-Xclang",
                                                  "--include",
                                                  "-fplugin",
                                                  "-fprofile",
                                                  "-save-temps",
                                                  "--keep",
                                                  "-dumpdir",
                                                  "--config",
                                                  "-include",
                                                  "--sysroot",
                                                  "-no-canonical-prefixes",
                                                  "-fuse-ld",
                                                  "-ccbin",
                                                  "-pch",
                                                  "--pch",
                                                  "--use-pch",
                                                  "--create-pch",
                                                  "-pre-include",
                                                  "-Wl,",
                                                  "-Wp,",
                                                  "-Wa,"};
  require(request.target != nullptr, "jit: the request for ", request.label, " has no target");
  for (const std::string& flag : request.flags) {
    require(flag.size() > 1 && (flag[0] == '-' || flag[0] == '@') && flag.find('\0') == std::string::npos, "jit: ", request.label,
            ": flag is \"", flag, "\"; expected an option that starts with '-' and holds its value");
    require(!starts_with_any(flag, kRefused), "jit: ", request.label, ": flag ", flag,
            " is refused: it reads further files or moves the output; expected sources and headers as text");
    require(!flag.ends_with("=native"), "jit: ", request.label, ": flag ", flag,
            " is refused: a cached binary must not depend on the machine that made it; the target says what is used");
  }
  for (const std::string& define : request.defines) {
    const size_t name_end = std::min(define.find('='), define.size());
    bool ok =
        name_end > 0 && !(define[0] >= '0' && define[0] <= '9') && define.find_first_of(std::string_view("\0\n", 2)) == std::string::npos;
    for (const char c : std::string_view(define).substr(0, name_end)) {
      ok &= c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    }
    require(ok, "jit: ", request.label, ": define is \"", define, "\"; expected NAME or NAME=value");
  }
}

}  // namespace eitri::jit
