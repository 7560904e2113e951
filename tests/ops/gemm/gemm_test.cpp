// gemm beyond what the harness demands of every op: messages, strides that tests rarely meet, public reports.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "base/numeric.h"
#include "harness/levels.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/panel_rows.h"

namespace eitri {
namespace {

using Problem = Gemm::Problem;

std::string refusal(const GemmArgs& args) {
  try {
    Gemm::check(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "accepted";
}

/// Every row that takes the problem at the level in force.
std::vector<const char*> rows_for(const Problem& problem) {
  std::vector<const char*> names;
  for (const auto& c : candidates<Gemm>(problem, cpu_device()))
    if (c.support) names.push_back(c.kernel->name);
  return names;
}

TEST(Gemm, EveryArgumentIsChecked) {
  Maker maker;
  const Problem p{.m = 4, .n = 6, .k = 8, .b_format = WeightFormat::strided, .bias = DType::f32};
  const GemmArgs good = Gemm::make(p, maker);
  EXPECT_EQ(refusal(good), "accepted");
  const auto expect = [&](auto&& change, const char* text) {
    GemmArgs args = good;
    change(args);
    const std::string message = refusal(args);
    EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_EQ(message.find("gemm: "), 0u) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  };
  expect([](GemmArgs& a) { a.a = View(); }, "a is none");
  expect([](GemmArgs& a) { a.b = View(); }, "b is none");
  expect([](GemmArgs& a) { a.c = View(); }, "c is none");
  expect([](GemmArgs& a) { a.a.data = nullptr; }, "null");
  expect([](GemmArgs& a) { a.a.dtype = DType::i64; }, "f32, bf16, f16, i8 or f8e4m3");
  expect([](GemmArgs& a) { a.b.dtype = DType::f16; }, "that of a");
  expect([](GemmArgs& a) { a.c.dtype = DType::i32; }, "c is");
  expect([](GemmArgs& a) { a.b.shape[1] = 7; }, "k and batch of a");
  expect([](GemmArgs& a) { a.c.shape[0] = 3; }, "[4, 6]");
  expect([](GemmArgs& a) { a.c.shape[1] = 5; }, "[4, 6]");
  expect([](GemmArgs& a) { a.a.stride[1] = 2; }, "inner stride 1");
  expect([](GemmArgs& a) { a.b.stride[1] = 2; }, "inner stride 1");
  expect([](GemmArgs& a) { a.b.stride[0] = 0; }, "row stride > 0");
  expect([](GemmArgs& a) { a.c.stride[0] = 0; }, "c is");
  expect([](GemmArgs& a) { a.bias.shape[0] = 5; }, "bias is");
  expect([](GemmArgs& a) { a.bias.dtype = DType::f16; }, "bias is");
  expect([](GemmArgs& a) { a.a_scale = a.bias; }, "a_scale is");
  expect([](GemmArgs& a) { a.b_scale = a.bias; }, "b_scale is");
  expect([](GemmArgs& a) { a.gate = GateLayout::separated; }, "gate");
  expect([](GemmArgs& a) { a.activation.kind = ActivationKind::swiglu; }, "activation");
  expect([](GemmArgs& a) { a.b.layout = Layout::packed; }, "b is");
  expect([](GemmArgs& a) { a.a.layout = Layout::packed; }, "a is");
  expect([](GemmArgs& a) { a.c.layout = Layout::packed; }, "c is");
  expect([](GemmArgs& a) { a.c.data = a.a.data; }, "overlaps a");
  expect([](GemmArgs& a) { a.c.data = a.b.data; }, "overlaps b");
  expect([](GemmArgs& a) { a.a.rank = 3; }, "gemm");
  expect([](GemmArgs& a) { a.a.shape[0] = -1; }, "extents >= 0");

  const GemmArgs scaled = Gemm::make({.m = 4, .n = 6, .k = 8, .a = DType::i8, .b_format = WeightFormat::strided}, maker);
  GemmArgs args = scaled;
  args.a_scale = View();
  EXPECT_NE(refusal(args).find("a_scale is none; expected f32 (a is i8)"), std::string::npos) << refusal(args);
  args = scaled;
  args.b_scale.shape[0] = 4;
  EXPECT_NE(refusal(args).find("b_scale is"), std::string::npos);

  const GemmArgs gated = Gemm::make({.m = 4, .n = 6, .k = 8, .activation = ActivationKind::silu, .gate = GateLayout::separated}, maker);
  args = gated;
  args.gate = GateLayout::interleaved;
  EXPECT_NE(refusal(args).find("b is packed with gate layout separated; expected interleaved"), std::string::npos) << refusal(args);
}

// One scale for each row, or one for all; nothing else, and never none.
TEST(Gemm, F8ScalesArePerRowOrOne) {
  Maker maker;
  const Problem p{.batch = 2,
                  .m = 4,
                  .n = 6,
                  .k = 8,
                  .a = DType::f8e4m3,
                  .b_format = WeightFormat::strided,
                  .a_quant = Quant::per_token,
                  .b_quant = Quant::per_tensor};
  const GemmArgs good = Gemm::make(p, maker);
  EXPECT_EQ(Gemm::check(good), p);
  GemmArgs args = good;
  args.b_scale = slice(args.b_scale, 1);  // [1]: for both matrices
  EXPECT_EQ(Gemm::check(args), p);
  args.a_scale = View(args.a_scale.data, DType::f32, {2, 1});
  EXPECT_EQ(Gemm::check(args).a_quant, Quant::per_tensor);
  const auto expect = [&](auto&& change, const char* text) {
    args = good;
    change(args);
    EXPECT_NE(refusal(args).find(text), std::string::npos) << refusal(args);
  };
  expect([](GemmArgs& a) { a.a_scale = View(); }, "a_scale is none; expected f32 (a is f8e4m3)");
  expect([](GemmArgs& a) { a.b_scale = View(); }, "b_scale is none; expected f32 (b is f8e4m3)");
  expect([](GemmArgs& a) { a.a_scale.shape[1] = 3; }, "expected extents [4] or [1], or [2, 4] or [2, 1]");
  expect([](GemmArgs& a) { a.a_scale.shape[0] = 1; }, "a_scale is");
  expect([](GemmArgs& a) { a.a_scale.dtype = DType::i32; }, "expected f32");
  expect([](GemmArgs& a) { a.a_scale = View(a.a_scale.data, DType::f32, {0}); }, "a_scale is");
  expect([](GemmArgs& a) { a.b.dtype = DType::f8e5m2; }, "that of a");
  expect([](GemmArgs& a) { a.a.dtype = a.b.dtype = DType::f8e4m3fnuz; }, "i8 or f8e4m3");
  expect([](GemmArgs& a) { a.c.data = a.b_scale.data; }, "c is");
}

// By hand: fp8 products are exact, and NaN stays NaN.
TEST(Gemm, F8IsExactWhereItCanBe) {
  const auto code = [](float x) { return encode_f8e4m3(x); };
  std::vector<uint8_t> a = {code(1), code(448), code(0x1p-9f), code(-2), code(0), 0x7f};
  std::vector<uint8_t> b = {code(3), code(-448), code(0x1p-9f), code(1), code(0.5f), code(0)};
  std::vector<float> a_scale = {2, 4}, b_scale = {0.5f}, c(4);
  const GemmArgs args{.a = View(a.data(), DType::f8e4m3, {2, 3}),
                      .b = View(b.data(), DType::f8e4m3, {2, 3}),
                      .c = View(c.data(), DType::f32, {2, 2}),
                      .bias = {},
                      .a_scale = View(a_scale.data(), DType::f32, {2}),
                      .b_scale = View(b_scale.data(), DType::f32, {1})};
  call<Gemm>(args);
  EXPECT_EQ(c[0], static_cast<float>(3 - 448.0 * 448.0 + 0x1p-18));
  EXPECT_EQ(c[1], 1 + 448 * 0.5f);
  EXPECT_TRUE(std::isnan(c[2]));
  EXPECT_TRUE(std::isnan(c[3]));
}

// B01: rows of NaN or infinity must not reach other rows through the tail of k; the AMX kernels too, where the machine
// can emulate them.
TEST(Gemm, NonFiniteRowsStayAlone) {
  const Isa native = cpu_device().isa;
  const std::vector<Isa> levels = best_isa() == Isa::x86_amx_emulated ? std::vector{native, best_isa()} : std::vector{native};
  for (const Isa level : levels) {
    force_isa(level);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int64_t k : {16, 17, 31, 32, 33, 34, 40, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 255}) {
        for (const WeightFormat format : {WeightFormat::panel32, WeightFormat::strided}) {
          const Problem p{.batch = k == 33 ? 16 : 2, .m = 32, .n = 64, .k = k, .b_format = format};
          std::vector<std::byte> a(static_cast<size_t>(p.batch * p.m * k * 2)), b(static_cast<size_t>(p.batch * p.n * k * 2));
          for (int64_t i = 0; i < p.batch * p.m * k; ++i)
            store_at(a.data(), DType::bf16, i, i / k % p.m == 0 ? 1.0 : static_cast<double>(bad));
          for (int64_t i = 0; i < p.batch * p.n * k; ++i) store_at(b.data(), DType::bf16, i, 1.0);
          std::vector<float> c(static_cast<size_t>(p.batch * p.m * p.n));
          GemmArgs args{.a = View(a.data(), DType::bf16, {p.batch, p.m, k}),
                        .b = View(b.data(), DType::bf16, {p.batch, p.n, k}),
                        .c = View(c.data(), DType::f32, {p.batch, p.m, p.n}),
                        .bias = {},
                        .a_scale = {},
                        .b_scale = {}};
          Buffer packed;
          if (format == WeightFormat::panel32) {
            packed = Buffer(packed_bytes({.weights = args.b}));
            args.b = pack_weights({.weights = args.b}, packed.data());
          }
          for (const char* kernel : rows_for(p)) {
            if (std::string_view(kernel) == "gemm.reference") continue;
            const ForceScope force(Gemm::name, kernel);
            call<Gemm>(args);
            for (int64_t i = 0; i < p.batch * p.m * p.n; ++i) {
              const float got = c[static_cast<size_t>(i)];
              if (i / p.n % p.m == 0) ASSERT_EQ(got, static_cast<float>(k)) << kernel << " k=" << k;
              else if (std::isnan(bad)) ASSERT_TRUE(std::isnan(got)) << kernel << " k=" << k;
              else ASSERT_EQ(got, bad) << kernel << " k=" << k;
            }
          }
        }
      }
    }
  }
  force_isa(native);
}

TEST(Gemm, BroadcastAndOverlappingInputRows) {
  Maker maker;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p{.batch = 3, .m = 9, .n = 40, .k = 21, .a = dtype, .c = DType::f32, .b_format = WeightFormat::strided};
    GemmArgs args = Gemm::make(p, maker);
    args.b.stride[0] = 0;  // one weight for the whole batch
    args.a.stride[1] = 2;  // rows of a overlap
    for (const char* kernel : rows_for(p)) {
      const ForceScope force(Gemm::name, kernel);
      Oracle oracle;
      Gemm::reference(args, &oracle);
      maker.poison_outputs();
      call<Gemm>(args);
      const Verdict v = judge(args.c, oracle[0], Gemm::tolerance(p)[0], "c");
      EXPECT_TRUE(v.ok) << kernel << ": " << v.first;
    }
  }
}

TEST(Gemm, VectorsSharedByTheBatch) {
  Maker maker;
  const Problem p{.batch = 3, .m = 5, .n = 34, .k = 40, .a = DType::i8, .c = DType::bf16, .bias = DType::bf16};
  GemmArgs args = Gemm::make(p, maker);
  for (View* v : {&args.bias, &args.a_scale, &args.b_scale}) *v = slice(*v, 1);
  for (const char* kernel : rows_for(p)) {
    const ForceScope force(Gemm::name, kernel);
    Oracle oracle;
    Gemm::reference(args, &oracle);
    maker.poison_outputs();
    call<Gemm>(args);
    const Verdict v = judge(args.c, oracle[0], Gemm::tolerance(p)[0], "c");
    EXPECT_TRUE(v.ok) << kernel << ": " << v.first;
  }
}

void expect_same_bits_with_any_number_of_threads(const Problem& p) {
  for (const char* kernel : rows_for(p)) {
    if (std::string_view(kernel) == "gemm.reference") continue;
    Maker maker;
    const GemmArgs args = Gemm::make(p, maker);
    const ForceScope force(Gemm::name, kernel);
    const int before = omp_get_max_threads();
    std::vector<std::vector<std::byte>> results;
    for (const int threads : {1, 2, 3, 7, 8}) {
      omp_set_num_threads(threads);
      maker.poison_outputs();
      call<Gemm>(args);
      const auto* data = static_cast<const std::byte*>(args.c.data);
      results.emplace_back(data, data + span_bytes(args.c));
    }
    omp_set_num_threads(before);
    for (const auto& r : results) EXPECT_TRUE(r == results.front()) << kernel << " " << key_of(p);
  }
}

TEST(Gemm, SameBitsWithAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::i8})
    expect_same_bits_with_any_number_of_threads({.m = 300, .n = 200, .k = 1500, .a = dtype, .c = DType::f32, .bias = DType::f32});
}

// One panel, so that rows are shared out: with two threads the second part would have eight, which kernels for few rows multiply in
// another way.
TEST(Gemm, SameBitsOfCodedWeightsWithAnyNumberOfThreads) {
  Problem p{.m = 40, .n = 32, .k = 16384, .a = DType::bf16, .c = DType::f32, .b_quant = Quant::per_128x128};
  p.b = DType::f8e4m3;
  p.b_format = WeightFormat::panel32;
  expect_same_bits_with_any_number_of_threads(p);
  if (best_isa() <= Isa::x86_avx512) return;
  const harness::LevelScope level(Isa::x86_amx_emulated);
  expect_same_bits_with_any_number_of_threads(p);
}

// Largest codes at the largest k: i32 sums stay exact. One more element of k goes to the reference.
TEST(Gemm, I8SumsDoNotOverflow) {
  const int64_t k = kMaxI8K;
  std::vector<int8_t> a(static_cast<size_t>(k + 1), -128), b(static_cast<size_t>(k + 1), -128);
  const float one = 1;
  float c = 0;
  const auto args_for = [&](int64_t extent) {
    return GemmArgs{.a = View(a.data(), DType::i8, {1, extent}),
                    .b = View(b.data(), DType::i8, {1, extent}),
                    .c = View(&c, DType::f32, {1, 1}),
                    .bias = {},
                    .a_scale = View(&one, DType::f32, {1}),
                    .b_scale = View(&one, DType::f32, {1})};
  };
  const GemmArgs args = args_for(k);
  for (const char* kernel : rows_for(Gemm::check(args))) {
    const ForceScope force(Gemm::name, kernel);
    call<Gemm>(args);
    EXPECT_EQ(c, static_cast<float>(16384.0 * static_cast<double>(k))) << kernel;
  }
  const auto names = rows_for(Gemm::check(args_for(k + 1)));
  ASSERT_EQ(names.size(), 1u);
  EXPECT_STREQ(names[0], "gemm.reference");
}

TEST(Gemm, PartitionsCoverTheCallOnce) {
  for (const int64_t m : {1, 31, 33, 300, 5000})
    for (const int64_t n : {1, 32, 500, 20000})
      for (const int64_t batch : {1, 2, 7})
        for (const int threads : {1, 2, 3, 16, 100})
          for (const int split_knob : {0, 1, 2}) {
            const Problem p{.batch = batch, .m = m, .n = n, .k = 64};
            const auto part = panel_rows::partition(p, split_knob, threads);
            EXPECT_LE(part.parts(), threads);
            EXPECT_GE(part.parts(), 1);
            EXPECT_GE(part.rows * part.row_parts, m);
            EXPECT_LE(part.panels, panel_count(n, GateLayout::none));
          }
}

}  // namespace
}  // namespace eitri
