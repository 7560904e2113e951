// The parent's end.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "tune/worker.h"

extern char** environ;

namespace eitri::tune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostAnswer = size_t{1} << 20;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

WorkerProcess::WorkerProcess(std::vector<std::string> argv, std::vector<std::string> environment, std::string log)
    : argv_(std::move(argv)), environment_(std::move(environment)), log_(std::move(log)) {}

WorkerProcess::~WorkerProcess() { stop(); }

/// "" or why it cannot be started.
std::string WorkerProcess::start() {
  // Sockets: writing to a worker that died gives an error and not a signal.
  int requests[2], answers[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, requests) != 0) return str("cannot be started: ", std::strerror(errno));
  if (::pipe2(answers, O_CLOEXEC) != 0) {
    ::close(requests[0]);
    ::close(requests[1]);
    return str("cannot be started: ", std::strerror(errno));
  }
  std::vector<std::string> variables;
  for (char** v = environ; v != nullptr && *v != nullptr; ++v) {
    const std::string_view text = *v;
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = name == "EITRI_RECORD" || name == "EITRI_TUNE" || name == "EITRI_CHECK" || name == "EITRI_FORCE";
    for (const std::string& e : environment_) replaced = replaced || std::string_view(e).substr(0, e.find('=')) == name;
    if (!replaced) variables.emplace_back(text);
  }
  variables.insert(variables.end(), environment_.begin(), environment_.end());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const char* const sink = log_.empty() ? "/dev/null" : log_.c_str();
  // 3 may be any of ours: it is taken last, from a number that is surely another one.
  const int high = ::fcntl(answers[1], F_DUPFD_CLOEXEC, 10);
  ::posix_spawn_file_actions_adddup2(&actions, requests[1], 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, sink, O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  ::posix_spawn_file_actions_adddup2(&actions, high, 3);
#if __GLIBC_PREREQ(2, 34)
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 4);  // our other files and locks are not the candidates'
#endif
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setpgroup(&attributes, 0);  // a kill reaches what the worker started
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, argv_[0].c_str(), &actions, &attributes, pointers(argv_).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(requests[1]);
  ::close(answers[1]);
  ::close(high);
  if (error != 0) {
    ::close(requests[0]);
    ::close(answers[0]);
    return str("cannot be started: ", argv_[0], ": ", std::strerror(error));
  }
  pid_ = child;
  to_ = requests[0];
  from_ = answers[0];
  buffer_.clear();
  ++started_;
  return {};
}

void WorkerProcess::stop() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::close(to_);
  ::close(from_);
  pid_ = 0;
}

Answer WorkerProcess::died(const char* when) {
  int status = 0;
  pid_t got = 0;
  // Its output has ended, so it is about to: a moment, then it is helped.
  for (int i = 0; i < 200 && (got = ::waitpid(pid_, &status, WNOHANG)) == 0; ++i) ::usleep(5000);
  Answer out;
  if (got == pid_ && WIFSIGNALED(status))
    out.death = str("was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")", when);
  else if (got == pid_) out.death = str("exited with status ", WEXITSTATUS(status), when);
  else out.death = str("closed its output", when);
  if (got == pid_) {
    ::close(to_);
    ::close(from_);
    pid_ = 0;
  } else {
    stop();
  }
  return out;
}

Answer WorkerProcess::ask(const nlohmann::json& request, double time_limit_s) {
  if (pid_ <= 0)
    if (std::string why = start(); !why.empty()) return {.json = {}, .death = why};
  const std::string line = request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::send(to_, line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return died(" before the request");
    done += static_cast<size_t>(n);
  }
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_limit_s));
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      Answer out;
      out.json = nlohmann::json::parse(buffer_.substr(0, end), nullptr, false);
      buffer_.erase(0, end + 1);
      if (out.json.is_object()) return out;
      stop();
      out.death = "answered with something that is no JSON";
      return out;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    struct pollfd wait = {.fd = from_, .events = POLLIN, .revents = 0};
    const int ready = left <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(std::min<long long>(left, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      stop();
      return {.json = {}, .death = str("did not answer within ", time_limit_s, " s and was killed"), .timed_out = true};
    }
    char chunk[1 << 14];
    const ssize_t n = ::read(from_, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return died("");
    buffer_.append(chunk, static_cast<size_t>(n));
    if (buffer_.size() > kMostAnswer) {
      stop();
      return {.json = {}, .death = "answered with more than a megabyte and was killed"};
    }
  }
}

}  // namespace eitri::tune
