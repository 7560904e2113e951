// Whatever the bytes are, the safetensors reader either refuses them with an Error or gives out tensors that lie inside
// them. Anything else (a crash, another exception, a tensor outside) is a finding.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto file = eitri::checkpoint::SafetensorsFile::parse(bytes, "fuzz");
    uint64_t covered = 0;
    unsigned sum = 0;
    for (const auto& tensor : file.tensors()) {
      if (tensor.bytes < 0 || tensor.data < bytes.data() || tensor.data + tensor.bytes > bytes.data() + size) std::abort();
      covered += static_cast<uint64_t>(tensor.bytes);
      for (int64_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);  // a sanitizer checks each byte
      if (file.find(tensor.name) == nullptr) std::abort();
    }
    if (covered > size) std::abort();
    static volatile unsigned sink;
    sink = sum;
    (void)sink;
  } catch (const eitri::Error&) {
  }
  return 0;
}
