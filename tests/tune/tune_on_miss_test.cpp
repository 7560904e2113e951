// EITRI_TUNE with the operator of sabotage: its candidates run in processes of eitri_process_driver, which stands for `eitri` too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "dispatch/misses.h"
#include "dispatch/op.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tune_on_miss.h"
#include "process/child.h"
#include "tune/sabotage_op.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

class TuneOnMiss : public testing::Test {
 protected:
  void SetUp() override {
    if (jit::driver().empty()) GTEST_SKIP() << "eitri_process_driver is not beside this program";
    set_tuned_fields("probe", tuned_fields<Probe::Problem>());
    set_tune_command({jit::driver(), "tune"});
    set_log_sink([](LogLevel, LogTopic, std::string_view text, void* self) { static_cast<TuneOnMiss*>(self)->log_ += text; }, this);
  }
  void TearDown() override {
    stop_online_tuning();
    set_tune_command({});
    set_log_sink(nullptr);
  }
  static double call_ms(int64_t m) {
    Maker maker;
    const auto args = Probe::make({.m = m, .k = 33}, maker);
    const auto start = Clock::now();
    call<Probe>(args);
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  static std::string choice(int64_t m) {
    const Route<Probe>& r = route<Probe>({.m = m, .k = 33});
    return str(r.kernel->name, " ", to_string(r.config, r.kernel->knobs), " ", r.origin);
  }
  std::string file(const std::string& name) const {
    std::ifstream in(folder_.path() + "/" + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string rows() const { return file(str("probe.", cpu_device().arch(), ".csv")); }
  static int64_t lines_with(const std::string& text, const std::string& what) {
    int64_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
  }

  const FolderScope folder_;
  const SettingScope tuned_{"EITRI_TUNED", folder_.path()};
  std::string log_;
};

constexpr const char* kBest = "probe.right.knob us=100 tuned";

TEST_F(TuneOnMiss, off_is_the_default) {
  call_ms(31);
  EXPECT_THAT(choice(31), StartsWith("probe.right.slow"));
  EXPECT_EQ(rows(), "");
}

TEST_F(TuneOnMiss, block_tunes_before_the_first_call_returns_and_once) {
  const SettingScope setting("EITRI_TUNE", "block:30");
  call_ms(32);
  EXPECT_EQ(choice(32), kBest);
  EXPECT_THAT(rows(), HasSubstr("probe.right.knob,us=100"));
  const std::string journal = file("journal.jsonl");
  call_ms(32);
  reload_tuned();
  call_ms(32);
  EXPECT_EQ(file("journal.jsonl"), journal);
}

TEST_F(TuneOnMiss, block_takes_the_row_that_another_process_has_written) {
  const SettingScope setting("EITRI_TUNE", "block:30");
  set_tune_command({jit::driver(), "no such command"});
  EXPECT_THAT(choice(34), StartsWith("probe.right.slow"));
  EXPECT_THAT(log_, HasSubstr("probe m=34,k=33 could not be tuned, the default serves: it ended with status 3"));
  const std::string once = log_;
  call_ms(34);
  EXPECT_EQ(log_, once) << "a problem that cannot be tuned is tried once";
  set_tune_command({jit::driver(), "tune"});
  jit::Child other({jit::driver(), "call_probe", "first=34", "second=34"});
  EXPECT_EQ(other.end(), 0) << other.output();
  set_tune_command({jit::driver(), "no such command"});
  reload_tuned();
  EXPECT_EQ(choice(34), kBest);
}

TEST_F(TuneOnMiss, a_program_that_handles_interrupts_need_not_wait_for_the_tuner) {
  const SettingScope setting("EITRI_TUNE", "block:60");
  set_tune_command({"/bin/sh", "-c", "sleep 60"});
  static volatile sig_atomic_t handled = 0;
  const auto before = std::signal(SIGINT, [](int) { handled = 1; });
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(::getpid(), SIGINT);
  });
  EXPECT_LT(call_ms(33), 20000);
  other.join();
  EXPECT_EQ(handled, 1) << "the program's own handler was not called";
  EXPECT_THAT(log_, HasSubstr("probe m=33,k=33 could not be tuned, the default serves: it was interrupted"));
  handled = 0;
  std::raise(SIGINT);
  EXPECT_EQ(handled, 1) << "the program's handler is not back";
  std::signal(SIGINT, before);
}

TEST_F(TuneOnMiss, a_command_that_cannot_be_started_is_an_error_that_says_so) {
  const SettingScope setting("EITRI_TUNE", "block");
  set_tune_command({"/nowhere/eitri"});
  try {
    call_ms(35);
    ADD_FAILURE() << "the setting was ignored";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("EITRI_TUNE: /nowhere/eitri cannot be started: No such file"));
  }
}

TEST_F(TuneOnMiss, two_processes_on_one_folder_agree_and_lose_no_row) {
  const SettingScope setting("EITRI_TUNE", "block:30");
  jit::Child a({jit::driver(), "call_probe", "first=36", "second=37"}), b({jit::driver(), "call_probe", "first=37", "second=36"});
  EXPECT_EQ(a.end(), 0);
  EXPECT_EQ(b.end(), 0);
  for (const jit::Child* child : {&a, &b})
    for (const char* m : {"36", "37"}) EXPECT_THAT(child->output(), HasSubstr(str("m=", m, " ", kBest)));
  EXPECT_EQ(lines_with(rows(), ",36,33,1,"), 1) << rows();
  EXPECT_EQ(lines_with(rows(), ",37,33,1,"), 1) << rows();
  EXPECT_EQ(lines_with(file("journal.jsonl"), "race_control_us"), 2) << "each problem is tuned by one of them";
}

TEST_F(TuneOnMiss, online_never_stalls_and_swaps_between_calls) {
  const SettingScope setting("EITRI_TUNE", "online:100");
  const auto start = Clock::now();
  double longest_ms = 0, tuned_ms = 0;
  // A candidate that never ends holds the tuner up for two seconds, not the calls.
  while (tuned_ms == 0 && Clock::now() - start < std::chrono::seconds(120)) {
    longest_ms = std::max(longest_ms, call_ms(38));
    if (choice(38) == kBest) tuned_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  EXPECT_GT(tuned_ms, 2000) << "it was not tuned by another process: " << file("online.log");
  EXPECT_LT(longest_ms, 1000);
  // Tests before this one may have left counters of other machines.
  const auto misses = read_misses(folder_.path() + "/misses").misses;
  EXPECT_EQ(std::ranges::count_if(misses, [](const Miss& miss) { return miss.arch == cpu_device().arch(); }), 1);
}

}  // namespace
}  // namespace eitri
