#include "compile/kernel_binary.h"

#include <cstring>
#include <functional>

namespace eitri {

namespace {

template <class T> T get(std::string_view bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Calls f(name, content) for every section with content of a 64-bit ELF file; false when it is none.
bool for_each_section(std::string_view elf, const std::function<void(std::string_view, std::string_view)>& f) {
  constexpr size_t kHeaderBytes = 64;
  if (elf.substr(0, 4) !=
      "\x7f"
      "ELF")
    return false;
  const auto table = get<uint64_t>(elf, 0x28);
  const auto count = get<uint16_t>(elf, 0x3c), names = get<uint16_t>(elf, 0x3e);
  const auto content = [&](size_t i) -> std::string_view {
    const size_t header = table + i * kHeaderBytes;
    const auto type = get<uint32_t>(elf, header + 4);
    const auto offset = get<uint64_t>(elf, header + 24), size = get<uint64_t>(elf, header + 32);
    constexpr uint32_t kNoBits = 8;
    return type == kNoBits || offset > elf.size() || size > elf.size() - offset ? std::string_view() : elf.substr(offset, size);
  };
  const std::string_view strings = content(names);
  for (size_t i = 0; i < count; ++i) {
    const auto at = get<uint32_t>(elf, table + i * kHeaderBytes);
    if (at >= strings.size()) return false;
    f(strings.data() + at, content(i));
  }
  return true;
}

}  // namespace

// The attributes of .nv.info sections are {format, attribute, 16-bit size or value} and, for format 4, that many bytes. An
// instruction has 16 bytes: the operation in the low 12 bits, and for loads and stores the width in bits 73 to 75.
KernelFacts read_cubin(std::string_view bytes) {
  constexpr uint8_t kArgumentBytes = 0x19, kStackFrame = 0x11, kRegisters = 0x2f, kSized = 4;
  constexpr uint64_t kLoadGlobal = 0x981, kStoreGlobal = 0x986;
  KernelFacts facts;
  int kernels = 0;
  const bool is_elf = for_each_section(bytes, [&](std::string_view name, std::string_view content) {
    if (name.substr(0, 8) == ".nv.info") {
      for (size_t at = 0; at + 4 <= content.size();) {
        const auto format = get<uint8_t>(content, at), attribute = get<uint8_t>(content, at + 1);
        const auto size = get<uint16_t>(content, at + 2);
        if (attribute == kArgumentBytes) facts.argument_bytes = size;
        // Both are {symbol, value}; the frames of functions that were inlined count nothing.
        const auto value = get<uint32_t>(content, at + 8);
        if (attribute == kRegisters) facts.registers = static_cast<int>(value);
        if (attribute == kStackFrame && value > facts.stack_bytes) facts.stack_bytes = value;
        at += 4 + (format == kSized ? size : 0);
      }
    }
    if (name.substr(0, 6) == ".text.") {
      ++kernels;
      for (size_t at = 0; at + 16 <= content.size(); at += 16) {
        const uint64_t operation = get<uint64_t>(content, at) & 0xfff, width = get<uint64_t>(content, at + 8) >> 9 & 7;
        if (operation == kLoadGlobal) facts.load16 += width == 6, facts.load8 += width == 5, facts.load4 += width == 4;
        if (operation == kStoreGlobal) facts.store16 += width == 6, facts.store8 += width == 5, facts.store4 += width == 4;
      }
    }
  });
  if (!is_elf || kernels != 1) facts.problem = "not a cubin with one kernel";
  else if (facts.registers == 0) facts.problem = "no register count";
  return facts;
}

// The facts are MessagePack in the notes: the key as text, then a number. Loads and stores are in the FLAT encoding: 110111 in
// the top bits, the operation in bits 18 to 24, the segment (2: global) in bits 14 and 15.
KernelFacts read_code_object(std::string_view bytes) {
  KernelFacts facts;
  const auto number = [&](std::string_view notes, std::string_view key) -> int64_t {
    const size_t at = notes.find(key);
    if (at == std::string_view::npos || at + key.size() >= notes.size()) return -1;
    const size_t value = at + key.size();
    const auto swap = [&](size_t n) {  // big-endian
      int64_t x = 0;
      for (size_t i = 1; i <= n; ++i) x = x << 8 | get<uint8_t>(notes, value + i);
      return x;
    };
    const auto tag = get<uint8_t>(notes, value);
    return tag < 0x80 ? tag : tag == 0xcc ? swap(1) : tag == 0xcd ? swap(2) : tag == 0xce ? swap(4) : -1;
  };
  bool has_notes = false;
  const bool is_elf = for_each_section(bytes, [&](std::string_view name, std::string_view content) {
    if (name == ".note") {
      has_notes = true;
      facts.registers = static_cast<int>(number(content, ".vgpr_count"));
      facts.stack_bytes = number(content, ".private_segment_fixed_size");
      facts.spills = static_cast<int>(number(content, ".vgpr_spill_count") + number(content, ".sgpr_spill_count"));
      facts.argument_bytes = number(content, ".kernarg_segment_size");
    }
    if (name == ".text") {
      for (size_t at = 0; at + 4 <= content.size(); at += 4) {
        const auto word = get<uint32_t>(content, at);
        if (word >> 26 != 0x37 || (word >> 14 & 3) != 2) continue;
        const uint32_t operation = word >> 18 & 0x7f;
        facts.load16 += operation == 23, facts.load8 += operation == 21, facts.load4 += operation == 20;
        facts.store16 += operation == 31, facts.store8 += operation == 29, facts.store4 += operation == 28;
      }
    }
  });
  if (!is_elf || !has_notes) facts.problem = "not a code object with notes";
  else if (facts.registers < 0 || facts.stack_bytes < 0 || facts.argument_bytes < 0) facts.problem = "no kernel in the notes";
  return facts;
}

}  // namespace eitri
