// The reference of quantize: the rules of base/numeric.h written out. It is exact by contract, in fp32 like every row:
// codes of a quotient in double would differ at ties.
#include "base/numeric.h"
#include "ops/quantize/quantize.h"

namespace eitri {

void Quantize::reference(const Args& args, Oracle* oracle) {
  const int64_t rows = args.x.shape[0], cols = args.x.shape[1];
  Expected q, scales;
  for (int64_t r = 0; r < rows; ++r) {
    const bool real = is_real_row(args.sorted_ids, args.num_valid, args.tokens, r);
    const auto x = [&](int64_t j) { return static_cast<float>(load(args.x, {r, j})); };
    float amax = 0;
    for (int64_t j = 0; real && j < cols; ++j)
      if (finite_abs(x(j)) > amax) amax = finite_abs(x(j));
    const float scale = scale_from_amax(amax, kI8Max), inverse = inverse_scale(scale);
    if (real) store(args.scale, {r}, scale);
    scales.value.push_back(scale);
    scales.any.push_back(!real);
    for (int64_t j = 0; j < cols; ++j) {
      const int8_t code = real ? encode_i8(x(j) * inverse) : int8_t{0};
      if (real) store(args.q, {r, j}, code);
      if (oracle == nullptr) continue;
      q.value.push_back(code);
      q.any.push_back(!real);
    }
  }
  if (oracle != nullptr) *oracle = {std::move(q), std::move(scales)};
}

}  // namespace eitri
