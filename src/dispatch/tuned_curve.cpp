#include "dispatch/tuned_curve.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace eitri {
namespace {

constexpr double kFactor = 2;  // how far a time carries

/// Rows in whole tiles, where the config says how many a tile has.
double tiled(int64_t rows, const std::string& config) {
  constexpr std::string_view kKnob = "tile_m=";
  int64_t tile = 1;
  for (size_t at = 0; at < config.size(); at = std::min(config.find(';', at), config.size() - 1) + 1)
    if (config.compare(at, kKnob.size(), kKnob) == 0)
      std::from_chars(config.data() + at + kKnob.size(), config.data() + config.size(), tile);
  if (tile < 1) tile = 1;
  const auto t = static_cast<double>(tile);
  return std::ceil(static_cast<double>(rows) / t) * t;
}

struct Sample {
  int64_t at = 0;
  double us = 0;
};

/// The time at `at` on the line through two samples, log over log.
double between(const Sample& low, const Sample& high, int64_t at, const std::string& config) {
  const double x0 = std::log(tiled(low.at, config)), x1 = std::log(tiled(high.at, config)), x = std::log(tiled(at, config));
  if (x1 <= x0) return low.us;  // within one tile
  const double part = std::clamp((x - x0) / (x1 - x0), 0.0, 1.0);
  return std::exp(std::log(low.us) * (1 - part) + std::log(high.us) * part);
}

/// Samples of one curve around `at`; null where there is none.
struct Around {
  const Sample *low = nullptr, *high = nullptr;
};
Around around(const std::vector<Sample>& curve, int64_t at) {
  Around out;
  for (const Sample& s : curve) {
    if (s.at <= at) out.low = &s;
    if (s.at >= at && out.high == nullptr) out.high = &s;
  }
  return out;
}

/// The value of a curve at `at`; the nearest sample's beyond its ends. 0 without samples.
double value(const std::vector<Sample>& curve, int64_t at) {
  const auto [low, high] = around(curve, at);
  if (low != nullptr && high != nullptr) return between(*low, *high, at, {});
  const Sample* one = low != nullptr ? low : high;
  return one == nullptr ? 0 : one->us;
}

bool near(int64_t a, int64_t b) {
  const auto x = static_cast<double>(a), y = static_cast<double>(b);
  return x <= kFactor * y && y <= kFactor * x;
}

}  // namespace

std::vector<TunedAdvice> interpolate(const std::vector<CurvePoint>& ladder, int64_t at, const CurveRules& rules) {
  if (at <= 0) return {};
  const CurvePoint *below = nullptr, *above = nullptr;
  std::vector<Sample> baseline, best;
  for (const CurvePoint& point : ladder) {
    if (point.rows.empty() || point.at <= 0) continue;
    if (point.at < at) below = &point;
    if (point.at > at && above == nullptr) above = &point;
    best.push_back({point.at, point.rows.front().us});
    for (const TunedRow& row : point.rows) {
      if (row.baseline_us <= 0) continue;
      baseline.push_back({point.at, row.baseline_us});
      break;
    }
  }
  if (below == nullptr && above == nullptr) return {};
  if (below == nullptr && !near(above->at, at)) return {};
  if (above == nullptr && !near(below->at, at)) return {};

  const auto config_of = [&](const TunedRow& row) {
    const auto known = rules.elsewhere.find(row.kernel);
    return known == rules.elsewhere.end() ? row.config : known->second;
  };
  std::vector<TunedAdvice> out;
  const auto offer = [&](const CurvePoint* point) {
    if (point == nullptr) return;
    for (const TunedRow& row : point->rows) {
      const std::string config = config_of(row);
      const auto same = [&](const TunedRow& other) { return other.kernel == row.kernel && config_of(other) == config; };
      if (std::ranges::any_of(out, [&](const TunedAdvice& known) { return same(known.row); })) continue;
      std::vector<Sample> own;
      for (const CurvePoint* p : {below, above})
        if (p != nullptr)
          if (const auto found = std::ranges::find_if(p->rows, same); found != p->rows.end())
            // The tuner put rank 1 first although another time was less: the noise was more than the difference.
            own.push_back({p->at, std::max(found->us, p->rows.front().us)});
      TunedAdvice advice{.row = row, .kind = AdviceKind::interpolated};
      advice.row.config = config;
      advice.baseline_us = value(baseline, at);
      if (own.size() == 2) {
        advice.us = between(own[0], own[1], at, rules.whole_tiles ? config : std::string());
        advice.margin = near(own[0].at, at) || near(own[1].at, at) ? kBothMargin : kFarMargin;
      } else {
        const std::vector<Sample>& shape = baseline.empty() ? best : baseline;
        advice.us = own[0].us * value(shape, at) / value(shape, own[0].at);
        advice.margin = kOneMargin;
      }
      out.push_back(std::move(advice));
    }
  };
  offer(above);  // first, so that a stable sort prefers what won there
  offer(below);
  std::ranges::stable_sort(out, {}, &TunedAdvice::us);
  // What cannot be told apart: the upper neighbour's winner.
  if (above != nullptr && !out.empty()) {
    const auto won = std::ranges::find_if(
        out, [&](const TunedAdvice& a) { return a.row.kernel == above->rows[0].kernel && a.row.config == config_of(above->rows[0]); });
    const auto spread = [](const TunedAdvice& a) { return a.row.us > 0 ? a.row.spread_us / a.row.us : 0; };
    if (won != out.end() && won->us - out.front().us <= out.front().us * spread(out.front()) + won->us * spread(*won))
      std::rotate(out.begin(), won, won + 1);
  }
  return out;
}

}  // namespace eitri
