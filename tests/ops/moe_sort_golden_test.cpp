// moe_sort against layouts written out by hand.
#include "ops/moe_sort/moe_sort.h"

#include <gmock/gmock.h>

#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using golden::with_every_kernel;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t id(int32_t slot, int32_t token) { return slot << 24 | token; }

/// Buffers of one call; outputs start as something no kernel writes.
struct Sort {
  int64_t tokens, top_k, experts, block;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> mask = {}, local = {};
  std::vector<int32_t> sorted_ids = {}, expert_ids = {}, num_valid = {}, reverse = {};
  std::vector<float> sorted_weights = {};

  MoeSortArgs args() {
    const int64_t padded = MoeSort::max_padded(tokens, top_k, experts, block), blocks = MoeSort::max_blocks(padded, block);
    sorted_ids.assign(static_cast<size_t>(padded), -7);
    sorted_weights.assign(static_cast<size_t>(padded), -7);
    expert_ids.assign(static_cast<size_t>(blocks), -7);
    num_valid.assign(2, -7);
    reverse.assign(static_cast<size_t>(tokens * top_k), -7);
    MoeSortArgs a;
    a.topk_ids = View(ids.data(), DType::i32, {tokens, top_k});
    a.topk_weights = View(weights.data(), DType::f32, {tokens, top_k});
    if (!mask.empty()) a.expert_mask = View(mask.data(), DType::i32, {experts});
    if (!local.empty()) a.num_local_tokens = View(local.data(), DType::i32, {1});
    a.sorted_ids = View(sorted_ids.data(), DType::i32, {padded});
    a.sorted_weights = View(sorted_weights.data(), DType::f32, {padded});
    a.sorted_expert_ids = View(expert_ids.data(), DType::i32, {blocks});
    a.num_valid = View(num_valid.data(), DType::i32, {2});
    a.reverse = View(reverse.data(), DType::i32, {tokens, top_k});
    a.experts = experts;
    a.block = block;
    return a;
  }
};

TEST(MoeSortGolden, ThreeTokens) {
  // Expert 0: (0, slot 1), (2, slot 0); expert 1: none; expert 2: (0, 0), (1, 1), (2, 1); expert 3: (1, 0).
  Sort s{.tokens = 3, .top_k = 2, .experts = 4, .block = 2, .ids = {2, 0, 3, 2, 0, 2}, .weights = {.1f, .2f, .3f, .4f, .5f, .6f}};
  const MoeSortArgs args = s.args();
  with_every_kernel<MoeSort>(args, [&] {
    s.args();
    call<MoeSort>(args);
    const int32_t pad = id(2, 3);
    EXPECT_THAT(s.sorted_ids, ElementsAre(id(1, 0), id(0, 2), id(0, 0), id(1, 1), id(1, 2), pad, id(0, 1), pad, pad, pad, pad, pad));
    EXPECT_THAT(s.sorted_weights, ElementsAre(.2f, .5f, .1f, .4f, .6f, 0, .3f, 0, 0, 0, 0, 0));
    EXPECT_THAT(s.expert_ids, ElementsAre(0, 2, 2, 3, -1, -1));
    EXPECT_THAT(s.num_valid, ElementsAre(8, 3));
    EXPECT_THAT(s.reverse, ElementsAre(2, 0, 6, 3, 1, 4));
  });
}

TEST(MoeSortGolden, B17TheSameExpertTwice) {
  Sort s{.tokens = 1, .top_k = 3, .experts = 4, .block = 2, .ids = {1, 1, 2}, .weights = {.25f, .25f, .5f}};
  const MoeSortArgs args = s.args();
  with_every_kernel<MoeSort>(args, [&] {
    s.args();
    call<MoeSort>(args);
    const int32_t pad = id(3, 1);
    EXPECT_THAT(s.sorted_ids, ElementsAre(id(0, 0), id(1, 0), id(2, 0), pad, pad, pad, pad, pad));
    EXPECT_THAT(s.sorted_weights, ElementsAre(.25f, .25f, .5f, 0, 0, 0, 0, 0));
    EXPECT_THAT(s.expert_ids, ElementsAre(1, 2, -1, -1));
    EXPECT_THAT(s.num_valid, ElementsAre(4, 1));
    EXPECT_THAT(s.reverse, ElementsAre(0, 1, 2));
  });
}

TEST(MoeSortGolden, B18IdsOutOfRange) {
  Sort s{.tokens = 2, .top_k = 3, .experts = 5, .block = 4, .ids = {-1, 4, 5, 0, INT32_MAX, INT32_MIN}, .weights = {1, 2, 3, 4, 5, 6}};
  const MoeSortArgs args = s.args();
  with_every_kernel<MoeSort>(args, [&] {
    s.args();
    call<MoeSort>(args);
    const int32_t pad = id(3, 2);
    std::vector<int32_t> ids(23, pad);
    ids[0] = id(0, 1);
    ids[4] = id(1, 0);
    EXPECT_EQ(s.sorted_ids, ids);
    EXPECT_THAT(s.expert_ids, ElementsAre(0, 4, -1, -1, -1, -1));
    EXPECT_THAT(s.num_valid, ElementsAre(8, 2));
    EXPECT_THAT(s.reverse, ElementsAre(-1, 4, -1, 0, -1, -1));
  });
}

TEST(MoeSortGolden, MaskedExpertsShiftLocalIds) {
  Sort s{.tokens = 2, .top_k = 2, .experts = 4, .block = 1, .ids = {0, 1, 3, 2}, .weights = {1, 2, 3, 4}, .mask = {0, 1, 0, 1}};
  const MoeSortArgs args = s.args();
  with_every_kernel<MoeSort>(args, [&] {
    s.args();
    call<MoeSort>(args);
    const int32_t pad = id(2, 2);
    EXPECT_THAT(s.sorted_ids, ElementsAre(id(1, 0), id(0, 1), pad, pad, pad, pad));
    EXPECT_THAT(s.expert_ids, ElementsAre(0, 1, -1, -1, -1, -1));
    EXPECT_THAT(s.num_valid, ElementsAre(2, 2));
    EXPECT_THAT(s.reverse, ElementsAre(-1, 0, 1, -1));
  });
}

TEST(MoeSortGolden, LocalTokens) {
  // 0, 1, all, and values outside the range, which are clamped. The padding id names all 3 tokens throughout.
  for (const int32_t local : {0, 1, 3, -5, 100}) {
    SCOPED_TRACE(local);
    const int32_t considered = std::clamp(local, 0, 3);
    Sort s{.tokens = 3, .top_k = 1, .experts = 2, .block = 2, .ids = {1, 1, 0}, .weights = {1, 2, 3}, .local = {local}};
    const MoeSortArgs args = s.args();
    with_every_kernel<MoeSort>(args, [&] {
      s.args();
      call<MoeSort>(args);
      const int32_t pad = id(1, 3);
      if (considered == 0) {
        EXPECT_THAT(s.sorted_ids, ElementsAre(pad, pad, pad, pad, pad, pad));
        EXPECT_THAT(s.num_valid, ElementsAre(0, 0));
        EXPECT_THAT(s.reverse, ElementsAre(-1, -1, -1));
      } else if (considered == 1) {
        EXPECT_THAT(s.sorted_ids, ElementsAre(id(0, 0), pad, pad, pad, pad, pad));
        EXPECT_THAT(s.expert_ids, ElementsAre(1, -1, -1));
        EXPECT_THAT(s.num_valid, ElementsAre(2, 1));
        EXPECT_THAT(s.reverse, ElementsAre(0, -1, -1));
      } else {
        EXPECT_THAT(s.sorted_ids, ElementsAre(id(0, 2), pad, id(0, 0), id(0, 1), pad, pad));
        EXPECT_THAT(s.expert_ids, ElementsAre(0, 1, -1));
        EXPECT_THAT(s.num_valid, ElementsAre(4, 3));
        EXPECT_THAT(s.reverse, ElementsAre(2, 3, 0));
      }
    });
  }
}

TEST(MoeSortGolden, Refusals) {
  Sort s{.tokens = 1, .top_k = 2, .experts = 2, .block = 2, .ids = {0, 1}, .weights = {1, 2}};
  MoeSortArgs args = s.args();
  args.experts = 1;
  EXPECT_THAT(refusal<MoeSort>(args), HasSubstr("topk_ids is i32[1, 2]; expected at most 1 columns"));
  args = s.args();
  args.block = 0;
  EXPECT_THAT(refusal<MoeSort>(args), HasSubstr("block is 0; expected 1 to 1048576"));
  args = s.args();
  args.sorted_ids.shape[0] -= 1;
  EXPECT_THAT(refusal<MoeSort>(args), HasSubstr("sorted_ids is i32[3]; expected i32[4]"));
  args = s.args();
  args.topk_ids.shape[0] = 1 << 24;
  EXPECT_THAT(refusal<MoeSort>(args), HasSubstr("expected less than 16777216 tokens"));
  args = s.args();
  args.reverse = View(s.sorted_ids.data(), DType::i32, {1, 2});
  EXPECT_THAT(refusal<MoeSort>(args), HasSubstr("shares memory with"));
}

}  // namespace
}  // namespace eitri
