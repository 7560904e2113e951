// NVRTC and hipRTC: compilers in a library, with one interface under two prefixes. The library is loaded when something is
// compiled, not when it is found: a start that finds everything in the cache does not pay for it.
#pragma once

#include <string>
#include <vector>

#include "jit/compiler.h"

namespace eitri::jit {

struct RtcKind {
  const char* name;        // "nvrtc"
  const char* prefix;      // of its functions
  const char* get_binary;  // "GetCUBIN": after the prefix; the size function has "Size" behind it
  Machine machine;
  const char* arch_option;           // in front of the target's name
  std::vector<std::string> options;  // ours, before the caller's
};

/// `companions` are further files that belong to the compiler: they count in its identity.
FoundCompiler make_rtc(const RtcKind& kind, const std::string& path, const std::vector<std::string>& companions);

}  // namespace eitri::jit
