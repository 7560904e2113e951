// The reference of rmsnorm: the formula of eitri/ops.hpp in double, on the sum as it is stored.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace eitri {

namespace {

/// What an fp32 evaluation of a row of `hidden` may be off by, relatively, in fp32's epsilon (two roundings make one). The sum of
/// squares: a rounding per square and per addition on the longest path (hidden / 64 partial sums at most, and 24 for the tail
/// and the tree), then mean and eps; the square root halves that. Root, inverse (approximate instructions give 2 ulp), three
/// factors and 1 + weight follow.
double relative_eps(int64_t hidden) { return (static_cast<double>(hidden) / 64 + 24 + 3) / 4 + 4; }

constexpr double kStepEps = 0.5;

/// scale of a block as fp32 has it, and what the oracle says about it.
struct BlockScale {
  float scale = 0;
  double exact = 0, exact_amax = 0;
};
BlockScale scale_of(const double* values, int64_t n, float largest) {
  float amax = 0;
  BlockScale out;
  for (int64_t j = 0; j < n; ++j) {
    const auto single = static_cast<float>(values[j]);
    amax = std::max(amax, finite_abs(single));
    if (std::isfinite(single)) out.exact_amax = std::max(out.exact_amax, std::fabs(values[j]));
  }
  out.scale = scale_from_amax(amax, largest);
  out.exact = out.exact_amax == 0 ? 0 : std::max(out.exact_amax / static_cast<double>(largest), 0x1p-126);
  return out;
}

float largest_code(DType out) { return out == DType::i8 ? kI8Max : out == DType::f8e4m3 ? F8e4m3::max : F8e4m3fnuz::max; }

}  // namespace

void RmsNorm::reference(const Args& args, Oracle* oracle) {
  const int64_t tokens = args.x.shape[0], hidden = args.x.shape[1];
  const bool residual = args.residual.given(), quantised = args.quant != Quant::none;
  const int64_t group = quantised ? std::max<int64_t>(1, args.quant == Quant::per_token ? hidden : 128) : hidden;
  const double eps_count = relative_eps(hidden);
  Expected out, sums, scales;
  std::vector<double> row(static_cast<size_t>(hidden));
  for (int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (int64_t j = 0; j < hidden; ++j) {
      double& v = row[static_cast<size_t>(j)];
      v = load(args.x, {t, j});
      if (residual) {
        const float sum = static_cast<float>(v) + static_cast<float>(load(args.residual, {t, j}));
        store(args.residual_out, {t, j}, static_cast<double>(sum));
        v = load(args.residual_out, {t, j});
        sums.value.push_back(v);
      }
      squares += v * v;
    }
    // fp32 overflows where double does not.
    if (squares > static_cast<double>(std::numeric_limits<float>::max())) squares = std::numeric_limits<double>::infinity();
    const double factor = 1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(args.eps));
    for (int64_t j = 0; j < hidden; ++j) {
      double w = args.weight.given() ? load(args.weight, {j}) : 1;
      if (args.norm_weight == NormWeight::plus_one) w += 1;
      row[static_cast<size_t>(j)] *= factor * w;
    }
    for (int64_t begin = 0; begin < std::max<int64_t>(hidden, 1); begin += std::max<int64_t>(group, 1)) {
      const int64_t n = std::min(group, hidden - begin);
      const double* values = row.data() + begin;
      BlockScale block;
      if (quantised && (n > 0 || args.quant == Quant::per_token)) {
        block = scale_of(values, n, largest_code(args.out.dtype));
        if (args.quant == Quant::per_token) store(args.scale, {t}, static_cast<double>(block.scale));
        else store(args.scale, {t, begin / group}, static_cast<double>(block.scale));
        scales.value.push_back(block.exact);
        scales.bound.push_back(block.exact * eps_count);
      }
      for (int64_t j = 0; j < n; ++j) {
        double value = values[j], bound = std::isfinite(value) ? std::fabs(value) * eps_count : 0;
        const auto single = static_cast<float>(value);
        if (quantised) {
          const float product = single * inverse_scale(block.scale);
          store(args.out, {t, begin + j}, args.out.dtype == DType::i8 ? double{decode_i8(encode_i8(product))} : double{product});
          // In codes: value and scale have their errors, and scale, its inverse and the product round once each.
          const bool number = !std::isnan(value);
          const double code = !number ? value : block.exact > 0 ? value / block.exact : value == 0 ? 0 : value * 0;
          const double limit = static_cast<double>(largest_code(args.out.dtype));
          value = code > limit ? limit : code < -limit ? -limit : code;
          if (args.out.dtype == DType::i8 && std::isnan(value)) value = 0;
          bound = std::isfinite(single) && block.exact > 0 ? std::fabs(code) * (2 * eps_count + 3 * kStepEps) : 0;
        } else {
          store(args.out, {t, begin + j}, value);
        }
        if (oracle == nullptr) continue;
        out.value.push_back(value);
        out.bound.push_back(bound);
      }
    }
  }
  if (oracle == nullptr) return;
  *oracle = {std::move(out)};
  if (residual) oracle->push_back(std::move(sums));
  if (quantised) oracle->push_back(std::move(scales));
}

}  // namespace eitri
