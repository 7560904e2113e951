// Copies of the memory that tensors span, gaps between rows included: of a GPU's on the host, of the host's on a GPU. Tensors that
// share memory share it in the copy.
#pragma once

#include <vector>

#include "backend/cpu/memory.h"
#include "backend/gpu.h"
#include "base/view.h"

namespace eitri {

class Mirror {
 public:
  Mirror() = default;
  /// Host copies of tensors on the host, or on a GPU (which waits for the stream; refused while it captures a graph).
  static Mirror of_host(const std::vector<View>& views);
  static Mirror of_device(const std::vector<View>& views, const Device& device, Stream stream);
  /// Memory on a GPU for host ranges; upload() fills it and download() brings it back.
  struct Range {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  static Mirror on_device(const std::vector<Range>& ranges, const Device& device);
  /// Host copies back to where they were made from.
  void restore() const;
  void upload(Stream stream) const;
  void download(Stream stream) const;
  /// On the device, from a mirror of the same ranges.
  void copy_from(const Mirror& other, Stream stream) const;

  /// The same tensor in the copy.
  View copy_of(const View& view) const;
  /// Where the copy of this byte is; null for what it has no copy of.
  std::byte* copy_of(const std::byte* data) const;

 private:
  struct Part {
    std::byte* original = nullptr;
    size_t bytes = 0;
    std::byte* copy = nullptr;
    Buffer host;  // one of the two owns the copy
    gpu::Buffer device;
  };
  static std::vector<Range> merged(const std::vector<View>& views);
  std::vector<Part> parts_;  // by address
  DeviceId copies_are_on_ = {};
};

}  // namespace eitri
