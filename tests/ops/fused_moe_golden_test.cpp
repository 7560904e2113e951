// fused_moe by hand: layers so small that the result can be followed on paper, and every argument error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/view.h"
#include "dispatch/maker.h"
#include "eitri/eitri.hpp"
#include "harness/every_kernel.h"
#include "ops/fused_moe/fused_moe.h"

namespace eitri {
namespace {

using harness::with_every_kernel;

/// Tensors with given values, owned by a Maker.
class Tensors {
 public:
  View operator()(const char* name, DType dtype, std::initializer_list<int64_t> shape, std::initializer_list<double> values) {
    const View view = maker.dense(name, dtype, shape, Fill::zero);
    int64_t i = 0;
    for (const double v : values) store_at(view.data, dtype, i++, v);
    return view;
  }
  Maker maker{{.guards = true}};
};

/// Two experts, hidden 2, inter 1, no gate, relu: all of it exact in bf16.
FusedMoeArgs tiny_layer(Tensors& make) {
  FusedMoeArgs args;
  args.activation.kind = ActivationKind::relu;
  args.gate = GateLayout::none;
  args.x = make("x", DType::bf16, {1, 2}, {1, 2});
  args.w1 = make("w1", DType::bf16, {2, 1, 2}, {1, 1, 1, -1});
  args.w2 = make("w2", DType::bf16, {2, 2, 1}, {1, 2, 4, -2});
  args.bias1 = make("bias1", DType::f32, {2, 1}, {0, 3});
  args.bias2 = make("bias2", DType::f32, {2, 2}, {1, 0, 0, 0});
  args.topk_ids = make("topk_ids", DType::i32, {1, 2}, {1, 0});
  args.topk_weights = make("topk_weights", DType::f32, {1, 2}, {0.25, 0.5});
  args.out = make.maker.output("out", DType::f32, {1, 2});
  return args;
}

void expect_out(const FusedMoeArgs& args, std::initializer_list<double> values, double relative = 0) {
  int64_t i = 0;
  for (const double v : values) {
    const double got = load(args.out, {i / args.out.shape[1], i % args.out.shape[1]});
    EXPECT_LE(std::fabs(got - v), relative * std::fabs(v)) << "element " << i << " is " << got << "; expected " << v;
    ++i;
  }
}

TEST(FusedMoeGolden, two_experts_with_biases) {
  Tensors make;
  const FusedMoeArgs args = tiny_layer(make);
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    // expert 0: h = 1 + 2 = 3, y = (3, 6) + (1, 0) = (4, 6); expert 1: h = 1 - 2 + 3 = 2, y = (8, -4)
    expect_out(args, {0.5 * 4 + 0.25 * 8, 0.5 * 6 + 0.25 * -4});
    EXPECT_EQ(make.maker.damage(), "");
  });
}

TEST(FusedMoeGolden, the_weight_can_come_before_the_activation) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.weight_stage = WeightStage::first;
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    // expert 0: h = 0.5 * 3 = 1.5, y = (2.5, 3); expert 1: h = 0.25 * -1 + 3 = 2.75, y = (11, -5.5)
    expect_out(args, {2.5 + 11, 3 - 5.5});
  });
}

TEST(FusedMoeGolden, a_shared_expert_meets_every_token) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.shared_w1 = make("shared_w1", DType::bf16, {2, 2}, {0, 1, 1, 0});
  args.shared_w2 = make("shared_w2", DType::bf16, {2, 2}, {1, 1, 1, -1});
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    expect_out(args, {4 + (2 + 1), 2 + (2 - 1)});  // shared h = (2, 1)
  });
}

TEST(FusedMoeGolden, gate_and_up_in_both_layouts) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.bias1 = {};
  args.activation.kind = ActivationKind::silu;
  args.topk_ids = make("ids", DType::i32, {1, 1}, {0});
  args.topk_weights = make("weights", DType::f32, {1, 1}, {1});
  const View separated = make("separated w1", DType::bf16, {1, 4, 2}, {1, 0, /**/ 0, 1, /**/ 2, 0, /**/ 0, 2});
  const View interleaved = make("interleaved w1", DType::bf16, {1, 4, 2}, {1, 0, /**/ 2, 0, /**/ 0, 1, /**/ 0, 2});
  args.w2 = make("gated w2", DType::bf16, {1, 2, 2}, {1, 0, 0, 1});
  args.bias2 = {};
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  for (const GateLayout gate : {GateLayout::separated, GateLayout::interleaved}) {
    args.gate = gate;
    args.w1 = gate == GateLayout::separated ? separated : interleaved;
    with_every_kernel<FusedMoe>(args, [&](const char*) {
      make.maker.poison_outputs();
      fused_moe(args);
      // gates 1 and 2, ups 2 and 4
      const double first = silu(1) * 2, second = silu(2) * 4;
      expect_out(args, {first, second}, 0x1p-7);
    });
  }
}

TEST(FusedMoeGolden, B17_an_expert_twice_counts_twice) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.w1 = make("w1 of 4", DType::bf16, {4, 1, 2}, {9, 9, 1, 1, 1, 0, 9, 9});
  args.w2 = make("w2 of 4", DType::bf16, {4, 2, 1}, {9, 9, 1, 2, 4, 8, 9, 9});
  args.bias1 = args.bias2 = {};
  args.topk_ids = make("ids", DType::i32, {1, 3}, {1, 1, 2});
  args.topk_weights = make("weights", DType::f32, {1, 3}, {.25, .25, .5});
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    expect_out(args, {.5 * 3 + .5 * 4, .5 * 6 + .5 * 8});
  });
}

TEST(FusedMoeGolden, B18_ids_outside_and_masked_experts_add_nothing) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.x = make("x of 2", DType::bf16, {2, 2}, {1, 2, 1, 2});
  args.out = make.maker.output("out of 2", DType::f32, {2, 2});
  args.expert_mask = make("mask", DType::i32, {5}, {0, 1, 0, 1, 0});  // local 0 is global 1, local 1 is global 3
  args.topk_ids = make("ids", DType::i32, {2, 4}, {-1, 3, 0, 5, 4, 2, 1, 2147483647});
  args.topk_weights = make("weights", DType::f32, {2, 4}, {1, .25, 1, 1, 1, 1, .5, 1});
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    expect_out(args, {.25 * 8, .25 * -4, .5 * 4, .5 * 6});
  });
}

TEST(FusedMoeGolden, rows_behind_the_local_tokens_become_zero_whatever_they_hold) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  args.x = make("x of 3", DType::bf16, {3, 2}, {1, 2, nan, nan, nan, nan});
  args.out = make.maker.output("out of 3", DType::f32, {3, 2});
  args.shared_w1 = make("shared_w1", DType::bf16, {1, 2}, {0, 1});
  args.shared_w2 = make("shared_w2", DType::bf16, {2, 1}, {1, 1});
  args.topk_ids = make("ids", DType::i32, {3, 2}, {1, 0, 1, 0, 7, 0});
  args.topk_weights = make("weights", DType::f32, {3, 2}, {.25, .5, nan, nan, nan, nan});
  args.num_local_tokens = make("num_local_tokens", DType::i32, {1}, {1});
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    expect_out(args, {4 + 2, 2 + 2, 0, 0, 0, 0});
  });
}

TEST(FusedMoeGolden, int8_codes_by_hand) {
  Tensors make;
  FusedMoeArgs args = tiny_layer(make);
  args.bias1 = args.bias2 = {};
  args.x = make("x of int8", DType::bf16, {1, 2}, {1, -1});  // codes 127, -127, scale 1/127
  args.w1 = make("w1 codes", DType::i8, {1, 2, 2}, {100, 27, 64, 127});
  args.w1_scale = make("w1_scale", DType::f32, {1, 2}, {1. / 64, 1. / 64});
  args.w2 = make("w2 codes", DType::i8, {1, 2, 2}, {64, 100, -127, 3});
  args.w2_scale = make("w2_scale", DType::f32, {1, 2}, {1. / 64, 1. / 32});
  args.topk_ids = make("ids", DType::i32, {1, 1}, {0});
  args.topk_weights = make("weights", DType::f32, {1, 1}, {2});
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    // h = relu(73, -63) / 64 = (73/64, 0): codes 127, 0
    expect_out(args, {2 * 73. / 64, 2 * 73. / 64 * -127 / 32}, 0x1p-20);
  });
}

/// tiny_layer with one expert, 32 of hidden and no biases: x is (1, 2, 0 ...).
FusedMoeArgs coded_layer(Tensors& make) {
  FusedMoeArgs args;
  args.activation.kind = ActivationKind::relu;
  args.gate = GateLayout::none;
  args.x = make("x", DType::bf16, {1, 32}, {1, 2});
  args.topk_ids = make("ids", DType::i32, {1, 1}, {0});
  args.topk_weights = make("weights", DType::f32, {1, 1}, {2});
  args.out = make.maker.output("out", DType::f32, {1, 32});
  return args;
}

TEST(FusedMoeGolden, mxfp4_weights_by_hand) {
  Tensors make;
  FusedMoeArgs args = coded_layer(make);
  args.w_quant = Quant::per_1x32;
  args.w1 = make("w1", DType::f4e2m1, {1, 1, 32}, {3, -0.5});
  args.w1_scale = make("w1_scale", DType::f8e8m0, {1, 1, 1}, {4});
  View w2 = make("w2", DType::f4e2m1, {1, 32, 2}, {6, 6, 1.5, 6, -4, 6});  // the odd elements are padding of rows of one
  w2.shape[2] = 1;
  args.w2 = w2;
  args.w2_scale = make("w2_scale", DType::f8e8m0, {1, 32, 1}, {0.25, 0.25, 2});
  for (int64_t i = 3; i < 32; ++i) store(args.w2_scale, {0, i, 0}, 1);
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    // h = 4 * (3 - 2 * 0.5) = 8; out = 2 * 8 * (6 / 4, 1.5 / 4, -4 * 2, 0 ...)
    expect_out(args, {24, 6, -128, 0, 0});
  });
}

TEST(FusedMoeGolden, nvfp4_and_int4_weights_by_hand) {
  for (const DType dtype : {DType::f4e2m1, DType::i4}) {
    Tensors make;
    FusedMoeArgs args = coded_layer(make);
    args.w1 = make("w1", dtype, {1, 1, 32}, {3, -1});
    args.w2 = make("w2", dtype, {1, 32, 2}, {4, 0, 1, 0, -2, 0});
    args.w2.shape[2] = 1;
    if (dtype == DType::i4) {
      args.w_quant = Quant::per_token;  // one scale a row
      args.w1_scale = make("w1_scale", DType::f32, {1, 1}, {0.5});
      args.w2_scale = make("w2_scale", DType::f32, {1, 32}, {1, 8, 0.5});
    } else {
      args.w_quant = Quant::per_1x16;
      args.w1_scale = make("w1_scale", DType::f8e4m3, {1, 1, 2}, {4, 100});
      args.w2_scale = make("w2_scale", DType::f8e4m3, {1, 32, 1}, {0.5, 4, 0.25});
      args.w1_global_scale = make("w1_global_scale", DType::f32, {1}, {0.125});
      args.w2_global_scale = make("w2_global_scale", DType::f32, {1}, {2});
    }
    with_every_kernel<FusedMoe>(args, [&](const char*) {
      make.maker.poison_outputs();
      fused_moe(args);
      // h = (3 - 2) / 2; out = 2 * h * (4 * 1, 1 * 8, -2 / 2, 0 ...)
      expect_out(args, {4, 8, -1, 0, 0});
    });
  }
}

// i8 weights: with w_quant alone x stays as it is, else it is quantised.
TEST(FusedMoeGolden, int8_weights_alone) {
  Tensors make;
  FusedMoeArgs args = coded_layer(make);
  args.x = make("x of fractions", DType::bf16, {1, 32}, {1, 0.00390625});  // the second one is 0 in codes of 1 / 127
  args.w1 = make("w1", DType::i8, {1, 1, 32}, {1, 126});
  args.w1_scale = make("w1_scale", DType::f32, {1, 1}, {1});
  args.w2 = make("w2", DType::i8, {1, 32, 1}, {2, -127});
  args.w2_scale = make("w2_scale", DType::f32, {1, 32}, {1, 1});
  EXPECT_EQ(FusedMoe::check(args).a_quant, Quant::per_token);
  args.w_quant = Quant::per_token;
  EXPECT_EQ(FusedMoe::check(args).a_quant, Quant::none);
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    make.maker.poison_outputs();
    fused_moe(args);
    const double h = 1 + 126. / 256;
    expect_out(args, {2 * 2 * h, 2 * -127 * h});
  });
  args.a_quant = Quant::per_token;
  EXPECT_EQ(FusedMoe::check(args).a_quant, Quant::per_token);
}

// f8e4m3 activations: x and h are coded with the scale of their token; an x of codes gives the same.
TEST(FusedMoeGolden, f8_activations_by_hand) {
  Tensors make;
  FusedMoeArgs args = coded_layer(make);
  args.x = make("x of f8", DType::bf16, {1, 32}, {448, 17});  // 17 lies between the codes 16 and 18: 16
  args.w1 = make("w1", DType::f8e4m3, {1, 1, 32}, {1, 2});
  args.w1_scale = make("w1_scale", DType::f32, {1, 1}, {0.5});
  args.w2 = make("w2", DType::f8e4m3, {1, 32, 1}, {2, -1});
  args.w2_scale = make("w2_scale", DType::f32, {1, 1}, {4});
  args.a_quant = Quant::per_token, args.w_quant = Quant::per_tensor;
  const auto expect = [&](const FusedMoeArgs& a) {
    with_every_kernel<FusedMoe>(a, [&](const char*) {
      make.maker.poison_outputs();
      fused_moe(a);
      // h = (448 + 32) / 2 = 240, alone in its token: code 448 of scale 240 / 448. out = 2 * 4 * 240 * (2, -1, 0 ...)
      expect_out(a, {3840, -1920, 0, 0}, 1e-6);
    });
  };
  expect(args);
  args.x = make("codes", DType::f8e4m3, {1, 32}, {448, 16});
  args.x_scale = make("x_scale", DType::f32, {1}, {1});
  expect(args);
  args.a_quant = Quant::none;  // an x of codes is of tokens then
  EXPECT_EQ(FusedMoe::check(args).a_quant, Quant::per_token);
  args.x_scale = {};
  EXPECT_THROW(FusedMoe::check(args), Error);
}

struct BadCall {
  const char* argument;  // how the message names it
  std::function<void(FusedMoeArgs&, Tensors&)> change;
};

TEST(FusedMoeErrors, name_argument_got_and_wanted) {
  const BadCall calls[] = {
      {"x is f32[1, 2]; expected bf16, f16, i8 or f8e4m3",
       [](auto& a, auto& t) {
         a.x = t("x", DType::f32, {1, 2}, {});
       }},
      {"x is bf16[2]; expected rank 2", [](auto& a, auto& t) { a.x = t("x", DType::bf16, {2}, {}); }},
      {"x is none", [](auto& a, auto&) { a.x = {}; }},
      {"w1 is f16[2, 1, 2]; expected bf16",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f16, {2, 1, 2}, {});
       }},
      {"w1 is bf16[2, 3, 2]; expected bf16[2, 1, 2]",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::bf16, {2, 3, 2}, {});
       }},
      {"w1 is bf16[2, 1, 2]; expected bf16[2, 2, 2]",
       [](auto& a, auto&) { a.gate = GateLayout::separated, a.activation.kind = ActivationKind::silu; }},
      {"w2 is bf16[3, 2, 1]; expected bf16[2, 2, 1]",
       [](auto& a, auto& t) {
         a.w2 = t("w2", DType::bf16, {3, 2, 1}, {});
       }},
      {"w2 is f16[2, 2, 1]; expected bf16",
       [](auto& a, auto& t) {
         a.w2 = t("w2", DType::f16, {2, 2, 1}, {});
       }},
      {"swiglu", [](auto& a, auto&) { a.activation.kind = ActivationKind::swiglu; }},
      {"situv2", [](auto& a, auto&) { a.activation.kind = ActivationKind::situv2; }},
      {"gate",
       [](auto& a, auto& t) {
         a.gate = GateLayout::separated, a.w1 = t("w1", DType::bf16, {2, 2, 2}, {});
       }},
      {"w1_scale is f32[2, 1]; expected none",
       [](auto& a, auto& t) {
         a.w1_scale = t("s", DType::f32, {2, 1}, {});
       }},
      {"x_scale is f32[1]; expected none", [](auto& a, auto& t) { a.x_scale = t("s", DType::f32, {1}, {}); }},
      {"w1_scale is none; expected f32[2, 1]",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::i8, {2, 1, 2}, {}), a.w2 = t("w2", DType::i8, {2, 2, 1}, {});
       }},
      {"w1 is bf16[2, 1, 2]; expected i8",
       [](auto& a, auto& t) {
         a.x = t("x", DType::i8, {1, 2}, {});
       }},
      {"w1 is f8e5m2[2, 1, 2]; expected bf16 (dtype of x), i8, f8e4m3, i4 or f4e2m1",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e5m2, {2, 1, 2}, {});
       }},
      {"w_quant is none; expected what shares a scale of w1",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e4m3, {2, 1, 2}, {});
       }},
      {"a_quant is per_1x128 and w_quant is per_1x32; expected per_token with per_tensor or per_token, per_1x128 with per_128x128",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e4m3, {2, 1, 2}, {}), a.w2 = t("w2", DType::f8e4m3, {2, 2, 1}, {});
         a.w_quant = Quant::per_1x32, a.a_quant = Quant::per_1x128;
       }},
      {"a_quant is per_tensor and w_quant is per_tensor; expected per_token with per_tensor",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e4m3, {2, 1, 2}, {}), a.w2 = t("w2", DType::f8e4m3, {2, 2, 1}, {});
         a.w_quant = a.a_quant = Quant::per_tensor;
       }},
      {"w1 is bf16[2, 1, 2]; expected f8e4m3 (dtype of x) or f4e2m1",
       [](auto& a, auto& t) {
         a.x = t("x", DType::f8e4m3, {1, 2}, {});
       }},
      {"w1_scale is none; expected f32[2, 1, 1] (f8e4m3 per_128x128)",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e4m3, {2, 1, 2}, {}), a.w2 = t("w2", DType::f8e4m3, {2, 2, 1}, {});
         a.w_quant = Quant::per_128x128;
       }},
      {"w_quant is per_1x16; expected another (w1 is f8e4m3)",
       [](auto& a, auto& t) {
         a.w1 = t("w1", DType::f8e4m3, {2, 1, 2}, {}), a.w2 = t("w2", DType::f8e4m3, {2, 2, 1}, {});
         a.w_quant = Quant::per_1x16;
       }},
      {"w_quant is per_token; expected none (w1 is bf16)", [](auto& a, auto&) { a.w_quant = Quant::per_token; }},
      {"w1_global_scale is f32[2]; expected none", [](auto& a, auto& t) { a.w1_global_scale = t("g", DType::f32, {2}, {}); }},
      {"bias1 is bf16[2, 1]; expected f32[2, 1]",
       [](auto& a, auto& t) {
         a.bias1 = t("b", DType::bf16, {2, 1}, {});
       }},
      {"bias2 is f32[2, 1]; expected f32[2, 2]",
       [](auto& a, auto& t) {
         a.bias2 = t("b", DType::f32, {2, 1}, {});
       }},
      {"topk_ids is i64[1, 2]; expected i32",
       [](auto& a, auto& t) {
         a.topk_ids = t("ids", DType::i64, {1, 2}, {});
       }},
      {"topk_ids is i32[2, 2]; expected i32[1, any]",
       [](auto& a, auto& t) {
         a.topk_ids = t("ids", DType::i32, {2, 2}, {});
       }},
      {"topk_weights is f32[1, 1]; expected f32[1, 2]",
       [](auto& a, auto& t) {
         a.topk_weights = t("w", DType::f32, {1, 1}, {});
       }},
      {"topk_ids is i32[1, 3]; expected at most 2 slots",
       [](auto& a, auto& t) {
         a.topk_ids = t("ids", DType::i32, {1, 3}, {}), a.topk_weights = t("w", DType::f32, {1, 3}, {});
       }},
      {"expert_mask is i32[3] with 1 experts on; expected 2",
       [](auto& a, auto& t) {
         a.expert_mask = t("m", DType::i32, {3}, {0, 1, 0});
       }},
      {"num_local_tokens is i32[2]", [](auto& a, auto& t) { a.num_local_tokens = t("n", DType::i32, {2}, {}); }},
      {"shared_w1 is bf16[1, 2] and shared_w2 is none",
       [](auto& a, auto& t) {
         a.shared_w1 = t("s", DType::bf16, {1, 2}, {});
       }},
      {"shared_w1 is bf16[3, 2]; expected bf16[1, 2]",
       [](auto& a, auto& t) {
         a.shared_w1 = t("s", DType::bf16, {3, 2}, {}), a.shared_w2 = t("s2", DType::bf16, {2, 1}, {});
       }},
      {"shared_w1_scale is f32[1]; expected none", [](auto& a, auto& t) { a.shared_w1_scale = t("s", DType::f32, {1}, {}); }},
      {"out is i8[1, 2]; expected f32, bf16 or f16 [1, 2]",
       [](auto& a, auto& t) {
         a.out = t("out", DType::i8, {1, 2}, {});
       }},
      {"out is bf16[1, 2], which shares memory with x", [](auto& a, auto&) { a.out = a.x; }},
      {"w1 is packed with gate layout separated; expected none",
       [](auto& a, auto& t) {
         const PackArgs pack{.weights = t("plain", DType::bf16, {2, 2, 2}, {}), .gate = GateLayout::separated};
         a.w1 = pack_weights(pack, t.maker.raw("packed", packed_bytes(pack)));
         a.w2 = t("w2", DType::bf16, {2, 2, 2}, {});
       }},
      {"weight_stage is number 9", [](auto& a, auto&) { a.weight_stage = static_cast<WeightStage>(9); }},
      {"gate is number 7", [](auto& a, auto&) { a.gate = static_cast<GateLayout>(7); }},
  };
  for (const BadCall& bad : calls) {
    Tensors make;
    FusedMoeArgs args = tiny_layer(make);
    bad.change(args, make);
    try {
      fused_moe(args);
      ADD_FAILURE() << "accepted: " << bad.argument;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), testing::StartsWith("fused_moe: "));
      EXPECT_THAT(error.what(), testing::HasSubstr(bad.argument));
    }
  }
}

}  // namespace
}  // namespace eitri
