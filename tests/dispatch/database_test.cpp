// Tuned files and routes: where files are looked for, that changed ones are met between calls, what serves a problem that has
// no row of its own, and what explain says about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/log.h"
#include "dispatch/explain.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tuned_table.h"
#include "harness/fake_op.h"
#include "harness/levels.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kDefault = "scale_add.portable.rows";
constexpr const char* kNarrow = "scale_add.portable.narrow";
constexpr const char* kWorkspace = "scale_add.portable.workspace";
constexpr const char* kFile = "scale_add.portable.csv";

struct Line {
  int64_t rows = 4;
  std::string kernel = kNarrow, config = "";
  double us = 3, baseline = 10;
  int rank = 1, units = cpu_device().units;
  int64_t cols = 33;
  std::string revision = "r1";
};

std::string file_of(const std::vector<Line>& lines) {
  std::string text = tuned_header(tuned_fields<ScaleAdd::Problem>()) + "\n";
  for (const Line& l : lines)
    text += tuned_line({.key = key_of(ScaleAdd::Problem{.rows = l.rows, .cols = l.cols}),
                        .units = l.units,
                        .rank = l.rank,
                        .kernel = l.kernel,
                        .config = l.config,
                        .us = l.us,
                        .baseline_us = l.baseline,
                        .revision = l.revision,
                        .toolchain = "gcc",
                        .date = "2024-05-01"},
                       "portable") +
            "\n";
  return text;
}

class Database : public testing::Test {
 protected:
  Database() : level_(Isa::portable), setting_("EITRI_TUNED", folder_.path()) {
    set_tuned_fields("scale_add", tuned_fields<ScaleAdd::Problem>());
    forget_warnings();
    set_log_sink([](LogLevel, LogTopic, std::string_view text, void* log) { *static_cast<std::string*>(log) += str(text, "\n"); }, &log_);
  }
  ~Database() override { set_log_sink(nullptr); }
  void use(const std::vector<Line>& lines) {
    folder_.write(kFile, file_of(lines));
    reload_tuned();
  }
  static std::string kernel(int64_t rows, int64_t cols = 33) { return route<ScaleAdd>({.rows = rows, .cols = cols}).kernel->name; }
  static Origin origin(int64_t rows) { return route<ScaleAdd>({.rows = rows, .cols = 33}).origin; }
  static Explanation explained(int64_t rows, int64_t cols = 33) { return explain<ScaleAdd>({.rows = rows, .cols = cols}, cpu_device()); }

  const harness::LevelScope level_;
  const FolderScope folder_;
  const SettingScope setting_;
  std::string log_;
};

// --- hot reload

TEST_F(Database, a_changed_file_is_met_between_calls_without_a_reload) {
  use({{.rows = 4, .kernel = kNarrow}});
  EXPECT_EQ(kernel(4), kNarrow);
  const int64_t before = counter("tuned.reload").load();
  folder_.write(kFile, file_of({{.rows = 4, .kernel = kWorkspace}}));
  // The look is due once a second at most: the first 32 calls after reload_tuned() make one.
  for (int i = 0; i < 64; ++i) kernel(4);
  EXPECT_EQ(kernel(4), kWorkspace);
  EXPECT_EQ(counter("tuned.reload").load(), before + 1);
}

TEST_F(Database, a_file_that_appears_is_met_and_one_that_goes_is_forgotten) {
  EXPECT_EQ(kernel(4), kDefault);
  folder_.write(kFile, file_of({{.rows = 4, .kernel = kNarrow}}));
  for (int i = 0; i < 64; ++i) kernel(4);
  EXPECT_EQ(kernel(4), kNarrow);
  std::filesystem::remove(folder_.path() + "/" + kFile);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // the coarse clock's second, and one more
  for (int i = 0; i < 64; ++i) kernel(4);
  EXPECT_EQ(kernel(4), kDefault);
}

TEST_F(Database, unchanged_files_keep_routes) {
  use({{.rows = 4}});
  EXPECT_EQ(kernel(4), kNarrow);
  const uint32_t generation = route_generation();
  const int64_t misses = counter("route.miss").load();
  for (int i = 0; i < 200; ++i) kernel(4);
  EXPECT_EQ(route_generation(), generation);
  EXPECT_EQ(counter("route.miss").load(), misses);
}

TEST_F(Database, a_file_that_breaks_meanwhile_costs_its_rows_and_nothing_else) {
  use({{.rows = 4}});
  EXPECT_EQ(kernel(4), kNarrow);
  folder_.write(kFile, "\x01\x02 half a file");
  for (int i = 0; i < 64; ++i) kernel(4);
  EXPECT_EQ(kernel(4), kDefault);
  EXPECT_THAT(log_, HasSubstr("the header differs"));
}

TEST_F(Database, ConcurrentCallsMeetAChangedFile) {
  use({{.rows = 4}});
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        const std::string name = route<ScaleAdd>({.rows = 4, .cols = 33}).kernel->name;
        EXPECT_TRUE(name == kNarrow || name == kWorkspace) << name;
        poll_tuned(nullptr);
      }
    });
  for (int i = 0; i < 20; ++i) {
    const std::string fresh = folder_.path() + "/fresh";
    folder_.write("fresh", file_of({{.rows = 4, .kernel = i % 2 == 0 ? kWorkspace : kNarrow}}));
    std::filesystem::rename(fresh, folder_.path() + "/" + kFile);
    reload_tuned();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// --- search order

TEST_F(Database, the_projects_folder_is_searched_after_the_users) {
  const FolderScope project;
  std::filesystem::create_directories(project.path() + "/" + kProjectTuned);
  project.write(str(kProjectTuned, "/", kFile), file_of({{.rows = 4, .kernel = kWorkspace}, {.rows = 8, .kernel = kWorkspace}}));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(project.path());
  use({{.rows = 4, .kernel = kNarrow}});
  EXPECT_EQ(kernel(4), kNarrow);
  EXPECT_EQ(kernel(8), kWorkspace);
  std::filesystem::current_path(before);
  reload_tuned();
}

// --- ranks

TEST_F(Database, rank_2_serves_when_rank_1_cannot_be_loaded) {
  use({{.rows = 4, .kernel = "scale_add.fault.not_loadable"}, {.rows = 4, .kernel = kWorkspace, .rank = 2}});
  const int64_t before = counter("route.not_loaded").load();
  EXPECT_EQ(kernel(4), kWorkspace);
  EXPECT_EQ(origin(4), Origin::tuned);
  EXPECT_EQ(counter("route.not_loaded").load(), before + 1);
}

TEST_F(Database, rank_3_serves_when_two_are_unknown_or_unsupported) {
  use({{.rows = 4, .kernel = "scale_add.gone", .cols = 65},
       {.rows = 4, .kernel = kNarrow, .rank = 2, .cols = 65},
       {.rows = 4, .kernel = kWorkspace, .rank = 3, .cols = 65}});
  EXPECT_EQ(kernel(4, 65), kWorkspace);
}

// --- problems without a row of their own

TEST_F(Database, between_tuned_rows_the_curves_decide) {
  use({{.rows = 16, .kernel = kNarrow, .us = 2, .baseline = 5},
       {.rows = 16, .kernel = kWorkspace, .us = 4, .baseline = 5, .rank = 2},
       {.rows = 64, .kernel = kWorkspace, .us = 5, .baseline = 20},
       {.rows = 64, .kernel = kNarrow, .us = 18, .baseline = 20, .rank = 2}});
  EXPECT_EQ(kernel(20), kNarrow);
  EXPECT_EQ(kernel(60), kWorkspace);
  EXPECT_EQ(origin(20), Origin::interpolated);
  EXPECT_THAT(explained(20).why, HasSubstr("tuned rows around: "));
  EXPECT_EQ(explained(20).origin, "interpolated");
  EXPECT_THAT(explained(20).tuned, HasSubstr("no row: rows 20 wanted, file has 16"));
}

TEST_F(Database, the_default_stays_where_the_rows_around_expect_no_gain) {
  use({{.rows = 16, .us = 5.5, .baseline = 5}, {.rows = 64, .us = 21, .baseline = 20}});
  EXPECT_EQ(kernel(16), kNarrow);  // its own row is obeyed
  EXPECT_EQ(kernel(32), kDefault);
  EXPECT_EQ(origin(32), Origin::predicted);
}

TEST_F(Database, far_from_every_row_the_default_stays_unless_much_is_gained) {
  use({{.rows = 4, .us = 9.8}, {.rows = 400, .us = 9.8}});
  EXPECT_EQ(kernel(40), kDefault);
  use({{.rows = 4, .us = 9}, {.rows = 400, .us = 9}});
  EXPECT_EQ(kernel(40), kNarrow);
}

TEST_F(Database, units_that_are_near_serve_and_others_do_not) {
  const int units = cpu_device().units;
  use({{.rows = 4, .units = units * 2}});
  EXPECT_EQ(kernel(4), kDefault);
  EXPECT_THAT(explained(4).tuned, HasSubstr(str("no row: units ", units, " wanted, file has ", units * 2)));
  Device device = cpu_device();
  device.units = 132;
  use({{.rows = 4, .units = 114}});
  const auto advice = tuned_advice("scale_add", device, key_of(ScaleAdd::Problem{.rows = 4, .cols = 33}));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].kind, AdviceKind::near_units);
  EXPECT_THAT(describe(advice[0], ""), HasSubstr("tuned for 114 units"));
  device.units = 256;
  EXPECT_THAT(tuned_advice("scale_add", device, key_of(ScaleAdd::Problem{.rows = 4, .cols = 33})), IsEmpty());
  EXPECT_THAT(why_no_row("scale_add", device, key_of(ScaleAdd::Problem{.rows = 4, .cols = 33})),
              HasSubstr("no row: units 256 wanted, file has 114 ("));
}

// --- explain

TEST_F(Database, explain_names_the_fields_that_differ_from_the_nearest_row) {
  use({{.rows = 4, .cols = 2624}, {.rows = 9, .cols = 7}});
  const Explanation e = explained(4, 2688);
  EXPECT_THAT(e.tuned, HasSubstr("no row: cols 2688 wanted, file has 2624 ("));
  EXPECT_THAT(e.tuned, HasSubstr("scale_add.portable.csv:2, the nearest of 2 rows)"));
  EXPECT_THAT(to_text(e), HasSubstr(e.tuned));
  EXPECT_THAT(to_json(e), HasSubstr("cols 2688 wanted"));
  EXPECT_THAT(explained(4, 2624).tuned, HasSubstr("its own row is passed over ("));  // it takes at most 64 columns
  EXPECT_THAT(explained(9, 7).tuned, IsEmpty());
}

TEST_F(Database, explain_says_that_there_is_no_file) {
  EXPECT_THAT(explained(4).tuned, HasSubstr("no row: there is no file scale_add.portable.csv"));
}

TEST_F(Database, another_revision_of_the_kernel_is_used_and_said) {
  const TunedAdvice advice{.row = {.key = "", .kernel = "k", .config = "", .us = 1, .revision = "aaaa", .toolchain = "", .date = ""}};
  EXPECT_THAT(describe(advice, "bbbb"), HasSubstr("stale: made with revision aaaa, the kernel is now bbbb"));
  EXPECT_THAT(describe(advice, "aaaa"), Not(HasSubstr("stale")));
  EXPECT_THAT(describe(advice, ""), Not(HasSubstr("stale")));  // an op that the build does not know
}

TEST_F(Database, every_op_has_revisions) {
  for (const char* op :
       {"gemm", "grouped_gemm", "quantize", "activation", "rmsnorm", "topk_gating", "moe_sort", "moe_combine", "fused_moe"}) {
    EXPECT_EQ(kernel_revision(op, Target::x86_avx512).size(), 12u) << op;
    EXPECT_EQ(kernel_revision(op, Target::sm_90a).size(), 12u) << op;
  }
  EXPECT_NE(kernel_revision("gemm", Target::x86_avx512), kernel_revision("gemm", Target::any_gpu));
  EXPECT_EQ(kernel_revision("gemm", Target::x86_avx2), kernel_revision("gemm", Target::x86_avx512));
  EXPECT_THAT(kernel_revision("scale_add", Target::any_cpu), IsEmpty());
}

TEST_F(Database, counters_tell_how_routes_were_made) {
  use({{.rows = 4}, {.rows = 8}});
  const auto value = [](const char* name) { return counter(name).load(); };
  const int64_t tuned = value("route.tuned"), between = value("route.interpolated"), predicted = value("route.predicted");
  kernel(4);
  kernel(4);
  kernel(6);
  kernel(4096);
  EXPECT_EQ(value("route.tuned"), tuned + 1);
  EXPECT_EQ(value("route.interpolated"), between + 1);
  EXPECT_EQ(value("route.predicted"), predicted + 1);
}

}  // namespace
}  // namespace eitri
