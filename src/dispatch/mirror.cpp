#include "dispatch/mirror.h"

#include <algorithm>
#include <cstring>

#include "backend/gpu.h"
#include "base/error.h"

namespace eitri {

std::vector<Mirror::Range> Mirror::merged(const std::vector<View>& views) {
  std::vector<ByteRange> ranges;
  for (const View& view : views)
    if (const ByteRange r = byte_range(view); view.given() && r.end > r.begin) ranges.push_back(r);
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  std::vector<Range> out;
  uintptr_t end = 0;
  for (const ByteRange& r : ranges) {
    if (!out.empty() && r.begin < end) {
      end = std::max(end, r.end);
      out.back().bytes = end - reinterpret_cast<uintptr_t>(out.back().data);
    } else {
      out.push_back({reinterpret_cast<std::byte*>(r.begin), r.end - r.begin});
      end = r.end;
    }
  }
  return out;
}

Mirror Mirror::of_host(const std::vector<View>& views) {
  Mirror out;
  for (const Range& r : merged(views)) {
    Part part{.original = r.data, .bytes = r.bytes, .copy = nullptr, .host = Buffer(r.bytes), .device = {}};
    part.copy = part.host.data();
    std::memcpy(part.copy, r.data, r.bytes);
    out.parts_.push_back(std::move(part));
  }
  return out;
}

Mirror Mirror::of_device(const std::vector<View>& views, const Device& device, Stream stream) {
  const gpu::ContextScope scope(device);
  require(!gpu::is_capturing(stream), "EITRI_CHECK: the stream captures a graph; expected none (a check waits for the stream)");
  Mirror out;
  for (const Range& r : merged(views)) {
    Part part{.original = r.data, .bytes = r.bytes, .copy = nullptr, .host = Buffer(r.bytes), .device = {}};
    part.copy = part.host.data();
    gpu::copy_to_host(part.copy, r.data, r.bytes, stream);
    out.parts_.push_back(std::move(part));
  }
  gpu::synchronize(stream);
  return out;
}

Mirror Mirror::on_device(const std::vector<Range>& ranges, const Device& device) {
  Mirror out;
  out.copies_are_on_ = device.id;
  for (const Range& r : ranges) {
    Part part{.original = r.data, .bytes = r.bytes, .copy = nullptr, .host = {}, .device = gpu::Buffer(device, r.bytes)};
    part.copy = part.device.data();
    out.parts_.push_back(std::move(part));
  }
  std::ranges::sort(out.parts_, {}, &Part::original);
  return out;
}

void Mirror::restore() const {
  for (const Part& part : parts_) std::memcpy(part.original, part.copy, part.bytes);
}
void Mirror::upload(Stream stream) const {
  for (const Part& part : parts_) gpu::copy_to_device(part.copy, part.original, part.bytes, stream);
}
void Mirror::download(Stream stream) const {
  for (const Part& part : parts_) gpu::copy_to_host(part.original, part.copy, part.bytes, stream);
  gpu::synchronize(stream);
}

void Mirror::copy_from(const Mirror& other, Stream stream) const {
  for (size_t i = 0; i < parts_.size(); ++i) gpu::copy_on_device(parts_[i].copy, other.parts_[i].copy, parts_[i].bytes, stream);
}

std::byte* Mirror::copy_of(const std::byte* data) const {
  auto after = std::ranges::upper_bound(parts_, data, {}, &Part::original);
  if (after == parts_.begin()) return nullptr;
  const Part& part = *--after;
  return data < part.original + part.bytes ? part.copy + (data - part.original) : nullptr;
}

View Mirror::copy_of(const View& view) const {
  View out = view;
  if (!view.given()) return out;
  out.device = copies_are_on_;
  if (view.data == nullptr) return out;
  auto* const data = static_cast<std::byte*>(view.data);
  auto after = std::ranges::upper_bound(parts_, data, {}, &Part::original);
  // A tensor without elements may point anywhere; nobody follows it.
  if (after == parts_.begin()) return out;
  const Part& part = *--after;
  if (data <= part.original + part.bytes) out.data = part.copy + (data - part.original);
  return out;
}

}  // namespace eitri
