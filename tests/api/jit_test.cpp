// eitri/jit.hpp and its C entries as a user calls them; the settings scopes only give each test a cache of its own.
#include "eitri/jit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dispatch/scoped_settings.h"
#include "eitri/eitri.h"
#include "eitri/eitri.hpp"

namespace eitri {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Code and message of what `f` throws; ok and "" when nothing.
struct Refusal {
  Code code = Code::ok;
  std::string text;
};
template <class F> Refusal refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

struct PublicJit : testing::Test {
  FolderScope folder;
  SettingScope cache{"EITRI_CACHE_DIR", folder.path()};  // and with it a cache that no other test has sealed

  void skip_without_host_compiler() {
    const Refusal none = refusal([] { UserOp("probe()", {}).compile(); });
    if (none.code == Code::unsupported) GTEST_SKIP() << none.text;
    ASSERT_EQ(none.text, "");
  }
  /// y = alpha * x for one value.
  static float scaled(const UserOp& op, float value, float alpha) {
    float x[1] = {value}, y[1] = {NAN};
    op(View(x, DType::f32, {1}), View(y, DType::f32, {1}), alpha);
    return y[0];
  }
  static constexpr const char* kScale = "scale(x: f32[n], y: out f32[n], alpha: f32)";
};

TEST_F(PublicJit, user_op_runs_on_the_cpu) {
  ASSERT_NO_FATAL_FAILURE(skip_without_host_compiler());
  if (IsSkipped()) return;
  UserOp scale(kScale, {.body = "for (int64_t i = 0; i < n; ++i) y(i) = scaled(x(i), alpha) + SHIFT;",
                        .before = "#include \"mine/scaled.h\"\n",
                        .flags = {"-DSHIFT=2"},
                        .headers = {{"mine/scaled.h", "inline float scaled(float v, float a) { return v * a; }\n"}}});
  const float x[] = {1, 2, 3};
  float y[3] = {};
  const View xv(x, DType::f32, {3}), yv(y, DType::f32, {3});
  scale(xv, yv, 0.5f);
  EXPECT_THAT(y, testing::ElementsAre(2.5f, 3, 3.5f));
  scale.on(nullptr, xv, yv, 10);
  EXPECT_THAT(y, testing::ElementsAre(12, 22, 32));
  EXPECT_THAT(scale.generated_source(), HasSubstr("scaled(x(i), alpha) + SHIFT"));

  EXPECT_EQ(refusal([&] { scale(xv, View(y, DType::f32, {2}), 1); }).text, "scale: y is f32[2]; expected f32[n] with n = 3 (from x)");
  const Refusal number = refusal([&] { scale(xv, 1.5, 1); });
  EXPECT_EQ(number.code, Code::invalid_argument);
  EXPECT_EQ(number.text, "scale: y is a number; expected f32[n]");
  EXPECT_THAT(refusal([&] { scale(xv, yv); }).text, HasSubstr("2 arguments are given; expected 3"));
  int dummy = 0;
  EXPECT_THAT(refusal([&] { scale.on(&dummy, xv, yv, 1); }).text, HasSubstr("a stream is given"));
  EXPECT_THAT(refusal([&] { scale.prebuild("sm_90a"); }).text, HasSubstr("there is no source for GPUs"));
  EXPECT_THAT(refusal([&] { scale.prebuild("sm_80"); }).text,
              HasSubstr("scale: targets is 'sm_80'; expected some of sm_90a, gfx942, gfx950"));

  const UserOp moved = std::move(scale);
  EXPECT_EQ(scaled(moved, 3, 2), 8);
  EXPECT_THAT(refusal([&] { scale.compile(); }).text, HasSubstr("was moved from"));  // NOLINT(bugprone-use-after-move)
}

TEST_F(PublicJit, user_op_that_is_wrong_says_where) {
  const Refusal declaration = refusal([] { UserOp("scale(x: f33[n])", {}); });
  EXPECT_EQ(declaration.code, Code::invalid_argument);
  EXPECT_THAT(declaration.text, HasSubstr("\"f33[n])\" at character 10; expected an element type"));
  EXPECT_THAT(refusal([] { UserOp(kScale, {.gpu = {.body = "y[element] = 1;", .threads = 100}}); }).text, HasSubstr("threads"));
  EXPECT_THAT(refusal([] { UserOp(kScale, {.headers = {{"../escape.h", ""}}}); }).text, HasSubstr("../escape.h"));

  ASSERT_NO_FATAL_FAILURE(skip_without_host_compiler());
  if (IsSkipped()) return;
  const Refusal compile = refusal([] { UserOp(kScale, {.body = "\ny(0) = alfa;"}).compile(); });
  EXPECT_EQ(compile.code, Code::compile_failed);
  EXPECT_THAT(compile.text, AllOf(HasSubstr("scale:2:"), HasSubstr("alfa"), HasSubstr("was not declared"))) << "gcc's or clang's own text";
}

TEST_F(PublicJit, sealed_processes_take_what_is_there_and_compile_nothing) {
  ASSERT_NO_FATAL_FAILURE(skip_without_host_compiler());
  if (IsSkipped()) return;
  const UserOpSource known{.body = "y(0) = alpha * x(0);"}, late{.body = "y(0) = -alpha * x(0);"};
  EXPECT_EQ(scaled(UserOp(kScale, known), 3, 2), 6);
  seal();
  EXPECT_EQ(scaled(UserOp(kScale, known), 3, 2), 6) << "from the cache";
  for (const auto& sealed : {refusal([&] { UserOp(kScale, late).compile(); }), refusal([&] { scaled(UserOp(kScale, late), 1, 1); })}) {
    EXPECT_EQ(sealed.code, Code::compile_failed);
    EXPECT_THAT(sealed.text, AllOf(HasSubstr("scale"), HasSubstr("seal() was called")));
  }
  {
    const FolderScope other;
    const SettingScope unsealed("EITRI_CACHE_DIR", other.path());
    EXPECT_EQ(scaled(UserOp(kScale, late), 3, 2), -6);
    EXPECT_EQ(eitri_seal(), EITRI_OK);
    EXPECT_EQ(refusal([&] { UserOp(kScale, known).compile(); }).code, Code::compile_failed);
  }
}

TEST_F(PublicJit, prebuild_lists_what_is_known) {
  const auto refused = [](const char* op, const char* problem, const char* targets) {
    const Refusal r = refusal([&] { prebuild(op, problem, targets); });
    EXPECT_EQ(r.code, Code::invalid_argument) << r.text;
    EXPECT_EQ(eitri_prebuild(op, problem, targets, nullptr), EITRI_INVALID_ARGUMENT);
    EXPECT_EQ(eitri_last_error(), r.text.substr(0, 2047));
    return r.text;
  };
  for (const char* targets : {"sm_80", "", ",", "sm_90a,,gfx942", "sm_90a,gfx9", "x86-64-v3"}) {
    EXPECT_EQ(refused("rmsnorm", "tokens=8,hidden=1024", targets),
              "prebuild: targets is '" + std::string(targets) + "'; expected some of sm_90a, gfx942, gfx950, separated by commas");
  }
  EXPECT_THAT(refused("rmsnrom", "", "sm_90a"), AllOf(HasSubstr("\"rmsnrom\""), HasSubstr("rmsnorm"), HasSubstr("fused_moe")));
  EXPECT_THAT(refused("rmsnorm", "token=8", "sm_90a"), AllOf(HasSubstr("token"), HasSubstr("tokens"), HasSubstr("norm_weight")));
  EXPECT_THAT(refused("rmsnorm", "tokens=8,tokens=9", "sm_90a"), HasSubstr("given twice"));
  EXPECT_THAT(refused("rmsnorm", "tokens=-1,hidden=1024", "sm_90a"), HasSubstr("tokens is -1"));
  EXPECT_THAT(refused("rmsnorm", "tokens=many", "sm_90a"), HasSubstr("many"));
  const std::vector<std::string> none;
  EXPECT_THAT(refusal([&] { prebuild("rmsnrom", none, "sm_90a"); }).text, HasSubstr("rmsnrom"));
  EXPECT_EQ(prebuild("rmsnorm", none, "sm_90a").kernels, 0u);
  EXPECT_EQ(prebuild("rmsnorm", "tokens=0,hidden=1024", "gfx942").kernels, 0u) << "an empty problem needs no kernel";
  EXPECT_EQ(eitri_prebuild(nullptr, "", "sm_90a", nullptr), EITRI_INVALID_ARGUMENT);

  const Refusal unsupported = refusal([] { prebuild("fused_moe", "tokens=16,w1_format=panel32,w2_format=panel32", "sm_90a"); });
  EXPECT_EQ(unsupported.code, Code::unsupported) << unsupported.text;
  EXPECT_THAT(unsupported.text, AllOf(HasSubstr("no kernel takes"), HasSubstr("fused_moe.recipe.sorted: weights are packed for CPUs")));
}

TEST_F(PublicJit, prebuild_names_every_kernel_that_is_missing) {
  const SettingScope cached("EITRI_JIT", "cached");
  const std::vector<std::string> problems = {"tokens=8,hidden=1024", "tokens=8,hidden=7168,quant=per_token,out=i8"};
  const Refusal r = refusal([&] { prebuild("rmsnorm", problems, "sm_90a,gfx942"); });
  EXPECT_EQ(r.code, Code::compile_failed);
  EXPECT_THAT(r.text,
              AllOf(HasSubstr("prebuild of rmsnorm: these kernels are not there:"), HasSubstr("for sm_90a"), HasSubstr("for gfx942")));
}

/// With the compilers of GPUs; tests/compile says where they come from.
struct PublicPrebuildCompile : PublicJit, testing::WithParamInterface<const char*> {};

TEST_P(PublicPrebuildCompile, a_problem_is_compiled_once) {
  PrebuildResult first;
  const Refusal r = refusal([&] { first = prebuild("rmsnorm", "tokens=4096,hidden=7168", GetParam()); });
  if (r.text.find("no compiler for") != std::string::npos) GTEST_SKIP() << r.text;
  ASSERT_EQ(r.text, "");
  EXPECT_GT(first.kernels, 0u);
  EXPECT_EQ(first.compiled, first.kernels);
  EXPECT_GT(first.seconds, 0);
  const std::vector<std::string> twice = {"hidden=7168,tokens=4096", "tokens=4096,hidden=7168"};
  const PrebuildResult second = prebuild("rmsnorm", twice, GetParam());
  EXPECT_EQ(second.kernels, first.kernels);
  EXPECT_EQ(second.compiled, 0u);
  size_t compiled = 7;
  ASSERT_EQ(eitri_prebuild("rmsnorm", "tokens=4096,hidden=7168", GetParam(), &compiled), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(compiled, 0u);

  // A sealed process takes them from disk, and names what it lacks.
  seal();
  EXPECT_EQ(prebuild("rmsnorm", twice, GetParam()).compiled, 0u);
  const Refusal sealed = refusal([] { prebuild("quantize", "rows=8,cols=1024", GetParam()); });
  EXPECT_EQ(sealed.code, Code::compile_failed);
  EXPECT_THAT(sealed.text, AllOf(HasSubstr("quantize.simt."), HasSubstr("seal() was called")));
}

TEST_P(PublicPrebuildCompile, user_ops_too) {
  const UserOp scale(kScale, {.gpu = {.body = "y[element] = alpha * x[element];"}});
  EXPECT_THAT(refusal([&] { scale.compile(); }).text, HasSubstr("there is no source for the CPU"));
  PrebuildResult first;
  const Refusal r = refusal([&] { first = scale.prebuild(GetParam()); });
  if (r.text.find("no compiler for") != std::string::npos) GTEST_SKIP() << r.text;
  ASSERT_EQ(r.text, "");
  EXPECT_EQ(first.kernels, 1u);
  EXPECT_EQ(first.compiled, 1u);
  EXPECT_EQ(scale.prebuild(GetParam()).compiled, 0u);
  const Refusal bad = refusal([] { UserOp(kScale, {.gpu = {.body = "y[element] = alfa;"}}).prebuild(GetParam()); });
  EXPECT_EQ(bad.code, Code::compile_failed);
  EXPECT_THAT(bad.text, AllOf(HasSubstr("prebuild of scale"), HasSubstr("alfa")));
}

INSTANTIATE_TEST_SUITE_P(Targets, PublicPrebuildCompile, testing::Values("sm_90a", "gfx942"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace eitri
