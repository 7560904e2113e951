#include "base/atomic_file.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace eitri {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = testing::TempDir() + "eitri-file-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  ~FileTest() override {
    std::error_code ignored;
    fs::permissions(folder, fs::perms::owner_all, ignored);
    fs::remove_all(folder, ignored);
  }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  template <class F> static std::string refusal(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::io_error);
      return error.what();
    }
    return "";
  }
  static mode_t mode_of(const std::string& name) {
    struct stat info = {};
    EXPECT_EQ(::stat(name.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  std::string folder;
};

TEST_F(FileTest, WritesAndReads) {
  const std::string content("a\0b\n", 4);
  write_file_atomic(path("x"), content);
  EXPECT_EQ(read_file(path("x"), 4), content);
  EXPECT_EQ(mode_of(path("x")), 0644u);
  write_file_atomic(path("x"), "s", FileAccess::owner_only);
  EXPECT_EQ(read_file(path("x"), 100), "s");
  EXPECT_EQ(mode_of(path("x")), 0600u);
  write_file_atomic(path("empty"), "");
  EXPECT_EQ(read_file(path("empty"), 0), "");
  EXPECT_EQ(files(), (std::vector<std::string>{"empty", "x"})) << "no temporary file is left";
}

TEST_F(FileTest, LongNamesAndRelativePaths) {
  const std::string longest(255, 'n');
  write_file_atomic(path(longest), "x");
  EXPECT_EQ(read_file(path(longest), 1), "x");
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  write_file_atomic("relative", "y");
  fs::current_path(before);
  EXPECT_EQ(read_file(path("relative"), 1), "y");
}

TEST_F(FileTest, ReadingIsBounded) {
  write_file_atomic(path("x"), "12345");
  EXPECT_EQ(refusal([&] { read_file(path("x"), 4); }), "cannot read " + path("x") + ": more than 4 bytes");
  // /proc files say that their size is 0.
  EXPECT_GT(read_file("/proc/self/status", 1 << 20).size(), 0u);
  EXPECT_NE(refusal([&] { read_file("/proc/self/status", 10); }), "");
}

TEST_F(FileTest, ReadingNamesPathAndReason) {
  EXPECT_EQ(refusal([&] { read_file(path("none"), 10); }), "cannot open " + path("none") + ": No such file or directory");
  EXPECT_EQ(refusal([&] { read_file(folder, 10); }), "cannot read " + folder + ": not a regular file");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(refusal([&] { read_file(path("pipe"), 10); }).find("not a regular file"), std::string::npos) << "a pipe must not block";
  EXPECT_NE(refusal([&] { MappedFile map(path("pipe")); }), "");
}

TEST_F(FileTest, FailedWritesLeaveNothingBehind) {
  EXPECT_EQ(refusal([&] { write_file_atomic(path("none/x"), "x"); }),
            "cannot create a file in " + path("none") + ": No such file or directory");
  // The target is a folder: everything succeeds up to the rename.
  fs::create_directory(path("taken"));
  EXPECT_NE(refusal([&] { write_file_atomic(path("taken"), "x"); }).find("cannot replace"), std::string::npos);
  EXPECT_EQ(files(), std::vector<std::string>{"taken"});
}

TEST_F(FileTest, FullDiskKeepsTheOldFile) {
  write_file_atomic(path("x"), "old");
  // A file size limit stands in for a full disk: write() fails half way.
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = refusal([&] { write_file_atomic(path("x"), std::string(10000, 'n')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, "cannot write " + path("x") + ": File too large");
  EXPECT_EQ(read_file(path("x"), 100), "old");
  EXPECT_EQ(files(), std::vector<std::string>{"x"});
}

TEST_F(FileTest, UnwritableFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(refusal([&] { write_file_atomic(path("x"), "x"); }), "cannot create a file in " + folder + ": Permission denied");
}

TEST_F(FileTest, UnwritableFileSystem) {
  // /proc refuses new files for root as well.
  const std::string message = refusal([&] { write_file_atomic("/proc/eitri-test", "x"); });
  EXPECT_EQ(message.find("cannot create a file in /proc: "), 0u) << message;
}

TEST_F(FileTest, ReadersNeverSeeAPart) {
  const std::string first(100000, 'a'), second(60000, 'b');
  write_file_atomic(path("x"), first);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; i < 40; ++i) write_file_atomic(path("x"), i % 2 == 0 ? second : first);
    stop = true;
  });
  int bad = 0;
  while (!stop) {
    const std::string got = read_file(path("x"), 1 << 20);
    bad += got != first && got != second;
  }
  writer.join();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(files(), std::vector<std::string>{"x"});
}

TEST_F(FileTest, MapsAFile) {
  write_file_atomic(path("x"), "hello");
  MappedFile map(path("x"));
  ASSERT_EQ(map.size(), 5u);
  EXPECT_EQ(static_cast<char>(map.bytes()[4]), 'o');
  write_file_atomic(path("x"), "");
  EXPECT_EQ(static_cast<char>(map.bytes()[0]), 'h') << "a replaced file stays as it was mapped";

  MappedFile moved = std::move(map);
  EXPECT_EQ(map.size(), 0u);  // NOLINT: a moved-from map is empty by contract
  EXPECT_EQ(moved.size(), 5u);
  MappedFile empty(path("x"));
  EXPECT_EQ(empty.size(), 0u);
  empty = std::move(moved);
  EXPECT_EQ(static_cast<char>(empty.bytes()[1]), 'e');
  EXPECT_NE(refusal([&] { MappedFile none(path("none")); }), "");
}

TEST_F(FileTest, MakesPrivateFolders) {
  make_private_dir(path("a/b/c"));
  EXPECT_EQ(mode_of(path("a")), 0700u);
  EXPECT_EQ(mode_of(path("a/b/c")), 0700u);
  make_private_dir(path("a/b/c"));
  make_private_dir(path("a/b/c/"));
  ASSERT_EQ(::symlink(path("a/b").c_str(), path("link").c_str()), 0);
  make_private_dir(path("link"));  // our own link to our own folder
}

TEST_F(FileTest, RefusesFoldersOfOthers) {
  fs::create_directory(path("open"));
  fs::permissions(path("open"), fs::perms::all);
  EXPECT_NE(refusal([&] { make_private_dir(path("open")); }).find("others may write to it"), std::string::npos);
  write_file_atomic(path("file"), "x");
  EXPECT_NE(refusal([&] { make_private_dir(path("file")); }).find("not a folder"), std::string::npos);
  EXPECT_NE(refusal([&] { make_private_dir(path("file/below")); }), "");
  EXPECT_NE(refusal([] { make_private_dir(""); }), "");
  const std::string foreign = path("foreign");
  fs::create_directory(foreign);
  if (::chown(foreign.c_str(), 12345, static_cast<gid_t>(-1)) != 0) {
    EXPECT_NE(refusal([] { make_private_dir("/proc"); }).find("it belongs to user 0"), std::string::npos);
  } else {
    EXPECT_NE(refusal([&] { make_private_dir(foreign); }).find("it belongs to user 12345"), std::string::npos);
  }
}

}  // namespace
}  // namespace eitri
