// The harness, tested: a right result passes, and every known way of being wrong is found, by the demand that is meant to
// find it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/check_row.h"
#include "harness/fake_op.h"

namespace eitri {
namespace {

using harness::check_row;
using testing::HasSubstr;

const Kernel<ScaleAdd>& row_named(std::string_view name) {
  for (const auto& kernel : ScaleAdd::kernels())
    if (name == kernel.name) return kernel;
  throw std::runtime_error(str("no row ", name));
}

const ScaleAdd::Problem kProblem = {.rows = 4, .cols = 33};
const ScaleAdd::Problem kWithNan = {.rows = 3, .cols = 16, .nan_row = true};

class SeededFaults : public testing::Test {
 protected:
  void SetUp() override { reset_scale_add_faults(); }
  static void finds(const char* fault, const char* message, const ScaleAdd::Problem& problem = kProblem) {
    EXPECT_THAT(check_row(row_named(str("scale_add.fault.", fault)), problem), HasSubstr(message)) << fault;
  }
};

TEST_F(SeededFaults, right_rows_pass) {
  for (const auto& kernel : ScaleAdd::kernels()) {
    if (std::string_view(kernel.name).find(".fault.") != std::string_view::npos) continue;
    if (!target_runs_on(kernel.target, cpu_device())) continue;
    for (const auto& [problem, note] : ScaleAdd::cases().test) {
      if (!kernel.supports(problem, cpu_device())) continue;
      EXPECT_EQ(check_row(kernel, problem), "");
    }
  }
}

TEST_F(SeededFaults, nan_where_a_number_is_right) { finds("nan", "is nan; expected"); }
TEST_F(SeededFaults, infinity_where_a_number_is_right) { finds("infinity", "is inf; expected"); }
TEST_F(SeededFaults, number_where_nan_is_right) { finds("nan_swallowed", "expected nan", kWithNan); }
TEST_F(SeededFaults, unwritten_tail) { finds("unwritten_tail", "out[3, 32] is nan"); }
TEST_F(SeededFaults, unwritten_element) { finds("unwritten_element", "out[2, 16] is nan"); }
TEST_F(SeededFaults, one_element_just_over_the_limit) { finds("wrong_element", "out[3, 32] is"); }
TEST_F(SeededFaults, one_sign) { finds("sign", "out[3, 32] is"); }
TEST_F(SeededFaults, rows_off_by_one) { finds("off_by_one_row", "out[0, 0] is"); }
TEST_F(SeededFaults, swapped_rows) { finds("swapped_rows", "out[0, 0] is"); }
TEST_F(SeededFaults, stale_workspace) { finds("stale_workspace", "out[0, 0] is nan"); }
TEST_F(SeededFaults, dirty_accumulator) { finds("dirty_accumulator", "out[0, 0] is nan"); }
TEST_F(SeededFaults, write_before_the_output) { finds("write_before", "out (f32[4, 33]) was overwritten 4 bytes before its start"); }
TEST_F(SeededFaults, write_after_the_output) { finds("write_after", "out (f32[4, 33]) was overwritten 0 bytes after its end"); }
TEST_F(SeededFaults, write_into_a_gap) { finds("write_gap", "was overwritten in the gap between rows, at byte 132"); }
TEST_F(SeededFaults, write_to_an_input) { finds("write_input", "is an input, but was written to"); }
// How often a row is called follows from how long its first call took, and another program may have been in the way of that.
TEST_F(SeededFaults, run_to_run_difference) {
  std::string found;
  for (int attempt = 0; attempt < 20 && found.empty(); ++attempt) {
    reset_scale_add_faults();
    found = check_row(row_named("scale_add.fault.drift"), kProblem);
  }
  EXPECT_THAT(found, HasSubstr("claims to be repeatable, but call 100 differs: out element 0"));
}
TEST_F(SeededFaults, quick_calls_are_repeated_often) {
  EXPECT_EQ(harness::repeats_for(40, Family::simt), 200);
  EXPECT_EQ(harness::repeats_for(800, Family::simt), 10);
  EXPECT_EQ(harness::repeats_for(1e9, Family::simt), 2);
}
TEST_F(SeededFaults, row_depends_on_the_batch) { finds("depends_on_batch", "claims to be batch-invariant, but row 0 alone differs"); }
TEST_F(SeededFaults, nan_from_padding) { finds("reads_pad_to_nan", "out[3, 0] is nan"); }
TEST_F(SeededFaults, padding_read_without_a_trace) { finds("reads_pad_silently", "reads padding"); }
TEST_F(SeededFaults, exact_output_one_ulp_off) { finds("scale_off_by_ulp", "exactly"); }
TEST_F(SeededFaults, exception_of_the_standard_library) { finds("throws", "claims support, but threw: a fault"); }
TEST_F(SeededFaults, exception_of_ours) { finds("throws_error", "claims support, but threw: a fault"); }

TEST_F(SeededFaults, kernel_that_cannot_be_loaded) { finds("not_loadable", "claims support, but threw: "); }

TEST_F(SeededFaults, every_faulty_row_is_in_this_file) {
  for (const auto& kernel : ScaleAdd::kernels()) {
    const std::string_view name = kernel.name;
    if (name.find(".fault.") == std::string_view::npos) continue;
    reset_scale_add_faults();
    EXPECT_NE(check_row(kernel, name.ends_with("nan_swallowed") ? kWithNan : kProblem), "") << name;
  }
}

}  // namespace
}  // namespace eitri
