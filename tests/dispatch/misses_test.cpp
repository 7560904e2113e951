// The miss recorder: what ran without a tuned row, in one schema for all ops, over calls and processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "dispatch/misses.h"
#include "dispatch/op.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tuned_table.h"
#include "harness/fake_op.h"
#include "harness/levels.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Misses : public testing::Test {
 protected:
  // What tests before this one have recorded and not written belongs to no folder.
  Misses() : level_(Isa::portable), setting_("EITRI_RECORD", (flush_misses(), folder_.path())) {
    set_tuned_fields("scale_add", tuned_fields<ScaleAdd::Problem>());
  }
  ~Misses() override { flush_misses(); }
  static void run(int64_t rows, int calls) {
    Maker maker;
    const auto args = ScaleAdd::make({.rows = rows, .cols = 33}, maker);
    for (int i = 0; i < calls; ++i) call<ScaleAdd>(args);
  }
  MissFile read() const {
    flush_misses();
    return read_misses(folder_.path());
  }
  const harness::LevelScope level_;
  const FolderScope folder_;
  const SettingScope setting_;
};

TEST_F(Misses, a_problem_is_recorded_once_with_calls_and_time) {
  run(1001, 7);
  const MissFile file = read();
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.misses, SizeIs(1));
  const Miss& miss = file.misses[0];
  EXPECT_EQ(miss.op, "scale_add");
  EXPECT_EQ(miss.arch, "portable");
  EXPECT_EQ(miss.units, cpu_device().units);
  EXPECT_EQ(miss.kernel, "scale_add.portable.rows");
  EXPECT_EQ(miss.problem, "rows=1001,cols=33,nan_row=0");
  EXPECT_EQ(miss.calls, 7);
  EXPECT_GT(miss.us, 0);
  run(1001, 3);
  EXPECT_EQ(read().misses.at(0).calls, 10);  // what is written later is added
}

TEST_F(Misses, compaction_leaves_one_line_a_problem_with_all_of_its_calls) {
  for (int i = 0; i < 5; ++i) {
    run(1002, 2);
    flush_misses();
  }
  std::ofstream(folder_.path() + "/misses.csv", std::ios::app) << "torn";
  EXPECT_EQ(read().lines, 6u);
  ASSERT_TRUE(compact_misses(folder_.path()));
  const MissFile file = read();
  EXPECT_EQ(file.lines, 1u);
  EXPECT_THAT(file.problems, IsEmpty());
  EXPECT_EQ(file.misses.at(0).calls, 10);
  run(1002, 1);  // goes to the new file
  EXPECT_EQ(read().misses.at(0).calls, 11);
  EXPECT_FALSE(compact_misses(folder_.path() + "/nowhere"));
}

TEST_F(Misses, problems_with_a_row_or_a_forced_kernel_are_not_recorded) {
  const FolderScope tuned;
  tuned.write("scale_add.portable.csv", str(tuned_header(tuned_fields<ScaleAdd::Problem>()), "\n",
                                            tuned_line({.key = "rows=1002,cols=33,nan_row=0",
                                                        .units = cpu_device().units,
                                                        .kernel = "scale_add.portable.narrow",
                                                        .config = "",
                                                        .us = 1,
                                                        .revision = "",
                                                        .toolchain = "",
                                                        .date = ""},
                                                       "portable"),
                                            "\n"));
  const SettingScope setting("EITRI_TUNED", tuned.path());
  run(1002, 2);
  run(1003, 2);  // between rows, yet without one of its own
  {
    const ForceScope force("scale_add", "scale_add.reference");
    run(1004, 2);
  }
  const MissFile file = read();
  ASSERT_THAT(file.misses, SizeIs(1));
  EXPECT_EQ(file.misses[0].problem, "rows=1003,cols=33,nan_row=0");
}

TEST_F(Misses, processes_share_a_file_and_a_child_does_not_repeat_its_parent) {
  run(1005, 5);
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      run(1005, 2);
      flush_misses();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  const MissFile file = read();
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.misses, SizeIs(1));
  EXPECT_EQ(file.misses[0].calls, 5 + 4 * 2);
}

TEST_F(Misses, ConcurrentThreadsAreCounted) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([] { run(1006, 50); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read().misses.at(0).calls, 200);
}

TEST_F(Misses, most_time_comes_first) {
  folder_.write("misses.csv",
                "op,arch,units,kernel,calls,us,problem\ngemm,x86_avx512,2,k,9,5,\"m=1\"\n\ngemm,x86_avx512,2,k,1,500,\"m=2\"\n"
                "rmsnorm,sm_90a,132,k,4,0,\"tokens=1\"\r\ngemm,x86_avx512,2,k,1,1,\"m=1\"\n");
  const MissFile file = read_misses(folder_.path());
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.misses, SizeIs(3));
  EXPECT_EQ(file.misses[0].problem, "m=2");
  EXPECT_EQ(file.misses[1].problem, "m=1");
  EXPECT_EQ(file.misses[1].calls, 10);
  EXPECT_EQ(file.misses[1].us, 6);
  EXPECT_EQ(file.misses[2].op, "rmsnorm");
}

TEST_F(Misses, torn_and_hostile_lines_are_skipped_and_said) {
  folder_.write("misses.csv",
                "op,arch,units,kernel,calls,us,problem\ngemm,x86_avx512,2,k,9,5,\"m=1\ngemm,x86_avx5\n"
                "gemm,x86_avx512,two,k,9,5,\"m=1\"\ngemm,x86_avx512,2,k,-9,5,\"m=1\"\ngemm,x86_avx512,2,k,9,nan,\"m=1\"\n"
                "gemm,x86_avx512,2,k,1,1,\"m=\"1\"\"\n,x86_avx512,2,k,1,1,\"m=1\"\ngemm,x86_avx512,2,k,1,1,\"m=7\"\n");
  const MissFile file = read_misses(folder_.path());
  ASSERT_THAT(file.misses, SizeIs(1));
  EXPECT_EQ(file.misses[0].problem, "m=7");
  ASSERT_THAT(file.problems, SizeIs(7));
  EXPECT_THAT(file.problems[0], HasSubstr("misses.csv:2: problem is not in quotes"));
  EXPECT_THAT(file.problems[1], HasSubstr("misses.csv:3: the line is cut off"));
}

TEST_F(Misses, a_line_torn_by_a_killed_writer_does_not_swallow_the_next) {
  folder_.write("misses.csv", "op,arch,units,kernel,calls,us,problem\ngemm,x86_avx512,2,k,9");
  run(1007, 1);
  const MissFile file = read();
  EXPECT_THAT(file.problems, SizeIs(1));
  ASSERT_THAT(file.misses, SizeIs(1));
  EXPECT_EQ(file.misses[0].problem, "rows=1007,cols=33,nan_row=0");
}

TEST(MissesOff, nothing_is_recorded_without_the_setting) {
  EXPECT_EQ(record_miss("scale_add", cpu_device(), "rows=1", "k"), nullptr);
  EXPECT_THROW(read_misses("nowhere"), Error);
}

}  // namespace
}  // namespace eitri
