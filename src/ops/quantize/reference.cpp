// The reference of quantize: the rules of base/numeric.h written out. It is exact by contract, in fp32 like every row:
// codes of a quotient in double would differ at ties.
#include <algorithm>

#include "base/numeric.h"
#include "ops/quantize/quantize.h"

namespace eitri {

namespace {

/// Stores the scale of a block whose largest finite magnitude is `amax`; returns it and its inverse.
struct Scale {
  double value;
  float inverse;
};
Scale scale_of(DType q, DType scale_dtype, float amax, ScaleRounding rounding) {
  if (scale_dtype == DType::f8e8m0) {
    const uint8_t code = q == DType::f8e4m3 ? mx_scale_code<F8e4m3>(amax, rounding) : mx_scale_code<F4e2m1>(amax, rounding);
    return {double{decode_e8m0(code)}, inverse_e8m0(code)};
  }
  const float scale = scale_from_amax(amax, q == DType::i8 ? kI8Max : static_cast<float>(max_finite(q)));
  return {double{scale}, inverse_scale(scale)};
}

}  // namespace

void Quantize::reference(const Args& args, Oracle* oracle) {
  const int64_t rows = args.x.shape[0], cols = args.x.shape[1];
  const DType q_dtype = args.q.dtype, scale_dtype = quantize_scale_dtype(q_dtype, args.quant);
  const bool tensor = args.quant == Quant::per_tensor, blocked = has_block_scales(args.quant);
  const int64_t block = quantize_block(args.quant, cols), blocks = blocked ? (cols + block - 1) / block : 1;
  const auto is_real = [&](int64_t r) { return is_real_row(args.sorted_ids, args.num_valid, args.tokens, r); };
  const auto x = [&](int64_t r, int64_t j) { return static_cast<float>(load(args.x, {r, j})); };
  const auto amax_of = [&](int64_t r, int64_t begin, int64_t end) {
    float amax = 0;
    for (int64_t j = begin; j < end; ++j)
      if (finite_abs(x(r, j)) > amax) amax = finite_abs(x(r, j));
    return amax;
  };
  Expected q, scales;
  Scale scale{};
  if (tensor) {
    float amax = 0;
    for (int64_t r = 0; r < rows; ++r)
      if (is_real(r)) amax = std::max(amax, amax_of(r, 0, cols));
    scale = scale_of(q_dtype, scale_dtype, amax, args.scale_rounding);
    store(args.scale, {0}, scale.value);
    scales.value.push_back(scale.value);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const bool real = is_real(r);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = b * block, end = std::min(cols, begin + block);
      if (!tensor) {
        scale = real ? scale_of(q_dtype, scale_dtype, amax_of(r, begin, end), args.scale_rounding) : Scale{};
        if (real && blocked) store(args.scale, {r, b}, scale.value);
        else if (real) store(args.scale, {r}, scale.value);
        scales.value.push_back(scale.value);
        scales.any.push_back(!real);
      }
      for (int64_t j = begin; j < end; ++j) {
        const float product = real ? x(r, j) * scale.inverse : 0;
        // A NaN among i8 codes is 0.
        if (real) store(args.q, {r, j}, q_dtype == DType::i8 ? double{decode_i8(encode_i8(product))} : double{product});
        if (oracle == nullptr) continue;
        q.value.push_back(real ? load(args.q, {r, j}) : 0);
        q.any.push_back(!real);
      }
    }
  }
  if (oracle != nullptr) *oracle = {std::move(q), std::move(scales)};
}

}  // namespace eitri
