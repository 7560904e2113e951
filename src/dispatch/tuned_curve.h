// What tuned rows say about a number of rows (m, tokens) that nobody tuned. Each candidate's own times are interpolated; nothing
// snaps to the nearest row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/database.h"

namespace eitri {

/// One tuned number of rows, with its ranks, best first.
struct CurvePoint {
  int64_t at = 0;
  std::vector<TunedRow> rows;
};

/// Candidates for `at`, the least expected time first; empty when the ladder says nothing about it. `ladder` ascends.
///
/// Candidates are the rows of the next tuned numbers below and above. A candidate that was timed on both sides is interpolated:
/// log time over log rows, where rows count in whole tiles if the config names tile_m. One that was timed on one side alone
/// keeps its distance to the default, whose own curve is baseline_us. One that was never timed within a factor of two of `at`
/// must be expected to save kFarMargin of the default's time. Within the rows' spread, the winner of the upper neighbour wins.
/// No rank counts for less than rank 1 of its number: where its time is less, the tuner could not tell them apart.
/// Beyond the ends of the ladder the last winner counts up to a factor of two; farther out there is no advice.
std::vector<TunedAdvice> interpolate(const std::vector<CurvePoint>& ladder, int64_t at);

inline constexpr double kFarMargin = 0.05;

}  // namespace eitri
