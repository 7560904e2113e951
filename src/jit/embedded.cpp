#include "jit/embedded.h"

#include "base/error.h"

namespace eitri::jit {

const HeaderSet& embedded_sources() {
  static const HeaderSet sources = [] {
    HeaderSet out = freestanding_headers();
    for (const auto& [name, text] : embedded_texts()) out.add(std::string(name), text);
    return out;
  }();
  return sources;
}

SourceBundle embedded_bundle(std::string_view file) {
  constexpr std::string_view kFolder = "ops/", kSuffix = ".cuh";
  const bool known = file.starts_with(kFolder) && file.ends_with(kSuffix) && embedded_sources().find(file) != nullptr;
  if (!known) {
    std::string names;
    for (const EmbeddedText& text : embedded_texts())
      if (text.name.ends_with(kSuffix)) names += str(names.empty() ? "" : ", ", text.name);
    fail(Code::invalid_argument, str("jit: the kernel file is \"", file, "\"; expected one of ", names));
  }
  // "ops/rmsnorm/simt.cuh" is compiled as "rmsnorm.simt.cu", which includes it: "#pragma once" is for headers.
  std::string name(file.substr(kFolder.size(), file.size() - kFolder.size() - kSuffix.size()));
  for (char& c : name)
    if (c == '/') c = '.';
  return {.name = name + ".cu", .text = str("#include \"", file, "\"\n"), .headers = embedded_sources()};
}

}  // namespace eitri::jit
