#include "dispatch/misses.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <tuple>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "dispatch/tune_on_miss.h"

namespace eitri {
namespace {

constexpr const char* kHeader = "op,arch,units,kernel,calls,us,problem";
constexpr size_t kMostMisses = 65536;  // ragged shapes have no end
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr time_t kFlushSeconds = 30, kFlushOnlineSeconds = 1;  // of new problems, for which the tuner waits

struct Recorded {
  Miss miss;
  MissCounter counter;
  bool written = false;
};
struct Recorder {
  std::mutex mutex;
  std::map<std::string, Recorded> all;  // nodes never move
  time_t flushed = 0, all_flushed = 0;
};
Recorder& recorder() {
  static Recorder& r = *new Recorder;  // the end of the process flushes it
  return r;
}

time_t now() {
  struct timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return time.tv_sec;
}

/// A child of fork() has its parent's counts, which the parent writes. The lock is held across the fork: no map is half changed.
void forget_in_child() {
  Recorder& r = recorder();
  r.mutex.unlock();
  for (auto& [key, recorded] : r.all) {
    recorded.counter.calls = 0;
    recorded.counter.ns = 0;
    recorded.written = true;
  }
}

/// Still the file of this name: compact_misses() may have put another in its place since it was opened.
bool is_current(int fd, const std::string& path) {
  struct stat ours = {}, named = {};
  return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

std::string line_of(const Miss& m, int64_t calls, int64_t us) {
  return str(m.op, ",", m.arch, ",", m.units, ",", m.kernel, ",", calls, ",", us, ",\"", m.problem, "\"\n");
}

/// One write of whole lines. Starts with an empty line, so that what a killed writer left cannot swallow the first one.
/// False: not written, and nothing lost; another process holds the file, say.
bool append(const std::string& folder, const std::string& lines) {
  const std::string path = str(folder, "/misses.csv");
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) {
    const int code = errno;
    warn_once(LogTopic::tune, path, "misses are not recorded: cannot open ", path, ": ", std::generic_category().message(code));
    return false;
  }
  // Where appends are not atomic (network file systems); without locks there, a torn line is skipped. A call never waits for another's lock.
  if ((::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) || !is_current(fd, path)) {
    ::close(fd);
    return false;
  }
  struct stat info = {};
  const bool is_new = ::fstat(fd, &info) == 0 && info.st_size == 0;
  const std::string text = str(is_new ? str(kHeader, "\n") : "\n", lines);
  const ssize_t written = ::write(fd, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()))
    warn_once(LogTopic::tune, str(path, "#"), "misses are recorded in part: cannot write ", text.size(), " bytes to ", path);
  ::close(fd);
  return true;
}

template <class T> bool number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "" or what is wrong.
std::string parse_line(std::string_view line, Miss& out) {
  std::string_view cells[6];
  for (std::string_view& cell : cells) {
    const size_t comma = line.find(',');
    if (comma == std::string_view::npos) return "the line is cut off";
    cell = line.substr(0, comma);
    line.remove_prefix(comma + 1);
  }
  if (line.size() < 2 || line.front() != '"' || line.back() != '"') return "problem is not in quotes";
  out = {.op = std::string(cells[0]),
         .arch = std::string(cells[1]),
         .kernel = std::string(cells[3]),
         .problem = std::string(line.substr(1, line.size() - 2))};
  if (!number(cells[2], out.units) || !number(cells[4], out.calls) || !number(cells[5], out.us)) return "units, calls or us is no number";
  if (out.calls < 0 || out.us < 0 || !std::isfinite(out.us)) return "calls or us is out of range";
  if (out.op.empty() || out.problem.find('"') != std::string::npos) return "op is empty, or problem has quotes";
  return {};
}

}  // namespace

MissCounter* record_miss(std::string_view op, const Device& device, const std::string& problem, std::string_view kernel) {
  if (record_folder().empty()) return nullptr;
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  static const bool at_end = [] {
    std::atexit(flush_misses);
    ::pthread_atfork([] { recorder().mutex.lock(); }, [] { recorder().mutex.unlock(); }, forget_in_child);
    return true;
  }();
  (void)at_end;
  if (r.flushed == 0) r.flushed = now();
  const std::string key = str(op, "|", device.arch(), "|", device.units, "|", problem);
  const auto known = r.all.find(key);
  if (known != r.all.end()) return &known->second.counter;
  if (r.all.size() >= kMostMisses) {
    warn_once(LogTopic::tune, "misses", "more than ", kMostMisses, " problems without a tuned row; further ones are not recorded");
    return nullptr;
  }
  Recorded& recorded = r.all[key];
  recorded.miss = {
      .op = std::string(op), .arch = std::string(device.arch()), .units = device.units, .kernel = std::string(kernel), .problem = problem};
  return &recorded.counter;
}

namespace {

enum class Lines : uint8_t { all, of_new_problems };

void write_lines(Lines which) {
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  r.flushed = now();
  if (which == Lines::all) r.all_flushed = r.flushed;
  std::string lines;
  struct Taken {
    Recorded* recorded;
    int64_t calls, ns;
    bool written;
  };
  std::vector<Taken> taken;
  for (auto& [key, recorded] : r.all) {
    if (which == Lines::of_new_problems && recorded.written) continue;
    const int64_t calls = recorded.counter.calls.exchange(0), ns = recorded.counter.ns.exchange(0);
    if (calls == 0 && recorded.written) continue;
    taken.push_back({&recorded, calls, ns, recorded.written});
    recorded.written = true;
    lines += line_of(recorded.miss, calls, ns / 1000);
  }
  bool done = lines.empty();
  try {
    done = done || record_folder().empty() || append(record_folder(), lines);
  } catch (const Error&) {  // settings that are no longer valid: the next call says so
  }
  if (done) return;
  for (const Taken& t : taken) {
    t.recorded->counter.calls += t.calls;
    t.recorded->counter.ns += t.ns;
    t.recorded->written = t.written;
  }
}

}  // namespace

void flush_misses() { write_lines(Lines::all); }

void flush_misses_if_due() {
  bool due = false, all_due = false;
  {
    Recorder& r = recorder();
    const std::unique_lock lock(r.mutex, std::try_to_lock);
    const time_t every = settings().tune == TuneMode::online ? kFlushOnlineSeconds : kFlushSeconds;
    due = lock.owns_lock() && r.flushed != 0 && now() >= r.flushed + every;
    all_due = due && now() >= r.all_flushed + kFlushSeconds;
  }
  if (due) write_lines(all_due ? Lines::all : Lines::of_new_problems);
}

MissFile read_misses(const std::string& path) {
  MissFile out;
  std::map<std::tuple<std::string, std::string, int, std::string>, Miss> merged;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    std::string file = path.substr(begin, end - begin);
    begin = end + 1;
    if (file.empty()) continue;
    if (std::filesystem::is_directory(file)) file += "/misses.csv";
    const std::string text = read_file(file, kMaxFileBytes);
    std::string_view rest = text;
    for (int number = 1; !rest.empty(); ++number) {
      const size_t line_end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, line_end);
      rest.remove_prefix(std::min(line_end + 1, rest.size()));
      if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || line == kHeader) continue;
      ++out.lines;
      Miss miss;
      if (std::string wrong = parse_line(line, miss); !wrong.empty()) {
        out.problems.push_back(str(file, ":", number, ": ", wrong));
        continue;
      }
      const auto [it, is_new] = merged.try_emplace({miss.op, miss.arch, miss.units, miss.problem}, miss);
      if (is_new) continue;
      it->second.calls += miss.calls;
      it->second.us += miss.us;
      it->second.kernel = miss.kernel;  // the last one
    }
  }
  for (auto& [key, miss] : merged) out.misses.push_back(std::move(miss));
  std::ranges::stable_sort(out.misses, [](const Miss& a, const Miss& b) { return a.us != b.us ? a.us > b.us : a.calls > b.calls; });
  return out;
}

bool compact_misses(const std::string& folder) {
  const std::string path = str(folder, "/misses.csv");
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  bool done = false;
  try {
    // Programs that want to append meanwhile keep their counts, and come again.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && is_current(fd, path)) {
      const MissFile all = read_misses(path);
      std::string text = str(kHeader, "\n");
      for (const Miss& miss : all.misses) text += line_of(miss, miss.calls, static_cast<int64_t>(miss.us));
      write_file_atomic(path, text);
      done = true;
    }
  } catch (const Error&) {  // a folder that may only be read
  }
  ::close(fd);
  return done;
}

}  // namespace eitri
