// Bugs that users of other libraries reported in public, as tests of ours: matrix products (B01-B12 of our case list; the
// other ids are in public_reports_moe_test.cpp). Only what runs on a CPU with today's dtypes is here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dispatch/maker.h"
#include "eitri/eitri.hpp"
#include "harness/every_kernel.h"
#include "ops/ops.h"
#include "ops/report_tensors.h"

namespace eitri {
namespace {

using harness::with_every_kernel;

class NeighbourRows : public testing::TestWithParam<std::tuple<DType, double>> {};

TEST_P(NeighbourRows, B01_do_not_leak_through_the_tail_of_k) {
  const DType dtype = std::get<0>(GetParam());  // clang's lambdas capture no structured bindings
  const double neighbour = std::get<1>(GetParam());
  for (const int64_t k : {16, 17, 31, 32, 33, 34, 40, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 255}) {
    Maker maker({.guards = true});
    GemmArgs args;
    args.a = maker.input("a", dtype, {3, 32, k}, Fill::zero);
    args.b = maker.input("b", dtype, {3, 64, k}, Fill::zero);
    args.c = maker.output("c", dtype, {3, 32, 64});
    fill(args.a, neighbour);
    for (int64_t batch = 0; batch < 3; ++batch) fill(slice(slice(args.a, batch), 0), 1);
    fill(args.b, 1);
    with_every_kernel<Gemm>(args, [&](const char*) {
      maker.poison_outputs();
      gemm(args);
      int64_t wrong = 0;
      for (int64_t batch = 0; batch < 3; ++batch)
        for (int64_t i = 0; i < 32; ++i)
          for (int64_t j = 0; j < 64; ++j) {
            const double value = load(args.c, {batch, i, j});
            const bool right = i == 0 ? value == static_cast<double>(k) : std::isnan(neighbour) ? std::isnan(value) : value == neighbour;
            wrong += !right;
          }
      EXPECT_EQ(wrong, 0) << "k=" << k;
      EXPECT_EQ(maker.damage(), "");
    });
  }
}
INSTANTIATE_TEST_SUITE_P(PublicReports, NeighbourRows,
                         testing::Combine(testing::Values(DType::bf16, DType::f16, DType::f32), testing::Values(kQuietNan, kInf)),
                         [](const auto& info) {
                           return str(to_string(std::get<0>(info.param)), std::isnan(std::get<1>(info.param)) ? "_nan" : "_inf");
                         });

TEST(PublicReports, B03_k_of_zero_gives_exact_zeros) {
  Maker maker({.guards = true});
  GemmArgs args;
  args.a = maker.input("a", DType::bf16, {16, 0}, Fill::normal);
  args.b = maker.input("b", DType::bf16, {16, 0}, Fill::normal);
  args.c = maker.output("c", DType::bf16, {16, 16});
  gemm(args);
  EXPECT_THAT(vector_of<double>(args.c), testing::Each(0.0));
  args.bias = maker.input("bias", DType::f32, {16}, Fill::zero);
  fill(args.bias, 1.5);
  maker.poison_outputs();
  gemm(args);
  EXPECT_THAT(vector_of<double>(args.c), testing::Each(1.5)) << "an empty sum, then the bias";
  EXPECT_EQ(maker.damage(), "");
}

/// Rows of a token matrix sorted by expert, top_k 1.
struct Sorted {
  Sorted(Maker& maker, std::initializer_list<double> ids, int64_t n_experts, int64_t block_rows) {
    const auto tokens = static_cast<int64_t>(ids.size());
    sort.topk_ids = maker.dense("topk_ids", DType::i32, {tokens, 1}, Fill::zero);
    sort.topk_weights = maker.dense("topk_weights", DType::f32, {tokens, 1}, Fill::zero);
    set(sort.topk_ids, ids);
    fill(sort.topk_weights, 1);
    padded = MoeSort::max_padded(tokens, 1, n_experts, block_rows);
    sort.sorted_ids = maker.output("sorted_ids", DType::i32, {padded});
    sort.sorted_weights = maker.output("sorted_weights", DType::f32, {padded});
    sort.sorted_expert_ids = maker.output("sorted_expert_ids", DType::i32, {MoeSort::max_blocks(padded, block_rows)});
    sort.num_valid = maker.output("num_valid", DType::i32, {2});
    sort.experts = n_experts;
    sort.block = block_rows;
    moe_sort(sort);
  }
  void give(GroupedGemmArgs& args) const {
    args.sorted_ids = sort.sorted_ids;
    args.sorted_expert_ids = sort.sorted_expert_ids;
    args.num_valid = sort.num_valid;
    args.tokens = sort.topk_ids.shape[0];
    args.block = sort.block;
  }
  /// The token of each sorted position, -1 at padding.
  std::vector<int64_t> tokens() const {
    std::vector<int64_t> out;
    for (int64_t p = 0; p < padded; ++p) {
      const auto token = static_cast<int64_t>(load(sort.sorted_ids, {p})) & kSortedTokenMask;
      out.push_back(p < load(sort.num_valid, {0}) && token < sort.topk_ids.shape[0] ? token : -1);
    }
    return out;
  }
  MoeSortArgs sort;
  int64_t padded = 0;
};

/// C[i, :] = k * 2^i for every token with an expert; all weights are 1.
void expect_powers_of_two(std::initializer_list<double> ids, int64_t experts, int64_t k, int64_t n, int64_t block) {
  const auto tokens = static_cast<int64_t>(ids.size());
  Maker maker({.guards = true}), outputs({.guards = true});
  const Sorted sorted(maker, ids, experts, block);
  GroupedGemmArgs args;
  sorted.give(args);
  args.a = maker.input("a", DType::bf16, {tokens, k}, Fill::zero);
  args.b = maker.input("b", DType::bf16, {experts, n, k}, Fill::zero);
  args.c = outputs.output("c", DType::bf16, {sorted.padded, n});
  for (int64_t i = 0; i < tokens; ++i) fill(slice(args.a, i), std::ldexp(1.0, static_cast<int>(i % 8)));
  fill(args.b, 1);
  const auto tokens_at = sorted.tokens();
  with_every_kernel<GroupedGemm>(args, [&](const char*) {
    for (int run = 0; run < 20; ++run) {
      outputs.poison_outputs();
      grouped_gemm(args);
      int64_t wrong = 0;
      for (int64_t p = 0; p < sorted.padded; ++p)
        for (int64_t j = 0; j < n; ++j) {
          const double value = load(args.c, {p, j});
          const int64_t token = tokens_at[static_cast<size_t>(p)];
          wrong += token < 0 ? !std::isnan(value) : value != static_cast<double>(k) * std::ldexp(1.0, static_cast<int>(token % 8));
        }
      ASSERT_EQ(wrong, 0) << "run " << run;
      ASSERT_EQ(outputs.damage(), "");
    }
  });
}

TEST(PublicReports, B03_experts_without_rows) { expect_powers_of_two({1, 1, 2, 2, 2}, 4, 32, 16, 4); }
TEST(PublicReports, B06_rows_without_an_expert_stay_untouched) { expect_powers_of_two({0, -1, 2, -1, 1, 7, 0}, 3, 48, 40, 4); }
TEST(PublicReports, B06_every_small_count) {
  for (const int64_t block : {8, 16, 32, 64}) expect_powers_of_two({0, 2, 2, 2, 2, 2, 2, 2, 4}, 5, 64, 48, block);
}
TEST(PublicReports, B08_tile_does_not_run_past_n) { expect_powers_of_two({0, 0, 1, 1}, 2, 64, 33, 32); }

TEST(PublicReports, B11_split_k_neither_adds_old_output_nor_differs_between_calls) {
  for (const int64_t m : {1, 32}) {
    constexpr int64_t kN = 512, kK = 7168;
    Maker maker({.guards = true});
    GemmArgs args;
    args.a = maker.input("a", DType::bf16, {m, kK}, Fill::normal);
    args.b = maker.input("b", DType::bf16, {kN, kK}, Fill::weight);
    args.c = maker.output("c", DType::bf16, {m, kN});
    Oracle oracle;
    Gemm::reference(args, &oracle);
    const auto tolerance = Gemm::tolerance(Gemm::check(args));
    const std::string fastest(route<Gemm>(Gemm::check(args)).kernel->name);
    const Isa best = cpu_device().isa;
    with_every_kernel<Gemm>(args, [&](const char* kernel) {
      if (kernel == std::string("gemm.reference")) return;
      fill(args.c, 7);
      gemm(args);
      const Verdict verdict = judge(args.c, oracle[0], tolerance[0], "c");
      EXPECT_TRUE(verdict.ok) << verdict.first;
      const auto first = bits_of(args.c);
      const int calls = fastest == kernel && cpu_device().isa == best ? 200 : 2;
      for (int call = 1; call < calls; ++call) {
        maker.poison_outputs();
        gemm(args);
        ASSERT_EQ(bits_of(args.c), first) << "call " << call;
      }
    });
  }
}

TEST(PublicReports, B15_all_groups_empty) { expect_powers_of_two({-1, 9, -1}, 3, 32, 16, 16); }

TEST(PublicReports, B25_gemm_rows_beyond_2_to_the_31_elements) {
  constexpr int64_t kK = 40, kN = 24, kStride = 1'600'000'000;
  const SparseMemory a(static_cast<size_t>(2 * kStride + kK) * 2), c(static_cast<size_t>(2 * kStride + kN) * 2);
  if (!a.ok() || !c.ok()) GTEST_SKIP() << "the system gives no sparse mapping of that size";
  Maker maker;
  GemmArgs args;
  args.a = View(a.data(), DType::bf16, {3, kK});
  args.c = View(c.data(), DType::bf16, {3, kN});
  args.a.stride[0] = args.c.stride[0] = kStride;
  args.b = maker.input("b", DType::bf16, {kN, kK}, Fill::zero);
  fill(args.b, 1);
  for (int64_t r = 0; r < 3; ++r) fill(slice(args.a, r), static_cast<double>(r + 1));
  with_every_kernel<Gemm>(args, [&](const char*) {
    for (int64_t r = 0; r < 3; ++r) fill(slice(args.c, r), kQuietNan);
    gemm(args);
    for (int64_t r = 0; r < 3; ++r) EXPECT_THAT(vector_of<double>(slice(args.c, r)), testing::Each(static_cast<double>(kK * (r + 1))));
  });
}

}  // namespace
}  // namespace eitri
