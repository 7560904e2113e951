// rmsnorm against values worked out by hand, its refusals, in-place calls, and what all levels share.
#include "ops/rmsnorm/rmsnorm.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "dispatch/scoped_settings.h"
#include "eitri/eitri.h"
#include "eitri/eitri.hpp"
#include "harness/check_row.h"
#include "harness/every_kernel.h"
#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Body> void with_every_row(const RmsNormArgs& args, Body&& body) {
  harness::with_every_kernel<RmsNorm>(args, [&](const char*) { body(); });
}

TEST(RmsNormGolden, ByHand) {
  const float x[] = {1, -2, 2, 4}, weight[] = {1, 2, 3, -1};  // mean of squares 6.25
  float out[4];
  RmsNormArgs args{
      .x = View(x, DType::f32, {1, 4}), .weight = View(weight, DType::f32, {4}), .out = View(out, DType::f32, {1, 4}), .eps = 0};
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_THAT(out, ElementsAre(0.4f, -1.6f, 2.4f, -1.6f));
  });
  args.norm_weight = NormWeight::plus_one;
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_THAT(out, ElementsAre(0.8f, -2.4f, 3.2f, 0.0f));
  });
  args.norm_weight = NormWeight::plain;
  args.weight = {};
  args.eps = 93.75f;  // root 10
  with_every_row(args, [&] {
    rmsnorm(args);
    for (int j = 0; j < 4; ++j) EXPECT_FLOAT_EQ(out[j], x[j] / 10);
  });
}

TEST(RmsNormGolden, ResidualIsRoundedBeforeItIsNormed) {
  // 256 + 1 is 257, which bf16 rounds to 256 (ties to even).
  uint16_t x[] = {encode_bf16(1), encode_bf16(0)}, residual[] = {encode_bf16(256), encode_bf16(256)}, sum[2];
  float out[2];
  const RmsNormArgs args{.x = View(x, DType::bf16, {1, 2}),
                         .residual = View(residual, DType::bf16, {1, 2}),
                         .residual_out = View(sum, DType::bf16, {1, 2}),
                         .out = View(out, DType::f32, {1, 2}),
                         .eps = 0};
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_EQ(decode_bf16(sum[0]), 256);
    EXPECT_THAT(out, ElementsAre(1, 1));
  });
  // A residual in fp32 keeps the sum.
  float wide[] = {256, 256}, wide_sum[2];
  RmsNormArgs args32 = args;
  args32.residual = View(wide, DType::f32, {1, 2});
  args32.residual_out = View(wide_sum, DType::f32, {1, 2});
  with_every_row(args32, [&] {
    rmsnorm(args32);
    EXPECT_THAT(wide_sum, ElementsAre(257, 256));
    EXPECT_GT(out[0], 1);
  });
}

TEST(RmsNormGolden, CodesPerTokenAndPerGroup) {
  std::vector<float> x(200, 0);
  x[0] = 3, x[1] = -1.5f, x[150] = 0.75f;
  std::vector<int8_t> codes(200);
  std::vector<float> scale(2);
  RmsNormArgs args{.x = View(x.data(), DType::f32, {1, 200}),
                   .out = View(codes.data(), DType::i8, {1, 200}),
                   .scale = View(scale.data(), DType::f32, {1}),
                   .quant = Quant::per_token};
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_EQ(codes[0], 127);
    EXPECT_TRUE(codes[1] == -63 || codes[1] == -64);  // 63.5
    EXPECT_EQ(codes[150], 32);
    EXPECT_EQ(codes[199], 0);
  });
  args.scale = View(scale.data(), DType::f32, {1, 2});
  args.quant = Quant::per_1x128;
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_EQ(codes[0], 127);
    EXPECT_EQ(codes[150], 127);
    EXPECT_FLOAT_EQ(scale[0], 4 * scale[1]);
  });
}

TEST(RmsNormGolden, ScalesMayLieGroupByGroup) {
  Maker maker({.guards = true});
  RmsNormArgs args;
  args.x = maker.input("x", DType::bf16, {5, 300}, Fill::normal);
  args.out = maker.output("out", DType::f8e4m3, {5, 300});
  args.scale = maker.output("scale", DType::f32, {5, 3});
  args.quant = Quant::per_1x128;
  rmsnorm(args);
  std::vector<float> turned(15, -1);
  RmsNormArgs other = args;
  other.scale = View(turned.data(), DType::f32, {5, 3});
  other.scale.stride[0] = 1;
  other.scale.stride[1] = 5;
  with_every_row(other, [&] {
    rmsnorm(other);
    for (int64_t t = 0; t < 5; ++t)
      for (int64_t g = 0; g < 3; ++g) EXPECT_NEAR(turned[static_cast<size_t>(g * 5 + t)], load(args.scale, {t, g}), 1e-6);
  });
}

TEST(RmsNormGolden, NanAndInfinityStayInTheirRow) {
  const float x[] = {1, std::nanf(""), 1, 1, 1, kInf, 3e38f, 3e38f, 0, 0, 0, 0};
  float out[12];
  const RmsNormArgs args{.x = View(x, DType::f32, {6, 2}), .out = View(out, DType::f32, {6, 2})};
  with_every_row(args, [&] {
    rmsnorm(args);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
    EXPECT_NEAR(out[2], 1, 1e-5);
    EXPECT_EQ(out[4], 0);
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_THAT(std::vector<float>(out + 6, out + 8), ElementsAre(0, 0)) << "the squares overflow";
    EXPECT_THAT(std::vector<float>(out + 8, out + 12), ElementsAre(0, 0, 0, 0));
  });
}

TEST(RmsNormGolden, InPlaceCallsGiveTheSame) {
  constexpr int64_t kTokens = 9, kHidden = 133;
  const SettingScope check("EITRI_CHECK", "1");  // its reference has to see the inputs as they were
  Maker maker({.guards = true});
  RmsNormArgs args;
  args.x = maker.input("x", DType::bf16, {kTokens, kHidden}, Fill::normal);
  args.weight = maker.input("weight", DType::bf16, {kHidden}, Fill::normal);
  args.residual = maker.input("residual", DType::bf16, {kTokens, kHidden}, Fill::normal);
  args.residual_out = maker.output("residual_out", DType::bf16, {kTokens, kHidden});
  args.out = maker.output("out", DType::bf16, {kTokens, kHidden});
  with_every_row(args, [&] {
    rmsnorm(args);
    // out over x, and the sum over the residual: what fused layers do.
    std::vector<uint16_t> x(kTokens * kHidden), residual(kTokens * kHidden);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::memcpy(&x[static_cast<size_t>(t * kHidden)], row(args.x, t), kHidden * 2);
      std::memcpy(&residual[static_cast<size_t>(t * kHidden)], row(args.residual, t), kHidden * 2);
    }
    RmsNormArgs same = args;
    same.x = same.out = View(x.data(), DType::bf16, {kTokens, kHidden});
    same.residual = same.residual_out = View(residual.data(), DType::bf16, {kTokens, kHidden});
    rmsnorm(same);
    for (int64_t t = 0; t < kTokens; ++t) {
      ASSERT_EQ(std::memcmp(row(same.out, t), row(args.out, t), kHidden * 2), 0) << t;
      ASSERT_EQ(std::memcmp(row(same.residual_out, t), row(args.residual_out, t), kHidden * 2), 0) << t;
    }
  });
}

TEST(RmsNormGolden, EveryLevelHasTheSameBits) {
  for (const RmsNorm::Problem& p : {RmsNorm::Problem{.tokens = 5, .hidden = 1031, .residual = DType::bf16},
                                    {.tokens = 5, .hidden = 77, .out = DType::f32},
                                    {.tokens = 5, .hidden = 517, .residual = DType::f32, .out = DType::i8, .quant = Quant::per_1x128},
                                    {.tokens = 5, .hidden = 517, .out = DType::f8e4m3, .quant = Quant::per_token}}) {
    Maker maker({.guards = true});
    const RmsNormArgs args = RmsNorm::make(p, maker);
    harness::Snapshot first;
    bool have = false;
    const Oracle open(3);
    harness::with_every_kernel<RmsNorm>(args, [&](const char* name) {
      if (std::string_view(name) == "rmsnorm.reference") return;
      maker.poison_outputs();
      rmsnorm(args);
      if (have) EXPECT_EQ(first.difference(RmsNorm::outputs(args), open), "") << name;
      else first = harness::Snapshot(RmsNorm::outputs(args)), have = true;
    });
  }
}

// B33: views that begin at element 1, odd widths; the next row must stay what it was.
TEST(RmsNormGolden, B33_views_from_element_one) {
  for (const int64_t hidden : {1, 2, 7, 64, 127, 129, 767, 768, 769, 3584}) {
    constexpr int64_t kTokens = 7;
    std::vector<uint16_t> x(static_cast<size_t>(kTokens * hidden + 1)), weight(static_cast<size_t>(hidden + 1)),
        out(static_cast<size_t>(kTokens * hidden + 2), 0x7e55);
    for (size_t i = 0; i < x.size(); ++i) x[i] = encode_f16(static_cast<float>(static_cast<int>(i * 37 % 41) - 20) / 8);
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = encode_f16(static_cast<float>(i % 5) + 0.5f);
    const RmsNormArgs args{.x = View(x.data() + 1, DType::f16, {kTokens, hidden}),
                           .weight = View(weight.data() + 1, DType::f16, {hidden}),
                           .out = View(out.data() + 1, DType::f16, {kTokens, hidden})};
    Oracle oracle;
    RmsNorm::reference(args, &oracle);
    with_every_row(args, [&] {
      std::fill(out.begin(), out.end(), uint16_t{0x7e55});
      rmsnorm(args);
      EXPECT_EQ(harness::judge_all(RmsNorm::outputs(args), oracle, RmsNorm::tolerance(RmsNorm::check(args))), "") << hidden;
      EXPECT_EQ(out.front(), 0x7e55);
      EXPECT_EQ(out.back(), 0x7e55);
    });
  }
}

TEST(RmsNormGolden, Refusals) {
  Maker maker;
  const auto tensor = [&](DType dtype, std::initializer_list<int64_t> shape) { return maker.output("t", dtype, shape); };
  RmsNormArgs good;
  good.x = tensor(DType::bf16, {4, 256});
  good.weight = tensor(DType::bf16, {256});
  good.out = tensor(DType::bf16, {4, 256});
  EXPECT_EQ(refusal<RmsNorm>(good), "");
  const auto refused = [&](auto&& change) {
    RmsNormArgs args = good;
    change(args);
    return refusal<RmsNorm>(args);
  };
  EXPECT_THAT(refused([&](auto& a) {
                a.x = tensor(DType::i8, {4, 256});
              }),
              HasSubstr("rmsnorm: x is i8[4, 256]; expected f32, bf16 or f16"));
  EXPECT_THAT(refused([&](auto& a) { a.weight = tensor(DType::f16, {256}); }),
              HasSubstr("rmsnorm: weight is f16[256]; expected f32 or bf16 (dtype of x)"));
  EXPECT_THAT(refused([&](auto& a) { a.weight = tensor(DType::bf16, {255}); }), HasSubstr("weight is bf16[255]; expected bf16[256]"));
  EXPECT_THAT(refused([&](auto& a) { a.weight = {}, a.norm_weight = NormWeight::plus_one; }),
              HasSubstr("norm_weight is plus_one; expected plain"));
  EXPECT_THAT(refused([&](auto& a) { a.norm_weight = static_cast<NormWeight>(9); }), HasSubstr("norm_weight is number 9"));
  EXPECT_THAT(refused([&](auto& a) { a.eps = -1; }), HasSubstr("eps is -1; expected a finite number >= 0"));
  EXPECT_THAT(refused([&](auto& a) { a.eps = kInf; }), HasSubstr("eps is inf"));
  EXPECT_THAT(refused([&](auto& a) { a.residual = tensor(DType::bf16, {4, 256}); }), HasSubstr("residual_out"));
  EXPECT_THAT(refused([&](auto& a) { a.residual_out = tensor(DType::bf16, {4, 256}); }), HasSubstr("residual is not given"));
  EXPECT_THAT(refused([&](auto& a) {
                a.residual = tensor(DType::bf16, {4, 256}), a.residual_out = tensor(DType::f32, {4, 256});
              }),
              HasSubstr("residual_out is f32[4, 256]; expected bf16[4, 256]"));
  EXPECT_THAT(refused([&](auto& a) {
                a.residual = tensor(DType::bf16, {4, 256}), a.residual_out = a.out;
              }),
              HasSubstr("shares memory with out"));
  EXPECT_THAT(refused([&](auto& a) { a.out = rows(a.x, 0, 4), a.out.data = static_cast<std::byte*>(a.x.data) + 2; }),
              HasSubstr("shares memory with x"));
  EXPECT_THAT(refused([&](auto& a) { a.quant = Quant::per_token; }), HasSubstr("quant is per_token; expected none (out is bf16)"));
  EXPECT_THAT(refused([&](auto& a) { a.scale = tensor(DType::f32, {4}); }), HasSubstr("scale is f32[4]; expected none"));
  EXPECT_THAT(refused([&](auto& a) { a.out = tensor(DType::i8, {4, 256}); }), HasSubstr("quant is none; expected per_token or per_1x128"));
  EXPECT_THAT(refused([&](auto& a) {
                a.out = tensor(DType::i8, {4, 256}), a.quant = Quant::per_1x128, a.scale = tensor(DType::f32, {4, 3});
              }),
              HasSubstr("scale is f32[4, 3]; expected f32[4, 2] in CPU memory (quant is per_1x128)"));
  EXPECT_THAT(refused([&](auto& a) { a.out = tensor(DType::i32, {4, 256}); }), HasSubstr("out is i32[4, 256]"));
}

TEST(RmsNormGolden, FromC) {
  float x[] = {3, -4}, out[2];
  int64_t shape[] = {1, 2};
  const eitri_dtype f32{.code = 2, .bits = 32, .lanes = 1};
  const eitri_tensor tx{.data = x, .device = {1, 0}, .ndim = 2, .dtype = f32, .shape = shape, .strides = nullptr, .byte_offset = 0};
  eitri_tensor tout = tx;
  tout.data = out;
  eitri_rmsnorm_args args = {};
  args.size = sizeof args;
  args.x = &tx;
  args.out = &tout;
  ASSERT_EQ(eitri_rmsnorm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_FLOAT_EQ(out[0], static_cast<float>(3 / std::sqrt(12.5)));
  args.quant = 17;
  EXPECT_EQ(eitri_rmsnorm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  EXPECT_THAT(eitri_last_error(), HasSubstr("rmsnorm: quant is 17; expected 0 to 6"));
}

}  // namespace
}  // namespace eitri
