#include "jit/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"

namespace eitri::jit {

namespace {

constexpr size_t kShardDigits = 3;  // hex digits of the key: 4096 files
constexpr size_t kMaxNote = 1024;

std::string lock_file(const std::string& folder, const std::string& key) { return str(folder, "/", key.substr(0, kShardDigits), ".lock"); }

/// Fields of a note end with a tab; this keeps a subject from ending one early.
std::string one_field(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text.substr(0, 200);
}

}  // namespace

std::string default_lock_folder() {
  const char* const runtime = ::secure_getenv("XDG_RUNTIME_DIR");
  const std::string places[] = {runtime != nullptr && runtime[0] == '/' ? str(runtime, "/eitri-locks") : std::string(),
                                str("/tmp/eitri-locks-", ::geteuid())};
  for (const std::string& place : places) {
    if (place.empty()) continue;
    try {
      make_private_dir(place);
      return place;
    } catch (const Error&) {  // not ours: the next, or none
    }
  }
  return {};
}

BuildLock::BuildLock(const std::string& folder, const std::string& key, const std::string& subject) {
  if (folder.empty()) return;
  const int fd = ::open(lock_file(folder, key).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    usable_ = errno == EWOULDBLOCK || errno == EINTR;
    ::close(fd);
    return;
  }
  usable_ = true;
  fd_ = fd;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string note =
      str(::getpid(), "\t", one_field(host), "\t", static_cast<long long>(::time(nullptr)), "\t", one_field(subject), "\t\n");
  // A note that cannot be written is only missed by those who wait.
  [[maybe_unused]] const bool noted =
      ::ftruncate(fd, 0) == 0 && ::pwrite(fd, note.data(), note.size(), 0) == static_cast<ssize_t>(note.size());
}

BuildLock::BuildLock(BuildLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)), usable_(other.usable_) {}

BuildLock& BuildLock::operator=(BuildLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(usable_, other.usable_);
  return *this;
}

BuildLock::~BuildLock() {
  if (fd_ >= 0) ::close(fd_);
}

std::string lock_holder(const std::string& folder, const std::string& key) {
  std::string note;
  try {
    note = read_file(lock_file(folder, key), kMaxNote);
  } catch (const Error&) {
    return "a process that cannot be told";
  }
  std::string_view fields[4];
  std::string_view rest = note;
  for (std::string_view& field : fields) {
    const size_t end = rest.find('\t');
    if (end == std::string_view::npos) return "a process that has not said which it is";
    field = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  long long since = 0;
  std::from_chars(fields[2].data(), fields[2].data() + fields[2].size(), since);
  const long long age = std::max<long long>(0, static_cast<long long>(::time(nullptr)) - since);
  return str("pid ", fields[0], " on host ", fields[1], ", since ", age, " s, making ", fields[3]);
}

}  // namespace eitri::jit
