// pack_weights: every logical element is found again, padding is zero, and no buffer is believed that is not ours.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/cpu/memory.h"
#include "base/view.h"
#include "dispatch/maker.h"
#include "ops/gemm/library.h"
#include "ops/gemm/pack.h"
#include "ops/gemm/packed.h"

namespace eitri {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8};
constexpr GateLayout kGates[] = {GateLayout::none, GateLayout::separated, GateLayout::interleaved};

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Pack, EveryElementIsFoundAgain) {
  for (const DType dtype : kTypes) {
    for (const GateLayout gate : kGates) {
      for (const int64_t n : {2, 30, 34, 66}) {
        for (const int64_t k : {1, 15, 17, 32, 33, 65, 130}) {
          Maker maker({.strided = true});
          const View w = maker.input("w", dtype, {2, n, k}, dtype == DType::i8 ? Fill::code : Fill::normal);
          const Packed packed = pack({.weights = w, .gate = gate});
          ASSERT_EQ(packed.view.layout, Layout::packed);
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < n; ++i)
              for (int64_t j = 0; j < k; ++j)
                ASSERT_EQ(weight_at(packed.view, b, i, j), load(w, {b, i, j}))
                    << str(dtype, " ", gate, " n=", n, " k=", k, " at [", b, ", ", i, ", ", j, "]");
        }
      }
    }
  }
}

// With all elements alike, every byte that is not padding is known to be used exactly once: nothing is stored twice.
TEST(Pack, PaddingIsZeroAndNothingIsStoredTwice) {
  for (const DType dtype : kTypes) {
    for (const GateLayout gate : kGates) {
      const int64_t n = 38, k = 37, width = bits(dtype) / 8;
      std::vector<std::byte> ones(static_cast<size_t>(n * k * width));
      for (int64_t i = 0; i < n * k; ++i) store_at(ones.data(), dtype, i, 1);
      const Packed packed = pack({.weights = View(ones.data(), dtype, {n, k}), .gate = gate});
      const int64_t outputs = gate == GateLayout::none ? n : n / 2, panels = panel_count(outputs, gate);
      const int64_t sums = dtype == DType::i8 ? kPanelSumsBytes : 0;
      double total = 0;
      for (int64_t p = 0; p < panels; ++p) {
        const std::byte* panel = packed_matrix(packed.view, 0) + p * panel_bytes(k, width);
        for (int64_t i = 0; i < (panel_bytes(k, width) - sums) / width; ++i) {
          const double x = load_at(panel, dtype, i);
          ASSERT_TRUE(x == 0 || x == 1);
          total += x;
        }
      }
      EXPECT_EQ(total, static_cast<double>(n * k)) << str(dtype, " ", gate);
    }
  }
}

TEST(Pack, ColumnSumsOfI8) {
  for (const GateLayout gate : kGates) {
    const int64_t n = 70, k = 130;
    Maker maker;
    const View w = maker.input("w", DType::i8, {n, k}, Fill::code);
    const Packed packed = pack({.weights = w, .gate = gate});
    const int64_t outputs = gate == GateLayout::none ? n : n / 2;
    for (int64_t panel = 0; panel < panel_count(outputs, gate); ++panel) {
      const std::byte* sums = packed_matrix(packed.view, 0) + (panel + 1) * panel_bytes(k, 1) - kPanelSumsBytes;
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        const int64_t row = weight_row(outputs, gate, panel, column);
        double expected = 0;
        for (int64_t j = 0; row >= 0 && j < k; ++j) expected += load(w, {row, j});
        EXPECT_EQ(load_at(sums, DType::i32, column), expected);
      }
    }
  }
}

TEST(Pack, TransposedWeights) {
  Maker maker;
  const View kn = maker.input("w", DType::bf16, {50, 34}, Fill::normal);  // k x n
  View nk = kn;
  std::swap(nk.shape[0], nk.shape[1]);
  std::swap(nk.stride[0], nk.stride[1]);
  const Packed packed = pack({.weights = nk});
  for (int64_t i = 0; i < 34; ++i)
    for (int64_t j = 0; j < 50; ++j) ASSERT_EQ(weight_at(packed.view, 0, i, j), load(kn, {j, i}));
}

TEST(Pack, SizesAndZeroExtents) {
  const auto bytes = [](DType dtype, std::initializer_list<int64_t> shape, GateLayout gate = GateLayout::none) {
    static std::byte memory[1 << 16];
    return packed_bytes({.weights = View(memory, dtype, shape), .gate = gate});
  };
  EXPECT_EQ(bytes(DType::bf16, {32, 32}), 64u + 2048u);
  EXPECT_EQ(bytes(DType::bf16, {33, 33}), 64u + 2 * 2 * 2048u);
  EXPECT_EQ(bytes(DType::f32, {1, 1}), 64u + 2048u);
  EXPECT_EQ(bytes(DType::i8, {32, 64}), 64u + 2048u + 128u);
  EXPECT_EQ(bytes(DType::bf16, {3, 32, 32}), 64u + 3 * 2048u);
  EXPECT_EQ(bytes(DType::bf16, {34, 32}, GateLayout::separated), 64u + 2 * 2048u);  // 17 outputs
  EXPECT_EQ(bytes(DType::bf16, {0, 32}), 64u);
  EXPECT_EQ(bytes(DType::bf16, {32, 0}), 64u);
  EXPECT_EQ(bytes(DType::bf16, {0, 32, 32}), 64u);
  const Packed packed = pack({.weights = View(nullptr, DType::bf16, {0, 32})});
  EXPECT_EQ(packed_view(packed.buffer.data(), 64).shape[1], 32);
}

TEST(Pack, BuffersOfOthersAreRefused) {
  Maker maker;
  const View w = maker.input("w", DType::bf16, {40, 50}, Fill::normal);
  const Packed packed = pack({.weights = w});
  const size_t size = packed_bytes({.weights = w});
  const auto refused = [&](auto&& change, size_t bytes) {
    Buffer copy(size);
    std::memcpy(copy.data(), packed.buffer.data(), size);
    change(copy.data());
    return message_of([&] { packed_view(copy.data(), bytes); });
  };
  const auto same = [](std::byte*) {};
  EXPECT_EQ(refused(same, size), "no error");
  EXPECT_NE(refused(same, size - 1).find("truncated"), std::string::npos);
  EXPECT_NE(refused(same, 63).find("header"), std::string::npos);
  EXPECT_NE(refused([](std::byte* p) { p[0] = std::byte{'X'}; }, size).find("mark"), std::string::npos);
  EXPECT_NE(refused([](std::byte* p) { p[8] = std::byte{3}; }, size).find("version 3"), std::string::npos);
  // Every bit of the header matters.
  for (size_t bit = 0; bit < sizeof(PackedHeader) * 8; ++bit) {
    const auto flip = [&](std::byte* p) { p[bit / 8] ^= std::byte{1} << (bit % 8); };
    EXPECT_NE(refused(flip, size), "no error") << "bit " << bit;
  }
  EXPECT_NE(message_of([&] { packed_view(packed.buffer.data() + 1, size); }).find("aligned"), std::string::npos);
  EXPECT_NE(message_of([&] { packed_view(nullptr, size); }).find("null"), std::string::npos);
  // A header that was written with a right checksum over impossible extents.
  View grown = packed.view;
  grown.shape[0] = 41;
  EXPECT_NE(message_of([&] { packed_header(grown, "gemm", "b"); }).find("as its buffer says"), std::string::npos);
}

TEST(Pack, BadArgumentsAreRefused) {
  Maker maker;
  const View odd = maker.input("w", DType::bf16, {33, 16}, Fill::normal);
  EXPECT_NE(message_of([&] { packed_bytes({.weights = odd, .gate = GateLayout::separated}); }).find("even number of rows"),
            std::string::npos);
  EXPECT_NE(message_of([&] { packed_bytes({.weights = maker.input("v", DType::bf16, {33}, Fill::normal)}); }).find("rank 2 or 3"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              packed_bytes({.weights = maker.input("u", DType::u8, {4, 4}, Fill::code)});
            }).find("f32, bf16, f16, i8, f8e4m3, i4 or f4e2m1"),
            std::string::npos);
  EXPECT_NE(message_of([&] { packed_bytes({.weights = View()}); }).find("rank 2 or 3"), std::string::npos);
  EXPECT_NE(message_of([&] { pack_weights({.weights = odd}, odd.data); }).find("overlaps"), std::string::npos);
  const Packed packed = pack({.weights = odd});
  EXPECT_NE(message_of([&] { packed_bytes({.weights = packed.view}); }).find("plain rows"), std::string::npos);
}

TEST(Pack, LibraryLayoutsComeBackUnchanged) {
  if (library::version() == 0) GTEST_SKIP() << "this build has no oneDNN";
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    for (const int64_t n : {1, 70, 256}) {
      Maker maker;
      const int64_t k = 90;
      const View w = maker.input("w", dtype, {n, k}, dtype == DType::i8 ? Fill::code : Fill::normal);
      Packed packed;
      try {
        packed = pack({.weights = w, .format = PackFormat::onednn, .m_hint = 16});
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::unsupported) << error.what();
        continue;
      }
      std::vector<std::byte> rows(static_cast<size_t>(n * k * bits(dtype) / 8));
      library::unpack_matrix(packed.view, 0, rows.data());
      for (int64_t i = 0; i < n * k; ++i)
        ASSERT_EQ(load_at(rows.data(), dtype, i), load(w, {i / k, i % k})) << str(dtype, " n=", n, " element ", i);
    }
  }
}

TEST(Pack, LibraryLayoutsThatContradictTheirHeaderAreRefused) {
  if (library::version() == 0) GTEST_SKIP() << "this build has no oneDNN";
  Maker maker;
  constexpr int64_t kN = 70, kK = 90;
  const auto packed_of = [&](const char* name, int64_t n, int64_t k) {
    return pack({.weights = maker.input(name, DType::f32, {n, k}, Fill::normal), .format = PackFormat::onednn, .m_hint = 16});
  };
  const Packed good = packed_of("good", kN, kK), tall = packed_of("tall", 5 * kN, kK);
  const View a = maker.input("a", DType::f32, {3, kK}, Fill::normal), c = maker.output("c", DType::f32, {3, kN});
  const auto call_with = [&](const Packed& weights) {
    std::vector<std::byte> rows(kN * kK * 4);
    EXPECT_THROW(library::unpack_matrix(weights.view, 0, rows.data()), Error);
    return message_of([&] { call<Gemm>({.a = a, .b = weights.view, .c = c}); });
  };
  // A copy of `good` whose parts a test changes; the header's checksum is right again.
  const auto forged = [&](auto&& change) {
    Packed p = packed_of("good", kN, kK);
    auto* header = static_cast<PackedHeader*>(p.view.data);
    change(*header, static_cast<std::byte*>(p.view.data) + sizeof *header);
    header->checksum = hash_bytes(header, offsetof(PackedHeader, checksum));
    return p;
  };
  call<Gemm>({.a = a, .b = good.view, .c = c});
  const auto* const tall_layout = static_cast<const std::byte*>(tall.view.data) + sizeof(PackedHeader);
  const Packed other = forged([&](PackedHeader&, std::byte* layout) { std::memcpy(layout, tall_layout, 2048); });
  EXPECT_NE(call_with(other).find("a layout that is not of the f32[70, 90] of its header"), std::string::npos) << call_with(other);
  const Packed cut = forged([&](PackedHeader& h, std::byte*) { h.matrix_bytes = 2048 + kN * kK * 4; });
  const int64_t whole = static_cast<const PackedHeader*>(good.view.data)->matrix_bytes;
  if (whole - 2048 < kN * kK * 4 + 64) GTEST_SKIP() << "this library's layout has no padding to cut off";
  EXPECT_NE(call_with(cut).find("bytes; expected at most 25200, as its header says"), std::string::npos) << call_with(cut);
}

}  // namespace
}  // namespace eitri
