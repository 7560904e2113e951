// The reference of activation: the formulas of eitri/enums.hpp in double.
#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "ops/activation/activation.h"
#include "ops/quantize/quantize.h"

namespace eitri {

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
/// Comparisons are written so that NaN passes through.
double at_most(double x, double limit) { return x > limit ? limit : x; }
double within(double x, double limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// Largest errors of the vector functions (device/vec_math.h), in eps of the result.
constexpr double kSigmoidEps = 3, kNarrowSigmoidEps = 5.5, kTanhEps = 4, kCdfEps = 8, kStepEps = 0.5;
// fp32 sigmoids below 2^-126 lose their bits: an absolute error of 2^-126, in eps, times the other factors.
constexpr double kUnderflowEps = 0x1p-126 / 0x1p-23;

/// |argument| * d(log sigmoid)/d(argument): how a relative error of the argument comes out.
double sigmoid_condition(double x) { return std::isfinite(x) ? std::fabs(x) * (1 - sigmoid(x)) : 0; }

}  // namespace

ExactActivation activate_exact(const ActivationParams& params, bool gated, double gate, double up, DType out) {
  // Of the sigmoid of z. The short one rounds z log2 e, whose relative error is half an eps and that of the constant 0.11.
  const auto sigmoid_eps = [&](double z) { return out == DType::f32 ? kSigmoidEps : kNarrowSigmoidEps + 0.65 * sigmoid_condition(z); };
  double x = gate, u = gated ? up : 1;
  double factor = 1, eps = 0;  // value = x * factor * u unless said otherwise; eps relative
  switch (params.kind) {
    case ActivationKind::none: return {x, 0};
    case ActivationKind::relu: return {x < 0 ? 0 : x, 0};
    case ActivationKind::silu:
      if (params.limit > 0) {
        x = at_most(x, static_cast<double>(params.limit));
        if (gated) u = within(u, static_cast<double>(params.limit));
      }
      factor = sigmoid(x);
      eps = sigmoid_eps(x) + 2 * kStepEps;
      break;
    case ActivationKind::gelu:
      factor = std::erfc(-x * M_SQRT1_2) / 2;
      eps = kCdfEps + 2 * kStepEps;
      break;
    case ActivationKind::gelu_tanh: {
      const double y = 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      factor = sigmoid(y);
      // The argument has five roundings: square, cubic with its constant, two products, one more constant.
      eps = sigmoid_eps(y) + 2 * kStepEps + 5 * kStepEps * sigmoid_condition(y);
      break;
    }
    case ActivationKind::swiglu: {
      if (params.limit > 0) {
        x = at_most(x, static_cast<double>(params.limit));
        u = within(u, static_cast<double>(params.limit));
      }
      const double z = static_cast<double>(params.alpha) * x;
      u += 1;
      factor = sigmoid(z);
      eps = sigmoid_eps(z) + 3 * kStepEps + kStepEps * sigmoid_condition(z);
      break;
    }
    case ActivationKind::situv2: {
      const double beta = static_cast<double>(params.beta), linear = static_cast<double>(params.linear_beta);
      factor = sigmoid(x);
      eps = sigmoid_eps(x);
      x = beta * std::tanh(x / beta);
      u = linear * std::tanh(u / linear);
      eps += 2 * (kTanhEps + kStepEps) + 4 * kStepEps;  // tanh passes relative errors on at most undiminished
      break;
    }
  }
  const double value = x * factor * u, others = std::fabs(x * u);
  const double error = std::fabs(value) * eps + others * kUnderflowEps;
  return {value, std::isfinite(error) ? error : 0};
}

double activation_spread(const ActivationParams& params, bool gated, double gate, double up, double gate_error, double up_error) {
  const double center = activate_exact(params, gated, gate, up).value;
  double farthest = 0;
  for (int g = -1; g <= 1; ++g)
    for (int u = -1; u <= 1; ++u) {
      const double moved = std::fabs(activate_exact(params, gated, gate + g * gate_error, up + u * up_error).value - center);
      if (std::isfinite(moved)) farthest = std::max(farthest, moved);
    }
  return farthest;
}

void Activation::reference(const Args& args, Oracle* oracle) {
  const int64_t rows = args.out.shape[0], inter = args.out.shape[1];
  const bool gated = args.gate != GateLayout::none, quantised = args.out.dtype == DType::i8;
  Expected out, scales;
  for (int64_t r = 0; r < rows; ++r) {
    const bool real = is_real_row(args.sorted_ids, args.num_valid, args.tokens, r);
    std::vector<ExactActivation> row;
    for (int64_t j = 0; j < inter; ++j) {
      const int64_t gate_at = args.gate == GateLayout::interleaved ? 2 * j : j;
      const int64_t up_at = args.gate == GateLayout::interleaved ? 2 * j + 1 : inter + j;
      row.push_back(
          real ? activate_exact(args.activation, gated, load(args.x, {r, gate_at}), gated ? load(args.x, {r, up_at}) : 0, args.out.dtype)
               : ExactActivation{});
    }
    // Quantised rows: what overflows fp32 is infinite, and like NaN no part of the scale.
    float amax = 0;
    double exact_amax = 0, worst_eps = 0;
    for (const ExactActivation& a : row) {
      const auto single = static_cast<float>(a.value);
      amax = std::max(amax, finite_abs(single));
      if (!std::isfinite(single)) continue;
      exact_amax = std::max(exact_amax, std::fabs(a.value));
      worst_eps = std::max(worst_eps, a.error_eps);
    }
    const double exact_scale = exact_amax == 0 ? 0 : std::max(exact_amax / 127, 0x1p-126);
    const float scale = scale_from_amax(amax, kI8Max), inverse = inverse_scale(scale);
    if (quantised) {
      if (real) store(args.scale, {r}, scale);
      scales.value.push_back(exact_scale);
      scales.bound.push_back(worst_eps / 127);
      scales.any.push_back(!real);
    }
    for (int64_t j = 0; j < inter; ++j) {
      const ExactActivation a = row[static_cast<size_t>(j)];
      if (real) store(args.out, {r, j}, quantised ? encode_i8(static_cast<float>(a.value) * inverse) : a.value);
      if (oracle == nullptr) continue;
      double value = a.value, bound = a.error_eps;
      if (quantised) {
        // In codes. Scale, its inverse and their product with the value round once each, and the scale has its own error.
        const bool finite = std::isfinite(static_cast<float>(a.value));
        const double code = exact_scale == 0 || std::isnan(a.value) ? 0 : a.value / exact_scale;
        const double amax_eps = exact_amax == 0 ? 0 : worst_eps / exact_amax;
        value = within(code, 127);
        bound = finite && exact_scale > 0 ? a.error_eps / exact_scale + std::fabs(code) * (amax_eps + 3 * kStepEps) : 0;
      }
      out.value.push_back(value);
      out.bound.push_back(bound);
      out.any.push_back(!real);
    }
  }
  if (oracle == nullptr) return;
  *oracle = {std::move(out)};
  if (quantised) oracle->push_back(std::move(scales));
}

}  // namespace eitri
