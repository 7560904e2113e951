// Writing and merging of tuned files: nothing is lost, whoever else writes, and the result does not depend on the order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "dispatch/scoped_settings.h"
#include "dispatch/tuned_table.h"
#include "tune/sabotage_op.h"
#include "tune/tuned_writer.h"

namespace eitri::tune {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class TunedWriter : public testing::Test {
 protected:
  TunedWriter() { set_tuned_fields("probe", tuned_fields<Probe::Problem>()); }
  static TunedRow row(int64_t m, double us, int rank = 1, const char* kernel = "probe.a", const char* date = "2024-05-01",
                      double spread = 0.1) {
    return {.key = key_of(Probe::Problem{.m = m, .k = 33}),
            .units = 2,
            .rank = rank,
            .kernel = kernel,
            .config = "",
            .us = us,
            .spread_us = spread,
            .baseline_us = 10,
            .error = 0,
            .revision = "r",
            .toolchain = "gcc",
            .date = date};
  }
  std::string file(const std::string& folder) const { return tuned_file(folder, "probe", "x86_avx2"); }
  std::string text(const std::string& folder) const { return read_file(file(folder), 1 << 20); }
  TunedFile read() const { return parse_tuned(text(folder_.path()), "f", "x86_avx2", tuned_fields<Probe::Problem>()); }
  void write(const std::vector<TunedRow>& rows) const { write_tuned(folder_.path(), "probe", "x86_avx2", rows); }
  const FolderScope folder_;
};

TEST_F(TunedWriter, rows_are_replaced_by_problem_and_others_stay) {
  write({row(4, 1), row(4, 2, 2), row(16, 5)});
  write({row(4, 9), row(1, 3)});
  const TunedFile file = read();
  EXPECT_THAT(file.problems, IsEmpty());
  ASSERT_THAT(file.rows, SizeIs(3));
  EXPECT_EQ(file.rows[0].key, "m=1,k=33");
  EXPECT_EQ(file.rows[1].key, "m=4,k=33");
  EXPECT_EQ(file.rows[1].us, 9);
  EXPECT_EQ(file.rows[2].key, "m=16,k=33");  // by number, not by text
}

TEST_F(TunedWriter, lines_that_cannot_be_read_are_kept) {
  write({row(4, 1)});
  std::string broken = text(folder_.path()) + "x86_avx2,2,8,33,1,probe.a,,oops,,,,,,\nhalf a li";
  folder_.write("probe.x86_avx2.csv", broken);
  write({row(5, 1)});
  EXPECT_THAT(text(folder_.path()), HasSubstr("oops"));
  EXPECT_THAT(text(folder_.path()), HasSubstr("half a li"));
  EXPECT_THAT(read().rows, SizeIs(2));
  EXPECT_THAT(read().problems, SizeIs(2));
}

TEST_F(TunedWriter, a_file_with_other_columns_is_not_overwritten) {
  folder_.write("probe.x86_avx2.csv", "arch,units,k,m\nx86_avx2,2,1,1\n");
  EXPECT_THROW(write({row(4, 1)}), Error);
  EXPECT_EQ(text(folder_.path()), "arch,units,k,m\nx86_avx2,2,1,1\n");
}

TEST_F(TunedWriter, four_processes_at_once_lose_nothing) {
  for (int64_t process = 0; process < 4; ++process) {
    if (::fork() == 0) {
      for (int64_t i = 0; i < 25; ++i) write({row(1 + process * 100 + i, 1)});
      ::_exit(0);
    }
  }
  int status = 0;
  while (::wait(&status) > 0) EXPECT_EQ(status, 0);
  EXPECT_THAT(read().rows, SizeIs(100));
  EXPECT_THAT(read().problems, IsEmpty());
}

TEST_F(TunedWriter, comments_are_kept) {
  write({row(1, 5)});
  folder_.write("probe.x86_avx2.csv", "# why these rows\n" + text(folder_.path()) + "# the last line\n");
  write({row(2, 5)});
  EXPECT_THAT(text(folder_.path()), testing::StartsWith("# why these rows\n# the last line\n"));
  EXPECT_THAT(read().rows, SizeIs(2));
}

TEST_F(TunedWriter, merging_does_not_depend_on_the_order) {
  const std::vector<std::vector<TunedRow>> parts = {
      {row(1, 5, 1, "probe.a"), row(1, 6, 2, "probe.b"), row(2, 5, 1, "probe.a", "2024-05-01", 1)},
      {row(1, 4, 1, "probe.c"), row(2, 5.5, 1, "probe.b", "2024-06-01", 1), row(3, 1)},
      {row(2, 4.8, 1, "probe.c", "2024-05-01", 1), row(1, 9, 1, "probe.z", "2025-01-01")}};
  std::vector<std::string> files;
  for (size_t i = 0; i < parts.size(); ++i) {
    write_tuned(str(folder_.path(), "/", i), "probe", "x86_avx2", parts[i]);
    files.push_back(file(str(folder_.path(), "/", i)));
  }
  std::string first;
  std::ranges::sort(files);
  do {
    const Merged merged = merge_tuned(files, "probe", "x86_avx2");
    std::string lines;
    for (const TunedRow& r : merged.rows) lines += tuned_line(r, "x86_avx2") + "\n";
    if (first.empty()) first = lines;
    EXPECT_EQ(lines, first);
    EXPECT_EQ(merged.problems_merged, 2u);
    ASSERT_THAT(merged.rows, SizeIs(3));
    EXPECT_EQ(merged.rows[0].kernel, "probe.c") << "surely the fastest";
    EXPECT_EQ(merged.rows[1].kernel, "probe.b") << "intervals overlap: the latest";
    EXPECT_EQ(merged.rows[1].date, "2024-06-01") << "provenance stays";
  } while (std::ranges::next_permutation(files).found);
}

TEST_F(TunedWriter, merging_prefers_rows_of_the_kernels_of_now) {
  std::vector<std::string> files;
  for (const auto& [folder, us, kernel] :
       {std::tuple("old", 1.0, "probe.a"), std::tuple("new", 5.0, "probe.b"), std::tuple("newer", 4.0, "probe.c")}) {
    write_tuned(str(folder_.path(), "/", folder), "probe", "x86_avx2", {row(1, us, 1, kernel)});
    files.push_back(file(str(folder_.path(), "/", folder)));
  }
  const auto is_a = [](const TunedRow& r) { return r.kernel == "probe.a"; };
  EXPECT_EQ(merge_tuned(files, "probe", "x86_avx2", is_a).rows[0].kernel, "probe.c");
  EXPECT_EQ(merge_tuned(files, "probe", "x86_avx2").rows[0].kernel, "probe.a");
  EXPECT_EQ(merge_tuned({files[0]}, "probe", "x86_avx2", is_a).rows[0].kernel, "probe.a") << "an old row is better than none";
}

}  // namespace
}  // namespace eitri::tune
