#include "jit/scratch.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace eitri::jit {

namespace fs = std::filesystem;

Scratch::Scratch(size_t attempt) {
  const char* const own = ::secure_getenv("TMPDIR");
  const std::array<const char*, 4> places = {own, "/tmp", "/var/tmp", "/dev/shm"};
  std::string tried;
  for (size_t i = attempt; i < places.size(); ++i) {
    if (places[i] == nullptr || places[i][0] != '/') continue;
    std::string name = str(places[i], "/eitri-compile-XXXXXX");
    if (::mkdtemp(name.data()) != nullptr) {  // mode 0700
      path_ = name;
      return;
    }
    tried += str(tried.empty() ? "" : "; ", places[i], ": ", std::generic_category().message(errno));
  }
  fail(Code::io_error, str("jit: no temporary folder can be made", tried.empty() ? "" : " (", tried, tried.empty() ? "" : ")"));
}

Scratch::~Scratch() { remove_tree(path_); }

void Scratch::write(const std::string& name, std::string_view text) const {
  const fs::path file = fs::path(path_) / name;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  std::ofstream out(file, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) fail(Code::io_error, str("jit: cannot write ", file.string(), full() ? ": the disk is full" : ""));
}

bool Scratch::full() const {
  struct statvfs info = {};
  if (::statvfs(path_.c_str(), &info) != 0) return true;
  const bool no_files_left = info.f_files != 0 && info.f_favail == 0;
  return no_files_left || uint64_t{info.f_bavail} * info.f_frsize < (1 << 20);
}

void remove_tree(const std::string& path) noexcept {
  if (path.empty()) return;
  try {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  } catch (...) {  // out of memory; the folder is reaped later
  }
}

}  // namespace eitri::jit
