// activation against values of the formulas in eitri/enums.hpp, worked out by hand.
#include "ops/activation/activation.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using golden::with_every_kernel;
using testing::ElementsAre;
using testing::HasSubstr;

/// One row through every kernel; each result within a few fp32 ulp of `expected`.
void expect_row(std::vector<float> x, ActivationParams params, GateLayout gate, std::vector<double> expected) {
  std::vector<float> out(expected.size());
  ActivationArgs args;
  args.x = View(x.data(), DType::f32, {1, static_cast<int64_t>(x.size())});
  args.out = View(out.data(), DType::f32, {1, static_cast<int64_t>(out.size())});
  args.activation = params;
  args.gate = gate;
  with_every_kernel<Activation>(args, [&] {
    out.assign(out.size(), -7);
    call<Activation>(args);
    for (size_t j = 0; j < out.size(); ++j) EXPECT_NEAR(out[j], expected[j], 2e-6 * std::fabs(expected[j])) << "column " << j;
  });
}

TEST(ActivationGolden, WithoutGate) {
  const std::vector<float> x = {-1, 0, 2};
  expect_row(x, {.kind = ActivationKind::none}, GateLayout::none, {-1, 0, 2});
  expect_row(x, {.kind = ActivationKind::relu}, GateLayout::none, {0, 0, 2});
  expect_row(x, {.kind = ActivationKind::silu}, GateLayout::none, {-0.2689414213699951, 0, 1.7615941559557649});
  expect_row(x, {.kind = ActivationKind::gelu}, GateLayout::none, {-0.15865525393145707, 0, 1.9544997361036416});
  expect_row(x, {.kind = ActivationKind::gelu_tanh}, GateLayout::none, {-0.15880800939172324, 0, 1.9545976940877752});
}

TEST(ActivationGolden, Layouts) {
  // gates 1, 2; ups 10, 20
  const std::vector<double> expected = {10 * 0.7310585786300049, 20 * 1.7615941559557649};
  expect_row({1, 2, 10, 20}, {.kind = ActivationKind::silu}, GateLayout::separated, expected);
  expect_row({1, 10, 2, 20}, {.kind = ActivationKind::silu}, GateLayout::interleaved, expected);
}

TEST(ActivationGolden, GatedKinds) {
  expect_row({-1, 3}, {.kind = ActivationKind::gelu}, GateLayout::separated, {-0.4759657617943712});
  expect_row({-1, 3}, {.kind = ActivationKind::gelu_tanh}, GateLayout::separated, {-0.4764240281751697});
  // gpt-oss: 1 * sigmoid(1.702) * (2 + 1)
  expect_row({1, 2}, {.kind = ActivationKind::swiglu}, GateLayout::separated, {3 / (1 + std::exp(-1.702))});
  // 4 tanh(1/4) sigmoid(1) * 25 tanh(2/25)
  expect_row({1, 2}, {.kind = ActivationKind::situv2}, GateLayout::separated,
             {4 * std::tanh(.25) / (1 + std::exp(-1.0)) * 25 * std::tanh(.08)});
}

TEST(ActivationGolden, Limits) {
  // silu: the gate is capped above only, up on both sides.
  const double silu7 = 7 / (1 + std::exp(-7.0)), silu_minus9 = -9 / (1 + std::exp(9.0));
  expect_row({9, 9, -9, 9, -9, 3}, {.kind = ActivationKind::silu, .limit = 7}, GateLayout::separated,
             {silu7 * 7, silu7 * -7, silu_minus9 * 3});
  const double glu7 = 7 / (1 + std::exp(-1.702 * 7));
  expect_row({9, 9, 9, -9}, {.kind = ActivationKind::swiglu, .limit = 7}, GateLayout::separated, {glu7 * 8, glu7 * -6});
}

TEST(ActivationGolden, Quantised) {
  // Nothing is rounded between activation and codes: relu of 127, 63.5, -5 and 1.
  std::vector<float> x = {127, 62.5f, -5, 1, 0, 0, -1, -2}, scale(2);
  std::vector<int8_t> q(8);
  ActivationArgs args;
  args.x = View(x.data(), DType::f32, {2, 4});
  args.out = View(q.data(), DType::i8, {2, 4});
  args.scale = View(scale.data(), DType::f32, {2});
  args.activation.kind = ActivationKind::relu;
  with_every_kernel<Activation>(args, [&] {
    q.assign(8, -128);
    scale.assign(2, -7);
    call<Activation>(args);
    EXPECT_THAT(q, ElementsAre(127, 62, 0, 1, 0, 0, 0, 0));
    EXPECT_THAT(scale, ElementsAre(1, 0));
  });
}

TEST(ActivationGolden, Refusals) {
  std::vector<float> x(4), out(4), scale(1);
  ActivationArgs args;
  args.x = View(x.data(), DType::f32, {1, 4});
  args.out = View(out.data(), DType::f32, {1, 4});
  args.activation.kind = ActivationKind::swiglu;
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("activation: gate is none; expected separated or interleaved"));
  args.activation.kind = ActivationKind::relu;
  args.gate = GateLayout::separated;
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("activation is relu; expected silu"));
  args.activation.kind = ActivationKind::silu;
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("out is f32[1, 4]; expected f32, bf16 or f16 [1, 2]"));
  args.out = View(out.data(), DType::f32, {1, 2});
  args.scale = View(scale.data(), DType::f32, {1});
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("scale is f32[1]; expected none"));
  args.scale = {};
  args.activation.limit = -1;
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("limit is -1"));
  args.activation.limit = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("limit is nan"));
  args.activation = {.kind = ActivationKind::gelu, .limit = 1};
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("limit is 1; expected 0 (activation is gelu)"));
  args.activation = {.kind = ActivationKind::silu};
  args.out.data = x.data();
  EXPECT_THAT(refusal<Activation>(args), HasSubstr("shares memory with x"));
}

}  // namespace
}  // namespace eitri
