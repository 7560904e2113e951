// One line of `moe bench` and `gemm bench`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "dispatch/trace.h"

namespace eitri::cli {

struct BenchRow {
  std::string op, name, kernel;
  double us = 0;
  std::string vs;  // empty: nothing was compared
  double vs_us = 0;
  double limit_fraction = 0;
  double ratio() const { return us > 0 ? vs_us / us : 0; }  // above 1: ours is faster
};

/// Prints rows as they come (JSON, one object a line) or as one table at the end.
class BenchReport {
 public:
  explicit BenchReport(bool json) : json_(json) {}
  void add(const BenchRow& row);
  /// The table and the geometric mean of the ratios; nothing with JSON.
  void finish() const;

 private:
  bool json_;
  std::vector<BenchRow> rows_;
};

/// The step of the call itself, not of its children: which kernel took it, and what it costs.
Step traced(const std::function<void()>& call);
/// The op's first row of a family: what "library" or "recipe" means on the command line. Error when it has none.
std::string kernel_of_family(std::string_view op, Family family);

}  // namespace eitri::cli
