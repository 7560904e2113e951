// Questions that kernels and checks ask of a View.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "eitri/types.hpp"

namespace eitri {

/// Row-major without gaps (extents of 1 ignored). Empty tensors are contiguous.
bool is_contiguous(const View& view);
/// The last dimension has stride 1 (or extent <= 1).
bool has_unit_inner_stride(const View& view);
/// Bytes from `data` to one past the last addressed element; 0 for an empty view. Negative strides
/// are refused by check_view. For Layout::packed: the bytes of the logical elements.
int64_t span_bytes(const View& view);
/// The byte where element `index` of dimension 0 starts (sub-byte types: the stride must be even).
void* row(const View& view, int64_t index);
/// The view without dimension 0, at `index`.
View slice(const View& view, int64_t index);
/// Rows [begin, end) of dimension 0.
View rows(const View& view, int64_t begin, int64_t end);

namespace detail {
/// Bytes of an element; 0 for packed dtypes, none and unknown numbers.
inline uintptr_t element_bytes(DType dtype) {
  constexpr uint8_t kBytes[] = {0, 4, 2, 2, 1, 1, 1, 1, 0, 0, 1, 1, 4, 8};
  static_assert(static_cast<int>(DType::i64) + 1 == sizeof kBytes);
  const auto i = static_cast<size_t>(dtype);
  return i < sizeof kBytes ? kBytes[i] : 0;
}
/// Implies that the full check passes: not empty, aligned, extents and strides far from overflow.
inline bool obviously_fine(const View& view, int rank) {
  const uintptr_t width = element_bytes(view.dtype);
  if (view.rank != rank || view.data == nullptr || width == 0) return false;
  constexpr uint64_t kSmall = uint64_t{1} << 29;  // 4 products below 2^58, times 8 bytes, stay below 2^62
  const bool strided = view.layout == Layout::strided;
  for (int i = 0; i < rank; ++i)
    if (static_cast<uint64_t>(view.shape[i]) - 1 >= kSmall || (strided && static_cast<uint64_t>(view.stride[i]) > kSmall)) return false;
  // A packed buffer holds all elements side by side: its product must fit as well, which three extents below 2^20 do.
  if (!strided) {
    if (view.layout != Layout::packed || rank > 3) return false;
    for (int i = 0; i < rank; ++i)
      if (view.shape[i] > (1 << 20)) return false;
  }
  return (reinterpret_cast<uintptr_t>(view.data) & (width - 1)) == 0;
}
/// No two elements share memory: each dimension steps over all that the next ones reach.
inline bool obviously_apart(const View& view, int rank) {
  int64_t reach = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (view.stride[i] < reach) return false;
    reach = view.stride[i] * view.shape[i];
  }
  return true;
}
void check_view_fully(const View& view, const char* op, const char* arg, int rank);
void check_output_fully(const View& view, const char* op, const char* arg, int rank);
}  // namespace detail

/// What every operator checks first: rank, extents and strides >= 0, extent x stride within 2^62
/// bytes, data not null when non-empty, alignment to the element, unit inner and even outer strides
/// for packed dtypes. Stride 0 (broadcast) is legal for inputs. `op` and `arg` go into the message.
/// The usual case is recognised inline: a call has some 100 ns for everything but its work.
inline void check_view(const View& view, const char* op, const char* arg, int rank) {
  if (!detail::obviously_fine(view, rank)) detail::check_view_fully(view, op, arg, rank);
}
/// check_view, and no two elements share memory. Interleaved dimensions, none of which encloses the
/// other, are refused although a few of them are free of overlap.
inline void check_output(const View& view, const char* op, const char* arg, int rank) {
  if (!detail::obviously_fine(view, rank) || !detail::obviously_apart(view, rank)) detail::check_output_fully(view, op, arg, rank);
}

/// The addresses [begin, end) that a view spans; {0, 0} for an empty one. Ranges that only touch do not meet.
struct ByteRange {
  uintptr_t begin = 0, end = 0;
  bool meets(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};
inline ByteRange byte_range(const View& view) {
  const auto begin = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t width = detail::element_bytes(view.dtype);
  if (width == 0 || view.layout != Layout::strided) {
    const auto bytes = static_cast<uintptr_t>(span_bytes(view));
    return bytes == 0 ? ByteRange{} : ByteRange{begin, begin + bytes};
  }
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return {};
    last += (view.shape[i] - 1) * view.stride[i];
  }
  return {begin, begin + static_cast<uintptr_t>(last + 1) * width};
}
/// True when the two address ranges overlap.
inline bool overlap(const View& a, const View& b) { return byte_range(a).meets(byte_range(b)); }

/// Reads / writes one element as double, converting by the numerics contract with one rounding (not
/// first to fp32). f8e8m0 rounds up; u8, i32 and i64 round to even and clamp, NaN is 0. For
/// references, tests and tools only.
double load(const View& view, std::initializer_list<int64_t> index);
void store(const View& view, std::initializer_list<int64_t> index, double value);
/// The same by linear index over a contiguous run starting at `row_pointer`.
double load_at(const void* data, DType dtype, int64_t index);
void store_at(void* data, DType dtype, int64_t index, double value);

}  // namespace eitri
