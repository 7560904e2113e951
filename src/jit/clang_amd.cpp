// clang for AMD GPUs, without ROCm: HIP mode with none of its headers or libraries, one raw code object per target. It needs
// lld (Debian: clang-22 and lld-22). Code object version 5: loads on ROCm 6 and later.
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "jit/command.h"
#include "jit/process.h"

namespace eitri::jit {

namespace {

constexpr int kOldest = 19, kNewest = 29;  // gfx950 came with clang 20, gfx942 is good from 19 on

class ClangAmd final : public Compiler {
 public:
  ClangAmd(std::string path, std::string identity, int version)
      : path_(std::move(path)), identity_(std::move(identity)), version_(version) {}

  std::string_view name() const override { return "clang"; }
  const std::string& identity() const override { return identity_; }
  const std::string& path() const override { return path_; }
  bool makes(const Target& target) const override {
    return target.machine == Machine::amd && (version_ >= 20 || std::string_view(target.name) != "gfx950");
  }

  Compiled compile(const CompileRequest& request, const Closure& closure) const override {
    // -nostdlibinc: the system's headers are no part of clang's version. -cuid: without it clang makes a symbol name of the
    // place of the file.
    std::vector<std::string> argv = {path_,
                                     "-x",
                                     "hip",
                                     str("--offload-arch=", request.target->name),
                                     "--cuda-device-only",
                                     "--no-gpu-bundle-output",
                                     "-nogpulib",
                                     "-nogpuinc",
                                     "-nostdlibinc",
                                     "-std=c++20",
                                     "-O3",
                                     "-mcode-object-version=5",
                                     "-ffp-contract=off",
                                     "-cuid=0",
                                     "-I."};
    append_defines(argv, request);
    argv.insert(argv.end(), request.flags.begin(), request.flags.end());
    argv.insert(argv.end(), {"-o", kOutputName, request.source.name});
    return run_compiler(argv, request, closure);
  }

 private:
  std::string path_, identity_;
  int version_;
};

/// 22 of "Debian clang version 22.1.8 (1~deb12u1)"; 0 when it is no clang.
int major_version(const std::string& line) {
  const size_t at = line.find("clang version ");
  return at == std::string::npos ? 0 : std::atoi(line.c_str() + at + 14);
}

/// lld beside the real clang, or in PATH; clang looks in the same places.
std::string find_lld(const std::string& clang) {
  char* const real = ::realpath(clang.c_str(), nullptr);
  std::string beside = real != nullptr ? real : "";
  std::free(real);
  beside.resize(beside.rfind('/') == std::string::npos ? 0 : beside.rfind('/') + 1);
  beside += "ld.lld";
  return is_program(beside) ? beside : find_program("ld.lld");
}

FoundCompiler try_clang(const std::string& program) {
  const std::string version = version_line(program);
  const int major = major_version(version);
  if (major < kOldest) return {nullptr, str(program, " is \"", version, "\"; expected clang ", kOldest, " or later")};
  const std::string lld = find_lld(program);
  if (lld.empty()) return {nullptr, str(program, " needs ld.lld, which is neither beside it nor in PATH (Debian: lld-", major, ")")};
  try {
    std::string identity = str(program_identity("clang", program, version), "; lld ", content_identity(lld));
    return {std::make_shared<ClangAmd>(program, std::move(identity), major), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace

FoundCompiler find_clang_amd(const std::string& path) {
  if (!path.empty()) return is_program(path) ? try_clang(path) : FoundCompiler{nullptr, str(path, " is no program that may be run")};
  std::vector<std::string> names;
  for (int version = kNewest; version >= kOldest; --version) names.push_back(str("clang++-", version));
  std::vector<std::string> programs;
  for (const std::string& name : names) programs.push_back(find_program(name));
  programs.emplace_back("/opt/rocm/llvm/bin/clang++");
  programs.push_back(find_program("clang++"));
  std::string reasons;
  for (const std::string& program : programs) {
    if (!is_program(program)) continue;
    FoundCompiler found = try_clang(program);
    if (found.compiler) return found;
    reasons += str(reasons.empty() ? "" : "; ", found.reason);
  }
  if (!reasons.empty()) return {nullptr, reasons};
  return {nullptr, str("neither clang++-", kNewest, " … clang++-", kOldest,
                       " nor clang++ is in PATH, nor /opt/rocm/llvm/bin/clang++ there "
                       "(Debian: clang-22 and lld-22)")};
}

}  // namespace eitri::jit
