// NVRTC: compiles CUDA sources in this process, without a driver, a GPU or a toolkit's headers. Found by file, loaded on
// the first compile.
#include <unistd.h>

#include "base/str.h"
#include "jit/command.h"
#include "jit/rtc.h"

namespace eitri::jit {

namespace {

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

}  // namespace

FoundCompiler find_nvrtc(const std::string& path) {
  std::string library = path;
  if (library.empty()) {
    library = find_library(cuda_library_folders(), "libnvrtc.so");
  }
  if (library.empty()) {
    return {nullptr,
            "libnvrtc.so is neither in LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda*, the system's folders nor in a Python "
            "environment (package nvidia-cuda-nvrtc)"};
  }
  if (::access(library.c_str(), R_OK) != 0) return {nullptr, str(library, " cannot be read")};
  // Half of the compiler is a second library that NVRTC loads from beside itself.
  std::vector<std::string> companions;
  if (std::string file = find_library({folder_of(library)}, "libnvrtc-builtins.so"); !file.empty()) companions.push_back(std::move(file));
  static const RtcKind kind = {.name = "nvrtc",
                               .prefix = "nvrtc",
                               .get_binary = "GetCUBIN",
                               .machine = Machine::cuda,
                               .arch_option = "--gpu-architecture=",
                               // Fused multiply-adds are written by name, as on the host.
                               .options = {"--std=c++20", "--fmad=false", "--device-as-default-execution-space"}};
  return make_rtc(kind, library, companions);
}

}  // namespace eitri::jit
