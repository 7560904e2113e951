// What quantize, activation, topk_gating, moe_sort and moe_combine ask of a tensor argument, in one line each.
#pragma once

#include <initializer_list>

#include "base/view.h"

namespace eitri {

enum class Access : uint8_t { read, write };

inline constexpr int64_t kAnyExtent = -1;

namespace detail {
/// Implies that a tensor of one or two extents passes as input and as output. Without branches: all of it holds in almost every call.
[[gnu::always_inline]] inline bool is_usual(const View& view, DType dtype, std::initializer_list<int64_t> shape) {
  constexpr uint64_t kSmall = uint64_t{1} << 29;  // see obviously_fine
  const size_t rank = shape.size();
  if (rank == 0 || rank > 2) return false;
  const auto begin = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t width = element_bytes(view.dtype);
  const auto is = [](DType got, DType wanted) { return static_cast<int>(got == wanted); };
  int ok =
      dtype != DType::none ? is(view.dtype, dtype) : is(view.dtype, DType::f32) | is(view.dtype, DType::bf16) | is(view.dtype, DType::f16);
  ok &= static_cast<int>(view.rank == static_cast<int>(rank)) & static_cast<int>(view.layout == Layout::strided);
  ok &= static_cast<int>(begin != 0) & static_cast<int>(width != 0) & static_cast<int>((begin & (width - 1)) == 0);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t wanted = shape.begin()[i];
    ok &= static_cast<int>(static_cast<uint64_t>(view.shape[i]) - 1 < kSmall);
    if (wanted != kAnyExtent) ok &= static_cast<int>(wanted == view.shape[i]);
  }
  ok &= static_cast<int>(view.stride[rank - 1] == 1);
  if (rank == 2) ok &= static_cast<int>(static_cast<uint64_t>(view.stride[0] - view.shape[1]) < kSmall);
  return ok != 0;
}
void check_tensor_fully(const View& view, const char* op, const char* arg, Access access, DType dtype,
                        std::initializer_list<int64_t> shape);
}  // namespace detail

/// A strided tensor with these extents (kAnyExtent: not looked at), unit inner stride, and of `dtype`
/// (none: f32, bf16 or f16). Outputs must not overlap themselves. Error{invalid_argument} otherwise.
[[gnu::always_inline]] inline void check_tensor(const View& view, const char* op, const char* arg, Access access, DType dtype,
                                                std::initializer_list<int64_t> shape) {
  if (!detail::is_usual(view, dtype, shape)) [[unlikely]]
    detail::check_tensor_fully(view, op, arg, access, dtype, shape);
}
/// Refuses an output that shares memory with another argument (not given ones never do).
void check_apart(const View& output, const char* output_name, const View& other, const char* other_name, const char* op);

namespace detail {
/// byte_range of an argument, quicker for the usual matrix.
inline ByteRange range_of(const View& view) {
  const uintptr_t width = element_bytes(view.dtype);
  if (view.rank != 2 || width == 0 || view.layout != Layout::strided || view.shape[0] <= 0 || view.shape[1] <= 0) [[unlikely]]
    return view.given() ? byte_range(view) : ByteRange{};
  const auto begin = reinterpret_cast<uintptr_t>(view.data);
  return {begin, begin + static_cast<uintptr_t>((view.shape[0] - 1) * view.stride[0] + (view.shape[1] - 1) * view.stride[1] + 1) * width};
}
}  // namespace detail

/// An argument whose addresses are compared with those of several others: they are computed once.
struct Place {
  const View& view;
  const char* name;
  ByteRange range;
  Place(const View& argument, const char* argument_name) : view(argument), name(argument_name), range(detail::range_of(argument)) {}
};
inline void check_apart(const Place& output, const Place& other, const char* op) {
  if (output.range.meets(other.range)) [[unlikely]]
    check_apart(output.view, output.name, other.view, other.name, op);
}

}  // namespace eitri
