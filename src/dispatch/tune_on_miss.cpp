#include "dispatch/tune_on_miss.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include <omp.h>

#include "backend/cpu/threads.h"
#include "backend/gpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "dispatch/database.h"
#include "dispatch/route.h"

extern char** environ;

namespace eitri {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kWaitForOthers = 300;  // seconds for processes that tune into the same folder
constexpr double kGrace = 60;           // seconds that a tuner may take beyond its budget: a reference is not cut short

struct Online {
  pid_t pid = 0;
  int input = -1;  // the process ends when this end closes: with us, however we end
};
struct State {
  std::mutex mutex;
  std::vector<std::string> command;      // empty: find_tune_command()
  std::set<std::string> tried;           // block: problems that were tuned, or could not be
  std::map<std::string, Online> online;  // by device
};
/// A child of fork() starts anew: another thread may have held the lock, for minutes, and its parent's tuners are not its own.
State& state() {
  static std::atomic<State*> instance = [] {
    ::pthread_atfork(nullptr, nullptr, [] { instance = new State; });
    return new State;
  }();
  return *instance;
}

std::string device_text(const Device& device) { return device.is_gpu() ? str("cuda:", static_cast<int>(device.id.index)) : "cpu"; }

std::vector<std::string> command_of(const State& s) {
  if (!s.command.empty()) return s.command;
  std::string looked;
  std::string found = find_tune_command(&looked);
  require(!found.empty(), "EITRI_TUNE is set, but the command eitri, which runs the candidates, is not found; looked for ", looked);
  return {std::move(found)};
}

/// What both kinds of process are started with: the same threads and instruction level as here.
std::vector<std::string> arguments(const State& s, const Device& device) {
  std::vector<std::string> out = command_of(s);
  if (!device.is_gpu()) {
    out.insert(out.end(), {"--threads", str(max_threads()), "--isa", std::string(device.arch())});
  }
  out.emplace_back("tune");
  return out;
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** v = environ; v != nullptr && *v != nullptr; ++v) {
    const std::string_view text = *v;
    const std::string_view name = text.substr(0, text.find('='));
    if (name != "EITRI_TUNE" && name != "EITRI_RECORD" && name != "EITRI_CHECK" && name != "EITRI_FORCE") out.emplace_back(text);
  }
  return out;
}

/// Where OpenMP binds threads, the calling one is on a single core, which a process that it starts would inherit: for the start it gets
/// the cores of all places back.
class AllCores {
 public:
  AllCores() {
    if (omp_get_proc_bind() == omp_proc_bind_false || omp_get_num_places() == 0 || ::sched_getaffinity(0, sizeof own_, &own_) != 0) return;
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> ids(static_cast<size_t>(std::max(0, omp_get_place_num_procs(place))));
      omp_get_place_proc_ids(place, ids.data());
      for (const int id : ids)
        if (id >= 0 && id < CPU_SETSIZE) CPU_SET(id, &all);
    }
    changed_ = CPU_COUNT(&all) > 0 && ::sched_setaffinity(0, sizeof all, &all) == 0;
  }
  ~AllCores() {
    if (changed_) ::sched_setaffinity(0, sizeof own_, &own_);
  }
  AllCores(const AllCores&) = delete;
  AllCores& operator=(const AllCores&) = delete;

 private:
  cpu_set_t own_ = {};
  bool changed_ = false;
};

struct Process {
  pid_t pid = 0;
  int input = -1, output = -1;
};
/// `output`: a pipe from its standard error; otherwise that goes to the file `log`. Its standard input is a pipe that stays open.
Process start(const std::vector<std::string>& argv, const std::string& log) {
  int input[2] = {-1, -1}, output[2] = {-1, -1};
  if (::pipe2(input, O_CLOEXEC) != 0 || (log.empty() && ::pipe2(output, O_CLOEXEC) != 0)) {
    const int code = errno;
    for (const int fd : input)
      if (fd >= 0) ::close(fd);
    fail(Code::io_error, str("EITRI_TUNE: ", argv[0], " cannot be started: ", std::generic_category().message(code)));
  }
  const std::vector<std::string> variables = environment();
  const auto pointers = [](const std::vector<std::string>& words) {
    std::vector<char*> out;
    for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
    out.push_back(nullptr);
    return out;
  };
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // 0 to 2 may be closed here, so that an end of a pipe may be one of them: from numbers that are surely others.
  const int in = ::fcntl(input[0], F_DUPFD_CLOEXEC, 10), out = log.empty() ? ::fcntl(output[1], F_DUPFD_CLOEXEC, 10) : -1;
  ::posix_spawn_file_actions_adddup2(&actions, in, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  if (log.empty()) ::posix_spawn_file_actions_adddup2(&actions, out, 2);
  else ::posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
#if __GLIBC_PREREQ(2, 34)
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);  // the program's sockets and locks are not the tuner's
#endif
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setpgroup(&attributes, 0);  // a key that interrupts us does not reach it; a kill reaches its workers
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  Process process;
  const AllCores all_cores;
  const int error = ::posix_spawn(&process.pid, argv[0].c_str(), &actions, &attributes, pointers(argv).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  for (const int fd : {in, out, input[0], output[1]})
    if (fd >= 0) ::close(fd);
  process.input = input[1];
  process.output = output[0];
  if (error == 0) return process;
  ::close(process.input);
  if (process.output >= 0) ::close(process.output);
  fail(Code::io_error, str("EITRI_TUNE: ", argv[0], " cannot be started: ", std::generic_category().message(error)));
}

/// Where the program handles SIGINT itself (Python does), the signal reaches its handler and is seen here as well: who waits for a tuner
/// must be able to stop. Where it has no handler it ends, and the tuner with it.
class Interrupt {
 public:
  Interrupt() {
    struct sigaction ours = {};
    if (::sigaction(SIGINT, nullptr, &before_) != 0) return;
    if ((before_.sa_flags & SA_SIGINFO) == 0 && (before_.sa_handler == SIG_DFL || before_.sa_handler == SIG_IGN)) return;
    seen_ = 0;
    theirs_ = before_;
    ours.sa_sigaction = [](int number, siginfo_t* info, void* context) {
      seen_ = 1;
      if ((theirs_.sa_flags & SA_SIGINFO) != 0) theirs_.sa_sigaction(number, info, context);
      else theirs_.sa_handler(number);
    };
    ours.sa_flags = (before_.sa_flags & (SA_ONSTACK | SA_RESTART)) | SA_SIGINFO;
    ours.sa_mask = before_.sa_mask;
    installed_ = ::sigaction(SIGINT, &ours, nullptr) == 0;
  }
  ~Interrupt() {
    if (installed_) ::sigaction(SIGINT, &before_, nullptr);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool seen() const { return installed_ && seen_ != 0; }

 private:
  struct sigaction before_ = {};
  bool installed_ = false;
  inline static volatile sig_atomic_t seen_ = 0;  // one waits at a time
  inline static struct sigaction theirs_ = {};
};

/// Waits for its end, at most so long; then it is killed. "" or what went wrong, with the last line that it printed.
std::string finish(Process& process, double limit_s) {
  const Interrupt interrupt;
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  const auto left_ms = [&] {  // rounded up: 0 is the limit itself
    const auto left = limit - Clock::now();
    return left <= Clock::duration::zero() ? 0 : std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  };
  std::string printed;
  bool late = false;
  for (bool open = true; open && !late && !interrupt.seen();) {
    struct pollfd wait = {.fd = process.output, .events = POLLIN, .revents = 0};
    constexpr int64_t kLook = 100;  // ms: another thread may get the signal
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left_ms(), kLook)));
    late = left_ms() == 0;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    char chunk[4096];
    const ssize_t n = ready > 0 ? ::read(process.output, chunk, sizeof chunk) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) printed.append(chunk, static_cast<size_t>(n));
    if (printed.size() > 16384) printed.erase(0, printed.size() - 8192);
    open = n > 0;
  }
  // A process that has closed its output may still be stuck.
  int status = 0;
  pid_t got = 0;
  bool killed = false;
  while (got == 0 || (got < 0 && errno == EINTR)) {
    late = late || left_ms() == 0;
    if (!killed && (late || interrupt.seen())) {
      ::kill(-process.pid, SIGKILL);
      killed = true;
    }
    got = ::waitpid(process.pid, &status, killed ? 0 : WNOHANG);
    if (got == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const bool interrupted = interrupt.seen();
  ::close(process.input);
  ::close(process.output);
  if (interrupted) return "it was interrupted";
  if (late) return str("it took longer than ", limit_s, " s and was killed");
  // Where the program ignores or reaps its children itself there is no status; the rows tell.
  if (got < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return {};
  while (printed.ends_with('\n')) printed.pop_back();
  return str("it ended with ", WIFEXITED(status) ? "status " : "signal ", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), ": ",
             printed.substr(printed.rfind('\n') + 1));
}

/// Held by the process that tunes into a folder. Its file stays: removing one that others wait for would part them.
class TuningLock {
 public:
  explicit TuningLock(const std::string& folder) {
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    fd_ = ::open((folder + "/tuning.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kWaitForOthers));
    // Without locks (network file systems) or without a folder: alone. The tuner says what is wrong with the folder.
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (Clock::now() > limit) {
        in_time_ = false;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~TuningLock() {
    if (fd_ < 0) return;
    if (in_time_) ::flock(fd_, LOCK_UN);  // a child forked meanwhile has the file open, too
    ::close(fd_);
  }
  TuningLock(const TuningLock&) = delete;
  TuningLock& operator=(const TuningLock&) = delete;
  bool in_time() const { return in_time_; }

 private:
  int fd_ = -1;
  bool in_time_ = true;
};

bool has_row(std::string_view op, const Device& device, const std::string& problem) {
  const auto advice = tuned_advice(op, device, problem);
  return !advice.empty() && advice.front().kind == AdviceKind::exact;
}

std::string name_of(std::string_view op, const Device& device, const std::string& problem) {
  return str(op, "|", device_text(device), "|", problem);
}
bool was_tried(State& s, std::string_view op, const Device& device, const std::string& problem) {
  const std::unique_lock lock(s.mutex, std::try_to_lock);  // who holds it is tuning
  return lock.owns_lock() && s.tried.contains(name_of(op, device, problem));
}

bool block(State& s, std::string_view op, const Device& device, const std::string& problem) {
  const std::lock_guard lock(s.mutex);
  const std::string name = name_of(op, device, problem);
  if (s.tried.contains(name)) return has_row(op, device, problem);
  const std::string folder = tuning_folder();
  std::vector<std::string> argv = arguments(s, device);
  const TuningLock turn(folder);
  tuned_rows_changed();  // another process may just have written it
  if (has_row(op, device, problem)) {
    s.tried.insert(name);  // if it does not serve here, tuning again would not help
    return true;
  }
  if (!turn.in_time()) {
    warn_once(LogTopic::tune, problem, op, " ", problem, " is not tuned: other processes have been tuning into ", folder, " for ",
              kWaitForOthers, " s");
    s.tried.insert(name);
    return false;
  }
  const double budget_s = settings().tune_seconds;
  argv.insert(argv.end(), {std::string(op), "--problem", problem, "--device", device_text(device), "--out", folder, "--budget",
                           str(budget_s, "s"), "--again"});
  const auto begin = Clock::now();
  argv.insert(std::ranges::find(argv, "tune") + 1, "--attached");  // it ends with us
  Process process = start(argv, {});
  s.tried.insert(name);  // not when it cannot be started: then every call says so
  const std::string wrong = finish(process, budget_s + kGrace);
  counter("tuned.blocked_ms").fetch_add(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count());
  tuned_rows_changed();
  const bool found = has_row(op, device, problem);
  if (!found)
    warn_once(LogTopic::tune, str(op, problem), op, " ", problem,
              " could not be tuned, the default serves: ", wrong.empty() ? "no row" : wrong);
  return found;
}

/// Makes sure that the process of online tuning runs: once for each device. A process that ended is not started again.
void follow(State& s, const Device& device) {
  const std::string name = device_text(device);
  // A call waits for nobody: whoever holds the lock is starting it.
  const std::unique_lock lock(s.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (const auto known = s.online.find(name); known != s.online.end()) {
    int status = 0;
    Online& online = known->second;
    if (online.pid == 0 || ::waitpid(online.pid, &status, WNOHANG) != online.pid) return;
    warn_once(LogTopic::tune, name, "EITRI_TUNE=online: the tuner of ", name, " has ended (wait status ", status, "); see ",
              tuning_folder(), "/online.log. No more problems are tuned.");
    ::close(online.input);
    online = {};
    return;
  }
  std::vector<std::string> argv = arguments(s, device);
  const std::string folder = tuning_folder();
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  argv.insert(argv.end(), {"--from-record", record_folder(), "--follow", "--beside", "--share", str(settings().tune_percent), "--device",
                           name, "--out", folder});
  std::string log = str(folder, "/online.log");
  if (const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644); fd >= 0) {
    ::close(fd);
  } else {
    warn_once(LogTopic::tune, log, "EITRI_TUNE=online: ", log, " cannot be written (", std::generic_category().message(errno),
              "), and rows hardly either; what the tuner says is lost");
    log = "/dev/null";
  }
  const Process process = start(argv, log);
  s.online[name] = {process.pid, process.input};
}

}  // namespace

bool tune_on_miss(std::string_view op, const Device& device, const std::string& problem, Stream stream) {
  const TuneMode mode = settings().tune;
  if (mode == TuneMode::off) [[likely]]
    return false;
  if (mode == TuneMode::online) {
    follow(state(), device);
    return false;
  }
  if (stream != nullptr && gpu::is_capturing(stream)) {
    if (was_tried(state(), op, device, problem)) return false;
    fail(Code::unsupported,
         str(op, ": EITRI_TUNE is block, the problem has no tuned row, and the stream captures a graph; call it once before"));
  }
  return block(state(), op, device, problem);
}

std::string tuning_folder() {
  std::error_code error;
  for (const std::string& path : settings().tuned)
    if (fs::path(path).extension() != ".csv") return fs::absolute(path, error).string();
  return fs::absolute(kProjectTuned, error).string();
}

std::string record_folder() {
  if (!settings().record.empty() || settings().tune != TuneMode::online) return settings().record;
  return tuning_folder() + "/misses";
}

std::string find_tune_command(std::string* looked) {
  std::vector<std::string> places;
  Dl_info info;
  std::error_code error;
  if (::dladdr(reinterpret_cast<void*>(&find_tune_command), &info) != 0 && info.dli_fname != nullptr) {
    const fs::path home = fs::weakly_canonical(info.dli_fname, error).parent_path();
    places.push_back((home / "../bin/eitri").lexically_normal().string());
    places.push_back((home / "eitri").string());
  }
  // Of a program, dladdr knows the name that it was started by, which may be relative.
  if (const fs::path self = fs::read_symlink("/proc/self/exe", error); !error) places.push_back((self.parent_path() / "eitri").string());
  const char* const path = ::secure_getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (rest.starts_with('/')) places.push_back(str(rest.substr(0, end), "/eitri"));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const std::string& place : places)
    if (fs::is_regular_file(place, error) && ::access(place.c_str(), X_OK) == 0) return place;
  if (looked != nullptr)
    for (const std::string& place : places) *looked += str(looked->empty() ? "" : ", ", place);
  return {};
}

void set_tune_command(std::vector<std::string> argv) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.command = std::move(argv);
  s.tried.clear();
}

void stop_online_tuning() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (auto& [name, online] : s.online) {
    if (online.pid == 0) continue;
    ::kill(-online.pid, SIGKILL);
    while (::waitpid(online.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    ::close(online.input);
  }
  s.online.clear();
}

}  // namespace eitri
