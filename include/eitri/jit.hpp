// Run-time compilation for users: kernels compiled ahead (prebuild), compiling switched off (seal), and operators of your own
// (UserOp). Standard library only. Throws eitri::Error. Thread-safe.
//
// Everything that is compiled lies in one cache, EITRI_CACHE_DIR/jit, and is found there by later processes. Needed are the
// compilers: NVRTC or nvcc for sm_90a, clang (22) or hipRTC for gfx942 and gfx950, a C++ compiler for user ops on the CPU;
// `eitri doctor` lists what was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "eitri/types.hpp"

namespace eitri {

namespace jit {
class UserOp;
}

/// From now on, for the whole process, a compile is an error: calls take what this process or the cache has, and throw
/// Error{compile_failed} that names the kernel for what is missing. For servers, after prebuild() and a first call of everything.
EITRI_EXPORT void seal();

struct PrebuildResult {
  size_t kernels = 0;   // binaries that the problems need; kernels that differ in nothing are one
  size_t compiled = 0;  // of them, those that were compiled now; the others came from the cache
  double seconds = 0;
};

/// Compiles into the cache what calls of these problems need on the target GPUs, which need not be there: the kernels of every row
/// that takes a problem, and of the calls that recipes make. Several compiles run at once.
///
///   eitri::prebuild("rmsnorm", "tokens=4096,hidden=7168", "sm_90a,gfx942");
///
/// `problem` as in explain(): "name=value,…"; fields left out take their defaults, formats of weights that of plain rows. `targets`: some of sm_90a,
/// gfx942, gfx950, separated by commas. Kernels are chosen for a whole GPU; a MIG slice may choose others.
///
/// Throws Error: invalid_argument for an unknown operator, field, value or target (it lists the known ones), unsupported when no
/// kernel takes a problem on a target (it lists each kernel's reason), compile_failed when binaries are missing at the end: every
/// failure with the compiler's message, or why there is no compiler; what could be compiled is in the cache all the same.
EITRI_EXPORT PrebuildResult prebuild(std::string_view op, std::span<const std::string> problems, std::string_view targets);
EITRI_EXPORT PrebuildResult prebuild(std::string_view op, std::string_view problem, std::string_view targets);

/// One argument of a UserOp's call: a View or a number. Integers and floats stay apart: an i32 parameter takes no 1.5.
class UserValue {
 public:
  UserValue(const View& view) : kind_(Kind::tensor), view_(&view) {}  // which must outlive the call
  template <class T>
  requires std::is_arithmetic_v<T> UserValue(T value) {
    if constexpr (std::is_floating_point_v<T>) kind_ = Kind::real, real_ = static_cast<double>(value);
    else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
      kind_ = value > INT64_MAX ? Kind::huge : Kind::integer, integer_ = static_cast<int64_t>(value);
    else kind_ = Kind::integer, integer_ = value;
  }

 private:
  friend class jit::UserOp;
  enum class Kind : uint8_t { tensor, real, integer, huge };  // huge: does not fit int64_t
  Kind kind_ = Kind::integer;
  union {
    const View* view_;
    double real_;
    int64_t integer_;
  };
};

/// Texts that a source may include, by the name that #include spells: {"mine/scale.h", "..."}.
using UserHeaders = std::vector<std::pair<std::string, std::string>>;

/// A GPU kernel, for NVIDIA and AMD alike, in the vocabulary of Eitri's own kernels, src/device/simt.h (installed below
/// share/eitri). Its function, shared arrays and block size are the user's; the rest is generated.
///
///   .body = "y[element] = alpha * x[element];"                  once per element of the first output, which is contiguous
///   .body = "...", .threads = 128, .blocks = "tokens"           once per thread of so many blocks
///   .before = "EITRI_KERNEL(128) f(const eitri_arguments a) {   a kernel in full; eitri_call has the parameters as members
///       launch_dependents(); wait_for_dependencies();
///       const eitri_call call(a); ... }", .entry = "f", .threads = 128, .blocks = "tokens"
struct UserOpGpuSource {
  std::string body = {};
  std::string entry = {};               // instead of a body: the name of a kernel in `before`
  std::string before = {};              // in front of the kernel; lines that start with #include move to the top
  int threads = 256;                    // of a block: a multiple of 64, at most 1024
  std::string blocks = "elements";      // or an expression of extents: "tokens", "(n + 255) / 256"; 0: nothing is launched
  std::vector<std::string> flags = {};  // of the GPU's compiler
  UserHeaders headers = {};             // what `before` may include beside Eitri's "device/..."
};

/// A source for the CPU, for GPUs, or both; tensors in memory that there is none for are refused.
struct UserOpSource {
  std::string body = {};                // of a C++ function
  std::string before = {};              // in front of it: includes, types, functions
  std::vector<std::string> flags = {};  // "-fopenmp", "-ffast-math", …
  UserHeaders headers = {};
  UserOpGpuSource gpu = {};
};

/// An operator of the user's own: declared in one line, written as the body of a C++ function or of a GPU kernel, compiled on the
/// first call (the cache keeps it) and checked on every one.
///
///   const eitri::UserOp scale("scale(x: f32[n], y: out f32[n], alpha: f32)",
///                             {.body = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);",
///                              .gpu = {.body = "y[element] = alpha * x[element];"}});
///   scale(x, y, 0.5f);             // Views in host memory
///   scale.on(stream, x, y, 0.5f);  // Views on a GPU
///
/// Declaration: name(parameter: [in|out|inout] [strided] type[extent, …], …). A parameter with brackets is a tensor of rank 1 to 4 of
/// f32, f16, bf16, i8, u8, i32 or i64; one without is a number of type f32, f64, i32 or i64. An extent is a number, a name, or a
/// number times a name (2*k); equal names are equal numbers, which every call checks. At most 16 parameters.
///
/// In the body every extent name is an int64_t, every number a constant of its type, and every tensor an object with
/// x(i, j), x.data, x.shape[d], x.stride(d) and x.size(). Tensors are contiguous (x[i] runs over all elements) unless declared
/// `strided`. bf16 and f16 elements convert to and from float. The body runs on the calling thread.
class EITRI_EXPORT UserOp {
 public:
  /// Reads the declaration; nothing is compiled yet. Throws Error{invalid_argument} that shows the spot.
  UserOp(std::string_view declaration, UserOpSource source);
  ~UserOp();
  UserOp(UserOp&&) noexcept;
  UserOp& operator=(UserOp&&) noexcept;

  /// Checks the arguments, compiles on the first call, and runs. Throws Error{invalid_argument} that names the argument, what it is and
  /// what was expected, and what compile() throws. What the body throws passes through.
  template <class... Args> void operator()(const Args&... args) const { on(nullptr, args...); }
  /// The same in a stream of the tensors' GPU; it returns before the kernel has run. The first call on a device compiles and
  /// loads, and is refused while the stream captures a graph.
  template <class... Args> void on(Stream stream, const Args&... args) const {
    if constexpr (sizeof...(Args) == 0) {
      call({}, stream);
    } else {
      const UserValue values[] = {UserValue(args)...};
      call(values, stream);
    }
  }
  void call(std::span<const UserValue> args, Stream stream = nullptr) const;
  /// Checks the arguments as a call does, and no more: no memory is read, nothing is compiled.
  void check(std::span<const UserValue> args) const;

  /// Compiles and loads for the CPU now. Throws Error{compile_failed} with the compiler's message, whose lines count from the start of the
  /// body ("<name>") or of the text before it ("<name> before"), Error{unsupported} without a compiler, Error{invalid_argument}
  /// without a body.
  void compile() const;
  /// Compiles the GPU source into the cache for these targets, as eitri::prebuild does.
  PrebuildResult prebuild(std::string_view targets) const;
  /// The whole text that is compiled for the CPU, to read beside a compiler's message.
  std::string generated_source() const;
  std::string generated_gpu_source() const;

 private:
  const jit::UserOp& op() const;
  std::unique_ptr<jit::UserOp> op_;
};

}  // namespace eitri
