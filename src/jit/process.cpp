#include "jit/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/str.h"

namespace eitri::jit {

namespace {

using Clock = std::chrono::steady_clock;
using End = ProcessResult::End;

/// What posix_spawn is told; destroyed whatever happens.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

std::vector<std::string> child_environment(const std::string& folder) {
  std::vector<std::string> out = {"LC_ALL=C"};
  for (const char* name : {"PATH", "LD_LIBRARY_PATH"}) {
    if (const char* value = ::secure_getenv(name)) out.push_back(str(name, "=", value));
  }
  if (!folder.empty()) out.push_back(str("TMPDIR=", folder));
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

std::string reason(int code) { return std::generic_category().message(code); }

/// Reads until the writers are gone or the time is up; true when they are gone. A grandchild that outlives the child keeps
/// the pipe open: `gone` asks whether the child has ended, and then only what is already there is read.
template <class Gone> bool drain(int fd, Clock::time_point limit, size_t max_output, std::string& output, Gone&& gone) {
  char chunk[1 << 14];
  for (;;) {
    const bool ended = gone();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    if (left <= 0 && !ended) return false;
    pollfd wait = {fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, ended ? 0 : static_cast<int>(std::min<long long>(left, 50)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && ended) return true;
    if (ready <= 0) continue;
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    output.append(chunk, std::min(static_cast<size_t>(got), max_output - std::min(max_output, output.size())));
  }
}

}  // namespace

std::string ProcessResult::ending(const ProcessOptions& options) const {
  switch (end) {
    case End::exited: return str("exited with status ", code);
    case End::killed: return str("was killed by signal ", code);
    case End::timed_out: return str("ran longer than ", options.time_limit_s, " s and was killed");
    case End::not_started: return "could not be started";
    case End::unknown: break;
  }
  return "ended, but this program takes the exit status of all its children away";
}

ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options) {
  ProcessResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    result.output = str("no pipe: ", reason(errno));
    return result;
  }
  SpawnSetup setup;
  posix_spawn_file_actions_addopen(&setup.actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&setup.actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&setup.actions, ends[1], 2);
#if __GLIBC_PREREQ(2, 34)
  // The host program's descriptors (its sockets, its locks) are none of the compiler's business.
  posix_spawn_file_actions_addclosefrom_np(&setup.actions, 3);
#endif
  if (!options.folder.empty()) posix_spawn_file_actions_addchdir_np(&setup.actions, options.folder.c_str());
  // A group of its own, so that a compiler's helpers die with it; signals as a fresh program expects them.
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  posix_spawnattr_setsigdefault(&setup.attributes, &all);
  posix_spawnattr_setsigmask(&setup.attributes, &none);
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);

  const std::vector<std::string> environment = child_environment(options.folder);
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, argv[0].c_str(), &setup.actions, &setup.attributes, pointers(argv).data(), pointers(environment).data());
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    result.output = str("cannot start ", argv[0], ": ", reason(error));
    return result;
  }

  int status = 0;
  bool reaped = false, lost = false;
  const auto reap = [&](int flags) {
    while (!reaped && !lost) {
      const pid_t got = ::waitpid(child, &status, flags);
      if (got == child) reaped = true;
      else if (got < 0 && errno != EINTR) lost = true;  // somebody else has reaped it
      else if (got == 0) return false;
    }
    return true;
  };
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit_s));
  // The pipe closes a moment before the child can be reaped; a child that closed its output itself is still waited for.
  bool in_time = drain(ends[0], limit, options.max_output, result.output, [&] { return reap(WNOHANG); });
  while (in_time && !reap(WNOHANG)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    in_time = Clock::now() < limit;
  }
  ::close(ends[0]);
  // The group's number may belong to others once the child is reaped and its helpers are gone: it is killed only before.
  if (!in_time) {
    ::kill(-child, SIGKILL);
    reap(0);
    result.end = End::timed_out;
  } else if (lost) {
    result.end = End::unknown;
  } else if (WIFEXITED(status)) {
    result.end = End::exited;
    result.code = WEXITSTATUS(status);
  } else {
    result.end = End::killed;
    result.code = WTERMSIG(status);
  }
  return result;
}

std::string command_line(const std::vector<std::string>& argv) {
  std::string out;
  for (const std::string& word : argv) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                            "_-+=./:,@%^") == std::string::npos;
    if (!out.empty()) out += ' ';
    if (plain) {
      out += word;
      continue;
    }
    out += '\'';
    for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
    out += '\'';
  }
  return out;
}

std::string find_program(const std::string& name) {
  const char* const path = ::secure_getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string_view folder = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!folder.starts_with('/')) continue;  // neither "a::b" nor "." means the current folder to us
    const std::string file = str(folder, "/", name);
    struct stat info = {};
    if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace eitri::jit
