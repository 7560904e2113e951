// A compiler that turns a source into a binary for a target, at run time. One of the project's two virtual trees: NVRTC,
// nvcc, clang for AMD, hipRTC and the host's C++ compiler stand behind it, and the cache and tests with compilers of their own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/source.h"
#include "jit/target.h"

namespace eitri::jit {

struct CompileRequest {
  std::string label = {};                 // whose kernel it is, for messages and lists; no part of the key
  SourceBundle source = {};               // kernels are extern "C"
  std::vector<std::string> defines = {};  // "TILE_M=64" or "NAME"
  std::vector<std::string> flags = {};    // passed on as they are; those that read further files are refused
  const Target* target = nullptr;
  double time_limit_s = 120;  // of an external compiler; a compiler in this process cannot be stopped
};

struct Compiled {
  bool ok = false;
  /// With !ok: the compiler has judged the source, so it will say the same again. Not so when it was killed or starved.
  bool verdict = false;
  std::string binary;
  std::string log;      // everything the compiler said, warnings included
  std::string command;  // the call as one line
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// "nvrtc", "nvcc", "clang", "hiprtc", "host".
  virtual std::string_view name() const = 0;
  /// Version and content of the compiler, never its path or times: equal exactly when the same input gives the same binary.
  virtual const std::string& identity() const = 0;
  /// Where it was found, for people.
  virtual const std::string& path() const = 0;
  virtual bool makes(const Target& target) const = 0;
  /// Any thread may call it. A source that does not compile is an answer, not an exception; the cache has checked the
  /// request, and `closure` is include_closure(request.source).
  virtual Compiled compile(const CompileRequest& request, const Closure& closure) const = 0;
};

/// A compiler, or one sentence why there is none.
struct FoundCompiler {
  std::shared_ptr<const Compiler> compiler;
  std::string reason;
};

/// Each looks at `path` when that is not empty, else in the usual places. None of them throws for what it does not find.
FoundCompiler find_nvrtc(const std::string& path = {});
FoundCompiler find_nvcc(const std::string& path = {});
FoundCompiler find_clang_amd(const std::string& path = {});
FoundCompiler find_hiprtc(const std::string& path = {});
FoundCompiler find_host_cxx(const std::string& path = {});

/// The compiler in use for a target: the ones that EITRI_COMPILER names come first, then NVRTC before nvcc, clang before
/// hipRTC. Looked for once per process and settings. Throws Error{unsupported} that lists why each one is absent.
const Compiler& compiler_for(const Target& target);
/// Name, path and identity, or the reason for its absence, of every kind: for `doctor`.
struct CompilerState {
  std::string name, path, identity, reason;
};
std::vector<CompilerState> compiler_states();

/// Throws Error{invalid_argument} for defines that are no macro definition, and for flags that make the binary depend on
/// what the key does not cover: other files, the machine at hand, the place of the output.
void check_request(const CompileRequest& request);

}  // namespace eitri::jit
