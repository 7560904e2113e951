// quantize against codes worked out by hand.
#include "ops/quantize/quantize.h"

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

TEST(QuantizeGolden, NoColumns) {
  Rows r{.rows = 2, .cols = 0, .x = {}};
  call<Quantize>(r.args());
  EXPECT_THAT(r.scale, ElementsAre(0, 0));
}

TEST(QuantizeGolden, Refusals) {
  Rows r{.rows = 2, .cols = 2, .x = {1, 2, 3, 4}};
  QuantizeArgs args = r.args();
  args.q.dtype = DType::u8;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("quantize: q is u8[2, 2]; expected i8[2, 2]"));
  args = r.args();
  args.quant = Quant::per_tensor;
  EXPECT_THAT(refusal<Quantize>(args), HasSubstr("quant is per_tensor; expected per_token"));
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
