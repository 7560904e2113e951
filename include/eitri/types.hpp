// Types that every Eitri call uses: dtypes, tensor views, errors. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

#include "eitri/enums.hpp"

#if defined(__GNUC__)
#define EITRI_EXPORT __attribute__((visibility("default")))
#else
#define EITRI_EXPORT
#endif

namespace eitri {

/// Where a tensor lives. `index` is the ordinal among devices of that kind.
enum class DeviceKind : uint8_t { cpu, cuda, hip };
struct DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  int32_t index = 0;
  bool operator==(const DeviceId&) const = default;
};

/// A CUstream (cudaStream_t) for tensors on an NVIDIA GPU; null is the legacy default stream there, and the only value on a CPU.
using Stream = void*;

inline constexpr int kMaxRank = 4;

/// A tensor that somebody else owns. Strides count elements, not bytes; for packed dtypes (two per byte) the last
/// stride must be 1 and the others even. A default-constructed View means "not given".
struct View {
  void* data = nullptr;
  DType dtype = DType::none;
  Layout layout = Layout::strided;
  int8_t rank = 0;
  DeviceId device = {};
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};

  View() = default;
  /// A row-major, contiguous view.
  View(const void* pointer, DType type, std::initializer_list<int64_t> extents) : data(const_cast<void*>(pointer)), dtype(type) {
    if (extents.size() > size_t{kMaxRank}) throw std::length_error("eitri::View: more than 4 dimensions");
    for (int64_t extent : extents) shape[rank++] = extent;
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      // Wraps, without undefined behaviour, for extents that no memory holds: operators refuse such a view.
      step = static_cast<int64_t>(static_cast<uint64_t>(step) * static_cast<uint64_t>(shape[i] > 0 ? shape[i] : 1));
    }
  }
  /// True when an argument was passed, an empty tensor (extent 0, data may be null) included.
  bool given() const { return dtype != DType::none; }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

/// Status codes of the C ABI and of `Error`.
enum class Code : int {
  ok = 0,
  invalid_argument = 1,  // the caller's fault; the message names the argument
  unsupported = 2,       // legal, but no kernel takes it; the message lists each kernel's reason
  compile_failed = 3,
  device_error = 4,
  out_of_memory = 5,
  io_error = 6,
  internal = 7,
};

/// The one exception type of the library.
class EITRI_EXPORT Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

}  // namespace eitri
