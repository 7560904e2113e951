#include "cli/codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/view.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {
using checkpoint::Arena;

View make(Arena& arena, DType dtype, const std::vector<int64_t>& shape) {
  return shape.size() == 3   ? arena.make(dtype, {shape[0], shape[1], shape[2]})
         : shape.size() == 2 ? arena.make(dtype, {shape[0], shape[1]})
                             : arena.make(dtype, {shape[0]});
}

}  // namespace

Coding parse_weights(const std::string& text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const auto dtype = dtype_from(text.substr(0, colon));
  const std::string name = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto names = enum_names(Quant::none);
  const auto found = std::find(names.begin(), names.end(), name);
  require(dtype.has_value() && is_code(*dtype) && found != names.end() && found != names.begin(), "--weights is '", text,
          "'; expected DTYPE:QUANT such as i4:per_1x32, f4e2m1:per_1x32, f4e2m1:per_1x16, f8e4m3:per_128x128, i8:per_token");
  return {*dtype, static_cast<Quant>(found - names.begin())};
}

CodedWeight random_codes(const Coding& coding, int64_t experts, int64_t n, int64_t k, Arena& plain, Arena& kept) {
  const auto stacked = [&](std::vector<int64_t> shape) {
    if (experts > 0) shape.insert(shape.begin(), experts);
    return shape;
  };
  CodedWeight out;
  out.codes = make(plain, coding.dtype, stacked({n, k}));
  auto* bytes = static_cast<uint8_t*>(out.codes.data);
  uint64_t seed = 1;
  for (int64_t i = 0; i < bytes_for(coding.dtype, out.codes.size()); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<uint8_t>(seed >> 56);
    if (coding.dtype == DType::f8e4m3 && (bytes[i] & 0x7f) == 0x7f) bytes[i] ^= 1;  // no NaN
  }
  const auto scales = [&](Arena& where, DType dtype, const std::vector<int64_t>& shape) {
    const View view = make(where, dtype, shape);
    for (int64_t i = 0; i < view.size(); ++i) store_at(view.data, dtype, i, std::exp2(-6 - static_cast<double>(i % 3)));
    return view;
  };
  if (is_block(coding.quant)) {
    const DType dtype = block_scale_dtype(coding.dtype, coding.quant);
    require(dtype != DType::none, "--weights: ", coding.dtype, " does not go with ", coding.quant);
    out.block_scale = scales(plain, dtype, stacked({blocks_of(n, block_rows(coding.quant)), blocks_of(k, block_k(coding.quant))}));
  } else {
    out.scale = scales(kept, DType::f32, stacked({coding.quant == Quant::per_tensor ? 1 : n}));
  }
  if (coding.quant == Quant::per_1x16) out.global_scale = scales(kept, DType::f32, {std::max<int64_t>(experts, 1)});
  return out;
}

}  // namespace eitri::cli
