// A compiler for tests of the cache: fast, counted, and told what to do by the source.
#pragma once

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "base/str.h"
#include "jit/compiler.h"

namespace eitri::jit {

/// The smallest file that passes for a binary of the target.
inline std::string fake_binary(const Target& target, const std::string& payload) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = target.elf_machine;
  header.e_flags = target.elf_arch;
  header.e_shoff = sizeof header + payload.size();
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

class FakeCompiler final : public Compiler {
 public:
  std::string id = "fake 1";
  std::string at = "/opt/fake";
  std::string log_file = {};  // gets one line per compile, from every process
  double seconds = 0;
  bool broken = false;  // dies instead of judging the source
  mutable std::atomic<int> compiles = 0;

  std::string_view name() const override { return "fake"; }
  const std::string& identity() const override { return id; }
  const std::string& path() const override { return at; }
  bool makes(const Target&) const override { return true; }

  /// The binary holds the source. A source with "#error" is refused, with a count in the message.
  Compiled compile(const CompileRequest& request, const Closure& closure) const override {
    const int number = ++compiles;
    if (!log_file.empty()) {
      const int fd = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      if (::write(fd, "compiled\n", 9) < 0) std::abort();
      ::close(fd);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    Compiled out;
    out.command = str("/opt/fake -o out ", request.source.name);
    if (broken) {
      out.log = "was killed by signal 9";
    } else if (request.source.text.find("#error") != std::string::npos) {
      out.verdict = true;
      out.log = str(request.source.name, ":1: error: as asked (compile ", number, ")");
    } else {
      out.ok = true;
      std::string payload = request.source.text;
      for (const auto& [name, text] : closure.headers) payload += "|" + text;
      out.binary = fake_binary(*request.target, payload);
      out.log = "fake: note";
    }
    return out;
  }
};

inline CompileRequest fake_request(const std::string& text, const char* target = "sm_90a") {
  CompileRequest request = {.label = "fake_op", .target = &target_named(target)};
  request.source = {.name = "fake.cu", .text = text};
  return request;
}

}  // namespace eitri::jit
