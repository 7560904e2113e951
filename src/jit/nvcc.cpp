// nvcc: for those who prefer it to NVRTC, or have no NVRTC. Ten times slower for a small kernel, as it starts five programs.
#include <cstdlib>

#include "base/error.h"
#include "jit/command.h"
#include "jit/process.h"

namespace eitri::jit {

namespace {

class Nvcc final : public Compiler {
 public:
  Nvcc(std::string path, std::string host, std::string identity)
      : path_(std::move(path)), host_(std::move(host)), identity_(std::move(identity)) {}

  std::string_view name() const override { return "nvcc"; }
  const std::string& identity() const override { return identity_; }
  const std::string& path() const override { return path_; }
  bool makes(const Target& target) const override { return target.machine == Machine::cuda; }

  Compiled compile(const CompileRequest& request, const Closure& closure) const override {
    std::vector<std::string> argv = {
        path_, "-cubin", str("-arch=", request.target->name), "-ccbin", host_, "-x", "cu", "-std=c++20", "-O3", "--fmad=false", "-I."};
    append_defines(argv, request);
    argv.insert(argv.end(), request.flags.begin(), request.flags.end());
    argv.insert(argv.end(), {"-o", kOutputName, request.source.name});
    return run_compiler(argv, request, closure);
  }

 private:
  std::string path_, host_, identity_;
};

}  // namespace

FoundCompiler find_nvcc(const std::string& path) {
  std::string program = path;
  if (program.empty()) {
    std::vector<std::string> places;
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
      const char* const value = ::secure_getenv(name);
      if (value != nullptr && value[0] == '/') places.push_back(str(value, "/bin/nvcc"));
    }
    places.push_back(find_program("nvcc"));
    places.push_back("/usr/local/cuda/bin/nvcc");
    for (std::string& file : glob_newest_first("/usr/local/cuda-*/bin/nvcc")) places.push_back(std::move(file));
    for (const std::string& place : places) {
      if (is_program(place)) {
        program = place;
        break;
      }
    }
    if (program.empty()) return {nullptr, "nvcc is neither in CUDA_HOME, PATH nor /usr/local/cuda*"};
  }
  if (!is_program(program)) return {nullptr, str(program, " is no program that may be run")};
  const FoundCompiler host = find_host_cxx();
  if (!host.compiler) return {nullptr, str("nvcc needs a host compiler: ", host.reason)};
  const std::string version = version_line(program);
  if (version.empty()) return {nullptr, str(program, " --version does not answer")};
  try {
    std::string identity = str(program_identity("nvcc", program, version), "; ", host.compiler->identity());
    return {std::make_shared<Nvcc>(program, host.compiler->path(), std::move(identity)), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace eitri::jit
