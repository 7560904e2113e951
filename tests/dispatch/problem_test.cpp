// Problem keys: what key_of writes, parse_problem reads, for every op; and what it says about bad text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ops/ops.h"

namespace eitri {
namespace {

using testing::HasSubstr;

template <class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ProblemKey, every_case_of_every_op_comes_back) {
  for_each_op([]<Operator Op>() {
    std::set<std::string> keys;
    for (const auto& list : {Op::cases().test, Op::cases().bench}) {
      for (const auto& [problem, note] : list) {
        const std::string key = key_of(problem);
        keys.insert(key);
        const auto back = parse_problem<typename Op::Problem>(Op::name, key);
        EXPECT_TRUE(back == problem) << Op::name << " " << key << " came back as " << key_of(back);
        EXPECT_EQ(key_of(back), key);
        EXPECT_EQ(hash_of(back), hash_of(problem));
        EXPECT_EQ(key.find_first_of(" \t\n\"'*?:"), std::string::npos) << key << " cannot be pasted into a filter or a CSV cell";
      }
    }
    EXPECT_GT(keys.size(), 1u) << Op::name;
  });
}

TEST(ProblemKey, equal_problems_are_equal_in_every_field) {
  // A field that operator== or the key forgot would let two problems share a route.
  for_each_op([]<Operator Op>() {
    const typename Op::Problem base{};
    size_t i = 0;
    const size_t n = field_names(base).size();
    for (size_t changed = 0; changed < n; ++changed) {
      typename Op::Problem other = base;
      i = 0;
      other.fields([&](const char*, const auto& slot, Match = Match::exact) {
        using T = std::decay_t<decltype(slot)>;
        if (i++ == changed) const_cast<T&>(slot) = static_cast<T>(slot == T{} ? 1 : 0);
      });
      EXPECT_FALSE(other == base) << Op::name << " field " << field_names(base)[changed];
      EXPECT_NE(key_of(other), key_of(base));
      EXPECT_NE(hash_of(other), hash_of(base));
    }
  });
}

TEST(ProblemKey, left_out_fields_keep_their_defaults) {
  const auto problem = parse_problem<Gemm::Problem>("gemm", "m=17");
  EXPECT_EQ(problem.m, 17);
  Gemm::Problem expected;
  expected.m = 17;
  EXPECT_TRUE(problem == expected);
  EXPECT_TRUE(parse_problem<Gemm::Problem>("gemm", "") == Gemm::Problem{});
}

TEST(ProblemKey, unknown_field_lists_the_known_ones) {
  const std::string error = error_of([] { parse_problem<Gemm::Problem>("gemm", "m=1,width=3"); });
  EXPECT_THAT(error, HasSubstr("gemm: field is \"width\""));
  for (const std::string& name : field_names<Gemm::Problem>()) EXPECT_THAT(error, HasSubstr(name));
}

TEST(ProblemKey, bad_values_say_what_was_wanted) {
  const auto parse = [](const char* text) { return error_of([&] { parse_problem<Gemm::Problem>("gemm", text); }); };
  EXPECT_THAT(parse("m=ten"), HasSubstr("m is \"ten\"; expected a number"));
  EXPECT_THAT(parse("m="), HasSubstr("m is \"\""));
  EXPECT_THAT(parse("m=12x"), HasSubstr("m is \"12x\""));
  EXPECT_THAT(parse("m=99999999999999999999"), HasSubstr("m is"));
  EXPECT_THAT(parse("m=1.5"), HasSubstr("m is"));
  EXPECT_THAT(parse("a=float32"), HasSubstr("a is \"float32\"; expected a dtype"));
  EXPECT_THAT(parse("activation=tanh"), HasSubstr("silu"));  // lists the names
  EXPECT_THAT(parse("m"), HasSubstr("expected name=value"));
}

}  // namespace
}  // namespace eitri
