// Tensors of the reported cases: filled by value, read back as numbers or bits, or so large that they must be sparse.
#pragma once

#include <sys/mman.h>

#include <initializer_list>
#include <limits>
#include <vector>

#include "base/view.h"

namespace eitri {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();

inline void fill(const View& view, double value) {
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    if (view.rank == 1) store(view, {i}, value);
    else fill(slice(view, i), value);
  }
}
template <class T> std::vector<T> vector_of(const View& view) {
  std::vector<T> out;
  if (view.rank == 1) {
    for (int64_t i = 0; i < view.shape[0]; ++i) out.push_back(static_cast<T>(load(view, {i})));
  } else {
    for (int64_t i = 0; i < view.shape[0]; ++i)
      for (const T value : vector_of<T>(slice(view, i))) out.push_back(value);
  }
  return out;
}
inline void set(const View& view, std::initializer_list<double> values) {
  const int64_t columns = view.shape[view.rank - 1];
  int64_t i = 0;
  for (const double value : values) {
    if (view.rank == 1) store(view, {i}, value);
    else store(view, {i / columns, i % columns}, value);
    ++i;
  }
}
inline std::vector<std::byte> bits_of(const View& view) {
  const auto* p = static_cast<const std::byte*>(view.data);
  return {p, p + span_bytes(view)};
}

/// Address space that costs memory only where it is touched.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (ok()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace eitri
