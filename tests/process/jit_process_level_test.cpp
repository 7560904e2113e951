// The cache with real processes: killed, racing, on full and read-only disks, without a home, without a compiler.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "process/child.h"

namespace eitri::jit {
namespace {

namespace fs = std::filesystem;

using JitKilled = ProcessTest;
using JitRace = ProcessTest;
using JitFolder = ProcessTest;

constexpr const char* kSteps[] = {"locked",           "compiling",      "compiled",      "folder made",  "binary written",
                                  "manifest written", "folder flushed", "before rename", "after rename", "parent flushed"};

/// How the builder is started: in our pid namespace or in one of its own, where it is the first process.
enum class Namespace : uint8_t { ours, own };

std::vector<std::string> in_namespace(Namespace where, std::vector<std::string> argv) {
  if (where == Namespace::own) argv.insert(argv.begin(), {find_program("unshare"), "--pid", "--fork", "--kill-child=SIGKILL"});
  return argv;
}

// P01: the builder dies at some step while eight others wait for it. All of them get the binary, soon, with one rebuild at most.
void kill_at_every_step(Namespace where, const std::function<std::vector<std::string>(std::vector<std::string>)>& command,
                        const std::function<size_t()>& compiles) {
  int key = 0;
  for (const char* step : kSteps) {
    SCOPED_TRACE(step);
    const std::string text = str("text=killed ", key++);
    const size_t before = compiles();
    Child builder(in_namespace(where, command({text, str("stop_at=", step)})));
    ASSERT_TRUE(builder.wait_for("stopped")) << builder.output();
    std::vector<Child> waiters;
    for (int i = 0; i < 8; ++i) waiters.emplace_back(in_namespace(where, command({text, "seconds=0.02"})));
    // What is published already is not waited for.
    const bool published = std::string_view(step) == "after rename" || std::string_view(step) == "parent flushed";
    for (Child& waiter : waiters) EXPECT_EQ(waiter.wait_for("waiting"), !published) << waiter.output();
    builder.kill();
    const auto start = Clock::now();
    for (Child& waiter : waiters) {
      EXPECT_EQ(waiter.end(), 0) << waiter.output();
      EXPECT_NE(waiter.output().find("gave_up=0"), std::string::npos) << waiter.output();
    }
    EXPECT_LT(seconds_since(start), 10);
    EXPECT_NE(builder.end(), 0);
    EXPECT_LE(compiles() - before, 2u) << "the killed one and one rebuild";
  }
}

TEST_F(JitKilled, AtTenStepsWithEightWaiters) {
  kill_at_every_step(
      Namespace::ours, [&](auto more) { return command(std::move(more)); }, [&] { return compiles(); });
}

// Every builder and every waiter has the same pid on the same host name: nothing that is written about a holder can be trusted.
TEST_F(JitKilled, InPidNamespacesWithEqualPids) {
  if (find_program("unshare").empty()) GTEST_SKIP() << "no program unshare";
  if (!run_process(in_namespace(Namespace::own, {"/bin/true"})).ok()) GTEST_SKIP() << "no right to make pid namespaces";
  kill_at_every_step(
      Namespace::own, [&](auto more) { return command(std::move(more)); }, [&] { return compiles(); });
}

TEST_F(JitKilled, LeavesNothingThatMatters) {
  for (const char* step : kSteps) {
    Child builder(command({"text=left", str("stop_at=", step)}));
    if (builder.wait_for("stopped")) builder.kill();
    builder.end();
  }
  const ProcessResult after = run({"text=left"});
  EXPECT_TRUE(after.ok()) << after.output;
  EXPECT_NE(after.output.find("disk=1"), std::string::npos) << after.output;
  EXPECT_NE(after.output.find("quarantined=0"), std::string::npos) << after.output;
}

// P02: each key is compiled once, and nobody reads what is not whole.
TEST_F(JitRace, SixtyFourProcessesFiftyKeys) {
  const auto start = Clock::now();
  std::vector<Child> children;
  for (int i = 0; i < 64; ++i) children.emplace_back(command({"keys=50", "seconds=0.002", str("seed=", i)}));
  for (Child& child : children) {
    EXPECT_EQ(child.end(), 0) << child.output();
    EXPECT_NE(child.output().find("wrong=0"), std::string::npos) << child.output();
    EXPECT_NE(child.output().find("quarantined=0 unpublished=0"), std::string::npos) << child.output();
  }
  EXPECT_EQ(compiles(), 50u);
  EXPECT_LT(seconds_since(start), 60);
  RecordProperty("seconds", std::to_string(seconds_since(start)));
}

// Without any lock the work is done several times, and the result is the same.
TEST_F(JitRace, WithoutLocks) {
  std::vector<Child> children;
  for (int i = 0; i < 16; ++i) {
    std::vector<std::string> argv = command({"keys=10", "seconds=0.005", "seed=1"});
    argv[3] = "locks=";
    children.emplace_back(argv);
  }
  for (Child& child : children) {
    EXPECT_EQ(child.end(), 0) << child.output();
    EXPECT_NE(child.output().find("wrong=0"), std::string::npos) << child.output();
  }
  EXPECT_GE(compiles(), 10u);
  size_t entries = 0;
  for ([[maybe_unused]] const auto& at : fs::directory_iterator(root() + "/entries")) ++entries;
  EXPECT_EQ(entries, 10u);
  EXPECT_TRUE(fs::is_empty(root() + "/tmp"));
}

// While entries are damaged over and over, every process gets what is right.
TEST_F(JitRace, WithDamageGoingOn) {
  ASSERT_TRUE(run({"keys=5"}).ok());
  std::vector<Child> children;
  for (int i = 0; i < 24; ++i) {
    children.emplace_back(command({"keys=5", str("seed=", i)}));
    for (const auto& at : fs::directory_iterator(root() + "/entries")) {
      std::error_code error;
      fs::resize_file(at.path() / (i % 2 == 0 ? "binary.cubin" : "manifest"), static_cast<uintmax_t>(10 + i), error);
    }
  }
  for (Child& child : children) {
    EXPECT_EQ(child.end(), 0) << child.output();
    EXPECT_NE(child.output().find("wrong=0"), std::string::npos) << child.output();
  }
}

// P03: exactly the right number of rebuilds for each change.
TEST_F(JitFolder, WhatChangesAndWhatDoesNot) {
  const auto rebuilds = [&](std::vector<std::string> more) {
    const size_t before = compiles();
    const ProcessResult result = run(std::move(more));
    EXPECT_TRUE(result.ok()) << result.output;
    return compiles() - before;
  };
  EXPECT_EQ(rebuilds({"header=1"}), 1u);
  EXPECT_EQ(rebuilds({"header=1"}), 0u);
  EXPECT_EQ(rebuilds({"header=2"}), 1u);
  EXPECT_EQ(rebuilds({"header=2", "flag=-O2"}), 1u);
  EXPECT_EQ(rebuilds({"header=2", "flag=-O2", "identity=fake 2"}), 1u);
  for (const char* old : {"header=1", "header=2"}) EXPECT_EQ(rebuilds({old}), 0u);
  for (const time_t when : {time_t{0}, time_t{4'000'000'000}}) {
    for (const auto& at : fs::recursive_directory_iterator(root())) {
      const timespec times[2] = {{when, 0}, {when, 0}};
      ::utimensat(AT_FDCWD, at.path().c_str(), times, AT_SYMLINK_NOFOLLOW);
    }
    EXPECT_EQ(rebuilds({"header=1"}), 0u);
  }
}

/// A small file system of its own; tests that need one are skipped without the right to mount.
class Mounted {
 public:
  Mounted(const std::string& path, const char* options) : path_(path) {
    fs::create_directories(path);
    ok_ = ::mount("eitri-test", path.c_str(), "tmpfs", 0, options) == 0;
  }
  ~Mounted() {
    if (ok_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  bool ok() const { return ok_; }
  bool make_read_only() const { return ::mount("eitri-test", path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

 private:
  std::string path_;
  bool ok_ = false;
};

TEST_F(JitFolder, ReadOnlyFolder) {
  const Mounted disk(folder / "cache", "size=8m,mode=700");
  if (disk.ok()) {
    ASSERT_TRUE(run({"keys=2"}).ok());
    ASSERT_TRUE(disk.make_read_only());
  } else if (::geteuid() != 0) {
    ASSERT_TRUE(run({"keys=2"}).ok());
    for (const auto& at : fs::recursive_directory_iterator(root())) {
      if (at.is_directory()) fs::permissions(at.path(), fs::perms::owner_read | fs::perms::owner_exec);
    }
    fs::permissions(root(), fs::perms::owner_read | fs::perms::owner_exec);
  } else {
    GTEST_SKIP() << "root without the right to mount has no read-only folder";
  }
  const ProcessResult result = run({"keys=4"});
  if (!disk.ok()) {
    fs::permissions(root(), fs::perms::owner_all);
    for (const auto& at : fs::recursive_directory_iterator(root())) fs::permissions(at.path(), fs::perms::owner_all);
  }
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_NE(result.output.find("compiled=2 disk=2"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("read-only"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("wrong=0"), std::string::npos) << result.output;
}

// A damaged entry that cannot be set aside is compiled in memory.
TEST_F(JitFolder, ReadOnlyAndDamaged) {
  const Mounted disk(folder / "cache", "size=8m,mode=700");
  if (!disk.ok()) GTEST_SKIP() << "no right to mount";
  ASSERT_TRUE(run().ok());
  for (const auto& at : fs::directory_iterator(root() + "/entries")) fs::resize_file(at.path() / "binary.cubin", 3);
  ASSERT_TRUE(disk.make_read_only());
  const ProcessResult result = run();
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_NE(result.output.find("compiled=1 disk=0"), std::string::npos) << result.output;
}

// P05: nothing half-written stays on a full disk, and everything still works.
TEST_F(JitFolder, FullDisk) {
  const Mounted disk(folder / "cache", "size=256k,mode=700");
  if (!disk.ok()) GTEST_SKIP() << "no right to mount a small disk";
  const std::string big(60'000, 'x');
  const ProcessResult result = run({"keys=8", "text=" + big});
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_NE(result.output.find("wrong=0"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("compiled=8"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("unpublished=0"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("No space left on device"), std::string::npos) << result.output;
  EXPECT_TRUE(fs::is_empty(root() + "/tmp"));
  const ProcessResult again = run({"keys=8", "text=" + big});
  EXPECT_TRUE(again.ok()) << again.output;
  EXPECT_NE(again.output.find("quarantined=0"), std::string::npos) << again.output;
  EXPECT_EQ(again.output.find("disk=0"), std::string::npos) << "what fitted is used: " << again.output;
}

// P08: a user op with the real compiler and the settings of an environment that has next to nothing.
class JitBare : public ProcessTest {
 protected:
  /// The driver with this environment and no other.
  ProcessResult bare(std::vector<std::string> environment, std::vector<std::string> more = {}) const {
    std::vector<std::string> argv = {"/usr/bin/env", "-i"};
    for (std::string& e : environment) argv.push_back(std::move(e));
    argv.insert(argv.end(), {driver(), "user_op"});
    for (std::string& word : more) argv.push_back(std::move(word));
    return run_process(argv, {.time_limit_s = 60});
  }
  const std::string path = str("PATH=", std::getenv("PATH"));
};

TEST_F(JitBare, NoHome) {
  const ProcessResult result = bare({path});
  if (result.output.find("is in PATH") != std::string::npos) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_NE(result.output.find("compiled=1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("there is no cache folder"), std::string::npos) << result.output;
}

TEST_F(JitBare, NoCompiler) {
  for (const char* no_path : {"PATH=/nonexistent", "PATH=", "PATH=:"}) {
    const ProcessResult result = bare({no_path, "HOME=" + folder.path()});
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_NE(result.output.find("no compiler for"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("none of c++, g++, clang++ is in PATH"), std::string::npos) << result.output;
  }
  const ProcessResult wrong = bare({"PATH=/nonexistent", "EITRI_COMPILER=host=/nonexistent/c++", "HOME=" + folder.path()});
  EXPECT_NE(wrong.output.find("EITRI_COMPILER names it, but /nonexistent/c++"), std::string::npos) << wrong.output;
  const ProcessResult unknown = bare({path, "EITRI_COMPILER=icc=/opt/icc"});
  EXPECT_NE(unknown.output.find("EITRI_COMPILER names the kind \"icc\"; expected one of nvrtc, nvcc, clang, hiprtc, host"),
            std::string::npos)
      << unknown.output;
}

TEST_F(JitBare, CacheAndModes) {
  const std::string cache = "EITRI_CACHE_DIR=" + (folder / "c");
  const ProcessResult missing = bare({path, cache, "EITRI_JIT=cached"});
  if (missing.output.find("is in PATH") != std::string::npos) GTEST_SKIP() << missing.output;
  EXPECT_EQ(missing.code, 2) << missing.output;
  EXPECT_NE(missing.output.find("EITRI_JIT=cached"), std::string::npos) << missing.output;
  EXPECT_NE(bare({path, cache}).output.find("compiled=1"), std::string::npos);
  const ProcessResult cached = bare({path, cache, "EITRI_JIT=cached"});
  EXPECT_TRUE(cached.ok()) << cached.output;
  EXPECT_NE(cached.output.find("compiled=0 disk=1"), std::string::npos) << cached.output;
  // P06: stray colons in the path list.
  EXPECT_NE(bare({"PATH=:" + path.substr(5) + "::", cache}).output.find("disk=1"), std::string::npos);
  // P06: the same compiler through a link, named by the setting.
  fs::create_symlink(find_program("c++"), folder / "linked");
  EXPECT_NE(bare({path, cache, "EITRI_COMPILER=host=" + (folder / "linked")}).output.find("disk=1"), std::string::npos);
  const ProcessResult off = bare({path, cache, "EITRI_JIT=off"});
  EXPECT_EQ(off.code, 2);
  EXPECT_NE(off.output.find("EITRI_JIT is off"), std::string::npos) << off.output;
}

TEST_F(JitBare, CompileErrorAcrossProcesses) {
  const std::string cache = "EITRI_CACHE_DIR=" + (folder / "c");
  const ProcessResult first = bare({path, cache}, {"text=nonsense"});
  if (first.output.find("is in PATH") != std::string::npos) GTEST_SKIP() << first.output;
  const ProcessResult second = bare({path, cache}, {"text=nonsense"});
  for (const ProcessResult* result : {&first, &second}) {
    EXPECT_EQ(result->code, 2);
    EXPECT_NE(result->output.find("twice:1:"), std::string::npos) << result->output;
    EXPECT_NE(result->output.find("command: "), std::string::npos) << result->output;
    EXPECT_NE(result->output.find("source: " + (folder / "c/jit/failed/")), std::string::npos) << result->output;
  }
  EXPECT_NE(second.output.find("said so"), std::string::npos) << second.output;
}

// No place for temporary files at all is an error that says so; a full one is passed over for the next.
TEST_F(JitBare, FullTemporaryFolder) {
  const Mounted disk(folder / "tmp", "size=16k,mode=1777");
  if (!disk.ok()) GTEST_SKIP() << "no right to mount a small disk";
  const ProcessResult result = bare({path, "TMPDIR=" + (folder / "tmp")});
  if (result.output.find("is in PATH") != std::string::npos) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.ok()) << result.output;
  EXPECT_TRUE(fs::is_empty(folder / "tmp"));
}

}  // namespace
}  // namespace eitri::jit
