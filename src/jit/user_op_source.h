// The C++ text that is compiled for a user op, for the CPU and for GPUs.
#pragma once

#include <string>
#include <vector>

#include "jit/declaration.h"
#include "jit/source.h"

namespace eitri::jit {

/// A GPU kernel, written in the vocabulary of device/simt.h. Its function, shared arrays and block size are the user's; the rest is
/// generated.
///
///   .body = "y[element] = alpha * x[element];"                    once per element of the first output, which is contiguous
///   .body = "...", .threads = 128, .blocks = "tokens"             once per thread of so many blocks
///   .before = "EITRI_KERNEL(128) f(const eitri_arguments a) {     a kernel in full; eitri_call has the parameters as members
///       launch_dependents(); wait_for_dependencies();
///       const eitri_call call(a); ... }", .entry = "f", .threads = 128, .blocks = "tokens"
struct UserGpuSource {
  std::string body = {};
  std::string entry = {};               // instead of a body: the name of a kernel in `before`
  std::string before = {};              // in front of the kernel; lines that start with #include move to the top
  int threads = 256;                    // of a block: a multiple of 64, at most 1024
  std::string blocks = "elements";      // or an expression of extents: "tokens", "(n + 255) / 256"; 0: nothing is launched
  std::vector<std::string> flags = {};  // of the GPU's compiler
  HeaderSet headers = {};               // what `before` may include beside "device/..."
  bool given() const { return !body.empty() || !entry.empty(); }
};
/// Throws Error{invalid_argument} for what cannot be launched.
void check_gpu_source(const Declaration& declaration, const UserGpuSource& source);
std::string user_op_gpu_text(const Declaration& declaration, const UserGpuSource& source);
/// The name of the kernel in it.
std::string user_op_gpu_entry(const UserGpuSource& source);

/// The whole translation unit for the CPU; messages of the compiler count lines from the start of `body` and of `before`.
std::string user_op_text(const Declaration& declaration, const std::string& before, const std::string& body);
/// The header that it includes: tensors and 16-bit floats.
const HeaderSet& user_op_headers();

}  // namespace eitri::jit
