// A running process of the driver, and the folders that a test gives it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "jit/process.h"
#include "jit/temporary_folder.h"

extern char** environ;

namespace eitri::jit {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Beside the test program; empty (and the tests are skipped) when it was not built.
inline std::string driver() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (self.parent_path() / "eitri_process_driver").string();
  return ::access(path.c_str(), X_OK) == 0 ? path : std::string();
}

/// Runs in the background until it is reaped; killed when it goes out of scope.
class Child {
 public:
  explicit Child(const std::vector<std::string>& argv) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    std::vector<char*> pointers;
    for (const std::string& a : argv) pointers.push_back(const_cast<char*>(a.c_str()));
    pointers.push_back(nullptr);
    if (::posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, pointers.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ends[0];
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)), out_(std::exchange(other.out_, -1)), text_(std::move(other.text_)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) ::close(out_);
  }

  pid_t pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  /// Reads until the output has `what`, or ends.
  bool wait_for(const std::string& what) {
    while (text_.find(what) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  /// Waits for the end; the exit status, or -signal.
  int end() {
    while (read_some()) {
    }
    int status = 0;
    while (::waitpid(std::exchange(pid_, 0), &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& output() const { return text_; }

 private:
  bool read_some() {
    char chunk[4096];
    const ssize_t got = ::read(out_, chunk, sizeof chunk);
    if (got > 0) text_.append(chunk, static_cast<size_t>(got));
    return got > 0;
  }
  pid_t pid_ = 0;
  int out_ = -1;
  std::string text_;
};

/// A cache folder, a lock folder and a log of compiles for processes to share.
class ProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    if (driver().empty()) GTEST_SKIP() << "eitri_process_driver is not beside this program";
    std::filesystem::create_directories(folder / "locks");
  }
  std::vector<std::string> command(std::vector<std::string> more = {}, const std::string& what = "get") const {
    std::vector<std::string> argv = {driver(), what, "root=" + root(), "locks=" + (folder / "locks"), "log=" + (folder / "log")};
    for (std::string& word : more) argv.push_back(std::move(word));
    return argv;
  }
  std::string root() const { return folder / "cache/jit"; }
  /// Runs to the end; output and exit status.
  ProcessResult run(std::vector<std::string> more = {}) const { return run_process(command(std::move(more)), {.time_limit_s = 60}); }
  size_t compiles() const {
    const std::string log = file_text(folder / "log");
    return static_cast<size_t>(std::count(log.begin(), log.end(), '\n'));
  }
  void forget_compiles() const { std::filesystem::remove(folder / "log"); }

  const TemporaryFolder folder;
};

}  // namespace eitri::jit
