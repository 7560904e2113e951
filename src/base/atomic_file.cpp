#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace eitri {

namespace {

/// "cannot <action> <path>: No such file or directory". Reads errno, so call it first.
[[noreturn]] void fail_io(std::string_view action, const std::string& path) {
  const int code = errno;
  fail(Code::io_error, str("cannot ", action, " ", path, ": ", std::generic_category().message(code)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Removes a temporary file unless it was renamed away.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : path_(path) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!kept_) ::unlink(path_.c_str());
  }
  void keep() { kept_ = true; }

 private:
  const std::string& path_;
  bool kept_ = false;
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Opens for reading; a pipe or device must neither block nor be taken for a file.
int open_regular(const std::string& path, struct stat& info) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail_io("open", path);
  if (::fstat(fd, &info) != 0) {
    const int code = errno;
    ::close(fd);
    errno = code;
    fail_io("stat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(Code::io_error, str("cannot read ", path, ": not a regular file"));
  }
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_io("write", path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync_folder(const std::string& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) fail_io("open folder", folder);
  // Some network file systems cannot flush a folder and say EINVAL; the rename is atomic anyway.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_io("flush folder", folder);
}

void check_private(const std::string& path) {
  struct stat link = {}, info = {};
  if (::lstat(path.c_str(), &link) != 0) fail_io("stat", path);
  if (::stat(path.c_str(), &info) != 0) fail_io("stat", path);
  const uid_t me = ::geteuid();
  const auto refuse = [&](bool bad, const auto&... why) {
    if (bad) fail(Code::io_error, str("cannot use ", path, " as a private folder: ", why...));
  };
  refuse(!S_ISDIR(info.st_mode), "it is not a folder");
  refuse(info.st_uid != me, "it belongs to user ", info.st_uid, ", not to ", me);
  refuse(link.st_uid != me && link.st_uid != 0, "the link belongs to user ", link.st_uid);
  refuse((info.st_mode & (S_IWGRP | S_IWOTH)) != 0, "others may write to it");
}

}  // namespace

std::string read_file(const std::string& path, size_t max_bytes) {
  struct stat info = {};
  const Descriptor fd(open_regular(path, info));
  const auto refuse_size = [&] { fail(Code::io_error, str("cannot read ", path, ": more than ", max_bytes, " bytes")); };
  if (static_cast<uint64_t>(info.st_size) > max_bytes) refuse_size();

  // The size is only a hint: /proc says 0, and the file may grow while it is read.
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char chunk[1 << 14];
  for (;;) {
    const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("read", path);
    if (got == 0) return content;
    if (static_cast<size_t>(got) > max_bytes - content.size()) refuse_size();
    content.append(chunk, static_cast<size_t>(got));
  }
}

void write_file_atomic(const std::string& path, std::span<const std::byte> bytes, FileAccess access) {
  const std::string folder = folder_of(path);
  // A short name of its own: the target's name plus a suffix could be too long.
  std::string name = folder + "/.eitri-tmp-XXXXXX";
  const Descriptor fd(::mkostemp(name.data(), O_CLOEXEC));
  if (fd.get() < 0) fail_io("create a file in", folder);
  Temporary temporary(name);

  write_all(fd.get(), bytes, path);
  const mode_t mode = access == FileAccess::owner_only ? 0600 : 0644;
  if (::fchmod(fd.get(), mode) != 0) fail_io("set the mode of", path);
  if (::fsync(fd.get()) != 0) fail_io("flush", path);
  if (::rename(name.c_str(), path.c_str()) != 0) fail_io("replace", path);
  temporary.keep();
  sync_folder(folder);
}

void write_file_atomic(const std::string& path, std::string_view text, FileAccess access) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())), access);
}

void make_private_dir(const std::string& path) {
  if (path.empty()) fail(Code::io_error, "cannot make a private folder: the path is empty");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat info = {};
    // Existing parents may sit on read-only file systems, where mkdir fails before it looks.
    if (::stat(part.c_str(), &info) != 0 && ::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      fail_io("make folder", part);
    }
    if (end == std::string::npos) break;
  }
  check_private(path);
}

MappedFile::MappedFile(const std::string& path) {
  struct stat info = {};
  const Descriptor fd(open_regular(path, info));
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return;  // mmap refuses length 0
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail_io("map", path);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace eitri
