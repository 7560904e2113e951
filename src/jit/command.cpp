#include "jit/command.h"

#include <dlfcn.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/atomic_file.h"
#include "base/error.h"
#include "jit/process.h"
#include "jit/scratch.h"

namespace eitri::jit {

namespace {

constexpr size_t kMaxBinary = size_t{1} << 30;

void write_sources(const Scratch& scratch, const CompileRequest& request, const Closure& closure) {
  scratch.write(request.source.name, request.source.text);
  for (const auto& [name, text] : closure.headers) scratch.write(name, text);
}

/// Replaces the temporary folder by "." so that messages do not differ from run to run.
std::string without_folder(std::string text, const std::string& folder) {
  for (size_t at; (at = text.find(folder)) != std::string::npos;) text.replace(at, folder.size(), 1, '.');
  return text;
}

/// One attempt. False when the folder was too full to tell anything about the source.
bool attempt_compile(const Scratch& scratch, const std::vector<std::string>& argv, const CompileRequest& request, const Closure& closure,
                     Compiled& out) {
  try {
    write_sources(scratch, request, closure);
  } catch (const Error& error) {
    out.log = error.what();
    return false;
  }
  const ProcessOptions options = {.folder = scratch.path(), .time_limit_s = request.time_limit_s};
  const ProcessResult result = run_process(argv, options);
  out.log = without_folder(result.output, scratch.path());
  out.verdict = result.end == ProcessResult::End::exited;
  // When nobody can know the exit status, the binary speaks for itself: the cache checks that it is whole.
  if (result.ok() || result.end == ProcessResult::End::unknown) {
    try {
      out.binary = read_file(scratch.path() + "/" + kOutputName, kMaxBinary);
      out.ok = true;
      return true;
    } catch (const Error& error) {
      out.log += str(out.log.empty() ? "" : "\n", "no binary was made: ", error.what());
    }
  }
  if (scratch.full()) return false;
  if (result.end != ProcessResult::End::exited || out.log.empty()) {
    out.log += str(out.log.empty() || out.log.back() == '\n' ? "" : "\n", argv[0], " ", result.ending(options));
  }
  return true;
}

std::string environment(const char* name) {
  const char* const value = ::secure_getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

/// The folder above the `site-packages` or `dist-packages` that this very library lies in, when it was installed so.
std::string packages_around_us() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<const void*>(&is_program), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  for (const char* name : {"/site-packages/", "/dist-packages/"}) {
    if (const size_t at = path.rfind(name); at != std::string::npos) return path.substr(0, at + strlen(name) - 1);
  }
  return {};
}

}  // namespace

Compiled run_compiler(const std::vector<std::string>& argv, const CompileRequest& request, const Closure& closure) {
  Compiled out;
  out.command = command_line(argv);
  for (size_t attempt = 0;; ++attempt) {
    try {
      const Scratch scratch(attempt);
      if (attempt_compile(scratch, argv, request, closure, out)) return out;
      out.verdict = false;
      out.log += str(out.log.empty() ? "" : "\n", "the disk is full at ", scratch.path());
    } catch (const Error& error) {  // no further place
      if (out.log.empty()) out.log = error.what();
      return out;
    }
  }
}

std::string version_line(const std::string& program) {
  const ProcessResult result = run_process({program, "--version"}, {.time_limit_s = 20, .max_output = 4096});
  if (!result.ok() && result.end != ProcessResult::End::unknown) return {};
  // nvcc says a name first, its version and build number last: all lines but those of legal text matter.
  std::string out;
  for (std::string_view rest = result.output; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool counts = line.find_first_of("0123456789") != std::string_view::npos && line.find("Copyright") == std::string_view::npos &&
                        line.find("InstalledDir") == std::string_view::npos && line.find("Target:") == std::string_view::npos;
    // gcc starts with the name that it was called by, which a link may change.
    const std::string called = program.substr(program.rfind('/') + 1) + " ";
    if (counts) out += str(out.empty() ? "" : "; ", line.starts_with(called) ? line.substr(called.size()) : line);
  }
  return out;
}

void append_defines(std::vector<std::string>& argv, const CompileRequest& request) {
  for (const std::string& define : request.defines) argv.push_back("-D" + define);
}

std::string program_identity(std::string_view name, const std::string& path, const std::string& version) {
  return str(name, " (", version, "), ", content_identity(path));
}

bool is_program(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> glob_newest_first(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> out;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) { return ::strverscmp(a.c_str(), b.c_str()) > 0; });
  return out;
}

std::vector<std::string> library_folders(const std::vector<std::string>& prefixes) {
  std::vector<std::string> out;
  const char* const search = ::secure_getenv("LD_LIBRARY_PATH");
  for (std::string_view rest = search != nullptr ? search : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (rest.starts_with('/')) out.emplace_back(rest.substr(0, end));  // an empty part is not the current folder
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const std::string& prefix : prefixes) {
    for (const std::string& folder : glob_newest_first(prefix)) {
      for (const char* lib : {"/lib64", "/lib"}) out.push_back(folder + lib);
    }
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) out.emplace_back(folder);

  std::vector<std::string> packages;
  if (const std::string own = packages_around_us(); !own.empty()) packages.push_back(own);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = environment(name); !prefix.empty()) packages.push_back(prefix + "/lib/python3*/site-packages");
  }
  packages.insert(packages.end(),
                  {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages", "/usr/lib/python3*/dist-packages"});
  for (const std::string& folder : packages) {
    // One folder per major version since 13, one per library before.
    for (const char* kind : {"/nvidia/cu[0-9]*/lib", "/nvidia/*/lib"}) {
      for (const std::string& lib : glob_newest_first(folder + kind)) out.push_back(lib);
    }
  }
  return out;
}

std::vector<std::string> cuda_library_folders() {
  std::vector<std::string> prefixes;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* const value = ::secure_getenv(name);
    if (value != nullptr && value[0] == '/') prefixes.emplace_back(value);
  }
  prefixes.insert(prefixes.end(), {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda"});
  return library_folders(prefixes);
}

std::string find_library(const std::vector<std::string>& folders, std::string_view stem) {
  for (const std::string& folder : folders) {
    for (const std::string& file : glob_newest_first(str(folder, "/", stem, ".*"))) {
      const std::string_view version = std::string_view(file).substr(folder.size() + 1 + stem.size());
      if (version.find_first_not_of(".0123456789") == std::string_view::npos) return file;
    }
    if (const std::string plain = str(folder, "/", stem); ::access(plain.c_str(), R_OK) == 0) return plain;
  }
  return {};
}

}  // namespace eitri::jit
