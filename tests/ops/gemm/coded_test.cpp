// Weights of few bits: every code through every row, packing and its refusals, and what gemm says about scales that do not fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "base/numeric.h"
#include "harness/every_kernel.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/pack.h"
#include "ops/gemm/packed.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {
namespace {

struct Coding {
  DType dtype;
  Quant quant;
};
constexpr Coding kCodings[] = {{DType::f8e4m3, Quant::none},        {DType::f8e4m3, Quant::per_1x32}, {DType::f8e4m3, Quant::per_1x128},
                               {DType::f8e4m3, Quant::per_128x128}, {DType::i8, Quant::none},         {DType::i8, Quant::per_1x32},
                               {DType::i8, Quant::per_1x128},       {DType::i4, Quant::none},         {DType::i4, Quant::per_1x32},
                               {DType::i4, Quant::per_1x128},       {DType::f4e2m1, Quant::per_1x32}, {DType::f4e2m1, Quant::per_1x16}};

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Rows of all codes, each row shifted against the one before, and as scales powers of two, or for f8e4m3 all but NaN; every product of the two
/// is a bf16.
struct Weights {
  std::vector<std::byte> codes, scales;
  View view, scale;
  Quant quant;
  Weights(Coding coding, int64_t n, int64_t k) : quant(coding.quant) {
    const int64_t width = bits(coding.dtype);
    codes.resize(static_cast<size_t>(n * (k + k % 2) * width / 8 + 1));
    view = View(codes.data(), coding.dtype, {n, k});
    view.stride[0] = k + k % 2;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) {
        auto code = static_cast<uint8_t>((i + 37 * j) & (width == 4 ? 15 : 255));
        if (coding.dtype == DType::f8e4m3 && (code & 0x7f) == 0x7f) code = 0x7e;  // NaN would spoil the other products of its row
        const int64_t at = i * view.stride[0] + j;
        if (width == 8) codes[static_cast<size_t>(at)] = std::byte{code};
        else codes[static_cast<size_t>(at / 2)] |= std::byte{code} << (at % 2 * 4);
      }
    if (!is_block(quant)) return;
    const DType dtype = block_scale_dtype(coding.dtype, quant);
    const int64_t rows = blocks_of(n, block_rows(quant)), blocks = blocks_of(k, block_k(quant));
    scales.resize(static_cast<size_t>(rows * blocks * bits(dtype) / 8));
    scale = View(scales.data(), dtype, {rows, blocks});
    for (int64_t i = 0; i < rows * blocks; ++i) {
      if (dtype == DType::f8e4m3) scales[static_cast<size_t>(i)] = std::byte{static_cast<uint8_t>(i * 29 % 127 | i % 5 / 4 << 7)};
      else store_at(scales.data(), dtype, i, std::exp2(static_cast<double>(i * 5 % 11) - 6));
    }
  }
  double at(int64_t i, int64_t j) const { return load(view, {i, j}) * (is_block(quant) ? block_scale_at(scale, quant, 0, i, j) : 1); }
};

// Rows of a unit matrix pick single elements of b: c is exact in every row of the table, 4- and 8-bit codes of all values, group after
// group.
TEST(Coded, EveryCodeIsDecodedExactly) {
  constexpr int64_t kN = 300, kK = 150;
  for (const Coding coding : kCodings)
    for (const DType a_type : {DType::bf16, DType::f16, DType::f32})
      for (const bool plain : {false, true}) {
        const Weights w(coding, kN, kK);
        const Packed packed = pack({.weights = w.view, .quant = w.quant, .scale = w.scale});
        std::vector<std::byte> a(static_cast<size_t>(kK * kK * bits(a_type) / 8));
        for (int64_t i = 0; i < kK * kK; ++i) store_at(a.data(), a_type, i, i % (kK + 1) == 0 ? 1 : 0);
        std::vector<float> c(static_cast<size_t>(kK * kN));
        const float one = 1, half = 0.5f;
        GemmArgs args{.a = View(a.data(), a_type, {kK, kK}), .b = plain ? w.view : packed.view, .c = View(c.data(), DType::f32, {kK, kN})};
        if (!is_block(coding.quant)) args.b_scale = View(&one, DType::f32, {1});
        else if (plain) args.b_scale = w.scale, args.b_quant = coding.quant;
        if (coding.quant == Quant::per_1x16) args.b_global_scale = View(&half, DType::f32, {1});
        const double factor = coding.quant == Quant::per_1x16 ? 0.5 : 1;
        harness::with_every_kernel<Gemm>(args, [&](const char*) {
          std::fill(c.begin(), c.end(), kNan);
          gemm(args);
          for (int64_t i = 0; i < kK; ++i)
            for (int64_t j = 0; j < kN; ++j)
              ASSERT_EQ(c[static_cast<size_t>(i * kN + j)], w.at(j, i) * factor)
                  << str(coding.dtype, " ", coding.quant, " a ", a_type, " at [", j, ", ", i, "]");
        });
      }
}

#if EITRI_X86
// The same at levels that this machine would not choose, in calls of so few rows that kernels stream the weights.
TEST(Coded, EveryCodeIsDecodedExactlyForFewRows) {
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vnni")) GTEST_SKIP() << "this machine has no AVX-512 VNNI";
  struct Level {
    const char* name;
    PanelFn function;
  };
  std::vector<Level> levels = {{"avx512", avx512::coded_bf16}};
  if (__builtin_cpu_supports("avx512vbmi")) levels.push_back({"avx512vbmi", avx512vbmi::coded_bf16});
  if (best_isa() > Isa::x86_avx512) levels.push_back({"amx_emulated", amx_emulated::coded_bf16});
  if (best_isa() == Isa::x86_amx) levels.push_back({"amx", amx::coded_bf16});
  constexpr int64_t kN = 300, kK = 150;
  std::vector<uint16_t> a(static_cast<size_t>(kK * kK));
  for (int64_t i = 0; i < kK; ++i) a[static_cast<size_t>(i * (kK + 1))] = encode_bf16(1.0f);
  for (const Coding coding : kCodings) {
    const Weights w(coding, kN, kK);
    const Packed packed = pack({.weights = w.view, .quant = w.quant, .scale = w.scale});
    for (const Level& level : levels)
      for (const int64_t rows : {1, 2, 3, 4, 16, 17, 70}) {
        std::vector<float> c(static_cast<size_t>(kK * kN), kNan);
        PanelTask task;
        task.a_stride = kK * 2, task.n = kN, task.k = kK;
        task.b = packed_matrix(packed.view, 0), task.panel_end = panel_count(kN, GateLayout::none);
        task.codes = panel_codes(coding.dtype, coding.quant);
        task.c_stride = kN * 4;
        Buffer scratch(static_cast<size_t>(panel_scratch(rows, kK, task.panel_end, 2, false)));
        std::memset(scratch.data(), 0xff, scratch.size());
        task.scratch = scratch.data();
        for (int64_t i = 0; i < kK; i += rows) {
          task.m = std::min(rows, kK - i);
          task.next = i % 2 == 0 ? packed_matrix(packed.view, 0) : nullptr;
          task.a = reinterpret_cast<const std::byte*>(a.data() + i * kK), task.c = reinterpret_cast<std::byte*>(c.data() + i * kN);
          level.function(task);
        }
        for (int64_t i = 0; i < kK; ++i)
          for (int64_t j = 0; j < kN; ++j)
            ASSERT_EQ(c[static_cast<size_t>(i * kN + j)], w.at(j, i))
                << str(level.name, " ", coding.dtype, " ", coding.quant, " rows ", rows, " at [", j, ", ", i, "]");
      }
  }
}
#endif

// The same with i8 activations, whose sums are whole: all 16 codes, -8 included, at every place of a span.
TEST(Coded, EveryI4CodeMeetsI8Exactly) {
  constexpr int64_t kN = 70, kK = 150;
  const Weights w({DType::i4, Quant::none}, kN, kK);
  const Packed packed = pack({.weights = w.view});
  std::vector<int8_t> a(static_cast<size_t>(kK * kK));
  for (int64_t i = 0; i < kK; ++i) a[static_cast<size_t>(i * (kK + 1))] = -127;
  const std::vector<float> ones(static_cast<size_t>(kK), 1.0f);
  std::vector<float> c(static_cast<size_t>(kK * kN));
  for (const bool plain : {false, true}) {
    const GemmArgs args{.a = View(a.data(), DType::i8, {kK, kK}),
                        .b = plain ? w.view : packed.view,
                        .c = View(c.data(), DType::f32, {kK, kN}),
                        .a_scale = View(ones.data(), DType::f32, {kK}),
                        .b_scale = View(ones.data(), DType::f32, {kN})};
    harness::with_every_kernel<Gemm>(args, [&](const char*) {
      std::fill(c.begin(), c.end(), kNan);
      gemm(args);
      for (int64_t i = 0; i < kK; ++i)
        for (int64_t j = 0; j < kN; ++j)
          ASSERT_EQ(c[static_cast<size_t>(i * kN + j)], -127 * w.at(j, i)) << "at [" << j << ", " << i << "]";
    });
  }
}

// A NaN code spoils its column, and no other.
TEST(Coded, NanCodesAreNan) {
  constexpr int64_t kN = 70, kK = 140;
  for (const Quant quant : {Quant::none, Quant::per_1x32, Quant::per_128x128}) {
    Weights w({DType::f8e4m3, quant}, kN, kK);
    w.codes[3 * kK + 5] = std::byte{0x7f};
    w.codes[40 * kK + 139] = std::byte{0xff};
    const Packed packed = pack({.weights = w.view, .quant = w.quant, .scale = w.scale});
    std::vector<uint16_t> a(kK, encode_bf16(1.0f));
    std::vector<float> c(kN);
    const float one = 1;
    GemmArgs args{.a = View(a.data(), DType::bf16, {1, kK}), .b = packed.view, .c = View(c.data(), DType::f32, {1, kN})};
    if (quant == Quant::none) args.b_scale = View(&one, DType::f32, {1});
    harness::with_every_kernel<Gemm>(args, [&](const char*) {
      gemm(args);
      for (int64_t j = 0; j < kN; ++j) ASSERT_EQ(std::isnan(c[static_cast<size_t>(j)]), j == 3 || j == 40) << j;
    });
  }
}

TEST(Coded, EveryElementIsFoundAgain) {
  for (const Coding coding : kCodings)
    for (const GateLayout gate : {GateLayout::none, GateLayout::separated, GateLayout::interleaved})
      for (const int64_t n : {2, 34, 150})
        for (const int64_t k : {1, 16, 31, 65, 128, 130, 300}) {
          const Weights w(coding, n, k);
          const Packed packed = pack({.weights = w.view, .gate = gate, .quant = w.quant, .scale = w.scale});
          ASSERT_EQ(packed_view(packed.buffer.data(), packed.buffer.size()).dtype, coding.dtype);
          ASSERT_EQ(packed_quant(packed.view), coding.quant);
          for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < k; ++j)
              ASSERT_EQ(weight_at(packed.view, 0, i, j), w.at(i, j))
                  << str(coding.dtype, " ", coding.quant, " ", gate, " [", i, ", ", j, "]");
        }
}

// Codes and their scales, nothing else: what a decode stream reads.
TEST(Coded, SizesOfPanels) {
  const auto bytes = [](Coding coding, int64_t n, int64_t k) {
    const Weights w(coding, n, k);
    return packed_bytes({.weights = w.view, .quant = w.quant, .scale = w.scale}) - sizeof(PackedHeader);
  };
  EXPECT_EQ(bytes({DType::f8e4m3, Quant::none}, 32, 128), 4096u);
  EXPECT_EQ(bytes({DType::f8e4m3, Quant::per_128x128}, 32, 128), 4096u + 128);
  EXPECT_EQ(bytes({DType::i4, Quant::none}, 32, 128), 2048u);
  EXPECT_EQ(bytes({DType::i4, Quant::per_1x32}, 33, 129), 4 * (2048u + 4 * 128));
  EXPECT_EQ(bytes({DType::i4, Quant::per_1x128}, 32, 128), 2048u + 128);
  EXPECT_EQ(bytes({DType::f4e2m1, Quant::per_1x32}, 32, 128), 2048u + 4 * 32);
  EXPECT_EQ(bytes({DType::f4e2m1, Quant::per_1x16}, 32, 128), 2048u + 8 * 32);
  EXPECT_EQ(bytes({DType::i8, Quant::none}, 32, 128), 4096u + 128);  // column sums, for the i8 kernels
}

TEST(Coded, OldBuffersKeepTheirVersion) {
  Maker maker;
  const auto version_of = [&](DType dtype) {
    return static_cast<const PackedHeader*>(pack({.weights = maker.input("w", dtype, {40, 50}, Fill::code)}).view.data)->version;
  };
  EXPECT_EQ(version_of(DType::bf16), 1);
  EXPECT_EQ(version_of(DType::i8), 1);
  EXPECT_EQ(version_of(DType::f8e4m3), 2);
}

TEST(Coded, PackingRefusesWhatKernelsCannotFold) {
  const auto message = [](Weights& w) { return message_of([&] { pack({.weights = w.view, .quant = w.quant, .scale = w.scale}); }); };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  for (const uint8_t code : {255, 0, 26, 228}) {
    Weights w({DType::f4e2m1, Quant::per_1x32}, 40, 100);
    w.scales[7] = std::byte{code};  // [1, 3]
    EXPECT_TRUE(contains(message(w), "pack_weights: scale[1, 3] is ") && contains(message(w), "2^-100 to 2^100")) << message(w);
    std::fill_n(w.codes.begin() + 50 + 48, 2, std::byte{0x80});              // +0 and -0
    EXPECT_EQ(contains(message(w), "no error"), code != 255) << message(w);  // a block of zeros has scale code 0
  }
  Weights infinite({DType::i4, Quant::per_1x32}, 40, 100);
  store_at(infinite.scales.data(), DType::f32, 5, HUGE_VAL);
  EXPECT_TRUE(contains(message(infinite), "scale[1, 1] is inf; expected a finite number")) << message(infinite);
  Weights nan({DType::f4e2m1, Quant::per_1x16}, 40, 100);
  nan.scales[0] = std::byte{0x7f};
  EXPECT_TRUE(contains(message(nan), "scale[0, 0] is nan")) << message(nan);

  const Weights f4({DType::f4e2m1, Quant::per_1x32}, 40, 100), f8({DType::f8e4m3, Quant::per_128x128}, 40, 100);
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f4.view}); }), "quant is none"));
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f4.view, .quant = Quant::per_1x128, .scale = f8.scale}); }), "quant is"));
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f4.view, .quant = Quant::per_1x16, .scale = f4.scale}); }),
                       "expected f8e4m3[40, 7]"));
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f8.view, .scale = f8.scale}); }), "scale is"));
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f8.view, .quant = Quant::per_128x128}); }), "expected block scales"));
  EXPECT_TRUE(contains(message_of([&] { packed_bytes({.weights = f8.view, .format = PackFormat::onednn}); }), "layout of oneDNN"));
}

std::string refusal(const GemmArgs& args) {
  return message_of([&] { Gemm::check(args); });
}

TEST(Coded, EveryScaleArgumentIsChecked) {
  Maker maker;
  const auto expect = [&](const GemmArgs& good, auto&& change, const char* text) {
    GemmArgs args = good;
    ASSERT_EQ(refusal(args), "no error");
    change(args);
    EXPECT_NE(refusal(args).find(text), std::string::npos) << refusal(args);
  };
  const Gemm::Problem base{.m = 4, .n = 160, .k = 300, .b_format = WeightFormat::strided};
  const auto make = [&](DType a, DType b, Quant a_quant, Quant b_quant, WeightFormat format = WeightFormat::strided) {
    Gemm::Problem p = base;
    p.a = a, p.b = b, p.a_quant = a_quant, p.b_quant = b_quant, p.b_format = format;
    return Gemm::make(p, maker);
  };
  using enum Quant;
  const GemmArgs mx = make(DType::bf16, DType::f4e2m1, none, per_1x32);
  expect(
      mx, [](GemmArgs& a) { a.b_quant = none; }, "b_quant is none; expected per_1x32 or per_1x16 (b is f4e2m1)");
  expect(
      mx, [](GemmArgs& a) { a.b_quant = per_1x16; }, "expected f8e4m3[160, 19] (f4e2m1 per_1x16)");
  expect(
      mx, [](GemmArgs& a) { a.b_quant = per_1x128; }, "b_quant is per_1x128; expected another (b is f4e2m1)");
  expect(
      mx, [](GemmArgs& a) { a.b_scale.shape[1] = 9; }, "b_scale is f8e8m0[160, 9]");
  expect(
      mx, [](GemmArgs& a) { a.b_scale = View(); }, "b_scale is none; expected f8e8m0[160, 10]");
  expect(
      mx, [](GemmArgs& a) { a.a_quant = per_token; }, "a_quant is per_token; expected none (a is bf16)");
  expect(
      mx, [](GemmArgs& a) { a.a_scale = View(a.c.data, DType::f32, {4}); }, "a_scale is");
  expect(
      mx, [](GemmArgs& a) { a.b_global_scale = View(a.c.data, DType::f32, {1}); }, "b_global_scale is");
  expect(
      make(DType::bf16, DType::f4e2m1, none, per_1x16), [](GemmArgs& a) { a.b_global_scale = View(); },
      "b_global_scale is none; expected f32[1] (b_quant is per_1x16)");
  const GemmArgs packed = make(DType::bf16, DType::i4, none, per_1x32, WeightFormat::panel32);
  EXPECT_EQ(Gemm::check(packed).b_quant, per_1x32);
  expect(
      packed, [](GemmArgs& a) { a.b_quant = per_1x128; }, "b_quant is per_1x128; expected per_1x32 (b was packed with it)");
  expect(
      packed,
      [](GemmArgs& a) {
        a.b_scale = View(a.c.data, DType::f32, {160, 10});
      },
      "expected none (b was packed with its scales)");
  expect(
      make(DType::bf16, DType::i4, none, per_token), [](GemmArgs& a) { a.b_scale.shape[0] = 159; }, "b_scale is f32[159]");
  expect(
      make(DType::bf16, DType::i4, none, per_token), [](GemmArgs& a) { a.b_quant = per_tensor; }, "b_scale is f32[160]");
  const GemmArgs blocks = make(DType::f8e4m3, DType::none, per_1x128, per_128x128);
  expect(
      blocks, [](GemmArgs& a) { a.a_quant = per_1x32; }, "a_quant is per_1x32 and b_quant is per_128x128; expected");
  expect(
      blocks, [](GemmArgs& a) { a.a_scale.shape[1] = 2; }, "expected f32[4, 3] (f8e4m3 per_1x128)");
  expect(
      blocks, [](GemmArgs& a) { a.b_scale.shape[0] = 1; }, "expected f32[2, 3]");
  expect(
      blocks, [](GemmArgs& a) { a.a_quant = none; }, "a_quant is none and b_quant is per_128x128; expected");
  expect(
      make(DType::f8e4m3, DType::f4e2m1, per_1x32, per_1x32), [](GemmArgs& a) { a.b.dtype = DType::i4; }, "(that of a) or f4e2m1");
  expect(
      make(DType::i8, DType::none, none, none), [](GemmArgs& a) { a.b_quant = per_tensor; },
      "expected per_token (a and b are whole numbers)");
}

}  // namespace
}  // namespace eitri
