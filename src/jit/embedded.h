// The sources of the GPU kernels, embedded by the build: an installed library compiles them without a source folder.
#pragma once

#include <span>
#include <string_view>

#include "jit/source.h"

namespace eitri::jit {

struct EmbeddedText {
  std::string_view name;  // as #include spells it: "ops/rmsnorm/simt.cuh"
  std::string_view text;
};
/// Every kernel file, src/device/ but for x86/, and what they include; made by cmake/embed_sources.cmake.
std::span<const EmbeddedText> embedded_texts();

/// embedded_texts() and freestanding_headers().
const HeaderSet& embedded_sources();

/// To compile the kernel file of that name. Throws Error{invalid_argument} that lists the known ones.
SourceBundle embedded_bundle(std::string_view file);

}  // namespace eitri::jit
