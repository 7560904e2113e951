// The block in double, on the same quantised inputs, and how far any right kernel may be from it.
//
// bound holds the absolute error that correct fp32 kernels may make, out's own rounding excepted; tolerance() therefore
// has bound_eps = 1. With T(k) the error of a scaled sum of k products (gemm_tolerance, f32 result):
//   stage 1   s = sum * scales (* w) + bias1           e_s = T(hidden)
//   act       h = act(s)                               e_h = how far h moves when its arguments move by e_s (evaluated, not
//                                                            linearised), and the rounding of the activation itself
//   float     h may be rounded to x's dtype or not     e_h += |h| eps/2: a kernel that keeps f32 is inside as well
//   i8        codes of h per token, as `quantize` does on fp32:
//             amax is off by at most max(e_h), the scale thus by a share d = max(e_h)/amax + 2 eps(f32)
//             v = h / scale is off by e_v = e_h/scale + |v| d, so its code lies in [round(v - e_v), round(v + e_v)]: it is
//             the same unless v is that close to a tie. The code's uncertainty u adds scale * u * |w2|, the scale's adds d
//             times the sum. When e_h reaches amax/2 a row holds noise: then every dequantised value is within
//             half a step of its h, and nothing more is known.
//   f8e4m3    the same for each block that shares a scale, with the codes' own rounding in place of round(). h is then kept as what its
//             codes mean (code * scale), with the error of that: scale * (u + d (|code| + u)). A scale that is a power of two may
//             be the next one for a kernel whose amax lies on the other side of a power: then either code is half a step of
//             the larger scale away from its h at most.
//   stage 2   y = sum(h w2) + bias2                    e_y = sum(e_h |w2|) + T(inter), and y may be rounded to out's dtype
//   combine   out = sum(w y) + shared                  sum(|w| e_y) + (slots + 2) eps(f32) sum(|w y|)
// f16 only: where |h| may reach f16's infinity, a rounding kernel and one that keeps f32 differ by all; such tokens are
// left open.
#include <algorithm>
#include <cmath>

#include "backend/cpu/threads.h"
#include "base/clones.h"
#include "base/numeric.h"
#include "base/view.h"
#include "ops/activation/activation.h"
#include "ops/fused_moe/fused_moe.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/weight_rows.h"

namespace eitri {

namespace {

constexpr double kEps = 0x1p-23;  // of f32

/// A value and the absolute error that a kernel's version of it may have.
struct Ranged {
  double value = 0, error = 0;
};

struct Pair {
  int64_t token;
  double weight;
};

/// Rows of a weight that meet a token at a time, so that their sums do not wait for one another; each adds in the order of k.
constexpr size_t kLanes = WeightRows::kLanes;
struct Sums {
  double sum[kLanes] = {}, bound[kLanes] = {}, carried[kLanes] = {};
};
/// Of products, of their absolute values and, where there are errors, of error times weight. `w`: kLanes rows, element by element.
EITRI_CLONES Sums sums_of(const double* x, const double* w, int64_t k) {
  Sums s;
  for (int64_t i = 0; i < k; ++i)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double product = x[i] * w[i * int64_t{kLanes} + static_cast<int64_t>(lane)];
      s.sum[lane] += product;
      s.bound[lane] += std::fabs(product);
    }
  return s;
}
EITRI_CLONES Sums sums_of(const Ranged* x, const double* w, int64_t k) {
  Sums s;
  for (int64_t i = 0; i < k; ++i)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double weight = w[i * int64_t{kLanes} + static_cast<int64_t>(lane)], product = x[i].value * weight;
      s.sum[lane] += product;
      s.bound[lane] += std::fabs(product);
      s.carried[lane] += x[i].error * std::fabs(weight);
    }
  return s;
}

/// The weights of one expert, routed or shared.
struct Expert {
  View w1, w2, w1_scale, w2_scale, bias1, bias2, w1_global_scale, w2_global_scale;
  int64_t index;  // in w1 and w2, and of the vectors' rows when they have rank 2
  int64_t inter;
};

double at(const View& vector, int64_t index, int64_t n, double absent) {
  if (!vector.given()) return absent;
  return vector.rank == 2 ? load(vector, {index, n}) : load(vector, {n});
}

double half_step(DType dtype, double value) {  // of rounding to dtype; subnormals have a fixed step
  const double least = dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
  return std::fabs(value) * epsilon(dtype) / 2 + least;
}

/// The code of v = value / scale in exact arithmetic, by the rules of base/numeric.h.
double code_of(double v) {
  if (std::isnan(v)) return 0;
  return std::clamp(std::nearbyint(v), -127.0, 127.0);
}

/// The nearest f8e4m3 value, saturated.
double f8_of(double v) { return std::isnan(v) ? v : double{decode_f8e4m3(encode_f8e4m3(static_cast<float>(v)))}; }
class Block {
 public:
  explicit Block(const FusedMoeArgs& args)
      : args_(args),
        p_(FusedMoe::check(args)),
        sum_(size(p_.tokens, p_.hidden)),
        magnitude_(sum_.size()),
        open_(static_cast<size_t>(p_.tokens)) {
    read_x();
  }

  void run() {
    tokens_ = p_.tokens;
    if (p_.local_tokens) tokens_ = std::clamp<int64_t>(*static_cast<const int32_t*>(args_.num_local_tokens.data), 0, p_.tokens);
    const auto routed = route();
    for (size_t e = 0; e < routed.size(); ++e)
      add({args_.w1, args_.w2, args_.w1_scale, args_.w2_scale, args_.bias1, args_.bias2, args_.w1_global_scale, args_.w2_global_scale,
           static_cast<int64_t>(e), p_.inter},
          routed[e], p_.weight_stage);
    if (args_.shared_w1.given()) {
      std::vector<Pair> everyone;
      for (int64_t t = 0; t < tokens_; ++t) everyone.push_back({t, 1});
      add({args_.shared_w1,
           args_.shared_w2,
           args_.shared_w1_scale,
           args_.shared_w2_scale,
           {},
           {},
           args_.shared_w1_global_scale,
           args_.shared_w2_global_scale,
           0,
           p_.shared_inter},
          everyone, WeightStage::second);
    }
  }

  void finish(Expected* expected) {
    const double slots = static_cast<double>(p_.top_k) + 3;
    for (int64_t t = 0; t < p_.tokens; ++t)
      for (int64_t j = 0; j < p_.hidden; ++j) {
        const Ranged& sum = sum_[size(t, p_.hidden) + static_cast<size_t>(j)];
        store(args_.out, {t, j}, sum.value);
        if (expected == nullptr) continue;
        expected->value.push_back(sum.value);
        expected->bound.push_back(sum.error + slots * kEps * magnitude_[size(t, p_.hidden) + static_cast<size_t>(j)]);
        expected->any.push_back(open_[static_cast<size_t>(t)]);
      }
  }

 private:
  static size_t size(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }

  /// x as doubles: codes with i8, quantised here when only the weights are.
  void read_x() {
    x_.resize(size(p_.tokens, p_.hidden));
    x_scale_.assign(static_cast<size_t>(p_.tokens), 1);
    for (int64_t t = 0; t < p_.tokens; ++t) {
      double* x = x_.data() + size(t, p_.hidden);
      for (int64_t j = 0; j < p_.hidden; ++j) x[j] = load(args_.x, {t, j});
      if (args_.x_scale.given() && args_.x_scale.rank == 1) x_scale_[static_cast<size_t>(t)] = load(args_.x_scale, {t});
      if (p_.quantised() && p_.codes() != DType::i8) {
        read_f8_row(t, x);
        continue;
      }
      if (!p_.quantises_x()) continue;
      float amax = 0;
      for (int64_t j = 0; j < p_.hidden; ++j) amax = std::max(amax, finite_abs(static_cast<float>(x[j])));
      const float scale = scale_from_amax(amax, kI8Max), inverse = inverse_scale(scale);
      for (int64_t j = 0; j < p_.hidden; ++j) x[j] = encode_i8(static_cast<float>(x[j]) * inverse);
      x_scale_[static_cast<size_t>(t)] = scale;
    }
  }

  /// f8e4m3 codes of row t, given or made here: with scales of rows as they are, with block scales what they mean.
  void read_f8_row(int64_t t, double* x) {
    const Quant quant = p_.a_quant;
    if (!p_.quantises_x()) {
      for (int64_t j = 0; is_block(quant) && j < p_.hidden; ++j) x[j] *= block_scale_at(args_.x_scale, quant, 0, t, j);
      return;
    }
    const int64_t block = is_block(quant) ? block_k(quant) : p_.hidden;
    for (int64_t begin = 0; begin < p_.hidden; begin += block) {
      const int64_t end = std::min(p_.hidden, begin + block);
      float amax = 0;
      for (int64_t j = begin; j < end; ++j) amax = std::max(amax, finite_abs(static_cast<float>(x[j])));
      const bool mx = quant == Quant::per_1x32;
      const uint8_t exponent = mx ? mx_scale_code<F8e4m3>(amax) : uint8_t{0};
      const float scale = mx ? decode_e8m0(exponent) : scale_from_amax(amax, F8e4m3::max);
      const float inverse = mx ? inverse_e8m0(exponent) : inverse_scale(scale);
      for (int64_t j = begin; j < end; ++j) {
        x[j] = double{decode_f8e4m3(encode_f8e4m3(static_cast<float>(x[j]) * inverse))};
        if (is_block(quant)) x[j] *= double{scale};
      }
      if (!is_block(quant)) x_scale_[static_cast<size_t>(t)] = double{scale};
    }
  }

  std::vector<std::vector<Pair>> route() const {
    std::vector<int64_t> local(static_cast<size_t>(p_.experts), -1);
    int64_t next = 0;
    for (int64_t e = 0; e < p_.experts; ++e)
      if (!p_.expert_mask || static_cast<const int32_t*>(args_.expert_mask.data)[e] != 0) local[static_cast<size_t>(e)] = next++;
    std::vector<std::vector<Pair>> out(static_cast<size_t>(p_.local_experts));
    for (int64_t t = 0; t < tokens_; ++t)
      for (int64_t s = 0; s < p_.top_k; ++s) {
        const auto id = static_cast<int64_t>(load(args_.topk_ids, {t, s}));
        if (id < 0 || id >= p_.experts || local[static_cast<size_t>(id)] < 0) continue;
        out[static_cast<size_t>(local[static_cast<size_t>(id)])].push_back({t, load(args_.topk_weights, {t, s})});
      }
    return out;
  }

  /// Adds one expert's share to its tokens.
  void add(const Expert& e, const std::vector<Pair>& pairs, WeightStage stage) {
    if (pairs.empty()) return;
    std::vector<Ranged> h = stage_1(e, pairs, stage);
    std::vector<double> h_scale(pairs.size(), 1), scale_error(pairs.size(), 0);
    for (size_t i = 0; i < pairs.size(); ++i) {
      Ranged* row = h.data() + i * static_cast<size_t>(e.inter);
      if (p_.quantised() && p_.codes() == DType::i8) quantise(row, e.inter, h_scale[i], scale_error[i]);
      else if (p_.quantised()) quantise_f8(row, e.inter);
      else round_to_x(row, e.inter, pairs[i].token);
    }
    const std::vector<Ranged> y = stage_2(e, pairs.size(), h, h_scale, scale_error);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double weight = stage == WeightStage::first ? 1 : pairs[i].weight;
      for (int64_t j = 0; j < p_.hidden; ++j) {
        const Ranged& from = y[i * static_cast<size_t>(p_.hidden) + static_cast<size_t>(j)];
        const size_t to = size(pairs[i].token, p_.hidden) + static_cast<size_t>(j);
        sum_[to].value += weight * from.value;
        sum_[to].error += std::fabs(weight) * from.error;
        magnitude_[to] += std::fabs(weight * from.value);
      }
    }
  }

  /// body(n, rows, count) for kLanes rows of a weight matrix from row n on, the last time fewer, spread over the team; each row meets
  /// `pairs` others.
  template <class Body>
  void for_rows(const View& weights, const View& scale, int64_t index, int64_t count, size_t pairs, Body&& body) const {
    const WeightRows matrix(weights, index, scale, p_.scaled_as_codes() ? p_.w_quant : Quant::none);
    const double us = static_cast<double>(count * weights.shape[weights.rank - 1]) * static_cast<double>(2 + pairs) / 1e3;
    parallel(threads_for(us / 20, max_threads()), [&](int thread, int threads) {
      const auto k = static_cast<size_t>(weights.shape[weights.rank - 1]);
      std::vector<double> rows(k * kLanes);
      const Span mine = split(count, thread, threads, int64_t{kLanes});
      for (int64_t n = mine.begin; n < mine.end; n += int64_t{kLanes}) {
        const auto some = static_cast<size_t>(std::min(int64_t{kLanes}, mine.end - n));
        matrix.decode_lanes(n, some, rows.data());
        body(n, rows.data(), some);
      }
    });
  }

  /// Of sums of k products in f32. A row may multiply in bf16, and round codes with their scales to it.
  Tolerance tolerance_of(int64_t k) const {
    Tolerance t = gemm_tolerance(p_.multiplied(), DType::f32, k, p_.decodes());
    if (p_.scaled_as_codes()) t.bound_eps += bf16_operand_error(p_.multiplied(), p_.a_quant, p_.w, p_.w_quant);
    return t;
  }
  /// What all codes of row n of a weight are scaled by, beside block scales.
  double row_scale(const View& scale, const View& global, int64_t index, int64_t n) const {
    const double all = global.given() ? load(global, {index}) : 1;
    if (p_.scaled_as_codes() && is_block(p_.w_quant)) return all;
    const bool one = scale.given() && scale.shape[scale.rank - 1] == 1;
    return all * at(scale, index, one ? 0 : n, 1);
  }

  std::vector<Ranged> stage_1(const Expert& e, const std::vector<Pair>& pairs, WeightStage stage) const {
    const bool gated = p_.gate != GateLayout::none;
    const int64_t n1 = p_.w1_rows(e.inter);
    const Tolerance t = tolerance_of(p_.hidden);
    std::vector<Ranged> s(pairs.size() * static_cast<size_t>(n1)), h(pairs.size() * static_cast<size_t>(e.inter));
    for_rows(e.w1, e.w1_scale, e.index, n1, pairs.size(), [&](int64_t first, const double* w, size_t count) {
      for (size_t i = 0; i < pairs.size(); ++i) {
        const Sums sums = sums_of(x_.data() + size(pairs[i].token, p_.hidden), w, p_.hidden);
        for (size_t lane = 0; lane < count; ++lane) {
          const int64_t n = first + static_cast<int64_t>(lane);
          double scale = x_scale_[static_cast<size_t>(pairs[i].token)] * row_scale(e.w1_scale, e.w1_global_scale, e.index, n);
          if (stage == WeightStage::first) scale *= pairs[i].weight;
          const double bias = at(e.bias1, e.index, n, 0), value = sums.sum[lane] * scale + bias;
          s[i * static_cast<size_t>(n1) + static_cast<size_t>(n)] = {
              value, t.absolute + t.relative * std::fabs(value) + t.bound_eps * (sums.bound[lane] * std::fabs(scale) + std::fabs(bias))};
        }
      }
    });
    const double us = static_cast<double>(h.size()) / 10;  // about 0.1 us an element
    parallel(threads_for(us / 20, max_threads()), [&](int thread, int threads) {
      const Span mine = split(static_cast<int64_t>(pairs.size()), thread, threads);
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t j = 0; j < e.inter; ++j) {
          const bool interleaved = p_.gate == GateLayout::interleaved;
          const Ranged* row = s.data() + i * n1;
          const Ranged g = row[interleaved ? 2 * j : j];
          const Ranged u = !gated ? Ranged{} : row[interleaved ? 2 * j + 1 : e.inter + j];
          h[size(i, e.inter) + static_cast<size_t>(j)] = activated(gated, g, u);
        }
    });
    return h;
  }

  Ranged activated(bool gated, const Ranged& g, const Ranged& u) const {
    if (args_.activation.kind == ActivationKind::none) return g;
    const ExactActivation exact = activate_exact(args_.activation, gated, g.value, u.value);
    return {exact.value, activation_spread(args_.activation, gated, g.value, u.value, g.error, u.error) + exact.error_eps * kEps};
  }

  void round_to_x(Ranged* h, int64_t inter, int64_t token) {
    for (int64_t j = 0; j < inter; ++j) {
      if (p_.x == DType::f16 && std::fabs(h[j].value) + h[j].error >= max_finite(DType::f16)) open_[static_cast<size_t>(token)] = true;
      h[j].error += half_step(p_.x, std::fabs(h[j].value) + h[j].error);
    }
  }

  /// Replaces h by its codes; errors are then in units of codes.
  static void quantise(Ranged* h, int64_t inter, double& scale, double& scale_error) {
    double amax = 0, error = 0;
    for (int64_t j = 0; j < inter; ++j) {
      if (std::isfinite(h[j].value)) amax = std::max(amax, std::fabs(h[j].value));
      if (std::isfinite(h[j].error)) error = std::max(error, h[j].error);
    }
    scale = amax == 0 ? 0 : std::max(amax / kI8Max, 0x1p-126);
    if (error * 2 >= amax) {  // noise: in units of a scale that covers both
      const double unit = (amax + error) / kI8Max;
      for (int64_t j = 0; j < inter; ++j) h[j] = {unit == 0 ? 0 : h[j].value / unit, unit == 0 ? 0 : h[j].error / unit + 1};
      scale = unit;
      scale_error = kEps;
      return;
    }
    scale_error = error / amax + 2 * kEps;
    for (int64_t j = 0; j < inter; ++j) {
      const double v = h[j].value / scale, spread = h[j].error / scale + std::fabs(v) * (scale_error + kEps);
      const double code = code_of(v);
      h[j] = {code, std::isfinite(v) ? std::max(code_of(v + spread) - code, code - code_of(v - spread)) : 0};
    }
  }

  /// Replaces h by what its f8e4m3 codes mean.
  void quantise_f8(Ranged* h, int64_t inter) const {
    const Quant quant = p_.a_quant;
    const int64_t block = is_block(quant) ? block_k(quant) : std::max<int64_t>(1, inter);
    for (int64_t begin = 0; begin < inter; begin += block) quantise_f8_block(h + begin, std::min(block, inter - begin), quant);
  }
  static void quantise_f8_block(Ranged* h, int64_t n, Quant quant) {
    double amax = 0, error = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (std::isfinite(h[j].value)) amax = std::max(amax, std::fabs(h[j].value));
      if (std::isfinite(h[j].error)) error = std::max(error, h[j].error);
    }
    const auto mx_scale = [](double largest) { return double{decode_e8m0(mx_scale_code<F8e4m3>(static_cast<float>(largest)))}; };
    const bool mx = quant == Quant::per_1x32;
    // The largest scale that a kernel may find, and the one of exact arithmetic.
    const double most = mx ? mx_scale((amax + error) * (1 + kEps)) : std::max((amax + error) / 448, 0x1p-126);
    const double scale = mx ? mx_scale(amax) : amax == 0 ? 0 : std::max(amax / 448, 0x1p-126);
    const bool same = !mx || (mx_scale(std::max(0.0, amax - error) * (1 - kEps)) == most && scale == most);
    if (error * 2 >= amax || !same) {  // any scale up to `most`: the code is half a step away from some value within the error
      for (int64_t j = 0; j < n; ++j) {
        const double magnitude = std::fabs(h[j].value) + h[j].error;
        // 2^-4 of a normal value, 2^-10 of the scale of a subnormal one.
        h[j].error += std::max(magnitude * 0x1p-4, most * 0x1p-10) * (1 + kEps) + magnitude * kEps;
      }
      return;
    }
    const double drift = mx ? 0 : error / amax + 2 * kEps;  // of the scale
    for (int64_t j = 0; j < n; ++j) {
      const double v = h[j].value / scale, spread = h[j].error / scale + std::fabs(v) * (drift + kEps), code = f8_of(v);
      const double moved = std::isfinite(v) ? std::max(f8_of(v + spread) - code, code - f8_of(v - spread)) : 0;
      h[j] = {code * scale, scale * (moved + drift * (std::fabs(code) + moved))};
    }
  }

  std::vector<Ranged> stage_2(const Expert& e, size_t pairs, const std::vector<Ranged>& h, const std::vector<double>& h_scale,
                              const std::vector<double>& scale_error) const {
    const Tolerance t = tolerance_of(e.inter);
    std::vector<Ranged> y(pairs * static_cast<size_t>(p_.hidden));
    for_rows(e.w2, e.w2_scale, e.index, p_.hidden, pairs, [&](int64_t first, const double* w, size_t count) {
      for (size_t i = 0; i < pairs; ++i) {
        const Sums sums = sums_of(h.data() + i * static_cast<size_t>(e.inter), w, e.inter);
        for (size_t lane = 0; lane < count; ++lane) {
          const int64_t n = first + static_cast<int64_t>(lane);
          const double scale = h_scale[i] * row_scale(e.w2_scale, e.w2_global_scale, e.index, n), bias = at(e.bias2, e.index, n, 0);
          const double value = sums.sum[lane] * scale + bias, magnitude = (sums.bound[lane] + sums.carried[lane]) * std::fabs(scale);
          double error = sums.carried[lane] * std::fabs(scale) * (1 + scale_error[i]) + scale_error[i] * magnitude;
          error += t.absolute + t.relative * std::fabs(value) + t.bound_eps * (magnitude + std::fabs(bias));
          error += half_step(args_.out.dtype, std::fabs(value) + error);
          y[i * static_cast<size_t>(p_.hidden) + static_cast<size_t>(n)] = {value, error};
        }
      }
    });
    return y;
  }

  const FusedMoeArgs& args_;
  const FusedMoe::Problem p_;
  int64_t tokens_ = 0;
  std::vector<double> x_, x_scale_;
  std::vector<Ranged> sum_;
  std::vector<double> magnitude_;
  std::vector<bool> open_;
};

}  // namespace

void FusedMoe::reference(const Args& args, Oracle* oracle) {
  Block block(args);
  block.run();
  Expected expected;
  block.finish(oracle == nullptr ? nullptr : &expected);
  if (oracle != nullptr) *oracle = {std::move(expected)};
}

std::vector<Tolerance> FusedMoe::tolerance(const Problem& p) {
  // The bound is an absolute error already; what is left is one rounding to out's dtype.
  return {{.absolute = p.out == DType::f16 ? 0x1p-24 : 0x1p-126, .relative = epsilon(p.out) / 2, .bound_eps = 1 + epsilon(p.out)}};
}

}  // namespace eitri
