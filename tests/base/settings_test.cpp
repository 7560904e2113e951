#include "base/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"

extern char** environ;

namespace eitri {
namespace {

/// Every test starts without EITRI_* names; the real environment comes back at the end.
class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry, name = text.substr(0, text.find('='));
      const bool ours = name.starts_with("EITRI_") || name == "HOME" || name == "XDG_CACHE_HOME";
      if (ours) saved_[name] = text.substr(name.size() + 1);
    }
    for (const auto& [name, value] : saved_) ::unsetenv(name.c_str());
    forget_warnings();
    set_log_sink(
        [](LogLevel, LogTopic, std::string_view message, void* user) { static_cast<SettingsTest*>(user)->warnings.emplace_back(message); },
        this);
    reload_settings();
  }
  ~SettingsTest() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
    set_log_sink(nullptr);
    reload_settings();
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  const Settings& with(const std::string& name, const std::string& value) {
    set(name, value);
    reload_settings();
    return settings();
  }
  std::string refusal(const std::string& name, const std::string& value) {
    set(name, value);
    std::string message;
    try {
      reload_settings();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      message = error.what();
      EXPECT_THROW(settings(), Error) << "bad settings stay bad until they are mended";
    }
    ::unsetenv(name.c_str());
    return message;
  }
  std::vector<std::string> warnings;

 private:
  std::map<std::string, std::string> saved_;
  std::vector<std::string> set_;
};

TEST_F(SettingsTest, Defaults) {
  const Settings& got = settings();
  EXPECT_EQ(got.cache_dir, "") << "no HOME: no cache";
  EXPECT_TRUE(got.tuned.empty());
  EXPECT_TRUE(got.force.empty());
  EXPECT_EQ(got.isa, "");
  EXPECT_EQ(got.threads, 0);
  EXPECT_FALSE(got.check);
  EXPECT_EQ(log_level(LogTopic::route), LogLevel::warning);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(SettingsTest, CacheFolder) {
  EXPECT_EQ(with("HOME", "/home/me").cache_dir, "/home/me/.cache/eitri");
  EXPECT_EQ(with("XDG_CACHE_HOME", "relative").cache_dir, "/home/me/.cache/eitri");
  EXPECT_EQ(with("XDG_CACHE_HOME", "/xdg").cache_dir, "/xdg/eitri");
  EXPECT_EQ(with("EITRI_CACHE_DIR", "/own").cache_dir, "/own");
  EXPECT_EQ(with("EITRI_CACHE_DIR", "").cache_dir, "") << "set but empty: no cache";
}

TEST_F(SettingsTest, Values) {
  set("EITRI_TUNED", "/a.csv:/b:");
  set("EITRI_FORCE", "gemm=gemm.x86_amx.tile,rmsnorm=rmsnorm.simt.row");
  set("EITRI_ISA", "x86_avx512");
  set("EITRI_THREADS", "12");
  set("EITRI_CHECK", "1");
  set("EITRI_LOG", "error,route=debug");
  reload_settings();
  const Settings& got = settings();
  EXPECT_EQ(got.tuned, (std::vector<std::string>{"/a.csv", "/b"}));
  EXPECT_EQ(got.forced_kernel("gemm"), "gemm.x86_amx.tile");
  EXPECT_EQ(got.forced_kernel("rmsnorm"), "rmsnorm.simt.row");
  EXPECT_EQ(got.forced_kernel("attention"), "");
  EXPECT_EQ(got.isa, "x86_avx512");
  EXPECT_EQ(got.threads, 12);
  EXPECT_TRUE(got.check);
  EXPECT_EQ(log_level(LogTopic::route), LogLevel::debug);
  EXPECT_EQ(log_level(LogTopic::jit), LogLevel::error);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(SettingsTest, RunTimeCompilation) {
  EXPECT_EQ(settings().jit, JitMode::on);
  EXPECT_EQ(with("EITRI_JIT", "cached").jit, JitMode::cached);
  EXPECT_EQ(with("EITRI_JIT", "off").jit, JitMode::off);
  EXPECT_EQ(refusal("EITRI_JIT", "yes"), "settings: EITRI_JIT is \"yes\"; expected on|cached|off");
  ::unsetenv("EITRI_JIT");
  const Settings& got = with("EITRI_COMPILER", "host=/usr/bin/g++,other=/opt/b");
  ASSERT_EQ(got.compilers.size(), 2u);
  EXPECT_EQ(got.compilers[0], (std::pair<std::string, std::string>("host", "/usr/bin/g++")));
  EXPECT_EQ(got.compilers[1].first, "other");
  for (const char* value : {"g++", "host=g++", "host=/a,host=/b", "host=/a,", "=/a"}) {
    EXPECT_NE(refusal("EITRI_COMPILER", value), "") << value;
  }
}

TEST_F(SettingsTest, Tuning) {
  EXPECT_EQ(settings().tune, TuneMode::off);
  EXPECT_EQ(with("EITRI_TUNE", "online").tune, TuneMode::online);
  EXPECT_EQ(settings().tune_percent, 5);
  EXPECT_EQ(with("EITRI_TUNE", "online:10").tune_percent, 10);
  EXPECT_EQ(with("EITRI_TUNE", "block").tune, TuneMode::block);
  EXPECT_EQ(settings().tune_seconds, 60);
  EXPECT_EQ(with("EITRI_TUNE", "block:7").tune_seconds, 7);
  EXPECT_EQ(with("EITRI_TUNE", "off").tune, TuneMode::off);
  EXPECT_EQ(refusal("EITRI_TUNE", "on"), "settings: EITRI_TUNE is \"on\"; expected off|online[:percent]|block[:seconds]");
  for (const char* value : {"off:1", "online:", "online:0", "online:101", "online:5x", "block:0", "block:3601", "block: 5", ":5"}) {
    EXPECT_NE(refusal("EITRI_TUNE", value), "") << value;
  }
}

TEST_F(SettingsTest, EmptyMeansNotSet) {
  for (const char* name : {"EITRI_LOG", "EITRI_TUNED", "EITRI_TUNE", "EITRI_FORCE", "EITRI_ISA", "EITRI_THREADS", "EITRI_CHECK",
                           "EITRI_JIT", "EITRI_COMPILER"}) {
    EXPECT_EQ(refusal(name, ""), "") << name;
  }
}

TEST_F(SettingsTest, BadValuesNameTheSetting) {
  EXPECT_EQ(refusal("EITRI_THREADS", "many"), "settings: EITRI_THREADS is \"many\"; expected an integer in 0..4096");
  for (const char* value : {"-1", "4097", "3x", " 3", "99999999999"}) {
    EXPECT_NE(refusal("EITRI_THREADS", value), "") << value;
  }
  EXPECT_EQ(refusal("EITRI_CHECK", "yes"), "settings: EITRI_CHECK is \"yes\"; expected 0 or 1");
  const std::string isa = refusal("EITRI_ISA", "avx512");
  EXPECT_NE(isa.find("EITRI_ISA is \"avx512\""), std::string::npos);
  EXPECT_NE(isa.find("x86_avx512"), std::string::npos);
  EXPECT_NE(refusal("EITRI_LOG", "loud"), "");
  EXPECT_NE(refusal("EITRI_LOG", "gemm=info"), "");
  EXPECT_NE(refusal("EITRI_LOG", "info,"), "");
  EXPECT_NE(refusal("EITRI_CACHE_DIR", "relative/path"), "");
  for (const char* value : {"gemm", "gemm=", "=k", "gemm=a,", "gemm=a,gemm=b"}) {
    EXPECT_NE(refusal("EITRI_FORCE", value), "") << value;
  }
  EXPECT_EQ(with("EITRI_THREADS", "5").threads, 5) << "mended";
}

TEST_F(SettingsTest, BadValuesLeaveLogLevelsAlone) {
  set("EITRI_LOG", "debug");
  EXPECT_NE(refusal("EITRI_CHECK", "2"), "");
  EXPECT_EQ(log_level(LogTopic::route), LogLevel::warning);
}

TEST_F(SettingsTest, UnknownNamesWarnOnce) {
  with("EITRI_THREAD", "4");  // a misspelling
  reload_settings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("EITRI_THREAD is set"), std::string::npos);
  EXPECT_NE(warnings[0].find("EITRI_THREADS"), std::string::npos) << "lists the known names";
  with("EITRI_JITTER", "off");  // of a later version: it must not be accepted silently
  EXPECT_EQ(warnings.size(), 2u);
}

TEST_F(SettingsTest, OldReferencesLive) {
  const Settings& before = with("EITRI_THREADS", "3");
  const Settings& after = with("EITRI_THREADS", "4");
  EXPECT_EQ(before.threads, 3);
  EXPECT_EQ(after.threads, 4);
  EXPECT_EQ(&settings(), &after);
}

TEST_F(SettingsTest, ThreadsShareOneCopy) {
  std::vector<std::thread> threads;
  std::vector<const Settings*> seen(8);
  for (const Settings*& slot : seen) threads.emplace_back([&slot] { slot = &settings(); });
  for (std::thread& thread : threads) thread.join();
  for (const Settings* slot : seen) EXPECT_EQ(slot, &settings());
}

TEST_F(SettingsTest, MarkdownHasARowPerSetting) {
  const std::string page = settings_markdown();
  std::vector<std::string> rows;
  for (size_t at = 0; at < page.size(); at = page.find('\n', at) + 1) {
    rows.push_back(page.substr(at, page.find('\n', at) - at));
  }
  EXPECT_EQ(rows.size(), 2u + 11);
  for (const std::string& line : rows) {
    int columns = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      columns += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    }
    EXPECT_EQ(columns, 5) << line;
  }
  EXPECT_NE(page.find("| `EITRI_THREADS` | integer | 0 |"), std::string::npos);
}

}  // namespace
}  // namespace eitri
