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

/// Rows of an operator's table raced over one problem: is the one that the cost models expect to be fastest the fastest?
struct RowRace {
  struct Runner {
    std::string kernel;
    double us = 0, expected_us = 0;
  };
  std::string op, name;
  std::vector<Runner> runners;
  const Runner& best() const;
  /// Of the least expected time.
  const Runner& guessed() const;
  /// Time of the guessed row over that of the best, less 1.
  double regret() const { return guessed().us / best().us - 1; }
};

/// Prints rows as they come (JSON, one object a line) or as one table at the end.
class BenchReport {
 public:
  explicit BenchReport(bool json) : json_(json) {}
  void add(const BenchRow& row);
  void add(const RowRace& race);
  /// The table and the geometric mean of the ratios, or of the guesses over the best; nothing with JSON.
  void finish() const;

 private:
  bool json_;
  void finish_races() const;
  std::vector<BenchRow> rows_;
  std::vector<RowRace> races_;
};

/// The step of the call itself, not of its children: which kernel took it, and what it costs.
Step traced(const std::function<void()>& call);
/// The op's first row of a family: what "library" or "recipe" means on the command line. Error when it has none.
std::string kernel_of_family(std::string_view op, Family family);

}  // namespace eitri::cli
