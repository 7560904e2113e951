// topk_gating against results worked out by hand.
#include "ops/topk_gating/topk_gating.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "ops/every_kernel.h"

namespace eitri {
namespace {

using golden::refusal;
using golden::with_every_kernel;
using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct Gate {
  int64_t tokens, experts, top_k;
  std::vector<float> logits, bias = {};
  std::vector<float> weights = {};
  std::vector<int32_t> ids = {};

  TopkGatingArgs args() {
    weights.assign(static_cast<size_t>(tokens * top_k), -7);
    ids.assign(static_cast<size_t>(tokens * top_k), -7);
    TopkGatingArgs a;
    a.logits = View(logits.data(), DType::f32, {tokens, experts});
    if (!bias.empty()) a.correction_bias = View(bias.data(), DType::f32, {experts});
    a.weights = View(weights.data(), DType::f32, {tokens, top_k});
    a.ids = View(ids.data(), DType::i32, {tokens, top_k});
    return a;
  }
};

TEST(TopkGatingGolden, B21MaskedGroupsNeverWin) {
  // Biased scores -0.1, -0.2, ... in group 0 and -5 in group 1: all negative, so a mask value of 0 would win.
  Gate g{.tokens = 1,
         .experts = 8,
         .top_k = 2,
         .logits = {2.1972f, 1.3863f, -2.1972f, -2.1972f, 0, 0, 0, 0},
         .bias = {-1, -1, -1, -1, -5.5f, -5.5f, -5.5f, -5.5f}};
  TopkGatingArgs args = g.args();
  args.score = Score::sigmoid;
  args.renormalize = Renormalize::yes;
  args.groups = 2;
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(0, 1));
    EXPECT_NEAR(g.weights[0], .9 / 1.7, 1e-5);
    EXPECT_NEAR(g.weights[1], .8 / 1.7, 1e-5);
  });
}

TEST(TopkGatingGolden, B22MoreThan256Experts) {
  Gate g{.tokens = 1, .experts = 512, .top_k = 10, .logits = std::vector<float>(512)};
  for (int i = 0; i < 10; ++i) g.logits[static_cast<size_t>(300 + i)] = 10 - 0.1f * static_cast<float>(i);
  const TopkGatingArgs args = g.args();
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(300, 301, 302, 303, 304, 305, 306, 307, 308, 309));
    double sum = 502;
    for (float l : g.logits) sum += l > 0 ? std::exp(static_cast<double>(l)) : 0;
    for (size_t s = 0; s < 10; ++s)
      EXPECT_THAT(g.weights[s], FloatEq(static_cast<float>(std::exp(static_cast<double>(g.logits[300 + s])) / sum)));
  });
}

TEST(TopkGatingGolden, TiesGoToTheLowestId) {
  Gate g{.tokens = 1, .experts = 40, .top_k = 4, .logits = std::vector<float>(40, 1.5f)};
  g.logits[3] = g.logits[0] = 1;
  TopkGatingArgs args = g.args();
  args.renormalize = Renormalize::yes;
  args.scale = 2;
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(1, 2, 4, 5));
    EXPECT_THAT(g.weights, ElementsAre(.5f, .5f, .5f, .5f));
  });
}

TEST(TopkGatingGolden, NothingToChooseFrom) {
  // All NaN, all -inf, one finite among both: distinct ids in range, finite weights, NaN and -inf alike.
  Gate g{.tokens = 3,
         .experts = 5,
         .top_k = 3,
         .logits = {kNaN, kNaN, kNaN, kNaN, kNaN, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, kNaN, kNaN, -1000,
                    -kInfinity}};
  TopkGatingArgs args = g.args();
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(0, 1, 2, 0, 1, 2, 3, 0, 1));
    EXPECT_THAT(g.weights, ElementsAre(.2f, .2f, .2f, .2f, .2f, .2f, 1, 0, 0));
  });
  args.score = Score::sigmoid;
  args.renormalize = Renormalize::yes;  // 0 of 0
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(0, 1, 2, 0, 1, 2, 3, 0, 1));
    EXPECT_THAT(g.weights, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0));
  });
}

TEST(TopkGatingGolden, BiasChoosesButDoesNotWeigh) {
  Gate g{.tokens = 1, .experts = 4, .top_k = 2, .logits = {0, 0, 0, 3}, .bias = {0, 1, 0, 0}};
  TopkGatingArgs args = g.args();
  args.score = Score::sigmoid;
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(1, 3));
    EXPECT_THAT(g.weights, ElementsAre(.5f, FloatEq(static_cast<float>(1 / (1 + std::exp(-3.0))))));
  });
  args.score = Score::sqrt_softplus;
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(1, 3));  // 0.83 + 1, sqrt(3.05) = 1.75
    EXPECT_THAT(g.weights, ElementsAre(FloatEq(static_cast<float>(std::sqrt(std::log(2.0)))),
                                       FloatEq(static_cast<float>(std::sqrt(std::log1p(std::exp(3.0)))))));
  });
}

TEST(TopkGatingGolden, GroupRank) {
  // Without bias the best expert ranks a group (group 1), with bias the sum of the two best (group 0).
  Gate g{.tokens = 1, .experts = 4, .top_k = 1, .logits = {1, 1, 2, -9}};
  TopkGatingArgs args = g.args();
  args.groups = 2;
  args.score = Score::sigmoid;
  with_every_kernel<TopkGating>(args, [&] {
    g.args();
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(2));
  });
  g.bias.assign(4, 0);
  args.correction_bias = View(g.bias.data(), DType::f32, {4});
  with_every_kernel<TopkGating>(args, [&] {
    g.ids.assign(1, -7);
    call<TopkGating>(args);
    EXPECT_THAT(g.ids, ElementsAre(0));
  });
}

TEST(TopkGatingGolden, Refusals) {
  Gate g{.tokens = 1, .experts = 4, .top_k = 5, .logits = {1, 2, 3, 4}};
  TopkGatingArgs args = g.args();
  EXPECT_THAT(refusal<TopkGating>(args), HasSubstr("ids is i32[1, 5]; expected at most 4 columns"));
  g.top_k = 3;
  args = g.args();
  args.groups = 2;
  EXPECT_THAT(refusal<TopkGating>(args), HasSubstr("ids is i32[1, 3]; expected at most 2 columns"));
  args.groups = 3;
  EXPECT_THAT(refusal<TopkGating>(args), HasSubstr("groups is 3; expected a divisor of 4"));
  args.groups = 2;
  args.topk_groups = 3;
  EXPECT_THAT(refusal<TopkGating>(args), HasSubstr("topk_groups is 3; expected 1 to 2"));
  args = g.args();
  args.scale = kNaN;
  EXPECT_THAT(refusal<TopkGating>(args), HasSubstr("scale is nan"));
}

}  // namespace
}  // namespace eitri
