// What a compiler makes code for, and how a binary says what it was made for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace eitri::jit {

enum class Machine : uint8_t { cuda, amd, host };

struct Target {
  const char* name;  // "sm_90a", "gfx942", "x86-64-v3"
  Machine machine;
  const char* suffix;    // of artefacts: "cubin", "co", "so"
  uint16_t elf_machine;  // e_machine of the ELF header
  uint32_t elf_arch;     // sm number, or the machine field of an AMD code object; 0: not told apart
};

std::span<const Target> all_targets();
/// Throws Error{invalid_argument} that lists the known targets.
const Target& target_named(std::string_view name);
/// The host target for the instruction level in force: the same binary serves every machine that has it.
const Target& host_target();

/// Empty when `bytes` is a whole ELF file for `target`, else one sentence. It judges the binary by its own header, so that
/// neither a misplaced file nor a wrong manifest gets a foreign binary loaded.
std::string binary_problem(std::string_view bytes, const Target& target);

/// What identifies a compiler's file: its build id and size, or the hash of all its bytes when it has no build id. Neither
/// the path nor a time of the file plays a part. Throws Error{io_error}.
std::string content_identity(const std::string& path);

}  // namespace eitri::jit
