#include "base/log.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace eitri {
namespace {

/// Collects messages, and puts sink, levels and warnings back at the end.
class LogTest : public testing::Test {
 protected:
  LogTest() {
    for (int i = 0; i < kLogTopics; ++i) {
      saved_.push_back(log_level(static_cast<LogTopic>(i)));
      set_log_level(static_cast<LogTopic>(i), LogLevel::warning);
    }
    forget_warnings();
    set_log_sink(collect, this);
  }
  ~LogTest() override {
    set_log_sink(nullptr);
    for (int i = 0; i < kLogTopics; ++i) {
      set_log_level(static_cast<LogTopic>(i), saved_[static_cast<size_t>(i)]);
    }
    forget_warnings();
  }
  static void collect(LogLevel level, LogTopic topic, std::string_view message, void* user) {
    static_cast<LogTest*>(user)->lines.push_back(str(to_string(level), " ", to_string(topic), ": ", message));
  }
  std::vector<std::string> lines;

 private:
  std::vector<LogLevel> saved_;
};

struct Counted {
  int* count;
};
std::string to_string(const Counted& counted) {
  ++*counted.count;
  return "counted";
}

TEST_F(LogTest, PassesOnWhatIsEnabled) {
  log(LogLevel::warning, LogTopic::route, "m=", 3);
  log(LogLevel::info, LogTopic::route, "hidden");
  set_log_level(LogTopic::route, LogLevel::debug);
  log(LogLevel::debug, LogTopic::route, "shown");
  log(LogLevel::info, LogTopic::jit, "another topic");
  set_log_level(LogTopic::jit, LogLevel::off);
  log(LogLevel::error, LogTopic::jit, "even this is off");
  EXPECT_EQ(lines, (std::vector<std::string>{"warning route: m=3", "debug route: shown"}));
}

TEST_F(LogTest, FormatsOnlyWhenEnabled) {
  int count = 0;
  log(LogLevel::debug, LogTopic::tune, Counted{&count});
  EXPECT_EQ(count, 0);
  log(LogLevel::error, LogTopic::tune, Counted{&count});
  EXPECT_EQ(count, 1);
  warn_once(LogTopic::tune, "k", Counted{&count});
  warn_once(LogTopic::tune, "k", Counted{&count});
  EXPECT_EQ(count, 2);
}

TEST_F(LogTest, WarnsOncePerKey) {
  for (int i = 0; i < 3; ++i) warn_once(LogTopic::backend, "a", "first ", i);
  warn_once(LogTopic::backend, "b", "other key");
  warn_once(LogTopic::route, "a", "other topic");
  EXPECT_EQ(lines, (std::vector<std::string>{"warning backend: first 0", "warning backend: other key", "warning route: other topic"}));
  set_log_level(LogTopic::jit, LogLevel::error);
  warn_once(LogTopic::jit, "c", "hidden");
  set_log_level(LogTopic::jit, LogLevel::warning);
  warn_once(LogTopic::jit, "c", "a hidden warning is not used up");
  EXPECT_EQ(lines.size(), 4u);
}

TEST_F(LogTest, KeysAreBounded) {
  for (int i = 0; i < 6000; ++i) warn_once(LogTopic::route, str(i), i);
  EXPECT_GE(lines.size(), 1000u);
  EXPECT_LT(lines.size(), 6000u);
}

TEST_F(LogTest, SinksMayThrowAndLog) {
  static int calls = 0;
  calls = 0;
  set_log_sink([](LogLevel, LogTopic, std::string_view, void*) {
    ++calls;
    log(LogLevel::error, LogTopic::route, "from inside");
    warn_once(LogTopic::route, "inside", "from inside");
    throw std::runtime_error("sink");
  });
  log(LogLevel::error, LogTopic::route, "one");
  log(LogLevel::error, LogTopic::route, "two");
  EXPECT_EQ(calls, 2);
}

TEST_F(LogTest, ThreadsDoNotMixLines) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 500; ++i) {
        log(LogLevel::error, LogTopic::route, t, "/", i);
        warn_once(LogTopic::tune, str(i), "once ", i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines.size(), 4u * 500 + 500);
}

TEST_F(LogTest, DefaultSinkWritesLinesToStderr) {
  set_log_sink(nullptr);
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  log(LogLevel::warning, LogTopic::backend, "no AMX");
  log(LogLevel::info, LogTopic::backend, "hidden");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "eitri warning [backend] no AMX\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "the library never prints to stdout";
}

TEST_F(LogTest, NamesRoundTrip) {
  for (int i = 0; i < kLogTopics; ++i) {
    EXPECT_EQ(log_topic_from(to_string(static_cast<LogTopic>(i))), static_cast<LogTopic>(i));
  }
  for (LogLevel level : {LogLevel::off, LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug}) {
    EXPECT_EQ(log_level_from(to_string(level)), level);
  }
  EXPECT_FALSE(log_level_from("loud"));
  EXPECT_FALSE(log_topic_from(""));
}

}  // namespace
}  // namespace eitri
