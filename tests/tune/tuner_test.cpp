// The tuner against an operator full of sabotage: whatever a candidate does, the run goes on, and a right one is adopted. Candidates run
// in processes of eitri_process_driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/log.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tuned_table.h"
#include "process/child.h"
#include "tune/bench.h"
#include "tune/sabotage_op.h"
#include "tune/tuned_writer.h"
#include "tune/tuner.h"

namespace eitri::tune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::span<const TunedOp> ops() {
  static const TunedOp kOps[] = {tuned_op<Probe>()};
  return kOps;
}

/// Without the faults, whose time limits would make a test long.
std::span<const TunedOp> right_ops() {
  static const TunedOp kOps[] = {{.name = "probe",
                                  .plain = plain_text_of<Probe>,
                                  .choices =
                                      [](std::string_view problem, const Device& device, const Pruning& pruning) {
                                        Choices choices = choices_of<Probe>(problem, device, pruning);
                                        for (Choice& c : choices.all)
                                          if (c.kernel.find(".right.") == std::string::npos) c.refused = "not of this test";
                                        return choices;
                                      },
                                  .subject = subject_of<Probe>,
                                  .children = children_of<Probe>}};
  return kOps;
}

// The address sanitizer reports what kills a worker elsewhere, and ends it.
#if defined(__SANITIZE_ADDRESS__)
constexpr const char *kSegfault = "exited with status 1", *kOutOfMemory = kSegfault;
#else
constexpr const char *kSegfault = "was killed by signal 11", *kOutOfMemory = "it asks for more memory than there is";
#endif

class TunerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (jit::driver().empty()) GTEST_SKIP() << "eitri_process_driver is not beside this program";
    set_tuned_fields("probe", tuned_fields<Probe::Problem>());
    set_log_sink([](LogLevel, LogTopic, std::string_view, void*) {});
  }
  void TearDown() override { set_log_sink(nullptr); }
  TuneOptions options() const {
    TuneOptions o;
    o.folder = folder_.path();
    o.worker = {jit::driver(), "tune_worker"};
    o.time_limit_s = 2;
    o.sample_us = 800;
    o.race.gate = 0.5;  // other programs may have the cores: times here differ by factors
    o.race.rungs = {3, 5};
    o.confirm_rounds = 5;
    return o;
  }
  static TuneProblem problem(int64_t m = 7) { return {"probe", key_of(Probe::Problem{.m = m, .k = 33})}; }
  std::vector<TunedRow> rows() const {
    std::ifstream file(folder_.path() + str("/probe.", cpu_device().arch(), ".csv"));
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const TunedFile parsed = parse_tuned(text, "probe.csv", cpu_device().arch(), tuned_fields<Probe::Problem>());
    EXPECT_THAT(parsed.problems, IsEmpty());
    return parsed.rows;
  }
  static std::string why(const Outcome& outcome, const std::string& kernel) {
    for (const Rejected& r : outcome.rejected)
      if (r.kernel == kernel) return r.why;
    return {};
  }
  const FolderScope folder_;
};

TEST_F(TunerTest, P14_P15_every_sabotaged_kernel_is_rejected_and_the_run_goes_on) {
  Tuner tuner(ops(), cpu_device(), options());
  const Outcome outcome = tuner.tune(problem());
  ASSERT_EQ(outcome.status, TuneStatus::tuned) << outcome.why;
  EXPECT_EQ(outcome.kernel, "probe.right.knob");
  EXPECT_EQ(outcome.config, "us=100");
  EXPECT_GT(outcome.gain(), 0.5);
  const auto rejected = [&](const char* fault) { return why(outcome, str("probe.fault.", fault)); };
  EXPECT_THAT(rejected("drops_k_tail"), HasSubstr("; expected "));
  EXPECT_THAT(rejected("writes_half"), HasSubstr("out[4] is nan"));
  EXPECT_THAT(rejected("writes_after"), HasSubstr("was overwritten 0 bytes after its end"));
  EXPECT_THAT(rejected("writes_far"), HasSubstr(kSegfault));
  EXPECT_THAT(rejected("writes_input"), HasSubstr("is an input, but was written to"));
  EXPECT_THAT(rejected("races"), HasSubstr("claims to be repeatable, but call "));
  EXPECT_THAT(rejected("nearly_right"), HasSubstr("; expected "));
  EXPECT_THAT(rejected("right_once"), HasSubstr("; expected "));
  EXPECT_THAT(rejected("never_ends"), HasSubstr("did not answer within 2 s and was killed"));
  EXPECT_THAT(rejected("faults"), HasSubstr(kSegfault));
  EXPECT_THAT(rejected("aborts"), HasSubstr("was killed by signal 6"));
  EXPECT_THAT(rejected("exits"), HasSubstr("exited with status 0"));
  EXPECT_THAT(rejected("throws"), HasSubstr("a fault"));
  EXPECT_THAT(rejected("allocates_200_gb"), HasSubstr(kOutOfMemory));
  EXPECT_THAT(rejected("workspace_of_200_gb"), HasSubstr("its workspace has 204800 MiB"));
  for (const auto& kernel : Probe::kernels())
    if (std::string_view(kernel.name).find(".fault.") != std::string_view::npos) EXPECT_NE(why(outcome, kernel.name), "") << kernel.name;
  for (const Rejected& r : outcome.rejected) EXPECT_THAT(r.kernel, HasSubstr(".fault."));
}

/// One that writes to inputs, and right ones after it: none of them is blamed, and the one is.
TEST_F(TunerTest, who_meets_inputs_that_another_wrote_to_is_not_blamed) {
  static const TunedOp kOps[] = {{.name = "probe",
                                  .plain = plain_text_of<Probe>,
                                  .choices =
                                      [](std::string_view problem, const Device& device, const Pruning& pruning) {
                                        Choices choices = choices_of<Probe>(problem, device, pruning);
                                        for (Choice& c : choices.all)
                                          if (c.kernel.find(".right.") == std::string::npos && c.kernel != "probe.fault.writes_input")
                                            c.refused = "not of this test";
                                        return choices;
                                      },
                                  .subject = subject_of<Probe>,
                                  .children = children_of<Probe>}};
  const Outcome outcome = Tuner(kOps, cpu_device(), options()).tune(problem());
  ASSERT_EQ(outcome.status, TuneStatus::tuned) << outcome.why;
  ASSERT_EQ(outcome.rejected.size(), 1u);
  EXPECT_EQ(outcome.rejected[0].kernel, "probe.fault.writes_input");
}

TEST_F(TunerTest, a_default_that_wins_a_tie_does_not_hide_a_gain) {
  TuneOptions o = options();
  o.race.tie = 3;  // as a very noisy machine: all that there is ties with the default
  const Outcome outcome = Tuner(right_ops(), cpu_device(), o).tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::tuned) << outcome.why;
  EXPECT_GT(outcome.gain(), 0.02);
}

TEST_F(TunerTest, a_folder_that_cannot_be_written_ends_the_run_before_it_works) {
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "not a folder";
  TuneOptions o = options();
  o.folder = file;
  Tuner tuner(right_ops(), cpu_device(), o);
  EXPECT_THROW(
      {
        try {
          tuner.tune(problem());
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::io_error);
          EXPECT_THAT(error.what(), HasSubstr("file"));
          throw;
        }
      },
      Error);
}

TEST_F(TunerTest, a_problem_with_nothing_to_compute_is_not_tuned) {
  const Outcome outcome = Tuner(right_ops(), cpu_device(), options()).tune(problem(0));
  EXPECT_EQ(outcome.status, TuneStatus::unsupported);
  EXPECT_THAT(outcome.why, HasSubstr("an extent is 0"));
}

TEST_F(TunerTest, rows_hold_ranks_of_different_kernels_and_where_they_come_from) {
  Tuner tuner(right_ops(), cpu_device(), options());
  tuner.tune(problem());
  const auto all = rows();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].kernel, "probe.right.knob");
  EXPECT_NE(all[1].kernel, "probe.right.knob") << "the second rank serves when the first kernel cannot be loaded";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].key, "m=7,k=33");
    EXPECT_EQ(all[i].units, cpu_device().units);
    EXPECT_EQ(all[i].rank, static_cast<int>(i) + 1);
    EXPECT_NEAR(all[i].baseline_us, 400, 200);
    EXPECT_LT(all[i].error, 1);
    EXPECT_GT(all[i].error, 0);
    EXPECT_EQ(all[i].date, today());
    EXPECT_THAT(all[i].toolchain, testing::AnyOf(HasSubstr("gcc"), HasSubstr("clang")));
  }
  EXPECT_LT(all[0].us, all[1].us);
}

TEST_F(TunerTest, what_is_wrong_is_not_tried_again_by_a_later_run) {
  { Tuner(ops(), cpu_device(), options()).tune(problem()); }
  Tuner later(ops(), cpu_device(), options());
  EXPECT_EQ(later.journal().torn_lines(), 0u);
  const Outcome outcome = later.tune(problem(8));
  EXPECT_EQ(outcome.status, TuneStatus::tuned);
  EXPECT_THAT(why(outcome, "probe.fault.faults"), HasSubstr(str("in quarantine: the worker ", kSegfault)));
  // What was only slow or hungry may do at another problem: those two are asked again.
  EXPECT_THAT(why(outcome, "probe.fault.never_ends"), testing::StartsWith("the worker did not answer"));
  EXPECT_THAT(why(outcome, "probe.fault.workspace_of_200_gb"), testing::StartsWith("its workspace"));
}

TEST_F(TunerTest, a_run_resumes_from_its_journal) {
  { Tuner(right_ops(), cpu_device(), options()).tune(problem()); }
  const auto before = rows();
  std::ofstream(folder_.path() + "/journal.jsonl", std::ios::app) << "{\"op\":\"probe\",\"arch";  // killed while it wrote
  Tuner resumed(right_ops(), cpu_device(), options());
  EXPECT_EQ(resumed.journal().torn_lines(), 1u);
  const Outcome outcome = resumed.tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::known);
  EXPECT_EQ(outcome.kernel, "probe.right.knob");
  EXPECT_EQ(outcome.workers, 0);
  TuneOptions again = options();
  again.again = true;
  EXPECT_EQ(Tuner(right_ops(), cpu_device(), again).tune(problem()).status, TuneStatus::tuned);
  EXPECT_EQ(rows().size(), before.size());
}

TEST_F(TunerTest, rows_without_a_journal_are_known_until_their_kernel_changes) {
  { Tuner(right_ops(), cpu_device(), options()).tune(problem()); }
  std::filesystem::remove(folder_.path() + "/journal.jsonl");
  const Outcome outcome = Tuner(right_ops(), cpu_device(), options()).tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::known);
  EXPECT_EQ(outcome.config, "us=100");
  TunedRow stale = rows().at(0);
  stale.revision = "000000000000";
  write_tuned(folder_.path(), "probe", cpu_device().arch(), {stale});
  EXPECT_EQ(Tuner(right_ops(), cpu_device(), options()).tune(problem()).status, TuneStatus::tuned);
}

TEST_F(TunerTest, P18_two_runs_choose_alike) {
  std::vector<std::string> chosen;
  for (int run = 0; run < 2; ++run) {
    const FolderScope folder;
    TuneOptions o = options();
    o.folder = folder.path();
    o.race.seed = static_cast<uint64_t>(run) + 1;
    Tuner tuner(right_ops(), cpu_device(), o);
    for (const int64_t m : {3, 5}) {
      const Outcome outcome = tuner.tune(problem(m));
      chosen.push_back(str(outcome.kernel, " ", outcome.config));
    }
  }
  EXPECT_THAT(chosen,
              ElementsAre("probe.right.knob us=100", "probe.right.knob us=100", "probe.right.knob us=100", "probe.right.knob us=100"));
}

TEST_F(TunerTest, P18_four_at_once_choose_alike) {
  const FolderScope folders[4];
  std::vector<std::future<std::vector<std::string>>> runs;
  for (const FolderScope& folder : folders)
    runs.push_back(std::async(std::launch::async, [&] {
      TuneOptions o = options();
      o.folder = folder.path();
      o.time_limit_s = 30;  // eight busy processes, on few cores perhaps
      o.race.rungs = {6, 15};
      o.confirm_rounds = 15;
      Tuner tuner(right_ops(), cpu_device(), o);
      std::vector<std::string> chosen;
      for (const int64_t m : {3, 5}) {
        const Outcome outcome = tuner.tune(problem(m));
        chosen.push_back(str(outcome.kernel, " ", outcome.config, outcome.why));
      }
      return chosen;
    }));
  for (auto& run : runs) EXPECT_THAT(run.get(), ElementsAre("probe.right.knob us=100", "probe.right.knob us=100"));
}

TEST_F(TunerTest, the_cost_model_prunes_and_the_reference_is_no_candidate) {
  Tuner tuner(ops(), cpu_device(), options());
  const Choices choices = tuner.candidates(problem());
  ASSERT_LT(choices.control, choices.all.size());
  EXPECT_EQ(choices.all[choices.control].kernel, "probe.right.slow");
  size_t knobs = 0;
  for (const Choice& c : choices.all) {
    if (c.kernel == "probe.right.hopeless")
      EXPECT_THAT(c.refused, HasSubstr("the cost model expects 1000 us, and 10 us of probe.right.slow"));
    if (c.kernel == "probe.reference") EXPECT_EQ(c.refused, "it is the reference");
    if (c.kernel == "probe.right.knob") ++knobs;
  }
  EXPECT_EQ(knobs, 4u);
}

TEST_F(TunerTest, what_is_wrong_in_large_problems_alone_is_found_without_their_reference) {
  TuneOptions o = options();
  o.check.most_flops = 2000;  // of 64 rows 15 are judged
  Tuner tuner(ops(), cpu_device(), o);
  const Outcome outcome = tuner.tune(problem(64));
  EXPECT_EQ(outcome.kernel, "probe.right.knob");
  EXPECT_THAT(why(outcome, "probe.large.wrong_first_row"), HasSubstr("at the whole problem: out[0] is"));
  EXPECT_THAT(why(outcome, "probe.large.unwritten_last_row"), HasSubstr("out row 0 column 63 is NaN"));
  EXPECT_THAT(why(outcome, "probe.large.wrong_last_row"), HasSubstr("at the whole problem: out row 0 column 63 is"));
}

TEST_F(TunerTest, a_default_that_is_wrong_is_said_and_replaced) {
  const TunedOp op{.name = "probe",
                   .plain = plain_text_of<Probe>,
                   .choices =
                       [](std::string_view problem, const Device& device, const Pruning& pruning) {
                         Choices choices = choices_of<Probe>(problem, device, pruning);
                         for (size_t i = 0; i < choices.all.size(); ++i)
                           if (choices.all[i].kernel == "probe.fault.drops_k_tail") choices.control = i;
                         return choices;
                       },
                   .subject = subject_of<Probe>,
                   .children = children_of<Probe>};
  Tuner tuner(std::span(&op, 1), cpu_device(), options());
  const Outcome outcome = tuner.tune(problem());
  EXPECT_TRUE(outcome.control_is_wrong);
  EXPECT_EQ(outcome.status, TuneStatus::tuned);
  EXPECT_EQ(outcome.kernel, "probe.right.knob");
  EXPECT_EQ(outcome.config, "us=100");
  ASSERT_FALSE(rows().empty());
  EXPECT_EQ(rows()[0].baseline_us, 0) << "the time of a wrong default is no baseline";
}

TEST_F(TunerTest, a_score_compares_row_and_default_with_the_best_and_writes_nothing) {
  Journal(folder_.path())
      .add(JournalRecord{.op = "probe",
                         .arch = std::string(cpu_device().arch()),
                         .units = cpu_device().units,
                         .problem = problem().problem,
                         .revisions = "",
                         .kernel = "probe.right.knob",
                         .config = "us=200",
                         .date = today(),
                         .candidates = {}});
  TuneOptions o = options();
  o.score_rounds = 9;
  const Outcome outcome = Tuner(right_ops(), cpu_device(), o).tune(problem());
  ASSERT_EQ(outcome.status, TuneStatus::scored) << outcome.why;
  const Score& score = outcome.score;
  EXPECT_EQ(str(score.best_kernel, " ", score.best_config), "probe.right.knob us=100");
  EXPECT_EQ(outcome.config, "us=200");
  EXPECT_EQ(outcome.control_kernel, "probe.right.slow");
  EXPECT_NEAR(score.row_us / score.best_us, 2, 0.8);
  EXPECT_NEAR(score.default_us / score.best_us, 4, 1.6);
  EXPECT_EQ(score.every.size(), 6u);
  EXPECT_EQ(str(score.first_kernel, " ", score.first_config), "probe.right.knob us=100");
  EXPECT_LT(score.row_interval, 0.5);
  EXPECT_GE(score.round_us, score.every_us) << "a round has the default twice";
  EXPECT_NEAR(score.every_us, 400 + (400 + 100 + 800 + 200) + 400, 900);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + str("/probe.", cpu_device().arch(), ".csv")));
}

TEST_F(TunerTest, rows_without_a_journal_are_scored_and_without_rows_nothing_is) {
  TuneOptions o = options();
  o.score_rounds = 3;
  const Outcome nothing = Tuner(right_ops(), cpu_device(), o).tune(problem());
  EXPECT_EQ(nothing.status, TuneStatus::failed);
  EXPECT_EQ(nothing.why, "it has no row to score");
  TunedRow row;
  row.key = problem().problem;
  row.units = cpu_device().units;
  row.rank = 1;
  row.kernel = "probe.right.knob";
  row.config = "us=200";
  row.us = row.baseline_us = 200;
  row.revision = "000000000000";
  row.toolchain = "gcc";
  row.date = today();
  write_tuned(folder_.path(), "probe", cpu_device().arch(), {row});
  const Outcome merged = Tuner(right_ops(), cpu_device(), o).tune(problem());
  EXPECT_EQ(merged.status, TuneStatus::scored) << merged.why;
  EXPECT_EQ(merged.config, "us=200");
}

TEST_F(TunerTest, one_process_serves_many_problems_and_what_is_slow_is_not_judged) {
  TuneOptions o = options();
  o.clear_gain = 0.9;  // three quarters are doubtful then
  Tuner tuner(right_ops(), cpu_device(), o);
  EXPECT_EQ(tuner.tune(problem(5)).workers, 2) << "one races, one confirms";
  const Outcome second = tuner.tune(problem(6));
  EXPECT_EQ(second.status, TuneStatus::tuned);
  EXPECT_EQ(second.workers, 0);
  EXPECT_TRUE(second.confirmed);
  EXPECT_GT(second.phases.confirm, 0);
  // Of the rows that are wrong with many rows alone the tuner sees no more here than that they take five times as long.
  Tuner all(ops(), cpu_device(), o);
  EXPECT_GE(all.tune(problem(9)).slow, 3u);
}

TEST_F(TunerTest, a_gain_beyond_doubt_is_not_confirmed) {
  Tuner tuner(right_ops(), cpu_device(), options());
  const Outcome outcome = tuner.tune(problem());
  EXPECT_EQ(outcome.config, "us=100");
  EXPECT_FALSE(outcome.confirmed && !outcome.noisy);
  EXPECT_EQ(outcome.workers, outcome.confirmed ? 2 : 1);
  EXPECT_NEAR(outcome.gain(), 0.75, 0.2);
}

TEST_F(TunerTest, a_default_that_stays_is_not_confirmed) {
  const TunedOp op{.name = "probe",
                   .plain = plain_text_of<Probe>,
                   .choices =
                       [](std::string_view problem, const Device& device, const Pruning& pruning) {
                         Choices choices = choices_of<Probe>(problem, device, pruning);
                         for (Choice& c : choices.all)
                           if (c.kernel != "probe.right.slow" && c.config != "us=800") c.refused = "not of this test";
                         return choices;
                       },
                   .subject = subject_of<Probe>,
                   .children = children_of<Probe>};
  Tuner tuner(std::span(&op, 1), cpu_device(), options());
  const Outcome outcome = tuner.tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::default_best);
  EXPECT_FALSE(outcome.confirmed);
  EXPECT_EQ(outcome.workers, 1);
  ASSERT_FALSE(rows().empty());
  EXPECT_EQ(rows()[0].kernel, "probe.right.slow");
  EXPECT_NEAR(rows()[0].us, 400, 200);
}

TEST_F(TunerTest, a_budget_that_ends_cuts_the_rounds_of_the_race_and_of_its_confirmation) {
  TuneOptions o = options();
  o.race.rungs = {100000};
  o.race.settled = 1e9;
  o.confirm_rounds = 100000;
  o.budget_s = 1;
  const Outcome outcome = Tuner(right_ops(), cpu_device(), o).tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::tuned);
  EXPECT_EQ(outcome.config, "us=100");
  EXPECT_LT(outcome.seconds, 20);
}

TEST_F(TunerTest, a_budget_that_is_used_up_leaves_the_rest) {
  TuneOptions o = options();
  o.budget_s = 0;
  EXPECT_EQ(Tuner(ops(), cpu_device(), o).tune(problem()).status, TuneStatus::out_of_time);
}

TEST_F(TunerTest, workers_do_not_inherit_our_files) {
#if !__GLIBC_PREREQ(2, 34)
  GTEST_SKIP() << "posix_spawn cannot close files here";
#endif
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // not closed by exec
  Tuner tuner(right_ops(), cpu_device(), options());
  EXPECT_EQ(tuner.tune(problem()).status, TuneStatus::tuned);  // its workers live on
  ::close(ends[1]);
  char byte;
  struct pollfd wait = {.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 1000), 1) << "somebody else holds the other end";
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
}

TEST_F(TunerTest, a_worker_that_cannot_be_started_is_a_reason) {
  TuneOptions o = options();
  o.worker = {"/nowhere/eitri", "tune"};
  const Outcome outcome = Tuner(ops(), cpu_device(), o).tune(problem());
  EXPECT_EQ(outcome.status, TuneStatus::failed);
  EXPECT_THAT(outcome.why, HasSubstr("cannot be started"));
}

TEST_F(TunerTest, unknown_ops_and_problems_are_reasons) {
  Tuner tuner(ops(), cpu_device(), options());
  EXPECT_THAT(tuner.tune({"prob", "m=1"}).why, HasSubstr("op is prob; expected one of probe"));
  EXPECT_EQ(tuner.tune({"probe", "m=x"}).status, TuneStatus::failed);
}

}  // namespace
}  // namespace eitri::tune
