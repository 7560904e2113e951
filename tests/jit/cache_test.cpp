#include "jit/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/log.h"
#include "jit/fake_compiler.h"
#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

namespace fs = std::filesystem;

/// A cache in a folder of its own, and the log.
class JitCache : public testing::Test {
 protected:
  JitCache() {
    forget_warnings();
    set_log_sink([](LogLevel, LogTopic, std::string_view m, void* user) { static_cast<JitCache*>(user)->messages += str(m, "\n"); }, this);
  }
  ~JitCache() override { set_log_sink(nullptr); }

  CacheOptions options() const { return {.root = folder / "cache/jit", .lock_folder = locks(), .wait_s = 5}; }
  std::string locks() const {
    fs::create_directories(folder / "locks");
    return folder / "locks";
  }
  /// What a new process would get.
  std::shared_ptr<const Binary> fresh(const CompileRequest& request) { return Cache(options()).get(compiler, request); }
  std::string entry(const std::string& key) const { return folder / ("cache/jit/entries/" + key); }
  size_t count(const char* kind) const {
    std::error_code error;
    size_t n = 0;
    for (fs::directory_iterator at(folder / (std::string("cache/jit/") + kind), error), end; !error && at != end; at.increment(error)) ++n;
    return n;
  }

  const TemporaryFolder folder;
  FakeCompiler compiler;
  std::string messages;
};

TEST_F(JitCache, MemoryDiskCompiler) {
  const CompileRequest request = fake_request("kernel");
  Cache cache(options());
  EXPECT_FALSE(cache.has(compiler, request));
  const auto first = cache.get(compiler, request);
  EXPECT_EQ(first->origin, Origin::compiled);
  EXPECT_EQ(first->bytes, fake_binary(target_named("sm_90a"), "kernel"));
  EXPECT_EQ(file_text(first->path), first->bytes);
  EXPECT_EQ(first->log, "fake: note");
  EXPECT_EQ(cache.get(compiler, request), first);
  EXPECT_TRUE(cache.has(compiler, request));
  const auto second = fresh(request);
  EXPECT_EQ(second->origin, Origin::disk);
  EXPECT_EQ(second->bytes, first->bytes);
  EXPECT_EQ(compiler.compiles, 1);
  EXPECT_EQ(cache.counters().compiled, 1u);
  EXPECT_EQ(cache.counters().memory, 1u);
  EXPECT_EQ(count("tmp"), 0u);
  struct stat info = {};
  ASSERT_EQ(::stat((folder / "cache/jit").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

// Each of these is another binary; nothing else is.
TEST_F(JitCache, KeyCoversWhatMatters) {
  CompileRequest base = fake_request("#include \"a.h\"\n");
  base.source.headers.add("a.h", "#include \"b.h\"\n");
  base.source.headers.add("b.h", "1");
  base.source.headers.add("c.h", "unused");
  base.flags = {"-O3", "-g"};
  base.defines = {"A=1", "B"};
  const auto key = [&](const CompileRequest& r) { return Cache::key_of(compiler, r, include_closure(r.source)); };
  const auto changed = [&](auto&& change) {
    CompileRequest r = base;
    change(r);
    return key(r) != key(base);
  };
  EXPECT_TRUE(changed([](CompileRequest& r) { r.source.text += " "; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.source.name = "other.cu"; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.flags = {"-g", "-O3"}; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.flags = {"-O3"}; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.defines = {"A=2", "B"}; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.defines = {"A=1"}; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.defines = {}, r.flags = {"-O3", "-g", "A=1", "B"}; }));
  EXPECT_TRUE(changed([](CompileRequest& r) { r.target = &target_named("gfx942"); }));
  EXPECT_TRUE(changed([](CompileRequest& r) {
    r.source.headers = {};
    r.source.headers.add("a.h", "#include \"b.h\"\n");
    r.source.headers.add("b.h", "2");
  }));
  EXPECT_FALSE(changed([](CompileRequest& r) { r.label = "other"; }));
  EXPECT_FALSE(changed([](CompileRequest& r) { r.time_limit_s = 1; }));
  EXPECT_FALSE(changed([](CompileRequest& r) { r.source.headers.add("d.h", "unused too"); }));
  const std::string before = key(base);
  compiler.at = "/elsewhere/fake";
  EXPECT_EQ(key(base), before) << "the path of the compiler";
  compiler.id = "fake 2";
  EXPECT_NE(key(base), before) << "the compiler's identity";
}

TEST_F(JitCache, RefusesFlagsThatTheKeyCannotCover) {
  for (const char* flag : {"-I/usr/include", "-include", "-isystem", "@file", "-march=native", "-mcpu=native", "-o", "-fplugin=x.so",
                           "-Wl,-rpath,/", "file.o", "", "-", "-fprofile-use=x", "--sysroot=/", "-B/usr", "-specs=x"}) {
    CompileRequest request = fake_request("x");
    request.flags = {flag};
    Code code = Code::ok;
    EXPECT_NE(error_of([&] { Cache(options()).get(compiler, request); }, &code), "") << flag;
    EXPECT_EQ(code, Code::invalid_argument);
  }
  for (const char* define : {"", "1A", "A B", "=1", "A\n", "A;B"}) {
    CompileRequest request = fake_request("x");
    request.defines = {define};
    EXPECT_NE(error_of([&] { Cache(options()).get(compiler, request); }), "") << define;
  }
  CompileRequest request = fake_request("x");
  request.defines = {"A=a b \"c\""};
  request.flags = {"-O2", "-ffast-math", "-lm", "-mllvm=x", "--maxrregcount=64"};
  EXPECT_EQ(error_of([&] { Cache(options()).get(compiler, request); }), "");
}

// P04: whatever byte of whatever file is damaged, the entry is set aside and compiled again, and this is said once.
TEST_F(JitCache, DamagedEntriesAreRepaired) {
  const CompileRequest request = fake_request("kernel");
  const auto good = fresh(request);
  const auto damage = [&](const std::string& file, const std::string& with, const char* what) {
    SCOPED_TRACE(what);
    messages.clear();
    forget_warnings();
    write_text(file, with);
    const int before = compiler.compiles;
    const size_t aside = count("quarantine");
    const auto again = fresh(request);
    EXPECT_EQ(again->bytes, good->bytes);
    EXPECT_EQ(compiler.compiles, before + 1);
    EXPECT_EQ(count("quarantine"), std::min<size_t>(aside + 1, 16)) << "the newest 16 are kept";
    EXPECT_NE(messages.find("damaged"), std::string::npos) << messages;
    EXPECT_EQ(fresh(request)->origin, Origin::disk);
  };
  const std::string manifest = entry(good->key) + "/manifest";
  const std::string binary_text = good->bytes, manifest_text = file_text(manifest);
  damage(good->path, binary_text.substr(0, binary_text.size() - 1), "truncated");
  damage(good->path, "", "empty");
  damage(good->path, binary_text + "x", "longer");
  for (const size_t at : {size_t{0}, size_t{18}, binary_text.size() / 2, binary_text.size() - 1}) {
    std::string flipped = binary_text;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    damage(good->path, flipped, "a bit of the binary");
  }
  damage(manifest, "", "no manifest");
  damage(manifest, manifest_text.substr(0, 40), "a cut manifest");
  damage(manifest, std::string(manifest_text.size(), '\0'), "zeros");
  damage(manifest, std::string(100'000, '['), "deep JSON");
  for (size_t at = 0; at < manifest_text.size(); at += manifest_text.size() / 7) {
    std::string flipped = file_text(manifest);
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    damage(manifest, flipped, "a bit of the manifest");
  }
  fs::remove(good->path);
  fs::create_directory(good->path);
  EXPECT_EQ(fresh(request)->bytes, good->bytes) << "a folder in place of the binary";
  fs::remove_all(entry(good->key));
  fs::create_directory(entry(good->key));
  EXPECT_EQ(fresh(request)->bytes, good->bytes) << "an empty entry";
  EXPECT_EQ(fresh(request)->origin, Origin::disk);
}

// A complete, consistent entry of another machine under our key: the binary's own header tells.
TEST_F(JitCache, ForeignMachinesAreRefused) {
  const CompileRequest request = fake_request("kernel", "gfx942");
  const auto good = fresh(request);
  for (const char* other : {"gfx950", "sm_90a", "x86-64", "aarch64"}) {
    // Once with the truth in the manifest, once with a manifest that claims to be ours.
    for (const char* claimed : {other, "gfx942"}) {
      Manifest m = manifest_from(file_text(entry(good->key) + "/manifest"));
      const std::string bytes = fake_binary(target_named(other), "kernel");
      m.target = claimed;
      m.size = bytes.size();
      m.checksum = "";
      {  // its checksum is right
        FakeCompiler helper;
        Cache side({.root = folder / "side/jit", .lock_folder = ""});
        const auto made = side.get(helper, fake_request("kernel", other));
        m.checksum = manifest_from(file_text(folder / ("side/jit/entries/" + made->key + "/manifest"))).checksum;
      }
      write_text(good->path, bytes);
      write_text(entry(good->key) + "/manifest", to_text(m));
      const int before = compiler.compiles;
      EXPECT_EQ(fresh(request)->bytes, good->bytes) << other << " as " << claimed;
      EXPECT_EQ(compiler.compiles, before + 1);
    }
  }
}

TEST_F(JitCache, CompilerThatMakesTheWrongThing) {
  struct Wrong final : Compiler {
    std::string text = "wrong";
    std::string_view name() const override { return text; }
    const std::string& identity() const override { return text; }
    const std::string& path() const override { return text; }
    bool makes(const Target&) const override { return true; }
    Compiled compile(const CompileRequest&, const Closure&) const override {
      return {.ok = true, .verdict = true, .binary = fake_binary(target_named("gfx942"), "x"), .log = {}, .command = {}};
    }
  };
  const Wrong wrong;
  Cache cache(options());
  const std::string error = error_of([&] { cache.get(wrong, fake_request("x", "gfx950")); });
  EXPECT_NE(error.find("the binary cannot be used"), std::string::npos) << error;
  EXPECT_EQ(count("entries"), 0u);
}

// P04: the compiler's own words, the command and the source, every time; and no second compile for it.
TEST_F(JitCache, FailuresAreShownAgain) {
  CompileRequest request = fake_request("#error\n#include \"a.h\"\n");
  request.source.headers.add("a.h", "header");
  Code code = Code::ok;
  const auto error = [&](CacheOptions o) { return error_of([&] { Cache(std::move(o)).get(compiler, request); }, &code); };
  const std::string first = error(options());
  EXPECT_EQ(code, Code::compile_failed);
  for (int i = 0; i < 3; ++i) {
    const std::string again = i == 0 ? first : error(options());
    EXPECT_NE(again.find("fake.cu:1: error: as asked (compile 1)"), std::string::npos) << again;
    EXPECT_NE(again.find("command: /opt/fake -o out fake.cu"), std::string::npos) << again;
    const size_t at = again.find("source: ");
    ASSERT_NE(at, std::string::npos) << again;
    const std::string source = again.substr(at + 8);
    EXPECT_EQ(file_text(source), request.source.text);
    EXPECT_EQ(file_text(source.substr(0, source.rfind('/')) + "/a.h"), "header");
  }
  EXPECT_EQ(compiler.compiles, 1);
  CacheOptions later = options();
  later.failure_s = 0;
  EXPECT_NE(error(later).find("(compile 2)"), std::string::npos);
  EXPECT_EQ(count("failed"), 1u);
  request.source.text = "mended\n#include \"a.h\"\n";
  EXPECT_EQ(fresh(request)->origin, Origin::compiled);
  Cache cache(options());
  EXPECT_EQ(cache.list().size(), 2u);
}

TEST_F(JitCache, FailuresAreShownAgainWithoutADisk) {
  Cache cache({.root = "", .lock_folder = ""});
  const auto error = [&] { return error_of([&] { cache.get(compiler, fake_request("#error")); }); };
  EXPECT_NE(error().find("(compile 1)"), std::string::npos);
  EXPECT_NE(error().find("(compile 1)"), std::string::npos);
  EXPECT_EQ(compiler.compiles, 1);
}

// A killed or starved compiler has not judged anything.
TEST_F(JitCache, BrokenCompilerIsAskedAgain) {
  Cache cache(options());
  compiler.broken = true;
  EXPECT_NE(error_of([&] { cache.get(compiler, fake_request("x")); }).find("killed by signal 9"), std::string::npos);
  compiler.broken = false;
  EXPECT_EQ(cache.get(compiler, fake_request("x"))->origin, Origin::compiled);
}

TEST_F(JitCache, SealedAndCachedAndOff) {
  const CompileRequest known = fake_request("known"), unknown = fake_request("unknown");
  fresh(known);
  Code code = Code::ok;
  CacheOptions cached = options(), off = options();
  cached.mode = JitMode::cached;
  off.mode = JitMode::off;
  Cache cache(cached);
  EXPECT_EQ(cache.get(compiler, known)->origin, Origin::disk);
  std::string error = error_of([&] { cache.get(compiler, unknown); }, &code);
  EXPECT_EQ(code, Code::compile_failed);
  EXPECT_NE(error.find("fake_op for sm_90a is not in the cache"), std::string::npos) << error;
  EXPECT_NE(error.find("EITRI_JIT=cached"), std::string::npos) << error;
  Cache sealed(options());
  sealed.get(compiler, fake_request("before"));
  sealed.seal();
  EXPECT_EQ(sealed.get(compiler, known)->origin, Origin::disk);
  EXPECT_NE(sealed.get(compiler, fake_request("before")), nullptr);
  EXPECT_NE(error_of([&] { sealed.get(compiler, unknown); }).find("seal()"), std::string::npos);
  error = error_of([&] { Cache(off).get(compiler, known); });
  EXPECT_NE(error.find("EITRI_JIT is off"), std::string::npos) << error;
  EXPECT_EQ(compiler.compiles, 2);
}

// Touched, moved, copied: times and places play no part.
TEST_F(JitCache, TimesAndPlacesDoNotMatter) {
  const CompileRequest request = fake_request("kernel");
  const auto first = fresh(request);
  for (const time_t when : {time_t{0}, ::time(nullptr) + 1'000'000}) {
    for (const auto& at : fs::recursive_directory_iterator(folder.path())) {
      const timespec times[2] = {{when, 0}, {when, 0}};
      ::utimensat(AT_FDCWD, at.path().c_str(), times, AT_SYMLINK_NOFOLLOW);
    }
    EXPECT_EQ(fresh(request)->origin, Origin::disk);
  }
  fs::rename(folder / "cache", folder / "moved");
  CacheOptions moved = options();
  moved.root = folder / "moved/jit";
  EXPECT_EQ(Cache(moved).get(compiler, request)->origin, Origin::disk);
  EXPECT_EQ(compiler.compiles, 1);
}

TEST_F(JitCache, ThreadsCompileOnce) {
  compiler.seconds = 0.05;
  Cache cache(options());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { EXPECT_NE(cache.get(compiler, fake_request("kernel")), nullptr); });
  // A second cache object stands for a second process: its lock is another open file.
  Cache other(options());
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_NE(other.get(compiler, fake_request("kernel")), nullptr); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler.compiles, 1);
}

TEST_F(JitCache, WaitsNoLongerThanTold) {
  CacheOptions impatient = options();
  impatient.wait_s = 0.7;
  FakeCompiler slow;
  slow.seconds = 3;
  std::thread holder([&] { Cache(options()).get(slow, fake_request("kernel")); });
  while (slow.compiles == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Cache cache(impatient);
  set_log_level(LogTopic::jit, LogLevel::info);
  const auto start = std::chrono::steady_clock::now();
  cache.get(compiler, fake_request("kernel"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  set_log_level(LogTopic::jit, LogLevel::warning);
  holder.join();
  EXPECT_GE(took.count(), 0.7);
  EXPECT_LT(took.count(), 2);
  EXPECT_EQ(compiler.compiles, 1);
  EXPECT_EQ(cache.counters().waits_given_up, 1u);
  EXPECT_NE(messages.find(str("pid ", ::getpid(), " on host ")), std::string::npos) << messages;
  EXPECT_NE(messages.find("making fake_op for sm_90a"), std::string::npos) << messages;
  EXPECT_EQ(count("entries"), 1u);
}

TEST_F(JitCache, PrunesTheLongestUnused) {
  Cache cache(options());
  std::vector<std::string> keys;
  for (int i = 0; i < 6; ++i) {
    const auto made = fresh(fake_request(str("kernel ", i, std::string(20'000, 'x'))));
    keys.push_back(made->key);
    const timespec times[2] = {{1'000'000 + i, 0}, {1'000'000 + i, 0}};
    ::utimensat(AT_FDCWD, (entry(made->key) + "/stamp").c_str(), times, 0);
  }
  cache.get(compiler, fake_request(str("kernel ", 0, std::string(20'000, 'x'))));  // oldest, but in use now
  const auto removed = cache.prune(70'000);
  EXPECT_EQ(removed.entries, 3u);
  EXPECT_TRUE(fs::exists(entry(keys[0])));
  for (int i : {1, 2, 3}) EXPECT_FALSE(fs::exists(entry(keys[static_cast<size_t>(i)]))) << i;
  for (int i : {4, 5}) EXPECT_TRUE(fs::exists(entry(keys[static_cast<size_t>(i)]))) << i;
  EXPECT_EQ(cache.prune(0).entries, 2u) << "all but the one in use";
  EXPECT_TRUE(fs::exists(entry(keys[0])));
}

TEST_F(JitCache, StaysBelowItsBound) {
  CacheOptions small = options();
  small.max_bytes = 200'000;
  for (int i = 0; i < 30; ++i) Cache(small).get(compiler, fake_request(str(i, std::string(20'000, 'x'))));
  uint64_t total = 0;
  for (const EntryInfo& info : Cache(options()).list()) total += info.bytes;
  EXPECT_LE(total, 225'000u);
  EXPECT_GE(total, 100'000u);
}

TEST_F(JitCache, ListShowVerifyClear) {
  Cache cache(options());
  const auto a = cache.get(compiler, fake_request("a"));
  const auto b = fresh(fake_request("b"));
  error_of([&] { cache.get(compiler, fake_request("#error")); });
  const std::vector<EntryInfo> all = cache.list();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(all[2].manifest.failed);
  EXPECT_EQ(all[0].manifest.label, "fake_op");
  EXPECT_GT(all[0].bytes, a->bytes.size());
  EXPECT_GT(all[0].used_ns, 0);
  ASSERT_EQ(cache.show(b->key.substr(0, 20)).size(), 1u);
  EXPECT_EQ(cache.show(b->key.substr(0, 20))[0].manifest.compiler, "fake");
  EXPECT_TRUE(cache.verify(Cache::Repair::no).empty());
  write_text(b->path, "damage");
  ASSERT_EQ(cache.verify(Cache::Repair::no).size(), 1u);
  EXPECT_EQ(cache.verify(Cache::Repair::yes)[0].key, b->key);
  EXPECT_TRUE(cache.verify(Cache::Repair::no).empty());
  EXPECT_EQ(cache.clear().entries, 3u) << "a, the failure, the quarantined one";
  EXPECT_TRUE(cache.list().empty());
  EXPECT_EQ(cache.get(compiler, fake_request("a")), a) << "what is in use stays usable";
}

TEST_F(JitCache, LeftoversOfKilledWritersGo) {
  Cache cache(options());
  cache.get(compiler, fake_request("a"));
  write_text(folder / "cache/jit/tmp/4711-old/binary.cubin", "half");
  write_text(folder / "cache/jit/tmp/4712-new/binary.cubin", "half");
  const timespec times[2] = {{1'000'000, 0}, {1'000'000, 0}};
  ::utimensat(AT_FDCWD, (folder / "cache/jit/tmp/4711-old").c_str(), times, 0);
  EXPECT_EQ(cache.prune(UINT64_MAX).entries, 1u);
  EXPECT_FALSE(fs::exists(folder / "cache/jit/tmp/4711-old"));
  EXPECT_TRUE(fs::exists(folder / "cache/jit/tmp/4712-new")) << "somebody may be writing it";
}

TEST_F(JitCache, FoldersOfOthersAreNotUsed) {
  fs::create_directories(folder / "cache/jit");
  fs::permissions(folder / "cache/jit", fs::perms::all);
  Cache cache(options());
  EXPECT_EQ(cache.get(compiler, fake_request("a"))->path, "");
  EXPECT_NE(cache.disk_problem().find("others may write"), std::string::npos) << cache.disk_problem();
  EXPECT_NE(messages.find("others may write"), std::string::npos) << messages;
  EXPECT_EQ(count("entries"), 0u);
  fs::permissions(folder / "cache/jit", fs::perms::owner_all);
  fs::permissions(folder / "cache", fs::perms::all);
  EXPECT_NE(Cache(options()).disk_problem(), "") << "whoever may write to its parent may replace it";
  fs::permissions(folder / "cache", fs::perms::owner_all);
  EXPECT_EQ(Cache(options()).disk_problem(), "");
  if (::geteuid() != 0) GTEST_SKIP() << "another user's folder: only root can make one";
  ASSERT_EQ(::chown((folder / "cache/jit").c_str(), 12345, 12345), 0);
  Cache other(options());
  EXPECT_EQ(other.get(compiler, fake_request("b"))->path, "");
  EXPECT_NE(other.disk_problem().find("user 12345"), std::string::npos) << other.disk_problem();
}

TEST_F(JitCache, NoFolderAtAll) {
  Cache cache({.root = "", .lock_folder = ""});
  const auto first = cache.get(compiler, fake_request("a"));
  EXPECT_EQ(first->path, "");
  EXPECT_EQ(cache.get(compiler, fake_request("a")), first) << "kept in memory";
  EXPECT_TRUE(cache.list().empty());
  EXPECT_EQ(cache.prune(0).entries, 0u);
  EXPECT_EQ(cache.clear().entries, 0u);
  EXPECT_EQ(compiler.compiles, 1);
  write_text(folder / "file", "");
  Cache in_a_file({.root = folder / "file/jit", .lock_folder = ""});
  EXPECT_EQ(in_a_file.get(compiler, fake_request("a"))->path, "");
  EXPECT_NE(in_a_file.disk_problem(), "");
}

// Somebody deletes the whole cache under a running process.
TEST_F(JitCache, RemovedWhileInUse) {
  Cache cache(options());
  const auto a = cache.get(compiler, fake_request("a"));
  fs::remove_all(folder / "cache");
  EXPECT_EQ(cache.get(compiler, fake_request("a")), a);
  EXPECT_NE(cache.get(compiler, fake_request("b"))->path, "");
  EXPECT_EQ(fresh(fake_request("b"))->origin, Origin::disk);
}

// The files are never deleted, and what they say about holders is never believed.
TEST_F(JitCache, ForgedLockFilesAreHarmless) {
  for (int i = 0; i < 4096; ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "/%03x.lock", i);
    write_text(locks() + name, str(::getpid(), "\tthis-host\t1\tsomething\t\n"));
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(fresh(fake_request("a"))->origin, Origin::compiled);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ(count("../../locks"), 4097u) << "and one for clean-ups";
}

TEST(JitManifest, RoundTrip) {
  const Manifest m = {.key = "k",
                      .failed = true,
                      .label = "l\n\"",
                      .target = "sm_90a",
                      .compiler = "c",
                      .identity = "i",
                      .source = "s.cu",
                      .defines = {"A=1"},
                      .flags = {"-O3"},
                      .system = {"vector"},
                      .closure = {{"s.cu", "00"}},
                      .command = "cc",
                      .log = std::string("bad \xff\xfe utf8 \0 zero", 18),
                      .created = 5,
                      .seconds = 0.5,
                      .file = "f",
                      .size = 7,
                      .checksum = "x"};
  const Manifest back = manifest_from(to_text(m));
  EXPECT_EQ(back.label, m.label);
  EXPECT_EQ(back.closure, m.closure);
  EXPECT_EQ(back.size, 7u);
  EXPECT_EQ(to_text(back), to_text(m));
  Manifest long_log = m;
  long_log.log = std::string(3 << 20, 'x');
  EXPECT_LT(to_text(long_log).size(), 300u << 10);
}

TEST(JitTarget, Names) {
  EXPECT_STREQ(target_named("gfx950").name, "gfx950");
  EXPECT_EQ(error_of([] { target_named("sm_80"); }),
            "jit: target is \"sm_80\"; expected one of sm_90a, gfx942, gfx950, x86-64, x86-64-v3, x86-64-v4, aarch64");
  EXPECT_EQ(host_target().machine, Machine::host);
}

}  // namespace
}  // namespace eitri::jit
