// What quantize, activation, topk_gating, moe_sort and moe_combine ask of a tensor argument, in one line each.
#pragma once

#include <initializer_list>

#include "base/view.h"

namespace eitri {

enum class Access : uint8_t { read, write };

/// A strided tensor with these extents (kAnyExtent: not looked at), unit inner stride, and of `dtype`
/// (none: f32, bf16 or f16). Outputs must not overlap themselves. Error{invalid_argument} otherwise.
inline constexpr int64_t kAnyExtent = -1;
void check_tensor(const View& view, const char* op, const char* arg, Access access, DType dtype, std::initializer_list<int64_t> shape);
/// Refuses an output that shares memory with another argument (not given ones never do).
void check_apart(const View& output, const char* output_name, const View& other, const char* other_name, const char* op);

/// An argument whose addresses are compared with those of several others: they are computed once.
struct Place {
  const View& view;
  const char* name;
  ByteRange range;
  Place(const View& argument, const char* argument_name)
      : view(argument), name(argument_name), range(argument.given() ? byte_range(argument) : ByteRange{}) {}
};
inline void check_apart(const Place& output, const Place& other, const char* op) {
  if (output.range.meets(other.range)) [[unlikely]]
    check_apart(output.view, output.name, other.view, other.name, op);
}

}  // namespace eitri
