#include "tune/regret.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/str.h"
#include "dispatch/route.h"
#include "dispatch/tuned_curve.h"
#include "dispatch/tuned_table.h"

namespace eitri::tune {
namespace {

struct Rung {
  int64_t at = 0;
  const JournalRecord* record = nullptr;
};

/// The key without bucketed fields, and the value of the first of them.
std::pair<std::string, int64_t> without_bucketed(const JournalRecord& r) {
  const auto fields = fields_of(r.op);
  const size_t bucketed = bucketed_field(fields);
  std::string rest = str(r.op, "|", r.arch, "|", r.units);
  int64_t at = 0;
  size_t i = 0;
  for (const auto& [name, value] : eitri::detail::split_pairs(r.problem, ',')) {
    if (i == bucketed) std::from_chars(value.data(), value.data() + value.size(), at);
    if (i >= fields.size() || fields[i].match == Match::exact) rest += str("|", name, "=", value);
    ++i;
  }
  return {rest, at};
}

/// The rows that the record's problem has: adopted first, then the others by time, three in all, of different kernels where there are some.
CurvePoint point_of(const Rung& rung) {
  CurvePoint out{.at = rung.at, .rows = {}};
  std::vector<const JournalEntry*> timed;
  for (const JournalEntry& e : rung.record->candidates)
    if (e.wrong.empty() && e.us > 0) timed.push_back(&e);
  const auto adopted = [&](const JournalEntry* e) { return e->kernel == rung.record->kernel && e->config == rung.record->config; };
  std::ranges::stable_sort(
      timed, [&](const JournalEntry* a, const JournalEntry* b) { return adopted(a) != adopted(b) ? adopted(a) : a->us < b->us; });
  const auto add = [&](const JournalEntry* e) {
    TunedRow row;
    row.kernel = e->kernel;
    row.config = e->config;
    row.us = e->us;
    row.spread_us = e->spread_us;
    row.baseline_us = rung.record->race_control_us;
    out.rows.push_back(std::move(row));
  };
  if (timed.empty()) return out;
  add(timed[0]);
  const auto other = std::find_if(timed.begin() + 1, timed.end(), [&](const JournalEntry* e) { return e->kernel != timed[0]->kernel; });
  if (other != timed.end()) add(*other);
  for (auto it = timed.begin() + 1; it != timed.end() && out.rows.size() < 3; ++it)
    if (it != other) add(*it);
  return out;
}

}  // namespace

RegretReport leave_one_out(const std::vector<JournalRecord>& records) {
  std::map<std::string, std::vector<Rung>> ladders;
  for (const JournalRecord& r : records) {
    const auto [rest, at] = without_bucketed(r);
    if (at > 0) ladders[rest].push_back({at, &r});
  }
  RegretReport out;
  for (auto& [rest, rungs] : ladders) {
    std::ranges::sort(rungs, {}, &Rung::at);
    for (size_t i = 1; i + 1 < rungs.size(); ++i) {
      const JournalRecord& hidden = *rungs[i].record;
      std::vector<CurvePoint> ladder;
      for (size_t k = 0; k < rungs.size(); ++k)
        if (k != i) ladder.push_back(point_of(rungs[k]));
      const auto timed = [&](const std::string& kernel, const std::string& config) -> const JournalEntry* {
        for (const JournalEntry& e : hidden.candidates)
          if (e.kernel == kernel && e.config == config && e.wrong.empty() && e.us > 0) return &e;
        return nullptr;
      };
      const JournalEntry* best = nullptr;
      for (const JournalEntry& e : hidden.candidates)
        if (e.wrong.empty() && e.us > 0 && (best == nullptr || e.us < best->us)) best = &e;
      if (best == nullptr || hidden.race_control_us <= 0) continue;
      double us = hidden.race_control_us, spread_us = 0;
      std::string chosen = "the default";
      for (const TunedAdvice& advice : interpolate(ladder, rungs[i].at, curve_rules_of(hidden.op))) {
        const JournalEntry* const found = timed(advice.row.kernel, advice.row.config);
        if (found == nullptr || !is_worth_it(advice)) continue;
        us = found->us;
        spread_us = found->spread_us;
        chosen = str(found->kernel, found->config.empty() ? "" : " ", found->config);
        break;
      }
      out.points.push_back({.op = hidden.op,
                            .problem = hidden.problem,
                            .chosen = chosen,
                            .best = str(best->kernel, best->config.empty() ? "" : " ", best->config),
                            .regret = std::max(0.0, us / best->us - 1),
                            .default_regret = std::max(0.0, hidden.race_control_us / best->us - 1),
                            .beyond_noise = us - best->us > std::hypot(spread_us, best->spread_us)});
    }
  }
  for (const RegretPoint& p : out.points) {
    out.mean += p.regret / static_cast<double>(out.points.size());
    if (p.beyond_noise) out.beyond_noise_mean += p.regret / static_cast<double>(out.points.size());
    out.default_mean += p.default_regret / static_cast<double>(out.points.size());
    out.worst = std::max(out.worst, p.regret);
  }
  return out;
}

}  // namespace eitri::tune
