#include "jit/target.h"

#include <elf.h>

#include <array>
#include <cstring>
#include <optional>

#include "backend/cpu/cpu.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "jit/sha256.h"

namespace eitri::jit {

namespace {

constexpr uint16_t kElfCuda = 190, kElfAmd = 224;  // EM_CUDA, EM_AMDGPU: newer than some elf.h

constexpr std::array kTargets = {
    Target{"sm_90a", Machine::cuda, "cubin", kElfCuda, 90}, Target{"gfx942", Machine::amd, "co", kElfAmd, 0x4c},
    Target{"gfx950", Machine::amd, "co", kElfAmd, 0x4f},    Target{"x86-64", Machine::host, "so", EM_X86_64, 0},
    Target{"x86-64-v3", Machine::host, "so", EM_X86_64, 0}, Target{"x86-64-v4", Machine::host, "so", EM_X86_64, 0},
    Target{"aarch64", Machine::host, "so", EM_AARCH64, 0},
};

/// A struct at `offset`; nothing when the file ends before it does.
template <class T> std::optional<T> read_at(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string_view range_at(std::string_view bytes, uint64_t offset, uint64_t size) {
  return offset > bytes.size() || size > bytes.size() - offset ? std::string_view() : bytes.substr(offset, size);
}

std::optional<Elf64_Ehdr> header_of(std::string_view bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  const bool elf = header && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
                   header->e_ident[EI_DATA] == ELFDATA2LSB;
  return elf ? header : std::nullopt;
}

constexpr size_t padded4(size_t n) { return (n + 3) & ~size_t{3}; }

/// The build id among the notes of one segment.
std::string find_build_id(std::string_view notes) {
  while (const auto note = read_at<Elf64_Nhdr>(notes, 0)) {
    const size_t name_at = sizeof(Elf64_Nhdr), value_at = name_at + padded4(note->n_namesz);
    const std::string_view name = range_at(notes, name_at, note->n_namesz), value = range_at(notes, value_at, note->n_descsz);
    if (note->n_type == NT_GNU_BUILD_ID && name == std::string_view("GNU\0", 4)) {
      std::string hex;
      for (unsigned char c : value) hex += {"0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]};
      return hex;
    }
    const size_t next = value_at + padded4(note->n_descsz);
    if (next >= notes.size()) break;
    notes.remove_prefix(next);
  }
  return {};
}

std::string build_id(std::string_view bytes) {
  const auto header = header_of(bytes);
  if (!header) return {};
  for (uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(bytes, header->e_phoff + i * header->e_phentsize);
    if (!segment) return {};
    if (segment->p_type != PT_NOTE) continue;
    const std::string id = find_build_id(range_at(bytes, segment->p_offset, segment->p_filesz));
    if (!id.empty()) return id;
  }
  return {};
}

/// Everything that the header's two tables speak of lies within the file.
bool is_whole(std::string_view bytes, const Elf64_Ehdr& header) {
  const auto inside = [&](uint64_t offset, uint64_t size) { return offset <= bytes.size() && size <= bytes.size() - offset; };
  if (!inside(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize)) return false;
  if (!inside(header.e_phoff, uint64_t{header.e_phnum} * header.e_phentsize)) return false;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(bytes, header.e_shoff + i * header.e_shentsize);
    if (!section) return false;
    if (section->sh_type != SHT_NOBITS && section->sh_type != SHT_NULL && !inside(section->sh_offset, section->sh_size)) return false;
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(bytes, header.e_phoff + i * header.e_phentsize);
    if (!segment || !inside(segment->p_offset, segment->p_filesz)) return false;
  }
  return true;
}

/// The sm number lies in the low byte of the flags, or since ABI 8 in the second one.
bool is_sm(uint32_t flags, uint32_t sm) { return (flags & 0xff) == sm || (flags >> 8 & 0xff) == sm; }

}  // namespace

std::span<const Target> all_targets() { return kTargets; }

const Target& target_named(std::string_view name) {
  std::string known;
  for (const Target& target : kTargets) {
    if (name == target.name) return target;
    known += str(known.empty() ? "" : ", ", target.name);
  }
  fail(Code::invalid_argument, str("jit: target is \"", name, "\"; expected one of ", known));
}

const Target& host_target() {
#if defined(__x86_64__)
  const Isa isa = cpu_device().isa;
  return target_named(isa >= Isa::x86_avx512 ? "x86-64-v4" : isa >= Isa::x86_avx2 ? "x86-64-v3" : "x86-64");
#else
  return target_named("aarch64");
#endif
}

std::string binary_problem(std::string_view bytes, const Target& target) {
  const auto header = header_of(bytes);
  if (!header) return str("it is no 64-bit ELF file (", bytes.size(), " bytes)");
  if (header->e_machine != target.elf_machine) {
    return str("it is for ELF machine ", header->e_machine, "; ", target.name, " is ", target.elf_machine);
  }
  const uint32_t flags = header->e_flags;
  if (target.machine == Machine::cuda && !is_sm(flags, target.elf_arch)) {
    return str("its flags ", flags, " are not those of ", target.name);
  }
  if (target.machine == Machine::amd && (flags & 0xff) != target.elf_arch) {
    return str("it is for AMD machine ", flags & 0xff, "; ", target.name, " is ", target.elf_arch);
  }
  return is_whole(bytes, *header) ? std::string() : "it is cut off";
}

std::string content_identity(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  const std::string id = build_id(bytes);
  return id.empty() ? str("sha256 ", sha256(bytes)) : str("build-id ", id, " size ", bytes.size());
}

}  // namespace eitri::jit
