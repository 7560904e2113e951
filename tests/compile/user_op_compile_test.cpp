// The generated kernels of user ops compiled for GPUs that need not be there.
#include <gmock/gmock.h>

#include "compile/kernel_binary.h"
#include "jit/user_op.h"

namespace eitri {
namespace {

using jit::UserOp;

jit::Compiled compile(const UserOp& op, const jit::Compiler& compiler, const char* target) {
  const jit::CompileRequest request = op.gpu_request(jit::target_named(target));
  jit::check_request(request);
  return compiler.compile(request, jit::include_closure(request.source));
}

void check_user_ops(const jit::FoundCompiler& found, const char* target, KernelFacts (*read)(std::string_view)) {
  if (!found.compiler) GTEST_SKIP() << found.reason;
  const UserOp elements("scale(x: f32[n, k], y: out bf16[n, k], z: f16[n, k], alpha: f64, m: i32)",
                        {.gpu = {.body = "y[element] = float(alpha) * x[element] + z[element] + m;"}});
  const UserOp rows("row_sums(x: strided f32[n, k], y: out f32[n])",
                    {.gpu = {.body = "EITRI_SHARED BlockReduce<128>::Partials partials;\n"
                                     "BlockReduce<128> reduce(partials);\nfloat sum = 0.0f;\n"
                                     "for (int64_t j = thread(); j < k; j += 128) sum += x(block(), j);\n"
                                     "sum = reduce.sum(sum);\nif (thread() == 0) y(block()) = sum;",
                             .before = "#include \"device/reduce.h\"\n",
                             .threads = 128,
                             .blocks = "n"}});
  const UserOp full(
      "copy(x: i64[n], y: out i64[n])",
      {.gpu = {.entry = "copy_all",
               .before = "EITRI_KERNEL(64) copy_all(const eitri_arguments a) {\n  launch_dependents();\n  wait_for_dependencies();\n"
                         "  const eitri_call c(a);\n  const int64_t i = block() * 64 + thread();\n  if (i < c.n) c.y(i) = c.x(i);\n}",
               .threads = 64,
               .blocks = "(n + 63) / 64"}});
  constexpr int64_t kFixed = 2 * 8 + 16 * 8, kEach = 88;
  for (const UserOp* op : {&elements, &rows, &full}) {
    SCOPED_TRACE(op->declaration().name);
    const jit::Compiled compiled = compile(*op, *found.compiler, target);
    ASSERT_TRUE(compiled.ok) << compiled.log << op->generated_gpu_source();
    EXPECT_EQ(compiled.log, "");
    const KernelFacts facts = read(compiled.binary);
    EXPECT_EQ(facts.problem, "");
    EXPECT_EQ(facts.argument_bytes, kFixed + kEach * static_cast<int64_t>(op->declaration().parameters.size()));
    EXPECT_EQ(facts.stack_bytes, 0);
  }
  // Messages count from the start of the body.
  const UserOp wrong("wrong(x: f32[n], y: out f32[n])", {.gpu = {.body = "\n\ny[element] = no_such_name;"}});
  const jit::Compiled refused = compile(wrong, *found.compiler, target);
  EXPECT_FALSE(refused.ok);
  EXPECT_THAT(refused.log, testing::AnyOf(testing::HasSubstr("wrong(3)"), testing::HasSubstr("wrong:3")));
}

TEST(UserOpCompile, sm_90a) { check_user_ops(jit::find_nvrtc(), "sm_90a", read_cubin); }
TEST(UserOpCompile, gfx942) { check_user_ops(jit::find_clang_amd(), "gfx942", read_code_object); }
TEST(UserOpCompile, gfx950) { check_user_ops(jit::find_clang_amd(), "gfx950", read_code_object); }

}  // namespace
}  // namespace eitri
