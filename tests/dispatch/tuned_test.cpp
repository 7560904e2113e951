// Tuned rows: advice from files that nobody vouches for. Whatever they hold, a call is served, and what was passed over is
// said. P09 and P10 are public reports about other libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "dispatch/explain.h"
#include "dispatch/scoped_settings.h"
#include "harness/fake_op.h"
#include "harness/levels.h"
#include "ops/ops.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const std::vector<TunedField> kFields = tuned_fields<ScaleAdd::Problem>();
const std::string kHeader = "arch,units,rows,cols,nan_row,rank,kernel,config,us,spread_us,baseline_us,error,revision,toolchain,date\n";

/// One line for rows=4,cols=33 unless told otherwise.
struct Line {
  std::string arch = "portable";
  int units = cpu_device().units;
  std::string problem = "4,33,0";
  int rank = 1;
  std::string kernel = "scale_add.portable.narrow", config = "", us = "3.5";
  std::string text() const {
    return str(arch, ",", units, ",", problem, ",", rank, ",", kernel, ",", config, ",", us, ",0.1,9,0,r1,gcc 12,2024-05-01\n");
  }
};

TunedFile parse(const std::string& text) { return parse_tuned(text, "rows.csv", "portable", kFields); }

TEST(TunedFile, plain) {
  const TunedFile file = parse(kHeader + Line{}.text());
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.rows, SizeIs(1));
  const TunedRow& row = file.rows[0];
  EXPECT_EQ(row.key, "rows=4,cols=33,nan_row=0");
  EXPECT_EQ(row.units, cpu_device().units);
  EXPECT_EQ(row.rank, 1);
  EXPECT_EQ(row.kernel, "scale_add.portable.narrow");
  EXPECT_EQ(row.us, 3.5);
  EXPECT_EQ(row.revision, "r1");
  EXPECT_EQ(row.origin, "rows.csv:2");
}

TEST(TunedFile, byte_order_mark_and_windows_line_ends) {
  std::string text = "\xef\xbb\xbf" + kHeader + Line{}.text();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.insert(at, "\r");
  const TunedFile file = parse(text);
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.rows, SizeIs(1));
  EXPECT_EQ(file.rows[0].key, "rows=4,cols=33,nan_row=0");
}

TEST(TunedFile, empty_and_header_only) {
  EXPECT_THAT(parse("").rows, IsEmpty());
  EXPECT_THAT(parse(kHeader).rows, IsEmpty());
  EXPECT_THAT(parse(kHeader).problems, IsEmpty());
}

TEST(TunedFile, truncation_at_every_byte_costs_at_most_the_last_line) {
  const std::string whole = kHeader + Line{}.text() + Line{.rank = 2, .kernel = "scale_add.reference"}.text();
  const size_t second = kHeader.size() + Line{}.text().size();
  for (size_t n = 0; n < whole.size(); ++n) {
    const TunedFile file = parse(whole.substr(0, n));
    EXPECT_LE(file.rows.size(), n < second - 1 ? 1u : 2u) << n;
    for (const TunedRow& row : file.rows) EXPECT_EQ(row.key, "rows=4,cols=33,nan_row=0") << n;
    if (n >= second) {
      EXPECT_GE(file.rows.size(), 1u) << n;
    }
  }
}

TEST(TunedFile, bad_lines_are_skipped_with_line_and_reason) {
  const TunedFile file =
      parse(kHeader + Line{.us = "fast"}.text() + Line{.us = "nan"}.text() + Line{.us = "-1"}.text() + Line{.us = "inf"}.text() +
            Line{.rank = 0}.text() + "portable,4\n" + Line{.us = "1,2"}.text() + Line{}.text());
  ASSERT_THAT(file.rows, SizeIs(1));
  EXPECT_EQ(file.rows[0].origin, "rows.csv:9");
  ASSERT_THAT(file.problems, SizeIs(7));
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(file.problems[i].origin, str("rows.csv:", i + 2));
  EXPECT_THAT(file.problems[5].text, HasSubstr("2 cells; expected 15"));
}

TEST(TunedFile, duplicates_the_first_counts) {
  const TunedFile file = parse(kHeader + Line{.us = "1"}.text() + Line{.us = "2"}.text());
  ASSERT_THAT(file.rows, SizeIs(1));
  EXPECT_EQ(file.rows[0].us, 1);
  ASSERT_THAT(file.problems, SizeIs(1));
  EXPECT_THAT(file.problems[0].text, HasSubstr("came before"));
}

TEST(TunedFile, other_columns_are_refused_as_a_whole) {
  std::string header = kHeader;
  header.replace(header.find("rows,cols"), 9, "cols,rows");  // values would be taken for one another
  const TunedFile file = parse(header + Line{}.text());
  EXPECT_THAT(file.rows, IsEmpty());
  ASSERT_THAT(file.problems, SizeIs(1));
  EXPECT_THAT(file.problems[0].text, HasSubstr("arch,units,rows,cols,nan_row,rank,kernel"));
}

TEST(TunedFile, other_arch_has_a_reason) {
  const TunedFile file = parse(kHeader + Line{.arch = "x86_amx"}.text());
  EXPECT_THAT(file.rows, IsEmpty());
  ASSERT_THAT(file.problems, SizeIs(1));
  EXPECT_THAT(file.problems[0].text, HasSubstr("arch is x86_amx; this machine is portable"));
}

TEST(TunedFile, binary_rubbish) {
  std::string rubbish = kHeader;
  for (int i = 0; i < 5000; ++i) rubbish += static_cast<char>(i * 7919 >> 3);
  EXPECT_THAT(parse(rubbish).rows, IsEmpty());
  EXPECT_THAT(parse(std::string(100, '\0')).rows, IsEmpty());
  EXPECT_THAT(parse(kHeader + std::string(1 << 20, ',')).rows, IsEmpty());
}

/// Files in a folder that EITRI_TUNED names, for the portable level.
class TunedRoute : public testing::Test {
 protected:
  TunedRoute() : level_(Isa::portable), setting_("EITRI_TUNED", folder_.path()) {
    set_tuned_fields("scale_add", kFields);
    forget_warnings();
    set_log_sink([](LogLevel, LogTopic, std::string_view text, void* log) { *static_cast<std::string*>(log) += str(text, "\n"); }, &log_);
  }
  ~TunedRoute() override { set_log_sink(nullptr); }
  void use(const std::string& text, const std::string& name = "scale_add.portable.csv") {
    folder_.write(name, text);
    reload_tuned();
  }
  static const Route<ScaleAdd>& routed(const ScaleAdd::Problem& problem = kProblem) { return route<ScaleAdd>(problem); }
  static std::string kernel() { return routed().kernel->name; }
  static constexpr ScaleAdd::Problem kProblem = {.rows = 4, .cols = 33};
  static constexpr const char* kDefault = "scale_add.portable.rows";

  const harness::LevelScope level_;
  const FolderScope folder_;
  const SettingScope setting_;
  std::string log_;
};

TEST_F(TunedRoute, row_is_chosen) {
  EXPECT_EQ(kernel(), kDefault);
  use(kHeader + Line{}.text());
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
  EXPECT_EQ(routed().origin, Origin::tuned);
  const Explanation e = explain<ScaleAdd>(kProblem, cpu_device());
  EXPECT_EQ(e.chosen, "scale_add.portable.narrow");
  EXPECT_THAT(e.why, HasSubstr("tuned: 3.5 us, rank 1, "));
  EXPECT_THAT(e.why, HasSubstr("scale_add.portable.csv:2"));
}

TEST_F(TunedRoute, config_reaches_the_route) {
  use(kHeader + Line{.kernel = kDefault, .config = "unroll=4"}.text());
  EXPECT_EQ(routed().config[0], 4);
  EXPECT_EQ(routed().origin, Origin::tuned);
}

TEST_F(TunedRoute, forced_beats_tuned) {
  use(kHeader + Line{}.text());
  const ForceScope force("scale_add", "scale_add.reference");
  EXPECT_EQ(kernel(), "scale_add.reference");
}

TEST_F(TunedRoute, ranks_not_lines_decide) {
  use(kHeader + Line{.rank = 2, .kernel = "scale_add.portable.workspace"}.text() + Line{.rank = 1}.text());
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
}

TEST_F(TunedRoute, P09_unknown_kernel_is_counted_and_logged_once_and_the_next_rank_serves) {
  const int64_t before = counter("tuned.skipped").load();
  use(kHeader + Line{.rank = 1, .kernel = "scale_add.asm.gone"}.text() + Line{.rank = 2}.text());
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
  EXPECT_EQ(counter("tuned.skipped").load(), before + 1);
  EXPECT_THAT(log_, HasSubstr("scale_add.portable.csv:2: scale_add.asm.gone: unknown kernel"));
  const std::string once = log_;
  bump_route_generation();
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
  EXPECT_EQ(log_, once) << "the same line was logged again";
}

TEST_F(TunedRoute, P09_unknown_kernel_alone_leaves_the_default) {
  use(kHeader + Line{.kernel = "scale_add.asm.gone"}.text());
  EXPECT_EQ(kernel(), kDefault);
  EXPECT_EQ(routed().origin, Origin::predicted);
}

TEST_F(TunedRoute, row_that_does_not_support_the_problem_is_skipped) {
  use(kHeader + Line{.problem = "4,65,0"}.text());
  EXPECT_EQ(std::string(routed({.rows = 4, .cols = 65}).kernel->name), kDefault);
  EXPECT_THAT(log_, HasSubstr("cols is 65; this kernel takes at most 64"));
}

TEST_F(TunedRoute, row_for_a_target_that_is_not_here_is_skipped) {
  use(kHeader + Line{.kernel = "scale_add.any_gpu.rows"}.text());
  EXPECT_EQ(kernel(), kDefault);
  EXPECT_THAT(log_, HasSubstr("needs any_gpu"));
}

TEST_F(TunedRoute, bad_configs_are_skipped) {
  const int good = 2;
  for (const char* config : {"", "unroll=", "unroll=x", "unroll", "stages=2", "unroll=2;stages=2"}) {
    use(kHeader + Line{.kernel = kDefault, .config = config}.text());
    EXPECT_EQ(routed().origin, Origin::predicted) << config;
    EXPECT_EQ(routed().config[0], good) << config;
  }
  // A value that the kernel does not offer is no better than a name that it does not know: 0 might divide.
  for (const char* config : {"unroll=3", "unroll=0", "unroll=-1", "unroll=1000000000"}) {
    use(kHeader + Line{.kernel = kDefault, .config = config}.text());
    EXPECT_EQ(routed().origin, Origin::predicted) << config;
    EXPECT_EQ(routed().config[0], good) << config;
  }
}

TEST_F(TunedRoute, P09_two_unit_counts_in_one_file) {
  const int units = cpu_device().units;
  use(kHeader + Line{.units = units + 1, .kernel = "scale_add.reference"}.text() + Line{}.text());
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
  const auto problems = tuned_problems("scale_add", cpu_device());
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].text, HasSubstr(str("units is ", units + 1, "; this machine has ", units)));
  EXPECT_THAT(log_, Not(HasSubstr("units is")));  // a file for several machines
}

TEST_F(TunedRoute, a_file_without_a_row_for_this_machine_is_said) {
  use(kHeader + Line{.units = cpu_device().units + 1}.text());
  kernel();
  EXPECT_THAT(log_, HasSubstr("units is "));
}

TEST(ShippedRows, of_other_machines_are_no_warning) {
  all_ops();  // makes their fields known
  Device device = cpu_device();
  device.isa = Isa::x86_amx;
  device.units = 3;  // no such rows are shipped
  for (const std::string_view op : {"gemm", "fused_moe"}) {
    const auto problems = tuned_problems(op, device);
    EXPECT_FALSE(problems.empty()) << op;
    for (const TunedProblem& problem : problems) EXPECT_TRUE(problem.is_note) << problem.origin << ": " << problem.text;
  }
}

TEST_F(TunedRoute, P10_row_for_few_rows_does_not_serve_many) {
  use(kHeader + Line{.problem = "8,33,0"}.text());
  EXPECT_EQ(std::string(routed({.rows = 8, .cols = 33}).kernel->name), "scale_add.portable.narrow");
  EXPECT_EQ(std::string(routed({.rows = 2048, .cols = 33}).kernel->name), kDefault);
}

TEST_F(TunedRoute, files_of_other_levels_and_ops_are_not_read) {
  use(kHeader + Line{.arch = "x86_avx2"}.text(), "scale_add.x86_avx2.csv");
  use(kHeader + Line{}.text(), "scale_sub.portable.csv");
  EXPECT_EQ(kernel(), kDefault);
  EXPECT_THAT(tuned_problems("scale_add", cpu_device()), IsEmpty());
}

TEST_F(TunedRoute, problems_are_reported_not_thrown) {
  use("\x01\x02\x03");
  EXPECT_EQ(kernel(), kDefault);
  EXPECT_THAT(tuned_problems("scale_add", cpu_device()), SizeIs(1));
}

TEST_F(TunedRoute, earlier_path_has_priority) {
  const FolderScope second;
  second.write("scale_add.portable.csv", kHeader + Line{.kernel = "scale_add.portable.workspace"}.text());
  use(kHeader + Line{.rank = 3}.text());
  const SettingScope setting("EITRI_TUNED", str(folder_.path(), ":", second.path()));
  EXPECT_EQ(kernel(), "scale_add.portable.narrow");
}

}  // namespace
}  // namespace eitri
