// A product of two matrices by oneDNN, and weights in its layouts. Included only where the library is present.
#pragma once

#include <string>

#include "base/view.h"
#include "eitri/types.hpp"

namespace eitri::onednn {

/// major * 100 + minor.
uint16_t version();
/// Why the library cannot multiply `a` operands into `c` here; empty when it can. Asked once per pair, then remembered.
std::string refusal(DType a, DType c);

/// c = a b^T + bias, relu. a [m, k], b [n, k] or packed, c [m, n]; rows may be apart.
struct Product {
  View a, b;
  const std::byte* packed = nullptr;  // of pack(); b is then not looked at
  int64_t packed_bytes = 0;           // that are there, as the header of the weights says
  int64_t n = 0;
  View c;
  View bias = {};  // [n], f32 or c's dtype
  bool relu = false;
  int threads = 1;
};
void multiply(const Product& product);

/// Packed matrix: a description of the layout (kDescriptionBytes), then the data.
inline constexpr size_t kDescriptionBytes = 2048;
size_t packed_bytes(DType dtype, int64_t n, int64_t k, int64_t m_hint);
void pack(const View& rows, int64_t m_hint, std::byte* to);
/// Contiguous rows of k, from packed_bytes at `packed`. f32, bf16 and f16 bit for bit; i8 by multiplying with the identity, because a layout with
/// compensation terms has no way back in the library.
void unpack(const std::byte* packed, int64_t packed_bytes, DType dtype, int64_t n, int64_t k, std::byte* rows);

}  // namespace eitri::onednn
