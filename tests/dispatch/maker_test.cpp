// Maker: the surroundings of tensors, and data that does not depend on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/view.h"
#include "dispatch/maker.h"
#include "ops/grouped_gemm/make_inputs.h"
#include "ops/moe_sort/moe_sort.h"

namespace eitri {
namespace {

using testing::HasSubstr;

std::vector<double> values(const View& view) {
  std::vector<double> out;
  for (int64_t i = 0; i < view.shape[0]; ++i)
    for (int64_t j = 0; j < view.shape[1]; ++j) out.push_back(load(view, {i, j}));
  return out;
}

TEST(Maker, data_depends_on_seed_and_name_alone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8, DType::f8e4m3, DType::i4}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 34}, {400, 300}}) {
      Maker plain({.seed = 7}), strided({.seed = 7, .guards = true, .strided = true, .zero_pads = true}), other({.seed = 8});
      const auto a = values(plain.input("x", dtype, {rows, cols}, Fill::code));
      strided.input("first", dtype, {3, 4}, Fill::normal);  // the order of requests does not matter
      EXPECT_EQ(a, values(strided.input("x", dtype, {rows, cols}, Fill::code))) << to_string(dtype);
      EXPECT_NE(a, values(other.input("x", dtype, {rows, cols}, Fill::code)));
      EXPECT_NE(a, values(plain.input("y", dtype, {rows, cols}, Fill::code)));
    }
  }
}

TEST(Maker, small_and_large_tensors_are_made_of_the_same_numbers) {
  Maker maker;
  const View large = maker.input("x", DType::f32, {300, 300}, Fill::normal);
  const View small = maker.input("x", DType::f32, {1, 300}, Fill::normal);
  for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(load(small, {0, i}), load(large, {0, i}));
}

TEST(Maker, small_and_large_packed_tensors_are_made_of_the_same_numbers) {
  for (const bool strided : {false, true})
    for (const DType dtype : {DType::f4e2m1, DType::i4}) {
      Maker maker({.seed = 3, .strided = strided});
      const View small = maker.input("w", dtype, {7, 130}, Fill::code), large = maker.input("w", dtype, {5, 230, 130}, Fill::code);
      for (int64_t r = 0; r < 7; ++r)
        for (int64_t j = 0; j < 130; ++j)
          ASSERT_EQ(load(small, {r, j}), load(large, {0, r, j})) << str(dtype) << " row " << r << " column " << j;
      std::set<double> last;
      for (int64_t j = 0; j < 130; ++j) last.insert(load(large, {4, 229, j}));
      EXPECT_GT(last.size(), 8u) << str(dtype);
    }
}

TEST(Maker, fills_look_as_promised) {
  Maker maker;
  const auto moments = [](const std::vector<double>& x) {
    double sum = 0, squares = 0;
    for (const double v : x) sum += v, squares += v * v;
    return std::pair(sum / double(x.size()), squares / double(x.size()));
  };
  const auto [mean, square] = moments(values(maker.input("n", DType::f32, {256, 400}, Fill::normal)));
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(moments(values(maker.input("w", DType::bf16, {256, 400}, Fill::weight))).second, 1.0 / 400, 1e-4);
  double low = 0, high = 0;
  for (const double v : values(maker.input("c", DType::i8, {256, 400}, Fill::code))) low = std::min(low, v), high = std::max(high, v);
  EXPECT_EQ(low, -127);
  EXPECT_EQ(high, 127);
  for (const double v : values(maker.input("s", DType::f32, {10, 400}, Fill::scale))) EXPECT_TRUE(v > 0.004 && v < 0.021) << v;
  for (const double v : values(maker.input("p", DType::f32, {10, 400}, Fill::probability))) EXPECT_TRUE(v > 0 && v <= 1) << v;
  for (const double v : values(maker.input("z", DType::f32, {10, 400}, Fill::zero))) EXPECT_EQ(v, 0);
}

TEST(Maker, outputs_start_as_what_no_kernel_writes) {
  for (const DType dtype : all_dtypes()) {
    Maker maker({.guards = true, .strided = true});
    const View out = maker.output("out", dtype, {3, 6});
    for (const double v : values(out)) {
      if (is_float(dtype) && dtype != DType::f4e2m1) {
        EXPECT_TRUE(std::isnan(v)) << to_string(dtype);
      }
      if (dtype == DType::i8) {
        EXPECT_EQ(v, -128);
      }
      if (dtype == DType::i32) {
        EXPECT_EQ(v, static_cast<double>(static_cast<int32_t>(0xa5a5a5a5)));
      }
    }
    store(out, {1, 2}, 1);
    maker.poison_outputs();
    EXPECT_NE(load(out, {1, 2}), 1) << to_string(dtype);
    EXPECT_EQ(maker.damage(), "");
  }
}

TEST(Maker, pads_are_nan_or_zero) {
  for (const bool zero : {false, true}) {
    Maker maker({.guards = true, .strided = true, .zero_pads = zero});
    const View x = maker.input("x", DType::bf16, {3, 5}, Fill::normal);
    ASSERT_GT(x.stride[0], 5);
    for (int64_t i = -3; i < 2 * x.stride[0] + 8; ++i) {
      if (i >= 0 && i % x.stride[0] < 5 && i / x.stride[0] < 3) continue;
      const double pad = load_at(x.data, DType::bf16, i);
      EXPECT_TRUE(zero ? pad == 0 : std::isnan(pad)) << i;
    }
  }
}

TEST(Maker, damage_is_found_at_every_byte_around) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8, DType::i4}) {
    Maker maker({.guards = true, .strided = true});
    const View out = maker.output("out", dtype, {3, 6});
    auto* const data = static_cast<std::byte*>(out.data);
    const int64_t row = bytes_for(dtype, out.stride[0]), cells = bytes_for(dtype, 6), span = span_bytes(out);
    for (int64_t i = -40; i < span + 40; ++i) {
      const bool inside = i >= 0 && i < span && i % row < cells;
      const std::byte before = data[i];
      data[i] ^= std::byte{0x10};
      EXPECT_EQ(maker.damage().empty(), inside) << to_string(dtype) << " byte " << i;
      data[i] = before;
    }
    EXPECT_EQ(maker.damage(), "");
  }
}

TEST(Maker, damage_says_where) {
  Maker maker({.guards = true});
  const View x = maker.input("x", DType::f32, {2, 3}, Fill::normal);
  maker.seal();
  EXPECT_EQ(maker.damage(), "");
  auto* data = static_cast<float*>(x.data);
  data[6] = 0;
  EXPECT_THAT(maker.damage(), HasSubstr("x (f32[2, 3]) was overwritten 0 bytes after its end"));
  Maker second({.guards = true});
  const View y = second.input("y", DType::f32, {2, 3}, Fill::normal);
  second.seal();
  static_cast<float*>(y.data)[0] += 1;
  EXPECT_THAT(second.damage(), HasSubstr("y (f32[2, 3]) is an input, but was written to"));
}

TEST(Maker, empty_tensors) {
  Maker maker({.guards = true, .strided = true});
  const View a = maker.input("a", DType::f32, {0, 3}, Fill::normal), b = maker.output("b", DType::i8, {3, 0});
  EXPECT_TRUE(a.given() && b.given());
  EXPECT_EQ(maker.damage(), "");
  std::byte* raw = maker.raw("packed", 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(raw) % 64, 0u);
  std::memset(raw, 0, 100);
  EXPECT_EQ(maker.damage(), "");
  raw[100] = std::byte{0};
  EXPECT_NE(maker.damage(), "");
}

TEST(Maker, dense_inputs_stay_dense) {
  Maker maker({.strided = true});
  EXPECT_TRUE(is_contiguous(maker.dense("ids", DType::i32, {4, 5}, Fill::zero)));
  EXPECT_FALSE(is_contiguous(maker.input("x", DType::f32, {4, 5}, Fill::zero)));
  EXPECT_EQ(maker.input("n", DType::f32, {5}, Fill::zero).stride[0], 1) << "vectors have no gaps";
}

TEST(Maker, skewed_experts_are_distinct_and_the_popular_ones_have_most_tokens) {
  constexpr int64_t kTokens = 1024, kTopK = 8, kExperts = 128;
  const auto most = [](double skew) {
    Maker maker({.skew = skew});
    const auto* ids = static_cast<const int32_t*>(make_routing(maker, kTokens, kTopK, kExperts).ids.data);
    std::vector<int64_t> loads(kExperts);
    for (int64_t t = 0; t < kTokens; ++t) {
      EXPECT_EQ(std::set<int32_t>(ids + t * kTopK, ids + (t + 1) * kTopK).size(), static_cast<size_t>(kTopK));
      for (int64_t s = 0; s < kTopK; ++s) ++loads[static_cast<size_t>(ids[t * kTopK + s])];
    }
    return static_cast<double>(*std::max_element(loads.begin(), loads.end())) / (kTokens * kTopK / kExperts);
  };
  EXPECT_LT(most(0), 1.7);
  EXPECT_GT(most(0.5), 4);
  Maker few({.skew = 3});  // all experts of every token, however unpopular
  const auto* ids = static_cast<const int32_t*>(make_routing(few, 2, 5, 4).ids.data);
  EXPECT_EQ(std::set<int32_t>(ids, ids + 5), (std::set<int32_t>{-1, 0, 1, 2, 3}));
}

TEST(Maker, the_sort_has_skewed_ids_too) {
  constexpr int64_t kTokens = 1024, kTopK = 8, kExperts = 128;
  const auto most = [](double skew) {
    Maker maker({.strided = true, .skew = skew});
    const View ids = MoeSort::make({.tokens = kTokens, .experts = kExperts, .top_k = kTopK}, maker).topk_ids;
    std::vector<int64_t> loads(kExperts);
    int64_t repeated = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::set<double> own;
      for (int64_t s = 0; s < kTopK; ++s) {
        const double id = load(ids, {t, s});
        own.insert(id);
        if (id >= 0 && id < kExperts) ++loads[static_cast<size_t>(id)];
      }
      repeated += own.size() < kTopK ? 1 : 0;
    }
    EXPECT_LT(repeated, kTokens / 12) << "one row in 24 repeats an id on purpose";
    return static_cast<double>(*std::max_element(loads.begin(), loads.end())) / (kTokens * kTopK / kExperts);
  };
  EXPECT_LT(most(0), 1.7);
  EXPECT_GT(most(0.5), 4);
}

}  // namespace
}  // namespace eitri
