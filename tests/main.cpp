// The one test program. Names of kernel tests are `<op>/<kernel>/<problem key>`, so what failed is run again by pasting it:
//
//   build/bin/eitri_tests --gtest_filter='gemm/gemm.x86_avx512.panel/batch=1,m=17,n=33,...'
//
// A key may hold characters that mean something else in a filter ('-' of a negative number, ':'): a filter that is exactly
// the name of a test is therefore taken literally.
#include <gtest/gtest.h>
#include <omp.h>

#include <unistd.h>
#include <cstdlib>
#include <string>

#include "harness/kernel_tests.h"

namespace {

std::string full_name(const testing::TestSuite& suite, int i) { return std::string(suite.name()) + "." + suite.GetTestInfo(i)->name(); }

/// '?' matches any one character, so it stands for those that the filter's grammar takes.
void take_literally(std::string& filter) {
  const auto& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int i = 0; i < suite.total_test_count(); ++i) {
      if (filter != full_name(suite, i)) continue;
      for (char& c : filter)
        if (c == '-' || c == ':') c = '?';
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Two threads find what one thread hides and fit every machine. Settings of the user's shell would change what is
  // tested; EITRI_ISA stays, to run the whole suite at one level.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(2);
  for (const char* name : {"EITRI_FORCE", "EITRI_TUNED", "EITRI_CHECK", "EITRI_THREADS"}) unsetenv(name);
  testing::InitGoogleTest(&argc, argv);
  eitri::harness::register_kernel_tests();
  std::string filter = GTEST_FLAG_GET(filter);
  take_literally(filter);
  GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
