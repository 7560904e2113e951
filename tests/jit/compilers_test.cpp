// The real compilers, where they are installed; each test that is skipped says what is missing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "jit/cache.h"
#include "jit/process.h"
#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

constexpr const char* kKernel = R"(#include "device/own.h"
#include <cstdint>
extern "C" EITRI_KERNEL void add_one(float* x, int64_t n) {
  const int64_t i = own_index();
  if (i < n) x[i] += TERM;
}
)";
constexpr const char* kCudaHeader = R"(#pragma once
#define EITRI_KERNEL __global__
__device__ inline int own_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
)";
constexpr const char* kAmdHeader = R"(#pragma once
#define EITRI_KERNEL __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 256)))
__attribute__((device)) inline int own_index() { return __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x(); }
)";

CompileRequest kernel_request(const Target& target) {
  CompileRequest request = {.label = "add_one", .defines = {"TERM=1.0f"}, .target = &target};
  request.source = {.name = "add_one.cu", .text = kKernel};
  request.source.headers.add("device/own.h", target.machine == Machine::cuda ? kCudaHeader : kAmdHeader);
  request.source.headers.add(freestanding_headers());
  return request;
}

Compiled run(const Compiler& compiler, const CompileRequest& request) { return compiler.compile(request, include_closure(request.source)); }

/// A binary that is good for the target and no other, the same bytes the second time; and messages that name our files.
void check_gpu_compiler(const Compiler& compiler, std::initializer_list<const char*> targets) {
  for (const char* name : targets) {
    SCOPED_TRACE(name);
    const Target& target = target_named(name);
    ASSERT_TRUE(compiler.makes(target));
    const CompileRequest request = kernel_request(target);
    const Compiled good = run(compiler, request);
    ASSERT_TRUE(good.ok) << good.command << "\n" << good.log;
    for (const Target& other : all_targets()) EXPECT_EQ(binary_problem(good.binary, other).empty(), &other == &target) << other.name;
    EXPECT_EQ(run(compiler, request).binary, good.binary);
    EXPECT_NE(binary_problem(std::string_view(good.binary).substr(0, good.binary.size() - 1), target), "");

    CompileRequest bad = request;
    bad.source.text += "\nint nonsense = undeclared_name;\n";
    const Compiled refused = run(compiler, bad);
    EXPECT_FALSE(refused.ok);
    EXPECT_TRUE(refused.verdict);
    EXPECT_NE(refused.log.find("add_one.cu"), std::string::npos) << refused.log;
    EXPECT_NE(refused.log.find("undeclared_name"), std::string::npos) << refused.log;
    EXPECT_NE(refused.command.find("add_one.cu"), std::string::npos);
    CompileRequest flagged = request;
    flagged.flags = {"--no-such-flag-at-all"};
    EXPECT_TRUE(run(compiler, flagged).verdict);
  }
}

TEST(JitCompilers, Nvrtc) {
  const FoundCompiler found = find_nvrtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_gpu_compiler(*found.compiler, {"sm_90a"});
}

TEST(JitCompilers, Nvcc) {
  const FoundCompiler found = find_nvcc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_gpu_compiler(*found.compiler, {"sm_90a"});
}

TEST(JitCompilers, ClangForAmd) {
  const FoundCompiler found = find_clang_amd();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_gpu_compiler(*found.compiler, {"gfx942"});
  if (found.compiler->makes(target_named("gfx950"))) check_gpu_compiler(*found.compiler, {"gfx950"});
}

TEST(JitCompilers, Hiprtc) {
  const FoundCompiler found = find_hiprtc();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  check_gpu_compiler(*found.compiler, {"gfx942", "gfx950"});
}

TEST(JitCompilers, HostCxx) {
  const FoundCompiler found = find_host_cxx();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  CompileRequest request = {.label = "f", .defines = {"VALUE=41"}, .target = &host_target()};
  request.source = {.name = "f.cpp", .text = "#include <vector>\n#include \"own/a.h\"\nextern \"C\" int f() { return VALUE + one(); }\n"};
  request.source.headers.add("own/a.h", "inline int one() { return std::vector<int>(1).size(); }\n");
  const Compiled good = run(*found.compiler, request);
  ASSERT_TRUE(good.ok) << good.command << "\n" << good.log;
  EXPECT_EQ(binary_problem(good.binary, host_target()), "");
  EXPECT_NE(binary_problem(good.binary, target_named("sm_90a")), "");
  EXPECT_EQ(run(*found.compiler, request).binary, good.binary) << "nothing of the temporary folder is in it";
  request.source.text += "int missing(); extern \"C\" int g() { return missing(); }\n";
  const Compiled unlinked = run(*found.compiler, request);
  EXPECT_FALSE(unlinked.ok);
  EXPECT_NE(unlinked.log.find("missing"), std::string::npos) << "refused when linked, not when loaded";
}

TEST(JitCompilers, TimeLimit) {
  const FoundCompiler found = find_host_cxx();
  if (!found.compiler) GTEST_SKIP() << found.reason;
  CompileRequest request = {.label = "slow", .target = &host_target(), .time_limit_s = 0.3};
  request.source = {.name = "slow.cpp",
                    .text =
                        "template <int N> struct F { static constexpr int v = (F<N - 1>::v + F<N - 2>::v) % 7; };\n"
                        "template <> struct F<0> { static constexpr int v = 0; };\n"
                        "template <> struct F<1> { static constexpr int v = 1; };\n"
                        "#include <regex>\n#include <algorithm>\nstd::regex r(\"a\");\nint x = F<800>::v;\n"
                        "constexpr int spin(int n) { int s = 0; for (int i = 0; i < n; ++i) s += i % 3; return s; }\n"
                        "constexpr int a = spin(100000), b = spin(100001), c = spin(100002), d = spin(100003);\n"};
  request.flags = {"-ftemplate-depth=2000"};
  const Compiled result = run(*found.compiler, request);
  ASSERT_FALSE(result.ok);
  EXPECT_FALSE(result.verdict) << "a compiler that was stopped has not judged the source";
  EXPECT_NE(result.log.find("ran longer than 0.3 s"), std::string::npos) << result.log;
}

// P06: the same compiler through a link, and lists of folders with stray colons.
TEST(JitCompilers, LinksDoNotChangeTheIdentity) {
  const TemporaryFolder folder;
  const FoundCompiler direct = find_host_cxx();
  if (!direct.compiler) GTEST_SKIP() << direct.reason;
  std::filesystem::create_symlink(direct.compiler->path(), folder / "my-compiler");
  const FoundCompiler linked = find_host_cxx(folder / "my-compiler");
  ASSERT_TRUE(linked.compiler) << linked.reason;
  EXPECT_EQ(linked.compiler->identity(), direct.compiler->identity());
  EXPECT_NE(linked.compiler->path(), direct.compiler->path());

  CompileRequest request = {.label = "f", .target = &host_target()};
  request.source = {.name = "f.cpp", .text = "extern \"C\" int f() { return 1; }\n"};
  const CacheOptions options = {.root = folder / "cache/jit", .lock_folder = ""};
  EXPECT_EQ(Cache(options).get(*direct.compiler, request)->origin, Origin::compiled);
  EXPECT_EQ(Cache(options).get(*linked.compiler, request)->origin, Origin::disk);

  const std::string path = std::getenv("PATH");
  ::setenv("PATH", str(":", path, "::").c_str(), 1);
  const FoundCompiler stray = find_host_cxx();
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_TRUE(stray.compiler) << stray.reason;
  EXPECT_EQ(stray.compiler->identity(), direct.compiler->identity());
}

TEST(JitCompilers, LibraryThroughALink) {
  const FoundCompiler direct = find_nvrtc();
  if (!direct.compiler) GTEST_SKIP() << direct.reason;
  const TemporaryFolder folder;
  const std::string real = std::filesystem::path(direct.compiler->path()).parent_path();
  std::filesystem::create_directory_symlink(real, folder / "lib");
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  const std::string saved = before != nullptr ? before : "";
  ::setenv("LD_LIBRARY_PATH", str(":", folder / "lib", "::/nonexistent").c_str(), 1);
  const FoundCompiler linked = find_nvrtc();
  if (before != nullptr) ::setenv("LD_LIBRARY_PATH", saved.c_str(), 1);
  else ::unsetenv("LD_LIBRARY_PATH");
  ASSERT_TRUE(linked.compiler) << linked.reason;
  EXPECT_EQ(linked.compiler->path().find(folder / "lib"), 0u);
  EXPECT_EQ(linked.compiler->identity(), direct.compiler->identity());
}

// An absent or broken compiler is a sentence.
TEST(JitCompilers, AbsentOnesSayWhy) {
  const TemporaryFolder folder;
  write_text(folder / "not_a_library.so", "text");
  write_text(folder / "not_a_program", "text");
  for (const auto find : {find_nvrtc, find_nvcc, find_clang_amd, find_hiprtc, find_host_cxx}) {
    for (const std::string& path : {std::string("/nonexistent/x"), folder / "not_a_program", folder.path()}) {
      const FoundCompiler found = find(path);
      if (found.compiler) continue;  // a library is only known to be none when it is loaded
      EXPECT_NE(found.reason, "");
    }
  }
  const FoundCompiler text = find_nvrtc(folder / "not_a_library.so");
  ASSERT_TRUE(text.compiler);
  const Compiled result = run(*text.compiler, kernel_request(target_named("sm_90a")));
  EXPECT_FALSE(result.ok);
  EXPECT_FALSE(result.verdict);
  EXPECT_NE(result.log.find("cannot load"), std::string::npos) << result.log;
  EXPECT_NE(find_clang_amd("/bin/true").reason.find("expected clang"), std::string::npos);
}

TEST(JitCompilers, StatesListEveryKind) {
  const std::vector<CompilerState> states = compiler_states();
  ASSERT_EQ(states.size(), 5u);
  for (const CompilerState& state : states) {
    EXPECT_NE(state.identity.empty(), state.reason.empty()) << state.name;
    EXPECT_EQ(state.identity.empty(), state.path.empty()) << state.name;
  }
}

TEST(JitCompilers, IdentityOfAFile) {
  const TemporaryFolder folder;
  write_text(folder / "a", "text");
  write_text(folder / "b", "text");
  write_text(folder / "c", "other");
  EXPECT_EQ(content_identity(folder / "a"), content_identity(folder / "b"));
  EXPECT_NE(content_identity(folder / "a"), content_identity(folder / "c"));
  EXPECT_NE(error_of([&] { content_identity(folder / "none"); }), "");
}

}  // namespace
}  // namespace eitri::jit
