// The host's C++ compiler: makes shared libraries of user ops.
#include "base/error.h"
#include "jit/command.h"
#include "jit/process.h"

namespace eitri::jit {

namespace {

class HostCxx final : public Compiler {
 public:
  HostCxx(std::string path, std::string identity) : path_(std::move(path)), identity_(std::move(identity)) {}

  std::string_view name() const override { return "host"; }
  const std::string& identity() const override { return identity_; }
  const std::string& path() const override { return path_; }
  bool makes(const Target& target) const override { return target.machine == Machine::host; }

  Compiled compile(const CompileRequest& request, const Closure& closure) const override {
    std::vector<std::string> argv = {
        path_, "-x", "c++", "-std=c++20", "-O3", "-Wall", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"};
    if (request.target->elf_machine == target_named("x86-64").elf_machine) argv.push_back(str("-march=", request.target->name));
    argv.push_back("-I.");
    append_defines(argv, request);
    argv.insert(argv.end(), request.flags.begin(), request.flags.end());
    // A library that lacks a symbol is refused here, with the compiler's message, and not when it is loaded.
    argv.insert(argv.end(), {"-shared", "-Wl,-z,defs", "-o", kOutputName, request.source.name});
    return run_compiler(argv, request, closure);
  }

 private:
  std::string path_, identity_;
};

FoundCompiler try_host(const std::string& program) {
  const std::string version = version_line(program);
  if (version.empty()) return {nullptr, str(program, " --version does not answer")};
  try {
    return {std::make_shared<HostCxx>(program, program_identity("host", program, version)), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace

FoundCompiler find_host_cxx(const std::string& path) {
  if (!path.empty()) return is_program(path) ? try_host(path) : FoundCompiler{nullptr, str(path, " is no program that may be run")};
  std::string reasons;
  for (const char* name : {"c++", "g++", "clang++"}) {
    const std::string program = find_program(name);
    if (program.empty()) continue;
    FoundCompiler found = try_host(program);
    if (found.compiler) return found;
    reasons += str(reasons.empty() ? "" : "; ", found.reason);
  }
  return {nullptr, reasons.empty() ? "none of c++, g++, clang++ is in PATH" : reasons};
}

}  // namespace eitri::jit
