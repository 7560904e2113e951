// hipRTC: compiles HIP sources in this process where ROCm is installed.
#include <unistd.h>

#include <cstdlib>

#include "base/str.h"
#include "jit/command.h"
#include "jit/rtc.h"

namespace eitri::jit {

FoundCompiler find_hiprtc(const std::string& path) {
  std::string library = path;
  if (library.empty()) {
    std::vector<std::string> prefixes;
    const char* const rocm = ::secure_getenv("ROCM_PATH");
    if (rocm != nullptr && rocm[0] == '/') prefixes.emplace_back(rocm);
    prefixes.insert(prefixes.end(), {"/opt/rocm", "/opt/rocm-*"});
    library = find_library(library_folders(prefixes), "libhiprtc.so");
  }
  if (library.empty()) return {nullptr, "libhiprtc.so is neither in LD_LIBRARY_PATH, ROCM_PATH, /opt/rocm* nor in the system's folders"};
  if (::access(library.c_str(), R_OK) != 0) return {nullptr, str(library, " cannot be read")};
  // The code generator is a library of its own.
  const std::string folder = library.substr(0, library.rfind('/') + 1);
  std::vector<std::string> companions;
  if (std::string file = find_library({folder}, "libamd_comgr.so"); !file.empty()) companions.push_back(std::move(file));
  static const RtcKind kind = {.name = "hiprtc",
                               .prefix = "hiprtc",
                               .get_binary = "GetCode",
                               .machine = Machine::amd,
                               .arch_option = "--offload-arch=",
                               .options = {"-std=c++20", "-O3", "-ffp-contract=off"}};
  return make_rtc(kind, library, companions);
}

}  // namespace eitri::jit
