// What the tables promise as a whole: no row without a test, no op without a reference or without empty cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "harness/kernel_tests.h"
#include "harness/levels.h"
#include "ops/ops.h"

namespace eitri {
namespace {

using testing::HasSubstr;

template <class F> void expect_error(F&& f, Code code, const std::vector<std::string>& parts) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected an error about " << parts.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Coverage, every_row_is_tested_or_needs_another_machine) {
  ASSERT_FALSE(harness::coverage().empty());
  for (const auto& row : harness::coverage()) {
    if (row.tests == 0 && !row.needs.empty()) std::printf("%s: not tested here, %s\n", row.kernel.c_str(), row.needs.c_str());
    else EXPECT_GT(row.tests, 0) << row.kernel << " takes no test case on this machine, although its target runs";
  }
}

TEST(Coverage, tables_are_well_formed) {
  for_each_op([]<Operator Op>() {
    const auto kernels = Op::kernels();
    ASSERT_FALSE(kernels.empty()) << Op::name;
    std::set<std::string> names;
    for (const Kernel<Op>& kernel : kernels) {
      const std::string name = kernel.name;
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      EXPECT_TRUE(name.starts_with(std::string(Op::name) + ".")) << name;
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."), std::string::npos) << name;
      EXPECT_LE(kernel.knobs.size(), kMaxKnobs) << name;
      if (kernel.family == Family::recipe) {
        EXPECT_NE(kernel.children, nullptr) << name << ": a recipe names its children";
      }
      EXPECT_TRUE(kernel.numerics.repeatable) << name << ": the contract asks it of every row";
    }
    EXPECT_EQ(kernels.back().name, str(Op::name, ".reference"));
    EXPECT_EQ(kernels.back().family, Family::reference);
  });
}

TEST(Coverage, reference_takes_every_case_and_is_chosen_only_when_alone) {
  for_each_op([]<Operator Op>() {
    const auto kernels = Op::kernels();
    for (const Isa isa : harness::levels()) {
      const harness::LevelScope scope(isa);
      for (const auto& [problem, note] : Op::cases().test) {
        if (Op::empty(problem)) continue;
        const auto all = candidates<Op>(problem, cpu_device());
        EXPECT_TRUE(all.back().support.ok) << Op::name << " " << key_of(problem) << ": " << all.back().support.reason;
        int others = 0;
        double least = 1e300;
        for (const auto& c : all) {
          if (!c.support.ok) continue;
          EXPECT_TRUE(c.guess.us > 0 && std::isfinite(c.guess.us)) << c.kernel->name << " guesses " << c.guess.us;
          others += c.kernel != &kernels.back();
          least = std::min(least, c.guess.us);
          for (size_t i = 0; i < c.kernel->knobs.size(); ++i)
            EXPECT_THAT(c.kernel->knobs[i].values, testing::Contains(c.guess.config[i]))
                << c.kernel->name << " " << c.kernel->knobs[i].name;
          Config parsed;
          std::string why;
          EXPECT_TRUE(parse_config(to_string(c.guess.config, c.kernel->knobs), c.kernel->knobs, parsed, why)) << why;
          EXPECT_EQ(to_string(parsed, c.kernel->knobs), to_string(c.guess.config, c.kernel->knobs));
        }
        if (others > 0) {
          EXPECT_LT(least, all.back().guess.us) << key_of(problem);
        }
      }
    }
  });
}

TEST(Coverage, costs_are_positive_and_bench_cases_are_legal) {
  for_each_op([]<Operator Op>() {
    EXPECT_FALSE(Op::cases().bench.empty()) << Op::name << " has no bench case";
    for (const auto& list : {Op::cases().test, Op::cases().bench}) {
      for (const auto& [problem, note] : list) {
        const Cost cost = Op::cost(problem);
        EXPECT_TRUE(std::isfinite(cost.flops) && cost.flops >= 0 && std::isfinite(cost.bytes) && cost.bytes >= 0) << key_of(problem);
        if (!Op::empty(problem)) {
          EXPECT_GT(cost.bytes, 0) << Op::name << " " << key_of(problem);
        }
      }
    }
  });
}

TEST(Coverage, every_extent_is_zero_in_some_case) {
  // Not extents: a block size, and columns of an optional operand.
  const std::set<std::string> exempt = {"block", "shared_inter"};
  for_each_op([&]<Operator Op>() {
    std::set<std::string> extents, zero;
    bool some_empty = false;
    for (const auto& [problem, note] : Op::cases().test) {
      some_empty |= Op::empty(problem);
      problem.fields([&](const char* name, const auto& value, Match = Match::exact) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>) {
          extents.insert(name);
          if (value == 0) zero.insert(name);
        }
      });
    }
    EXPECT_TRUE(some_empty) << Op::name << " has no empty case";
    for (const std::string& name : extents)
      if (!exempt.contains(name)) {
        EXPECT_TRUE(zero.contains(name)) << Op::name << ": no test case has " << name << " = 0";
      }
  });
}

TEST(Coverage, unknown_forced_kernel_lists_the_known_ones) {
  for_each_op([]<Operator Op>() {
    for (const auto& c : Op::cases().test) {
      const auto& problem = c.problem;  // clang captures no structured bindings
      if (Op::empty(problem)) continue;
      const ForceScope force(Op::name, str(Op::name, ".no.such"));
      std::vector<std::string> parts = {str(Op::name, ".no.such")};
      for (const auto& kernel : Op::kernels()) parts.push_back(kernel.name);
      expect_error([&] { route<Op>(problem); }, Code::invalid_argument, parts);
      break;
    }
  });
}

}  // namespace
}  // namespace eitri
