// device/x86/vec.h at every level the machine has: functions against double, conversions against the numerics contract
// on all 16-bit codes, partial forms against their bounds.
#include "device/x86/vec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "device/vec_level.h"

namespace eitri {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<VecLevel> levels() {
  std::vector<VecLevel> found = {vec_level_portable()};
#if EITRI_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(vec_level_avx2());
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    found.push_back(vec_level_avx512());
#endif
  return found;
}

// Error in units of the last place of the exact value; the unit of subnormals is 2^-149.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : kInf;
  if (static_cast<float>(exact) == got) return 0;
  if (!std::isfinite(got)) return kInf;
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Every binade and sign, densely around the interesting range, and the special values.
std::vector<float> arguments() {
  std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, kNan, 88.72283f, 88.72284f, -87.33655f, -103.97f, -104.1f, 1e-45f};
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 4099) {
    x.push_back(bits_float(bits));
    x.push_back(-bits_float(bits));
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> near(-20, 20), wide(-110, 110);
  for (int i = 0; i < 300000; ++i) x.push_back(i % 3 ? near(random) : wide(random));
  return x;
}

double exact(VecOp op, double x) {
  switch (op) {
    case VecOp::exp: return std::exp(x);
    case VecOp::sigmoid: return 1 / (1 + std::exp(-x));
    case VecOp::tanh: return std::tanh(x);
    case VecOp::erf: return std::erf(x);
    case VecOp::normal_cdf: return 0.5 * std::erfc(-x / std::sqrt(2.0));
    case VecOp::round_even: return std::nearbyint(x);
    case VecOp::abs: return std::abs(x);
    case VecOp::negate: return -x;
  }
  return 0;
}

TEST(Vec, FunctionsStayWithinTheirStatedError) {
  struct Limit {
    VecOp op;
    const char* name;
    double ulp;
  };
  const Limit limits[] = {{VecOp::exp, "exp", 1.1}, {VecOp::sigmoid, "sigmoid", 2.5}, {VecOp::tanh, "tanh", 2.5},
                          {VecOp::erf, "erf", 2.5}, {VecOp::normal_cdf, "cdf", 6},    {VecOp::round_even, "round_even", 0},
                          {VecOp::abs, "abs", 0},   {VecOp::negate, "negate", 0}};
  const std::vector<float> x = arguments();
  std::vector<float> y(x.size());
  for (const VecLevel& level : levels()) {
    for (const Limit& limit : limits) {
      level.unary(limit.op, x.data(), y.data(), static_cast<int64_t>(x.size()));
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        // sigmoid gives 0 where the exact value is subnormal.
        if (limit.op == VecOp::sigmoid && x[i] < -87.3f && y[i] >= 0 && y[i] < 1.3e-38f) continue;
        const double error = ulps(y[i], exact(limit.op, x[i]));
        if (error > worst) worst = error, at = x[i];
      }
      EXPECT_LE(worst, limit.ulp) << level.name << " " << limit.name << " at " << at;
      RecordProperty(std::string(level.name) + "_" + limit.name, std::to_string(worst));
    }
  }
}

TEST(Vec, PairsFollowIeeeAndKeepTheFirstOfNan) {
  const float values[] = {0.0f, -0.0f, 1.0f, -2.5f, kInf, -kInf, kNan, 3e38f, 1e-45f};
  std::vector<float> a, b;
  for (float x : values)
    for (float y : values) a.push_back(x), b.push_back(y);
  std::vector<float> y(a.size());
  for (const VecLevel& level : levels()) {
    for (VecPair op :
         {VecPair::add, VecPair::subtract, VecPair::multiply, VecPair::divide, VecPair::min, VecPair::max, VecPair::less, VecPair::equal}) {
      level.pair(op, a.data(), b.data(), y.data(), static_cast<int64_t>(a.size()));
      for (size_t i = 0; i < a.size(); ++i) {
        float want = 0;
        if (op == VecPair::add) want = a[i] + b[i];
        if (op == VecPair::subtract) want = a[i] - b[i];
        if (op == VecPair::multiply) want = a[i] * b[i];
        if (op == VecPair::divide) want = a[i] / b[i];
        if (op == VecPair::min) want = b[i] < a[i] ? b[i] : a[i];
        if (op == VecPair::max) want = b[i] > a[i] ? b[i] : a[i];
        if (op == VecPair::less) want = a[i] < b[i];
        if (op == VecPair::equal) want = a[i] == b[i] || std::isnan(a[i]);
        const bool same = std::isnan(want) ? std::isnan(y[i]) : float_bits(want) == float_bits(y[i]);
        EXPECT_TRUE(same) << level.name << " op " << static_cast<int>(op) << " " << a[i] << " " << b[i] << ": " << y[i];
      }
    }
  }
}

TEST(Vec, SixteenBitConversionsAgreeWithTheContract) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> values(codes.size());
  std::vector<float> inputs = arguments();
  for (uint32_t code = 0; code < 65536; ++code) {  // values, and their neighbours around the ties
    for (uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u}) inputs.push_back(bits_float(code << 16 | low));
    const uint32_t half = float_bits(decode_f16(static_cast<uint16_t>(code)));
    for (uint32_t low : {0u, 0xfffu, 0x1000u, 0x1001u}) inputs.push_back(bits_float(half + low));
  }
  std::vector<uint16_t> stored(inputs.size());
  for (const VecLevel& level : levels()) {
    for (DType dtype : {DType::bf16, DType::f16}) {
      const bool bf16 = dtype == DType::bf16;
      level.load(dtype, codes.data(), values.data(), 65536);
      for (size_t i = 0; i < codes.size(); ++i) {
        const float want = bf16 ? decode_bf16(codes[i]) : decode_f16(codes[i]);
        ASSERT_TRUE(std::isnan(want) ? std::isnan(values[i]) : float_bits(values[i]) == float_bits(want)) << level.name << " code " << i;
      }
      level.store(dtype, inputs.data(), stored.data(), static_cast<int64_t>(inputs.size()));
      for (size_t i = 0; i < inputs.size(); ++i) {
        const uint16_t want = bf16 ? encode_bf16(inputs[i]) : encode_f16(inputs[i]);
        ASSERT_EQ(stored[i], want) << level.name << (bf16 ? " bf16 " : " f16 ") << inputs[i];
      }
    }
  }
}

TEST(Vec, IntegersAgreeWithTheContract) {
  std::vector<float> inputs = arguments();
  for (int i = -300; i <= 300; ++i) inputs.push_back(static_cast<float>(i) / 2);
  std::vector<int8_t> stored(inputs.size());
  std::vector<int8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<size_t>(i)] = static_cast<int8_t>(i - 128);
  const std::vector<int32_t> words = {0, 1, -1, 16777217, -2147483647 - 1, 2147483647, 7, 8, 9, 10, 11};
  std::vector<float> values(256);
  for (const VecLevel& level : levels()) {
    level.store(DType::i8, inputs.data(), stored.data(), static_cast<int64_t>(inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) ASSERT_EQ(stored[i], encode_i8(inputs[i])) << level.name << " " << inputs[i];
    level.load(DType::i8, codes.data(), values.data(), 256);
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(values[i], static_cast<float>(codes[i]));
    level.load(DType::i32, words.data(), values.data(), static_cast<int64_t>(words.size()));
    for (size_t i = 0; i < words.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(words[i])) << level.name;
  }
}

TEST(Vec, PartialFormsTouchNothingBeyondTheirElements) {
  for (const VecLevel& level : levels()) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
      const size_t bytes = dtype == DType::f32 ? 4 : dtype == DType::i8 ? 1 : 2;
      for (int64_t n = 0; n <= level.lanes; ++n) {
        // Exactly sized heap blocks: a sanitizer sees a read beyond them.
        std::vector<float> x(static_cast<size_t>(n), 3.0f), back(static_cast<size_t>(n));
        std::vector<uint8_t> codes(static_cast<size_t>(n) * bytes + 64, 0xa5);
        level.store(dtype, x.data(), codes.data(), n);
        for (size_t i = static_cast<size_t>(n) * bytes; i < codes.size(); ++i) ASSERT_EQ(codes[i], 0xa5);
        std::vector<uint8_t> exact_size(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(n) * bytes));
        level.load(dtype, exact_size.data(), back.data(), n);
        for (float value : back) ASSERT_EQ(value, 3.0f);
      }
    }
  }
}

TEST(Vec, ReductionsCoverEveryLane) {
  for (const VecLevel& level : levels()) {
    for (int lane = 0; lane < level.lanes; ++lane) {
      std::vector<float> x(static_cast<size_t>(level.lanes), -1.0f);
      x[static_cast<size_t>(lane)] = 5.0f;
      EXPECT_EQ(level.sum(x.data()), 5.0f - static_cast<float>(level.lanes - 1));
      EXPECT_EQ(level.largest(x.data()), 5.0f);
    }
  }
}

double activation_exact(const ActivationParams& p, double g, const double* u) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  double up = u ? *u : 1;
  switch (p.kind) {
    case ActivationKind::none: return g * up;
    case ActivationKind::relu: return std::max(g, 0.0) * up;
    case ActivationKind::silu:
      if (p.limit > 0) g = std::min(g, static_cast<double>(p.limit));
      if (p.limit > 0 && u) up = std::clamp(up, -static_cast<double>(p.limit), static_cast<double>(p.limit));
      return g * sigmoid(g) * up;
    case ActivationKind::gelu: return g * 0.5 * std::erfc(-g / std::sqrt(2.0)) * up;
    case ActivationKind::gelu_tanh: {
      const double y = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
      return g * sigmoid(2 * y) * up;
    }
    case ActivationKind::swiglu:
      if (p.limit > 0)
        g = std::min(g, static_cast<double>(p.limit)), up = std::clamp(up, -static_cast<double>(p.limit), static_cast<double>(p.limit));
      return g * sigmoid(static_cast<double>(p.alpha) * g) * (up + 1);
    case ActivationKind::situv2: {
      const double b = p.beta, l = p.linear_beta;
      return b * std::tanh(g / b) * sigmoid(g) * l * std::tanh(up / l);
    }
  }
  return 0;
}

TEST(Activation, FollowsItsFormula) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> g(20001), u(g.size()), y(g.size());
  for (size_t i = 0; i < g.size(); ++i) g[i] = normal(random), u[i] = normal(random);
  for (const VecLevel& level : levels()) {
    for (float limit : {0.0f, 3.0f})
      for (int kind = 0; kind <= static_cast<int>(ActivationKind::situv2); ++kind)
        for (bool gated : {false, true}) {
          const ActivationParams p = {.kind = static_cast<ActivationKind>(kind), .limit = limit};
          if (!gated && p.kind >= ActivationKind::swiglu) continue;
          level.activate(p, g.data(), gated ? u.data() : nullptr, y.data(), static_cast<int64_t>(g.size()));
          for (size_t i = 0; i < g.size(); ++i) {
            const double up = u[i], want = activation_exact(p, g[i], gated ? &up : nullptr);
            // swiglu's u + 1 is one rounding of up; the exponent of gelu_tanh's tail multiplies its rounding.
            ASSERT_LE(std::abs(y[i] - want), 1e-6 * (std::abs(want) + 1e-3) * (p.kind == ActivationKind::gelu_tanh ? 40 : 2))
                << level.name << " kind " << kind << " gated " << gated << " g " << g[i] << " u " << u[i];
          }
          // NaN in either operand stays NaN.
          const float bad[2] = {kNan, 1.0f}, good[2] = {1.0f, kNan};
          level.activate(p, bad, gated ? good : nullptr, y.data(), 2);
          EXPECT_TRUE(std::isnan(y[0])) << level.name << " kind " << kind;
          EXPECT_EQ(std::isnan(y[1]), gated) << level.name << " kind " << kind;
        }
  }
}

}  // namespace
}  // namespace eitri
