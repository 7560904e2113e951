// Process-wide state of routing: forced kernels, counters, EITRI_CHECK.
#include "dispatch/route.h"

#include <map>

#include "base/log.h"
#include "base/settings.h"
#include "dispatch/tuned_curve.h"

namespace eitri {
namespace {

// What ForceScope and EITRI_FORCE say, op -> kernel. Read on route misses only.
struct Forced {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> kernel;
};
Forced& forced() {
  static Forced state;
  return state;
}

}  // namespace

std::span<const char* const> enum_names(Origin) {
  static constexpr const char* kNames[] = {"forced", "tuned", "interpolated", "predicted"};
  return kNames;
}

std::string forced_kernel(std::string_view op) {
  {
    Forced& state = forced();
    std::lock_guard lock(state.mutex);
    const auto it = state.kernel.find(op);
    if (it != state.kernel.end() && !it->second.empty()) return it->second;
  }
  return std::string(settings().forced_kernel(op));
}

ForceScope::ForceScope(std::string op, std::string kernel) : op_(std::move(op)) {
  Forced& state = forced();
  std::lock_guard lock(state.mutex);
  std::string& slot = state.kernel[op_];
  before_ = slot;
  slot = std::move(kernel);
  bump_route_generation();
}

ForceScope::~ForceScope() {
  Forced& state = forced();
  std::lock_guard lock(state.mutex);
  state.kernel[op_] = before_;
  bump_route_generation();
}

bool is_worth_it(const TunedAdvice& advice) {
  if (advice.kind != AdviceKind::interpolated) return true;
  if (advice.baseline_us <= 0) return advice.margin <= kBothMargin;  // nothing to compare with: only what was timed nearby on both sides
  return advice.us <= advice.baseline_us * (1 - advice.margin);
}

std::string describe(const TunedAdvice& advice, std::string_view revision) {
  const TunedRow& row = advice.row;
  const auto rounded = [](double us) { return std::round(us * 100) / 100; };
  std::string out = str("tuned: ", row.us, " us, rank ", row.rank, ", ", row.origin);
  if (advice.kind == AdviceKind::near_units) out += str("; tuned for ", row.units, " units");
  if (advice.kind == AdviceKind::interpolated) {
    out = str("tuned rows around: ", rounded(advice.us), " us expected");
    if (advice.baseline_us > 0) out += str(", ", rounded(advice.baseline_us), " us of the default");
    out += str(", ", row.origin);
  }
  if (is_stale(row, revision)) out += str("; stale: made with revision ", row.revision, ", the kernel is now ", revision);
  return out;
}

bool check_calls() { return settings().check; }

void failed_to_load(std::string_view kernel, std::string_view why) {
  counter("route.not_loaded").fetch_add(1, std::memory_order_relaxed);
  warn_once(LogTopic::route, kernel, kernel,
            " would be the best kernel, but cannot be loaded, so that the next one takes its calls: ", why);
}

namespace {
struct Counters {
  std::mutex mutex;
  std::map<std::string, std::atomic<int64_t>, std::less<>> value;  // nodes never move
};
Counters& all_counters() {
  static Counters counters;
  return counters;
}
}  // namespace

std::atomic<int64_t>& counter(std::string_view name) {
  Counters& all = all_counters();
  std::lock_guard lock(all.mutex);
  const auto it = all.value.find(name);
  return it != all.value.end() ? it->second : all.value[std::string(name)];
}

std::vector<std::pair<std::string, int64_t>> counters() {
  Counters& all = all_counters();
  std::lock_guard lock(all.mutex);
  std::vector<std::pair<std::string, int64_t>> out;
  for (const auto& [name, value] : all.value) out.emplace_back(name, value.load(std::memory_order_relaxed));
  return out;
}

}  // namespace eitri
