// What `eitri tune` tells: a line of progress while it runs, a table of before and after at the end.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tune/tuner.h"

namespace eitri::cli {

class TuneReport {
 public:
  explicit TuneReport(size_t problems) : total_(problems) {}
  ~TuneReport();
  TuneReport(const TuneReport&) = delete;
  TuneReport& operator=(const TuneReport&) = delete;

  void begin(const tune::TuneProblem& problem);
  /// What is being done to the problem; one line on a terminal, with the time that is left.
  void progress(const std::string& what);
  void end(tune::Outcome outcome);
  void print(bool json, const std::string& folder) const;
  /// A problem could not be tuned, or a default gives wrong results.
  bool failed() const;

 private:
  void wipe();
  const size_t total_;
  size_t width_ = 0;
  std::string current_;
  std::vector<tune::Outcome> outcomes_;
  double worked_s_ = 0;  // on problems that were tuned
  size_t worked_ = 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace eitri::cli
