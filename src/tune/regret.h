// How good the rule for unseen numbers of rows is: each tuned problem is asked for as if its own row were not there.
#pragma once

#include <string>
#include <vector>

#include "tune/journal.h"

namespace eitri::tune {

struct RegretPoint {
  std::string op, problem, chosen, best;
  double regret = 0;          // time of what the rule chose over the least time of any candidate, less 1
  double default_regret = 0;  // of the default
  bool beyond_noise = false;  // the regret is more than what both times are known to
};
struct RegretReport {
  std::vector<RegretPoint> points;
  double mean = 0, worst = 0, default_mean = 0;
  double beyond_noise_mean = 0;  // the others count as 0: the least of many noisy times looks better than it is
};
/// Of records with tuned neighbours below and above in the op's bucketed field (m, tokens) and all else equal. What the rule chooses is
/// looked up among all times of the record's own race; a choice that was not timed there counts as the default.
RegretReport leave_one_out(const std::vector<JournalRecord>& records);

}  // namespace eitri::tune
