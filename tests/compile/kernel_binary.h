// What a compiled GPU kernel says about itself: registers, spills, arguments, and the widths of its loads and stores. Read from
// the binary alone, so no tool of a vendor is needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace eitri {

struct KernelFacts {
  int registers = 0;        // vector registers of a thread
  int64_t stack_bytes = 0;  // memory that a thread needs for spills and arrays
  int spills = 0;           // spilled registers, where the binary counts them
  int64_t argument_bytes = 0;
  // Instructions on global memory by the bytes they move per thread.
  int load16 = 0, load8 = 0, load4 = 0, store16 = 0, store8 = 0, store4 = 0;
  std::string problem;  // not empty: the binary is not understood
};

/// Of the only kernel in a cubin for sm_90a.
KernelFacts read_cubin(std::string_view bytes);
/// Of the only kernel in an AMD code object for gfx942 or gfx950.
KernelFacts read_code_object(std::string_view bytes);

}  // namespace eitri
