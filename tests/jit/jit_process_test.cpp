#include "jit/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

using End = ProcessResult::End;

ProcessResult shell(const std::string& script, ProcessOptions options = {}) { return run_process({"/bin/sh", "-c", script}, options); }

TEST(JitProcess, OutputAndStatus) {
  const ProcessResult ok = shell("echo out; echo err >&2");
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.output, "out\nerr\n");
  const ProcessResult bad = shell("exit 3");
  EXPECT_EQ(bad.end, End::exited);
  EXPECT_EQ(bad.code, 3);
  const ProcessResult killed = shell("kill -9 $$");
  EXPECT_EQ(killed.end, End::killed);
  EXPECT_EQ(killed.code, 9);
  const ProcessResult none = run_process({"/nonexistent/program"});
  EXPECT_EQ(none.end, End::not_started);
  EXPECT_NE(none.output.find("/nonexistent/program"), std::string::npos);
}

TEST(JitProcess, NoShellBetween) {
  const ProcessResult result = run_process({"/bin/echo", "a b", "$HOME", "; rm x", "'"});
  EXPECT_EQ(result.output, "a b $HOME ; rm x '\n");
}

TEST(JitProcess, TimeLimitKillsTheGroup) {
  const TemporaryFolder folder;
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult result = shell("sh -c 'sleep 2; touch late' & sleep 60", {.folder = folder.path(), .time_limit_s = 0.2});
  EXPECT_EQ(result.end, End::timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  ::sleep(3);
  EXPECT_FALSE(std::filesystem::exists(folder / "late")) << "the grandchild has outlived the limit";
}

TEST(JitProcess, GrandchildThatKeepsThePipe) {
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult result = shell("sleep 5 & echo done");
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output, "done\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(JitProcess, LongOutputIsCut) {
  const ProcessResult result = shell("yes | head -c 3000000", {.max_output = 1000});
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output.size(), 1000u);
}

// What changes a compiler's output does not reach it.
TEST(JitProcess, CleanEnvironment) {
  ::setenv("CPATH", "/tmp/evil", 1);
  const ProcessResult result = shell("env; ls -l /proc/self/fd | wc -l");
  ::unsetenv("CPATH");
  EXPECT_EQ(result.output.find("CPATH"), std::string::npos);
  EXPECT_NE(result.output.find("LC_ALL=C"), std::string::npos);
}

TEST(JitProcess, HostThatIgnoresItsChildren) {
  struct sigaction ignore = {}, old = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGCHLD, &ignore, &old);
  const ProcessResult result = shell("echo fine");
  ::sigaction(SIGCHLD, &old, nullptr);
  EXPECT_EQ(result.end, End::unknown);
  EXPECT_EQ(result.output, "fine\n");
}

TEST(JitProcess, FindProgram) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", ("::/nonexistent:" + path + ":").c_str(), 1);
  const std::string sh = find_program("sh");
  ::setenv("PATH", "", 1);
  const std::string none = find_program("sh");
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(sh.front(), '/');
  EXPECT_EQ(none, "");
  EXPECT_EQ(find_program("no-such-program-here"), "");
}

TEST(JitProcess, CommandLineCanBePasted) {
  EXPECT_EQ(command_line({"/usr/bin/c++", "-DA=1", "-DB=a b", "it's", ""}), "/usr/bin/c++ -DA=1 '-DB=a b' 'it'\\''s' ''");
}

}  // namespace
}  // namespace eitri::jit
