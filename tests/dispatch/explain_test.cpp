// explain and trace: every row with its answer, the choice with its reason, the tree of a recipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dispatch/scoped_settings.h"
#include "harness/fake_op.h"
#include "harness/levels.h"
#include "ops/ops.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Explain, text) {
  const harness::LevelScope level(Isa::portable);
  const std::string text = to_text(explain<ScaleAdd>({.rows = 4, .cols = 65}, cpu_device()));
  EXPECT_THAT(text, StartsWith("scale_add rows=4,cols=65,nan_row=0 on portable\n"));
  EXPECT_THAT(text, testing::ContainsRegex("no: needs x86_avx2; the level in use is portable"));
  EXPECT_THAT(text, HasSubstr("no: cols is 65; this kernel takes at most 64"));
  EXPECT_THAT(text, HasSubstr("* scale_add.portable.rows"));
  EXPECT_THAT(text, HasSubstr("unroll=2"));
  EXPECT_THAT(text, HasSubstr("-> scale_add.portable.rows (predicted: cost model: 10 us is the least of the supported rows)"));
  for (const auto& kernel : ScaleAdd::kernels()) EXPECT_THAT(text, HasSubstr(kernel.name));
}

TEST(Explain, json) {
  const harness::LevelScope level(Isa::portable);
  const auto json = nlohmann::json::parse(to_json(explain<ScaleAdd>({.rows = 4, .cols = 65}, cpu_device())));
  EXPECT_EQ(json["op"], "scale_add");
  EXPECT_EQ(json["problem"], "rows=4,cols=65,nan_row=0");
  EXPECT_EQ(json["device"], "portable");
  EXPECT_EQ(json["chosen"], "scale_add.portable.rows");
  EXPECT_EQ(json["origin"], "predicted");
  EXPECT_TRUE(json["why"].is_string());
  EXPECT_TRUE(json["children"].empty());
  ASSERT_EQ(json["rows"].size(), ScaleAdd::kernels().size());
  int chosen = 0;
  for (size_t i = 0; i < json["rows"].size(); ++i) {
    const auto& row = json["rows"][i];
    EXPECT_EQ(row["kernel"], ScaleAdd::kernels()[i].name);
    EXPECT_TRUE(row.contains("family") && row.contains("target"));
    if (row["supported"]) {
      EXPECT_GT(row["predicted_us"], 0) << row;
    } else {
      EXPECT_NE(row["reason"], "") << row;
    }
    chosen += row["chosen"] ? 1 : 0;
  }
  EXPECT_EQ(chosen, 1);
}

TEST(Explain, force_reaches_the_children_of_a_recipe) {
  const ForceScope force("scale_add", "scale_add.recipe.first_row_again");
  const Explanation e = explain<ScaleAdd>({.rows = 4, .cols = 8}, cpu_device());
  EXPECT_EQ(e.origin, "forced");
  ASSERT_EQ(e.children.size(), 1u);
  EXPECT_EQ(e.children[0].chosen, "scale_add.recipe.first_row_again");
  EXPECT_TRUE(e.children[0].children.empty());
}

TEST(Explain, tuned_recipe_shows_its_children) {
  const harness::LevelScope level(Isa::portable);
  const FolderScope folder;
  folder.write("scale_add.portable.csv",
               str("arch,units,rows,cols,nan_row,rank,kernel,config,us,spread_us,baseline_us,error,revision,toolchain,date\nportable,",
                   cpu_device().units, ",4,8,0,1,scale_add.recipe.first_row_again,,3,0,9,0,r,t,d\n"));
  set_tuned_fields("scale_add", tuned_fields<ScaleAdd::Problem>());
  const SettingScope setting("EITRI_TUNED", folder.path());
  const Explanation e = explain<ScaleAdd>({.rows = 4, .cols = 8}, cpu_device());
  EXPECT_EQ(e.chosen, "scale_add.recipe.first_row_again");
  ASSERT_EQ(e.children.size(), 1u);
  EXPECT_EQ(e.children[0].problem, "rows=1,cols=8,nan_row=0");
  EXPECT_EQ(e.children[0].chosen, "scale_add.portable.rows");
  EXPECT_THAT(to_text(e), HasSubstr("\n    scale_add rows=1,cols=8,nan_row=0 on portable\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(e))["children"][0]["chosen"], "scale_add.portable.rows");

  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 4, .cols = 8}, maker);
  Trace trace;
  call<ScaleAdd>(args);
  ASSERT_EQ(trace.steps().size(), 2u);
  EXPECT_STREQ(trace.steps()[0].kernel, "scale_add.recipe.first_row_again");
  EXPECT_EQ(trace.steps()[0].depth, 0);
  EXPECT_STREQ(trace.steps()[1].kernel, "scale_add.portable.rows");
  EXPECT_EQ(trace.steps()[1].depth, 1);
  EXPECT_EQ(trace.steps()[1].problem, "rows=1,cols=8,nan_row=0");
  EXPECT_GE(trace.steps()[0].us, trace.steps()[1].us);
}

TEST(Explain, empty_problem_has_a_reason) {
  const Explanation e = explain<ScaleAdd>({.rows = 0, .cols = 8}, cpu_device());
  EXPECT_EQ(e.chosen, "");
  EXPECT_THAT(e.why, HasSubstr("an extent is 0"));
  EXPECT_NO_THROW(nlohmann::json::parse(to_json(e)));
}

TEST(Explain, every_op_by_name) {
  for (const OpEntry& op : all_ops()) {
    EXPECT_FALSE(op.kernels.empty()) << op.name;
    const Explanation e = op.explain("", cpu_device());
    EXPECT_EQ(e.op, op.name);
    EXPECT_EQ(e.rows.size(), op.kernels.size());
    EXPECT_NO_THROW(nlohmann::json::parse(to_json(e))) << op.name;
    EXPECT_FALSE(to_text(e).empty());
  }
  EXPECT_STREQ(find_op("gemm").name, "gemm");
  try {
    find_op("matmul");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    for (const OpEntry& op : all_ops()) EXPECT_THAT(error.what(), HasSubstr(op.name));
  }
}

TEST(TraceSteps, calls_in_order_with_work) {
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 4, .cols = 8}, maker);
  call<ScaleAdd>(args);  // nobody listens
  Trace outer;
  call<ScaleAdd>(args);
  {
    Trace inner;
    call<ScaleAdd>(args);
    EXPECT_EQ(inner.steps().size(), 1u);
  }
  call<ScaleAdd>(args);
  ASSERT_EQ(outer.steps().size(), 2u);
  for (const Step& step : outer.steps()) {
    EXPECT_STREQ(step.op, "scale_add");
    EXPECT_EQ(step.problem, "rows=4,cols=8,nan_row=0");
    EXPECT_EQ(step.flops, 2.0 * 32);
    EXPECT_EQ(step.bytes, 8.0 * 32);
    EXPECT_GE(step.us, 0);
    EXPECT_EQ(step.depth, 0);
    EXPECT_GE(limit_fraction(step, cpu_device()), 0);
  }
  outer.clear();
  EXPECT_TRUE(outer.steps().empty());
}

TEST(TraceSteps, a_throwing_kernel_leaves_the_trace_usable) {
  Maker maker;
  const ScaleAdd::Args args = ScaleAdd::make({.rows = 4, .cols = 8}, maker);
  Trace trace;
  {
    const ForceScope force("scale_add", "scale_add.fault.throws");
    EXPECT_THROW(call<ScaleAdd>(args), std::runtime_error);
  }
  call<ScaleAdd>(args);
  EXPECT_EQ(trace.steps().back().depth, 0) << "the failed call is still counted as a parent";
}

}  // namespace
}  // namespace eitri
