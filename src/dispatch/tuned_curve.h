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
/// Candidates are the rows of the next tuned numbers below and above; rows of a kernel whose configs mean something else at another problem
/// (CurveRules::elsewhere) are one candidate, with the config that it has there. A candidate that both neighbours have is interpolated: log time
/// over log rows. One that one of them has keeps its distance to the default, whose own curve is baseline_us. No rank counts for less than rank 1
/// of its number: where its time is less, the tuner could not tell them apart. Within the rows' spread, the winner of the upper neighbour wins.
///
/// What replaces the default must be expected to save a part of its time (TunedAdvice::margin): kBothMargin, kFarMargin if no neighbour is within
/// a factor of two, kOneMargin if one neighbour alone has it. Beyond the ends of the ladder the last winner counts up to a factor of two; farther
/// out there is no advice.
std::vector<TunedAdvice> interpolate(const std::vector<CurvePoint>& ladder, int64_t at, const CurveRules& rules = {});

/// Found by leaving out one number of rows at a time, of 970 problems of gemm and fused_moe on an H200 and on eight cores with AMX.
inline constexpr double kBothMargin = 0.02, kFarMargin = 0.05, kOneMargin = 0.1;

}  // namespace eitri
