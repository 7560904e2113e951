// quantize against codes worked out by hand.
#include "ops/quantize/quantize.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using golden::with_every_kernel;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct Rows {
  int64_t rows, cols;
  std::vector<float> x;
  std::vector<int8_t> q = {};
  std::vector<float> scale = {};

  QuantizeArgs args() {
    q.assign(static_cast<size_t>(rows * cols), -128);
    scale.assign(static_cast<size_t>(rows), -7);
    QuantizeArgs a;
    a.x = View(x.data(), DType::f32, {rows, cols});
    a.q = View(q.data(), DType::i8, {rows, cols});
    a.scale = View(scale.data(), DType::f32, {rows});
    return a;
  }
};

TEST(QuantizeGolden, TiesGoToEven) {
  // Scale 1: codes are the rounded values.
  Rows r{.rows = 1, .cols = 8, .x = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f}};
  const QuantizeArgs args = r.args();
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.q, ElementsAre(127, -127, 0, 2, 2, 0, -2, 126));
    EXPECT_THAT(r.scale, ElementsAre(1));
  });
}

TEST(QuantizeGolden, B26ZeroRow) {
  Rows r{.rows = 3, .cols = 2, .x = {254, 2, 0, -0.0f, -127, 1}};
  const QuantizeArgs args = r.args();
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.q, ElementsAre(127, 1, 0, 0, -127, 1));
    EXPECT_THAT(r.scale, ElementsAre(2, 0, 1));
  });
}

TEST(QuantizeGolden, B31NaNAndInfinity) {
  // They do not reach the scale; NaN becomes 0, infinity saturates; without another non-zero it is 0 * inf = NaN -> 0.
  Rows r{.rows = 4, .cols = 4, .x = {1, 2, kNaN, 127, 1, 2, kInfinity, 127, 1, -kInfinity, kNaN, -127, kInfinity, 0, kNaN, 0}};
  const QuantizeArgs args = r.args();
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.q, ElementsAre(1, 2, 0, 127, 1, 2, 127, 127, 1, -127, 0, -127, 0, 0, 0, 0));
    EXPECT_THAT(r.scale, ElementsAre(1, 1, 1, 0));
  });
}

TEST(QuantizeGolden, TinyRowsHaveFiniteScales) {
  // 2^-120: an ordinary quotient. 2^-140: the scale stays at 2^-126, so that its inverse is finite.
  Rows r{.rows = 2, .cols = 2, .x = {std::ldexp(1.0f, -119), -std::ldexp(1.0f, -119), std::ldexp(1.0f, -140), std::ldexp(1.0f, -125)}};
  const QuantizeArgs args = r.args();
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.q, ElementsAre(127, -127, 0, 2));
    EXPECT_THAT(r.scale, ElementsAre(std::ldexp(1.0f, -119) / 127, std::ldexp(1.0f, -126)));
  });
}

TEST(QuantizeGolden, PaddingRowsAreLeftAlone) {
  // Positions: token 1, padding (token 2 of 2), beyond num_valid.
  Rows r{.rows = 3, .cols = 1, .x = {127, kNaN, kNaN}};
  const std::vector<int32_t> ids = {1 << 24 | 1, 2 << 24 | 2, 1}, valid = {2, 2};
  QuantizeArgs args = r.args();
  args.sorted_ids = View(ids.data(), DType::i32, {3});
  args.num_valid = View(valid.data(), DType::i32, {2});
  args.tokens = 2;
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.q, ElementsAre(127, -128, -128));
    EXPECT_THAT(r.scale, ElementsAre(1, -7, -7));
  });
}

TEST(QuantizeGolden, NumValidIsNotTrusted) {
  for (const int32_t claimed : {-1, 1000, INT32_MIN, INT32_MAX}) {
    Rows r{.rows = 1, .cols = 1, .x = {127}};
    const std::vector<int32_t> ids = {0}, valid = {claimed, 1};
    QuantizeArgs args = r.args();
    args.sorted_ids = View(ids.data(), DType::i32, {1});
    args.num_valid = View(valid.data(), DType::i32, {2});
    args.tokens = 1;
    with_every_kernel<Quantize>(args, [&] {
      r.args();
      call<Quantize>(args);
      EXPECT_EQ(r.q[0], claimed > 0 ? 127 : -128);
    });
  }
}

/// One row of codes with block scales.
struct Blocks {
  std::vector<float> x;
  std::vector<uint8_t> q = {}, scale = {};

  QuantizeArgs args(DType type, ScaleRounding rounding) {
    const auto cols = static_cast<int64_t>(x.size());
    q.assign(x.size(), 0x55);
    scale.assign((x.size() + 31) / 32, 0x55);
    QuantizeArgs a;
    a.x = View(x.data(), DType::f32, {1, cols});
    a.q = View(q.data(), type, {1, cols});
    a.scale = View(scale.data(), DType::f8e8m0, {1, (cols + 31) / 32});
    a.quant = Quant::per_1x32;
    a.scale_rounding = rounding;
    return a;
  }
};

TEST(QuantizeGolden, Mxfp4ByHand) {
  // Largest 6: scale 1 in every rounding. Ties go to even codes; -0 keeps its sign.
  Blocks b{.x = {6, -6, 0.25f, 0.75f, 1.25f, -1.75f, 2.5f, 3.5f, 5, -0.0f, 0.26f, -5.01f}};
  for (const ScaleRounding rounding : {kScaleUp, kScaleDown, kScaleEven}) {
    const QuantizeArgs args = b.args(DType::f4e2m1, rounding);
    with_every_kernel<Quantize>(args, [&] {
      b.args(DType::f4e2m1, rounding);
      call<Quantize>(args);
      EXPECT_THAT(b.scale, ElementsAre(127));
      EXPECT_THAT(std::vector<uint8_t>(b.q.begin(), b.q.begin() + 6), ElementsAre(0xf7, 0x20, 0xc2, 0x64, 0x86, 0xf1));
      EXPECT_EQ(b.q[6], 0x55) << "nothing behind the codes is written";
    });
  }
}

TEST(QuantizeGolden, ScaleRoundingsDifferWhereTheyShould) {
  // 7 = 1.75 * 2^2: e2m1 has 6 = 1.5 * 2^2. up: scale 2 (7 / 2 = 3.5 -> 4); down: scale 1, saturates at 6; even: 7 rounds to 8, scale 2.
  // 480 = 1.875 * 2^8: e4m3 has 448 = 1.75 * 2^8. up: 2; down: 1; even: rounds to 480 itself, which keeps its exponent: 1.
  struct Wanted {
    DType type;
    float x;
    ScaleRounding rounding;
    uint8_t scale, code;
  };
  for (const Wanted w : {Wanted{DType::f4e2m1, 7, kScaleUp, 128, 0x06},
                         {DType::f4e2m1, 7, kScaleDown, 127, 0x07},
                         {DType::f4e2m1, 7, kScaleEven, 128, 0x06},
                         {DType::f8e4m3, 480, kScaleUp, 128, encode_f8e4m3(240)},
                         {DType::f8e4m3, 480, kScaleDown, 127, 0x7e},
                         {DType::f8e4m3, 480, kScaleEven, 127, 0x7e}}) {
    Blocks b{.x = {w.x, 0}};
    const QuantizeArgs args = b.args(w.type, w.rounding);
    with_every_kernel<Quantize>(args, [&] {
      b.args(w.type, w.rounding);
      call<Quantize>(args);
      EXPECT_EQ(b.scale[0], w.scale);
      EXPECT_EQ(b.q[0], w.code);
    });
  }
}

TEST(QuantizeGolden, F8OfATensorAndOfTokens) {
  Rows r{.rows = 2, .cols = 4, .x = {448, 17, -1, kNaN, 2, -4, kInfinity, 0}};
  QuantizeArgs args = r.args();
  args.q.dtype = DType::f8e4m3;
  const auto codes = [&] { return std::vector<uint8_t>(r.q.begin(), r.q.end()); };
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.scale, ElementsAre(1, 4 / 448.0f));
    // 17 lies between 16 and 18: to even, 16. Infinity saturates.
    EXPECT_THAT(codes(), ElementsAre(0x7e, encode_f8e4m3(16), encode_f8e4m3(-1), 0x7f, encode_f8e4m3(224), 0xfe, 0x7e, 0));
  });
  args.quant = Quant::per_tensor;
  args.scale.shape[0] = 1;
  with_every_kernel<Quantize>(args, [&] {
    r.args();
    call<Quantize>(args);
    EXPECT_THAT(r.scale, ElementsAre(1, -7));
    EXPECT_THAT(codes(), ElementsAre(0x7e, encode_f8e4m3(16), encode_f8e4m3(-1), 0x7f, encode_f8e4m3(2), encode_f8e4m3(-4), 0x7e, 0));
  });
}

TEST(QuantizeGolden, NoColumns) {
  Rows r{.rows = 2, .cols = 0, .x = {}};
  call<Quantize>(r.args());
  EXPECT_THAT(r.scale, ElementsAre(0, 0));
}

TEST(QuantizeGolden, Refusals) {
  Rows r{.rows = 2, .cols = 2, .x = {1, 2, 3, 4}};
  QuantizeArgs args = r.args();
  args.q.dtype = DType::u8;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("quantize: q is u8[2, 2]; expected i8, f8e4m3, f8e4m3fnuz or f4e2m1 [2, 2]"));
  args = r.args();
  args.quant = Quant::per_1x16;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("quant is per_1x16; expected per_tensor, per_token, per_1x128 or per_1x32 (q is i8)"));
  args = r.args();
  args.q.dtype = DType::f8e4m3fnuz;
  args.quant = Quant::per_1x32;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("expected per_tensor, per_token or per_1x128 (q is f8e4m3fnuz)"));
  args = r.args();
  args.quant = Quant::per_tensor;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("scale is f32[2]; expected f32[1]"));
  args = r.args();
  args.quant = Quant::per_1x128;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("scale is f32[2]; expected rank 2"));
  args = r.args();
  args.scale_rounding = kScaleDown;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("scale_rounding is down; expected up (scales are f32)"));
  args = r.args();
  args.scale_rounding = static_cast<ScaleRounding>(3);
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("scale_rounding is number 3; expected down, up or even"));
  args = r.args();
  args.q = View(r.q.data(), DType::f4e2m1, {2, 1});
  args.q.stride[0] = 2;  // rows begin at whole bytes
  args.x = View(r.x.data(), DType::f32, {2, 1});
  args.quant = Quant::per_1x32;
  std::vector<uint8_t> scale(2);
  args.scale = View(scale.data(), DType::f8e8m0, {2, 1});
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("expected an even number of columns (q is f4e2m1)"));
  args = r.args();
  args.x.stride[1] = 2;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("inner stride 1"));
  args = r.args();
  args.q.data = r.x.data();
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("shares memory with x"));
  args = r.args();
  args.scale = {};
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("scale is none"));
  args = r.args();
  args.tokens = 3;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("tokens is 3; expected 0"));
  args = r.args();
  args.x.device.kind = DeviceKind::cuda;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("q is on cpu; expected cuda:0 (device of x)"));
}

}  // namespace
}  // namespace eitri
