#include "harness/kernel_tests.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>

#include "harness/caller.h"
#include "harness/check_row.h"
#include "harness/levels.h"
#include "ops/ops.h"

namespace eitri::harness {

namespace {

std::vector<RowCoverage>& mutable_coverage() {
  static std::vector<RowCoverage> rows;
  return rows;
}

/// Levels at which the row takes the problem; `reason` receives the last refusal.
template <Operator Op>
std::vector<Isa> supporting_levels(const Kernel<Op>& kernel, const typename Op::Problem& problem, std::string& reason) {
  std::vector<Isa> found;
  for (const Isa isa : levels()) {
    const LevelScope scope(isa);
    Support support = target_runs_on(kernel.target, cpu_device());
    if (support) support = kernel.supports(problem, cpu_device());
    if (support) found.push_back(isa);
    else reason = support.reason;
  }
  return found;
}

/// Whether the row takes the problem on the GPU, when there is one; `reason` receives a refusal.
template <Operator Op> bool gpu_supports(const Kernel<Op>& kernel, const typename Op::Problem& problem, std::string& reason) {
  const Device* const gpu = test_gpu();
  if (gpu == nullptr) return false;
  Support support = target_runs_on(kernel.target, *gpu);
  if (support) support = kernel.supports(problem, *gpu);
  if (!support) reason = support.reason;
  return support.ok;
}

/// Bytes that a call of the problem writes; 0: no row is ever asked.
template <Operator Op> bool writes_something(const typename Op::Problem& problem) {
  Maker maker;
  const auto args = Op::make(problem, maker);
  for (const Output& output : Op::outputs(args))
    if (span_bytes(output.view) > 0) return true;
  return false;
}

/// The levels that a row is run at: both ends, for a row that is bound to instructions or whose children are; else the best.
template <Operator Op> std::vector<Isa> chosen_levels(const Kernel<Op>& kernel, const std::vector<Isa>& supporting) {
  if (supporting.size() < 2) return supporting;
  const bool depends_on_level = (kernel.target != Target::any_cpu && kernel.target != Target::any) || kernel.children != nullptr;
  if (depends_on_level) return {supporting.front(), supporting.back()};
  return {supporting.back()};
}

/// Why weights in the library's own layout cannot be made on this machine; empty when they can, and where the problem has none.
template <Operator Op> std::string unpackable(const typename Op::Problem& problem) {
  if (key_of(problem).find("format=onednn") == std::string::npos) return {};
  try {
    Maker maker;
    Op::make(problem, maker);
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    return error.what();
  }
  return {};
}

template <Operator Op> class RowTest : public testing::Test {
 public:
  RowTest(const Kernel<Op>& kernel, const typename Op::Problem& problem, std::vector<Isa> isas, const Device* gpu)
      : kernel_(kernel), problem_(problem), isas_(std::move(isas)), gpu_(gpu) {}
  void TestBody() override {
    if (const std::string reason = unpackable<Op>(problem_); !reason.empty()) GTEST_SKIP() << reason;
    for (const Isa isa : isas_) {
      const LevelScope scope(isa);
      const std::string failure = check_row(kernel_, problem_);
      EXPECT_EQ(failure, "") << "at EITRI_ISA=" << to_string(isa);
    }
    if (gpu_ == nullptr) return;
    const std::string failure = check_row(kernel_, problem_, gpu_);
    EXPECT_EQ(failure, "") << "on " << to_string(gpu_->id);
  }

 private:
  const Kernel<Op>& kernel_;
  const typename Op::Problem problem_;
  const std::vector<Isa> isas_;
  const Device* const gpu_;  // null: not there
};

/// A row's refusals: each has a reason, and forcing the row says it. One test a row keeps the report readable.
template <Operator Op> class RefusalTest : public testing::Test {
 public:
  RefusalTest(const Kernel<Op>& kernel, std::map<std::string, typename Op::Problem> by_reason)
      : kernel_(kernel), by_reason_(std::move(by_reason)) {}
  void TestBody() override {
    const LevelScope scope(levels().back());
    const ForceScope force(Op::name, kernel_.name);
    const bool on_gpu = test_gpu() != nullptr && kernel_.target != Target::any && target_runs_on(kernel_.target, *test_gpu());
    const DeviceId where = on_gpu ? test_gpu()->id : DeviceId{};
    std::string list;
    for (const auto& [reason, problem] : by_reason_) {
      EXPECT_GE(reason.size(), 8u) << "no sentence: " << reason;
      list += str("\n  ", reason);
      try {
        route<Op>(problem, where);
        ADD_FAILURE() << "the forced row was routed to at " << key_of(problem) << " although it refuses: " << reason;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::unsupported) << error.what();
        EXPECT_NE(std::string_view(error.what()).find(kernel_.name), std::string_view::npos) << error.what();
      }
    }
    if (!on_gpu && !target_runs_on(kernel_.target, cpu_device())) GTEST_SKIP() << "the row does not run here:" << list;
  }

 private:
  const Kernel<Op>& kernel_;
  const std::map<std::string, typename Op::Problem> by_reason_;
};

/// GoogleTest joins suite and test by a '.': a kernel name is cut at its first one, so that the full name reads
/// `<op>/<kernel>/<what>`.
template <Operator Op, class Make> void add_test(const Kernel<Op>& kernel, const std::string& what, Make make) {
  const std::string name = kernel.name;
  const size_t dot = name.find('.');
  testing::RegisterTest(str(Op::name, "/", name.substr(0, dot)).c_str(), str(name.substr(dot + 1), "/", what).c_str(), nullptr, nullptr,
                        __FILE__, __LINE__, [make]() -> testing::Test* { return make(); });
}

template <Operator Op> void register_op() {
  using Problem = typename Op::Problem;
  const auto kernels = Op::kernels();
  std::map<const Kernel<Op>*, int> tests;
  std::map<const Kernel<Op>*, std::map<std::string, Problem>> refusals;
  std::set<std::string> keys;
  // Case by case, so that all rows of a case share its oracle.
  for (const auto& [problem, note] : Op::cases().test) {
    const std::string key = key_of(problem);
    if (!keys.insert(key).second) continue;
    for (const Kernel<Op>& kernel : kernels) {
      const bool reference = &kernel == &kernels.back();
      std::string reason;
      const bool empty = Op::empty(problem);
      const bool gpu = gpu_supports(kernel, problem, reason) && !(empty && !writes_something<Op>(problem));
      if (empty && !reference && !gpu) continue;  // never routed: on a CPU the reference writes what there is to write
      const std::vector<Isa> supporting = empty && !reference ? std::vector<Isa>{} : supporting_levels(kernel, problem, reason);
      if (supporting.empty() && !gpu) {
        refusals[&kernel].emplace(reason, problem);
        continue;
      }
      ++tests[&kernel];
      add_test<Op>(kernel, key, [&kernel, problem = problem, isas = chosen_levels(kernel, supporting), gpu] {
        return new RowTest<Op>(kernel, problem, isas, gpu ? test_gpu() : nullptr);
      });
    }
  }
  for (const Kernel<Op>& kernel : kernels) {
    const LevelScope scope(levels().back());
    Support target = target_runs_on(kernel.target, cpu_device());
    if (!target && test_gpu() != nullptr) target = target_runs_on(kernel.target, *test_gpu());
    mutable_coverage().push_back({.kernel = kernel.name, .tests = tests[&kernel], .needs = target.reason});
    if (const auto& reasons = refusals[&kernel]; !reasons.empty())
      add_test<Op>(kernel, "refusals", [&kernel, reasons] { return new RefusalTest<Op>(kernel, reasons); });
  }
}

}  // namespace

const Device* test_gpu() {
  static const Device* const gpu = cuda::device_count() > 0 ? &cuda::device(0) : nullptr;
  return gpu;
}

const std::vector<RowCoverage>& coverage() { return mutable_coverage(); }

void register_kernel_tests() {
  for_each_op([]<Operator Op>() { register_op<Op>(); });
}

}  // namespace eitri::harness
