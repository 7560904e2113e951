#include "jit/entry.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/atomic_file.h"
#include "base/error.h"
#include "jit/scratch.h"
#include "jit/sha256.h"

namespace eitri::jit {

namespace {

constexpr std::string_view kMagic = "eitri-jit-manifest 1 ";
constexpr size_t kMaxManifest = 4 << 20, kMaxLog = 256 << 10;
constexpr uint64_t kMaxBinary = uint64_t{1} << 30;
constexpr size_t kDigits = 64;  // of a SHA-256 in hex

std::string reason() { return std::generic_category().message(errno); }

[[noreturn]] void fail_write(const std::string& path) { fail(Code::io_error, str("cannot write ", path, ": ", reason())); }

void sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_write(path);
  const int result = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  errno = code;
  // Some network file systems cannot flush a folder and say EINVAL.
  if (result != 0 && code != EINVAL) fail_write(path);
}

/// Makes one level of folder, private.
void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail_write(path);
}

void write_file(const std::string& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) fail_write(path);
  bool ok = true;
  while (ok && !bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    ok = written > 0;
    if (ok) bytes.remove_prefix(static_cast<size_t>(written));
  }
  ok = ok && ::fsync(fd) == 0;
  const int code = errno;
  ok = ::close(fd) == 0 && ok;  // network file systems report a full disk here
  errno = code;
  if (!ok) fail_write(path);
}

std::string new_folder(const std::string& root, const char* kind) {
  make_private_dir(root);  // somebody may have removed it, or all of the cache
  make_folder(str(root, "/", kind));
  std::string name = str(root, "/", kind, "/", ::getpid(), "-XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) fail_write(name);
  return name;
}

bool exists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

/// A file name that stays inside its folder.
bool is_plain_file(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.size() <= 100 && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::string cut(const std::string& log) {
  return log.size() <= kMaxLog ? log : log.substr(0, kMaxLog) + str("\n… (", log.size() - kMaxLog, " more bytes)");
}

}  // namespace

std::string to_text(const Manifest& m) {
  nlohmann::ordered_json closure = nlohmann::ordered_json::array();
  for (const auto& [name, sum] : m.closure) closure.push_back({name, sum});
  const nlohmann::ordered_json j = {{"key", m.key},           {"failed", m.failed},     {"label", m.label},   {"target", m.target},
                                    {"compiler", m.compiler}, {"identity", m.identity}, {"source", m.source}, {"defines", m.defines},
                                    {"flags", m.flags},       {"system", m.system},     {"closure", closure}, {"created", m.created},
                                    {"seconds", m.seconds},   {"command", m.command},   {"file", m.file},     {"size", m.size},
                                    {"checksum", m.checksum}, {"log", cut(m.log)}};
  // Compilers quote sources in whatever encoding these have.
  const std::string body = j.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return str(kMagic, sha256(body), "\n", body);
}

Manifest manifest_from(std::string_view text) {
  const auto refuse = [](const auto&... why) { fail(Code::io_error, str("its manifest ", why...)); };
  if (!text.starts_with(kMagic)) refuse("is none, or of another version");
  text.remove_prefix(kMagic.size());
  if (text.size() < kDigits + 1 || text[kDigits] != '\n') refuse("is cut off");
  const std::string_view sum = text.substr(0, kDigits), body = text.substr(kDigits + 1);
  if (sha256(body) != sum) refuse("does not have its checksum");
  try {
    const auto j = nlohmann::json::parse(body);
    Manifest m;
    j.at("key").get_to(m.key);
    j.at("failed").get_to(m.failed);
    j.at("label").get_to(m.label);
    j.at("target").get_to(m.target);
    j.at("compiler").get_to(m.compiler);
    j.at("identity").get_to(m.identity);
    j.at("source").get_to(m.source);
    j.at("defines").get_to(m.defines);
    j.at("flags").get_to(m.flags);
    j.at("system").get_to(m.system);
    for (const auto& part : j.at("closure")) m.closure.emplace_back(part.at(0).get<std::string>(), part.at(1).get<std::string>());
    j.at("created").get_to(m.created);
    j.at("seconds").get_to(m.seconds);
    j.at("command").get_to(m.command);
    j.at("file").get_to(m.file);
    j.at("size").get_to(m.size);
    j.at("checksum").get_to(m.checksum);
    j.at("log").get_to(m.log);
    return m;
  } catch (const nlohmann::json::exception& error) {
    refuse("cannot be read: ", error.what());
  }
  return {};
}

ReadEntry read_entry(const std::string& folder, const std::string& key, const Target* target, WithBinary with) {
  ReadEntry out;
  const std::string manifest_path = folder + "/manifest";
  if (!exists(folder)) return out;
  try {
    out.manifest = manifest_from(read_file(manifest_path, kMaxManifest));
    const Manifest& m = out.manifest;
    const auto refuse = [](const auto&... why) { fail(Code::io_error, str(why...)); };
    if (m.key != key) refuse("its manifest is that of ", m.key);
    const Target& made_for = target_named(m.target);
    if (target != nullptr && target != &made_for) refuse("it is for ", m.target, "; expected ", target->name);
    if (!m.failed) {
      if (!is_plain_file(m.file) || m.size > kMaxBinary) refuse("its manifest names no proper binary");
      if (with == WithBinary::yes) {
        out.binary = read_file(str(folder, "/", m.file), m.size);
        if (out.binary.size() != m.size) refuse(m.file, " has ", out.binary.size(), " bytes; expected ", m.size);
        if (sha256(out.binary) != m.checksum) refuse(m.file, " does not have its checksum");
        if (const std::string problem = binary_problem(out.binary, made_for); !problem.empty()) refuse(m.file, ": ", problem);
      }
    }
    out.state = ReadEntry::State::good;
  } catch (const Error& error) {
    out.binary.clear();
    // Somebody may just have moved the whole entry away; then there is nothing wrong with it.
    if (!exists(folder)) return {};
    out.state = ReadEntry::State::corrupt;
    out.problem = error.what();
  }
  return out;
}

Published publish(const std::string& root, const std::string& target_folder, const Manifest& manifest,
                  const std::vector<std::pair<std::string, std::string_view>>& files, const Steps& steps) {
  const std::string folder = new_folder(root, "tmp");
  try {
    steps.at("folder made");
    for (const auto& [name, bytes] : files) {
      for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
        make_folder(str(folder, "/", name.substr(0, slash)));
      }
      write_file(str(folder, "/", name), bytes);
    }
    steps.at("binary written");
    write_file(folder + "/manifest", to_text(manifest));
    steps.at("manifest written");
    write_file(folder + "/stamp", {});
    sync_path(folder, O_DIRECTORY);
    steps.at("folder flushed");
    const size_t slash = target_folder.rfind('/');
    const std::string parent = target_folder.substr(0, slash);
    make_folder(parent);
    steps.at("before rename");
    // A folder never replaces one that holds something, so the first to publish wins.
    if (::rename(folder.c_str(), target_folder.c_str()) != 0) {
      if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) fail_write(target_folder);
      remove_tree(folder);
      return Published::exists;
    }
    steps.at("after rename");
    sync_path(parent, O_DIRECTORY);
    steps.at("parent flushed");
    return Published::ours;
  } catch (...) {
    remove_tree(folder);
    throw;
  }
}

bool move_to_quarantine(const std::string& root, const std::string& folder, const std::string& key) {
  static std::atomic<int> count = 0;
  try {
    make_folder(root + "/quarantine");
  } catch (const Error&) {
    return false;
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string away = str(root, "/quarantine/", key, "-", ::getpid(), "-", count.fetch_add(1));
    if (::rename(folder.c_str(), away.c_str()) == 0) return true;
    if (errno == ENOENT) return true;  // somebody else was faster
    if (errno != ENOTEMPTY && errno != EEXIST) break;
  }
  return false;
}

bool delete_entry(const std::string& root, const std::string& folder) {
  // First out of everybody's sight in one step, then file by file.
  try {
    const std::string bin = new_folder(root, "tmp");
    const bool moved = ::rename(folder.c_str(), (bin + "/entry").c_str()) == 0;
    remove_tree(bin);
    return moved;
  } catch (const Error&) {  // the disk is too full for a folder: then without it
    remove_tree(folder);
    return !exists(folder);
  }
}

void touch_stamp(const std::string& folder) noexcept {
  try {
    ::utimensat(AT_FDCWD, (folder + "/stamp").c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  } catch (...) {
  }
}

int64_t stamp_time(const std::string& folder) {
  struct stat info = {};
  if (::lstat((folder + "/stamp").c_str(), &info) != 0) return 0;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace eitri::jit
