// Bugs that users of other libraries reported in public, as tests of ours: mixture of experts and routing (B14-B25 of our
// case list), quantisation (B26-B32).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/numeric.h"
#include "dispatch/maker.h"
#include "eitri/eitri.hpp"
#include "harness/every_kernel.h"
#include "ops/ops.h"
#include "ops/report_tensors.h"

namespace eitri {
namespace {

using harness::with_every_kernel;
using testing::ElementsAre;

// ---- 2. mixture of experts and routing ----

/// A fused MoE call of random weights; ids and weights are the test's.
FusedMoeArgs make_moe(Maker& maker, int64_t tokens, int64_t hidden, int64_t inter, int64_t experts, int64_t top_k,
                      DType weights = DType::bf16) {
  FusedMoeArgs args;
  args.x = maker.input("x", DType::bf16, {tokens, hidden}, Fill::normal);
  const Fill how = weights == DType::i8 ? Fill::code : Fill::weight;
  args.w1 = maker.input("w1", weights, {experts, 2 * inter, hidden}, how);
  args.w2 = maker.input("w2", weights, {experts, hidden, inter}, how);
  if (weights == DType::i8) {
    args.w1_scale = maker.dense("w1_scale", DType::f32, {experts, 2 * inter}, Fill::scale);
    args.w2_scale = maker.dense("w2_scale", DType::f32, {experts, hidden}, Fill::scale);
  }
  args.topk_ids = maker.dense("topk_ids", DType::i32, {tokens, top_k}, Fill::zero);
  args.topk_weights = maker.dense("topk_weights", DType::f32, {tokens, top_k}, Fill::probability);
  args.out = maker.output("out", DType::f32, {tokens, hidden});
  return args;
}
void spread_ids(const FusedMoeArgs& args) {
  const int64_t experts = args.w1.shape[0], top_k = args.topk_ids.shape[1];
  for (int64_t t = 0; t < args.topk_ids.shape[0]; ++t)
    for (int64_t s = 0; s < top_k; ++s) store(args.topk_ids, {t, s}, static_cast<double>((t * 7 + s * (experts / top_k) + 3) % experts));
}

TEST(PublicReports, B14_pad_columns_of_an_unaligned_intermediate_size_are_not_read) {
  constexpr int64_t kInter = 704, kPacked = 768, kHidden = 64, kExperts = 4;
  Maker maker({.guards = true});
  FusedMoeArgs args = make_moe(maker, 5, kHidden, kInter, kExperts, 2);
  spread_ids(args);
  args.activation.kind = ActivationKind::gelu_tanh;
  const View wide = maker.dense("wide", DType::bf16, {kExperts, kHidden, kPacked}, Fill::weight);
  args.w2 = wide;
  args.w2.shape[2] = kInter;
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    std::vector<std::byte> with_nan;
    for (const double pad : {kQuietNan, 0.0}) {
      for (int64_t e = 0; e < kExperts; ++e)
        for (int64_t h = 0; h < kHidden; ++h)
          for (int64_t i = kInter; i < kPacked; ++i) store(wide, {e, h, i}, pad);
      maker.poison_outputs();
      fused_moe(args);
      if (std::isnan(pad)) with_nan = bits_of(args.out);
    }
    EXPECT_EQ(with_nan, bits_of(args.out));
    for (const double value : vector_of<double>(args.out)) ASSERT_TRUE(std::isfinite(value));
  });
}

TEST(PublicReports, B15_zero_tokens) {
  for (int round = 0; round < 2; ++round) {  // the next call works, too
    const int64_t tokens = round * 3;
    Maker maker({.guards = true});
    QuantizeArgs q;
    q.x = maker.input("x", DType::bf16, {tokens, 128}, Fill::normal);
    q.q = maker.output("q", DType::i8, {tokens, 128});
    q.scale = maker.output("scale", DType::f32, {tokens});
    EXPECT_NO_THROW(quantize(q));
    ActivationArgs act;
    act.x = maker.input("gate_up", DType::bf16, {tokens, 2 * 48}, Fill::normal);
    act.out = maker.output("act", DType::bf16, {tokens, 48});
    act.activation.kind = ActivationKind::silu;
    act.gate = GateLayout::separated;
    EXPECT_NO_THROW(activation(act));
    TopkGatingArgs router;
    router.logits = maker.input("logits", DType::f32, {tokens, 16}, Fill::normal);
    router.weights = maker.output("weights", DType::f32, {tokens, 4});
    router.ids = maker.output("ids", DType::i32, {tokens, 4});
    EXPECT_NO_THROW(topk_gating(router));
    FusedMoeArgs moe = make_moe(maker, tokens, 64, 32, 4, 2);
    spread_ids(moe);
    EXPECT_NO_THROW(fused_moe(moe));
    for (const double value : vector_of<double>(moe.out)) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(maker.damage(), "");
  }
}

TEST(PublicReports, B17_the_same_expert_twice_adds_up) {
  constexpr int64_t kTokens = 9, kHidden = 96, kInter = 64, kExperts = 4;
  Maker maker({.guards = true}), single({.guards = true});
  FusedMoeArgs args = make_moe(maker, kTokens, kHidden, kInter, kExperts, 3);
  FusedMoeArgs one = make_moe(single, kTokens, kHidden, kInter, kExperts, 1);  // same numbers: same names and seed
  fill(one.topk_weights, 1);
  const auto expert = [&](double id) {
    fill(one.topk_ids, id);
    fused_moe(one);
    return vector_of<double>(one.out);
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    set(slice(args.topk_ids, t), {1, 1, 2});
    set(slice(args.topk_weights, t), {0.25, 0.25, 0.5});
  }
  const auto f1 = expert(1), f2 = expert(2);
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    maker.poison_outputs();
    fused_moe(args);
    const auto out = vector_of<double>(args.out);
    // Kernels may round the intermediate to bf16 differently; a dropped slot would be off by a quarter.
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], 0.5 * f1[i] + 0.5 * f2[i], 0.02 * (std::fabs(f1[i]) + std::fabs(f2[i])) + 4e-3) << i;
  });
}

TEST(PublicReports, B18_ids_outside_the_experts_count_for_nobody) {
  constexpr int64_t kExperts = 5, kBlock = 4;
  Maker maker({.guards = true});
  MoeSortArgs args;
  args.topk_ids = maker.dense("topk_ids", DType::i32, {4, 2}, Fill::zero);
  args.topk_weights = maker.dense("topk_weights", DType::f32, {4, 2}, Fill::probability);
  set(args.topk_ids, {-1, 4, 5, 0, 4, 2147483647, -2147483648.0, 4});
  args.experts = kExperts;
  args.block = kBlock;
  const int64_t padded = MoeSort::max_padded(4, 2, kExperts, kBlock);
  args.sorted_ids = maker.output("sorted_ids", DType::i32, {padded});
  args.sorted_weights = maker.output("sorted_weights", DType::f32, {padded});
  args.sorted_expert_ids = maker.output("sorted_expert_ids", DType::i32, {MoeSort::max_blocks(padded, kBlock)});
  args.num_valid = maker.output("num_valid", DType::i32, {2});
  args.reverse = maker.output("reverse", DType::i32, {4, 2});
  with_every_kernel<MoeSort>(args, [&](const char*) {
    maker.poison_outputs();
    moe_sort(args);
    EXPECT_THAT(vector_of<int64_t>(args.num_valid), ElementsAre(8, 4));
    const int64_t pad = (int64_t{2} << kSortedSlotShift) | 4, slot = int64_t{1} << kSortedSlotShift;
    const auto ids = vector_of<int64_t>(args.sorted_ids);
    EXPECT_THAT(std::vector<int64_t>(ids.begin(), ids.begin() + 8), ElementsAre(slot | 1, pad, pad, pad, slot | 0, 2, slot | 3, pad));
    const auto experts = vector_of<int64_t>(args.sorted_expert_ids);
    EXPECT_EQ(experts[0], 0);
    EXPECT_EQ(experts[1], 4);
    for (size_t i = 2; i < experts.size(); ++i) EXPECT_EQ(experts[i], -1);
    EXPECT_THAT(vector_of<int64_t>(args.reverse), ElementsAre(-1, 4, -1, 0, 5, -1, -1, 6));
    EXPECT_EQ(maker.damage(), "");
  });
}

TEST(PublicReports, B18_ids_outside_the_experts_add_nothing) {
  Maker maker({.guards = true}), single({.guards = true});
  FusedMoeArgs args = make_moe(maker, 3, 64, 32, 5, 3);
  FusedMoeArgs one = make_moe(single, 3, 64, 32, 5, 1);
  fill(one.topk_ids, 4);
  fill(one.topk_weights, 0.5);
  for (int64_t t = 0; t < 2; ++t) {
    set(slice(args.topk_ids, t), {-1, 4, 5});
    set(slice(args.topk_weights, t), {kQuietNan, 0.5, kQuietNan});  // the weight of an id that names nobody is not read
  }
  set(slice(args.topk_ids, 2), {-1, 5, 2147483647});
  fused_moe(one);
  const auto want = vector_of<double>(one.out);
  with_every_kernel<FusedMoe>(args, [&](const char*) {
    maker.poison_outputs();
    fused_moe(args);
    for (int64_t h = 0; h < 64; ++h) {
      for (int64_t t = 0; t < 2; ++t) {
        const double w = want[static_cast<size_t>(t * 64 + h)];
        ASSERT_NEAR(load(args.out, {t, h}), w, 0.02 * std::fabs(w) + 4e-3);
      }
      ASSERT_EQ(load(args.out, {2, h}), 0);
    }
    EXPECT_EQ(maker.damage(), "");
  });
}

TEST(PublicReports, B21_masked_groups_do_not_win) {
  Maker maker({.guards = true});
  TopkGatingArgs args;
  args.logits = maker.input("logits", DType::f32, {1, 8}, Fill::zero);
  args.correction_bias = maker.input("bias", DType::f32, {8}, Fill::zero);
  args.weights = maker.output("weights", DType::f32, {1, 2});
  args.ids = maker.output("ids", DType::i32, {1, 2});
  args.score = Score::sigmoid;
  args.renormalize = Renormalize::yes;
  args.groups = 2;
  args.topk_groups = 1;
  set(args.logits, {2.1972, 1.3863, -2.1972, -2.1972, 0, 0, 0, 0});
  set(args.correction_bias, {-1, -1, -1, -1, -5.5, -5.5, -5.5, -5.5});
  with_every_kernel<TopkGating>(args, [&](const char*) {
    maker.poison_outputs();
    topk_gating(args);
    EXPECT_THAT(vector_of<int64_t>(args.ids), ElementsAre(0, 1));
    EXPECT_NEAR(load(args.weights, {0, 0}), .9 / 1.7, 1e-5);
    EXPECT_NEAR(load(args.weights, {0, 1}), .8 / 1.7, 1e-5);
  });
}

TEST(PublicReports, B22_more_than_256_experts) {
  Maker maker({.guards = true});
  TopkGatingArgs args;
  args.logits = maker.input("logits", DType::f32, {1, 512}, Fill::zero);
  args.weights = maker.output("weights", DType::f32, {1, 10});
  args.ids = maker.output("ids", DType::i32, {1, 10});
  for (int64_t i = 0; i < 10; ++i) store(args.logits, {0, 300 + i}, 10 - 0.1 * static_cast<double>(i));
  with_every_kernel<TopkGating>(args, [&](const char*) {
    maker.poison_outputs();
    topk_gating(args);
    EXPECT_THAT(vector_of<int64_t>(args.ids), ElementsAre(300, 301, 302, 303, 304, 305, 306, 307, 308, 309));
  });
}

/// 25 calls on dirty workspace and reused buffers: finite, and the same bits.
void expect_stable(FusedMoeArgs args, Maker& maker) {
  spread_ids(args);
  poison_workspace(true);
  with_every_kernel<FusedMoe>(args, [&](const char* kernel) {
    if (kernel == std::string("fused_moe.reference")) return;
    const int calls = args.x.shape[0] > 1 && cpu_device().isa != Isa::x86_avx512 ? 2 : 25;
    std::vector<std::byte> first;
    for (int call = 0; call < calls; ++call) {
      maker.poison_outputs();
      fused_moe(args);
      if (call == 0) first = bits_of(args.out);
      ASSERT_EQ(bits_of(args.out), first) << "call " << call;
    }
    for (const double value : vector_of<double>(args.out)) ASSERT_TRUE(std::isfinite(value));
  });
  poison_workspace(false);
}

TEST(PublicReports, B24_one_token_on_dirty_workspace) {
  for (const DType weights : {DType::bf16, DType::i8}) {
    Maker maker({.guards = true});
    expect_stable(make_moe(maker, 1, 128, 64, 256, 8, weights), maker);
  }
}

TEST(PublicReports, B24_many_tokens_on_dirty_workspace) {
  Maker maker({.guards = true});
  expect_stable(make_moe(maker, 2048, 64, 32, 8, 2), maker);
}

TEST(PublicReports, B25_combine_reads_rows_beyond_2_to_the_31_elements) {
  struct Size {
    int64_t rows, hidden;
  };
  for (const Size size : {Size{56'000 * 8, 7168}, Size{1'079'840, 2048}, Size{1'525'202, 2816}}) {
    const SparseMemory memory(static_cast<size_t>(size.rows * size.hidden) * 2);
    if (!memory.ok()) GTEST_SKIP() << "the system gives no sparse mapping of that size";
    Maker maker({.guards = true});
    MoeCombineArgs args;
    args.y = View(memory.data(), DType::bf16, {size.rows, size.hidden});
    args.reverse = maker.dense("reverse", DType::i32, {2, 2}, Fill::zero);
    args.out = maker.output("out", DType::bf16, {2, size.hidden});
    const int64_t wrapped = size.rows - 1 - (int64_t{1} << 32) / size.hidden;  // where a 32-bit offset would land
    set(args.reverse, {static_cast<double>(size.rows - 1), -1, static_cast<double>(size.rows / 2), static_cast<double>(size.rows - 2)});
    fill(slice(args.y, size.rows - 1), 3);
    fill(slice(args.y, size.rows - 2), 5);
    fill(slice(args.y, size.rows / 2), 0.5);
    if (wrapped >= 0) fill(slice(args.y, wrapped), 100);
    with_every_kernel<MoeCombine>(args, [&](const char*) {
      maker.poison_outputs();
      moe_combine(args);
      int64_t wrong = 0;
      for (int64_t h = 0; h < size.hidden; ++h) wrong += load(args.out, {0, h}) != 3 || load(args.out, {1, h}) != 5.5;
      EXPECT_EQ(wrong, 0) << size.rows << " x " << size.hidden;
    });
  }
}

TEST(PublicReports, B25_quantize_reads_and_writes_rows_beyond_2_to_the_31_elements) {
  // Three rows 1.6e9 elements apart; the last one starts beyond 2^31.
  constexpr int64_t kCols = 2570, kStride = 1'600'000'001;
  const SparseMemory x(static_cast<size_t>(2 * kStride + kCols) * 2), q(static_cast<size_t>(2 * kStride + kCols));
  if (!x.ok() || !q.ok()) GTEST_SKIP() << "the system gives no sparse mapping of that size";
  Maker maker({.guards = true});
  QuantizeArgs args;
  args.x = View(x.data(), DType::bf16, {3, kCols});
  args.q = View(q.data(), DType::i8, {3, kCols});
  args.x.stride[0] = args.q.stride[0] = kStride;
  args.scale = maker.output("scale", DType::f32, {3});
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < kCols; ++c) store(args.x, {r, c}, static_cast<double>((c % 128) << r));  // exact in bf16
  with_every_kernel<Quantize>(args, [&](const char*) {
    maker.poison_outputs();
    for (int64_t r = 0; r < 3; ++r) fill(slice(args.q, r), -128);
    quantize(args);
    int64_t wrong = 0;
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_EQ(load(args.scale, {r}), static_cast<double>(1 << r));
      for (int64_t c = 0; c < kCols; ++c) wrong += load(args.q, {r, c}) != static_cast<double>(c % 128);
    }
    EXPECT_EQ(wrong, 0);
  });
}

// ---- 3. quantisation ----

TEST(PublicReports, B26_all_zero_rows) {
  Maker maker({.guards = true});
  QuantizeArgs args;
  args.x = maker.input("x", DType::bf16, {256, 256}, Fill::zero);
  args.q = maker.output("q", DType::i8, {256, 256});
  args.scale = maker.output("scale", DType::f32, {256});
  store(args.x, {0, 0}, 1);
  with_every_kernel<Quantize>(args, [&](const char*) {
    maker.poison_outputs();
    quantize(args);
    EXPECT_EQ(load(args.scale, {0}), static_cast<double>(1.0f / 127.0f));
    EXPECT_EQ(load(args.q, {0, 0}), 127);
    int64_t wrong = 0;
    for (int64_t r = 0; r < 256; ++r) {
      wrong += r > 0 && load(args.scale, {r}) != 0;
      for (int64_t c = 0; c < 256; ++c) wrong += r + c > 0 && load(args.q, {r, c}) != 0;
    }
    EXPECT_EQ(wrong, 0) << "an all-zero row has scale 0 and codes 0";
  });
}

TEST(PublicReports, B26_a_zero_row_leaves_the_others_alone) {
  Maker maker({.guards = true});
  QuantizeArgs args;
  args.x = maker.input("x", DType::bf16, {5, 100}, Fill::normal);
  args.q = maker.output("q", DType::i8, {5, 100});
  args.scale = maker.output("scale", DType::f32, {5});
  quantize(args);
  const auto before = vector_of<int>(args.q);
  fill(slice(args.x, 2), 0);
  with_every_kernel<Quantize>(args, [&](const char*) {
    maker.poison_outputs();
    quantize(args);
    const auto after = vector_of<int>(args.q);
    for (size_t i = 0; i < after.size(); ++i) ASSERT_EQ(after[i], i / 100 == 2 ? 0 : before[i]);
    EXPECT_EQ(load(args.scale, {2}), 0);
  });
}

TEST(PublicReports, B28_power_of_two_scales_round_as_named) {
  struct Case {
    float amax;
    double down, up;  // what the maximum becomes after quantisation and back
  };
  for (const Case& c : {Case{957, 896, 960}, Case{449, 448, 448}, Case{633.5, 640, 640}, Case{448, 448, 448}, Case{640, 640, 640}}) {
    for (const ScaleRounding rounding : {ScaleRounding::down, ScaleRounding::up}) {
      const uint8_t scale = mx_scale_code<F8e4m3>(c.amax, rounding);
      const double back = double{decode_f8e4m3(encode_f8e4m3(c.amax * inverse_e8m0(scale)))} * decode_e8m0(scale);
      EXPECT_EQ(back, rounding == ScaleRounding::down ? c.down : c.up) << c.amax;
      if (rounding == ScaleRounding::up) {
        EXPECT_LE(c.amax * inverse_e8m0(scale), F8e4m3::max) << "rounding up never saturates";
      }
    }
  }
  // The exponent comes from the fp32 value: a detour through bf16 would lose the bit that decides.
  const float above = std::nextafter(448.0f, 1e9f);
  EXPECT_EQ(decode_bf16(encode_bf16(above)), 448.0f);
  EXPECT_EQ(decode_e8m0(mx_scale_code<F8e4m3>(above, ScaleRounding::up)), 2.0f);
  EXPECT_EQ(decode_e8m0(mx_scale_code<F8e4m3>(448.0f, ScaleRounding::up)), 1.0f);
}

TEST(PublicReports, B31_nan_and_infinity_do_not_reach_the_scale) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t cols : {4, 40, 77}) {
      Maker maker({.guards = true});
      QuantizeArgs args;
      args.x = maker.input("x", dtype, {3, cols}, Fill::zero);
      args.q = maker.output("q", DType::i8, {3, cols});
      args.scale = maker.output("scale", DType::f32, {3});
      const double odd[] = {kQuietNan, kInf, -kInf};
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t c = 0; c < cols; ++c) store(args.x, {r, c}, c == 2 ? odd[r] : c == 3 ? 4 : static_cast<double>(c % 2 + 1));
      with_every_kernel<Quantize>(args, [&](const char*) {
        maker.poison_outputs();
        quantize(args);
        const int special[] = {0, 127, -127};
        for (int64_t r = 0; r < 3; ++r) {
          EXPECT_EQ(load(args.scale, {r}), static_cast<double>(scale_from_amax(4.0f, kI8Max)));
          for (int64_t c = 0; c < cols; ++c) {
            const auto x = static_cast<float>(load(args.x, {r, c}));
            const int want = c == 2 ? special[r] : encode_i8(x * inverse_scale(scale_from_amax(4.0f, kI8Max)));
            ASSERT_EQ(load(args.q, {r, c}), want) << "row " << r << " column " << c;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace eitri
