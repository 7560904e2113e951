// From a problem to a kernel: forced > route cache > tuned row > interpolated between tuned rows > predicted by the rows' cost
// models > reference.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "backend/cpu/cpu.h"
#include "backend/cpu/threads.h"
#include "dispatch/database.h"
#include "dispatch/kernel.h"
#include "dispatch/misses.h"
#include "dispatch/revision.h"
#include "dispatch/tune_on_miss.h"

namespace eitri {

enum class Origin : uint8_t { forced, tuned, interpolated, predicted };
std::span<const char* const> enum_names(Origin);

template <class Op> struct Route {
  const Kernel<Op>* kernel = nullptr;
  const Device* device = nullptr;
  Config config = {};
  Origin origin = Origin::predicted;
  bool own_row = false;  // a tuned row of this very problem and number of units
  double predicted_us = 0;
  size_t workspace = 0;
  std::atomic<int64_t>* launches = nullptr;
  Functions functions = {};     // of the kernel's sources
  MissCounter* miss = nullptr;  // counts calls that no tuned row serves, where they are recorded
};

/// The kernel that EITRI_FORCE or a ForceScope names for the op; empty when none. Never names an unknown kernel.
std::string forced_kernel(std::string_view op);
/// Forces op=kernel for the whole process until destroyed. An unknown kernel is refused by the next call.
class ForceScope {
 public:
  ForceScope(std::string op, std::string kernel);
  ~ForceScope();
  ForceScope(const ForceScope&) = delete;
  ForceScope& operator=(const ForceScope&) = delete;

 private:
  std::string op_, before_;
};

/// EITRI_CHECK: every call is compared with the reference.
bool check_calls();

/// Counters, by name: "gemm.x86_amx.panel" -> launches; "route.miss", and of these "route.forced", "route.tuned", "route.interpolated",
/// "route.predicted"; "route.not_loaded"; "tuned.skipped", "tuned.stale", "tuned.reload".
std::atomic<int64_t>& counter(std::string_view name);
std::vector<std::pair<std::string, int64_t>> counters();

/// One row asked about one problem.
template <class Op> struct Candidate {
  const Kernel<Op>* kernel;
  Support support;
  Guess guess;
};

/// Counts and logs, once per kernel, that a row could not be loaded and the next one takes its place.
void failed_to_load(std::string_view kernel, std::string_view why);

/// Every row with its answer, in table order. Pure: used by route() on a miss and by explain().
template <class Op> std::vector<Candidate<Op>> candidates(const typename Op::Problem& problem, const Device& device) {
  std::vector<Candidate<Op>> out;
  for (const Kernel<Op>& kernel : Op::kernels()) {
    Candidate<Op> c{&kernel, target_runs_on(kernel.target, device), {}};
    if (c.support) c.support = kernel.supports(problem, device);
    if (c.support) c.guess = kernel.guess(problem, device);
    out.push_back(std::move(c));
  }
  return out;
}

template <class Op> [[noreturn]] void fail_unsupported(const typename Op::Problem& problem, const std::vector<Candidate<Op>>& all) {
  std::string reasons;
  for (const auto& c : all) reasons += str("\n  ", c.kernel->name, ": ", c.support.ok ? "supported" : c.support.reason);
  fail(Code::unsupported, str(Op::name, ": no kernel takes ", key_of(problem), reasons));
}

/// What the cost models choose; null when no row takes the problem.
template <class Op> const Candidate<Op>* safe_default(const std::vector<Candidate<Op>>& all) {
  const Candidate<Op>* best = nullptr;
  for (const auto& c : all)
    if (c.support.ok && (best == nullptr || c.guess.us < best->guess.us)) best = &c;
  return best;
}

/// Does what the advice expects justify leaving the default? Rows of their own always do.
bool is_worth_it(const TunedAdvice& advice);
/// The row was measured with another text of the kernel; it serves all the same, until `eitri tune --all-stale`.
inline bool is_stale(const TunedRow& row, std::string_view revision) {
  return !row.revision.empty() && !revision.empty() && row.revision != revision;
}
/// One sentence for explain: time, rank, file, and whether the kernel has changed since (`revision` is that of now).
std::string describe(const TunedAdvice& advice, std::string_view revision);

/// The choice, made anew. `why` (may be null) receives one sentence for explain.
template <class Op>
Route<Op> choose(const typename Op::Problem& problem, const Device& device, std::vector<Candidate<Op>>& all, std::string* why) {
  const Candidate<Op>* best = nullptr;
  Route<Op> route{.device = &device};
  const auto say = [&](auto&&... parts) {
    if (why != nullptr) *why = str(parts...);
  };
  if (const std::string forced = forced_kernel(Op::name); !forced.empty()) {
    for (const auto& c : all)
      if (forced == c.kernel->name) best = &c;
    if (best == nullptr) {
      std::string known;
      for (const auto& c : all) known += str(known.empty() ? "" : ", ", c.kernel->name);
      fail(Code::invalid_argument, str(Op::name, ": forced kernel is ", forced, "; expected one of ", known));
    }
    if (!best->support.ok)
      fail(Code::unsupported, str(Op::name, ": forced kernel ", forced, " does not take ", key_of(problem), ": ", best->support.reason));
    route.config = best->guess.config;
    route.origin = Origin::forced;
    say("forced");
  }
  if (best == nullptr) {
    const Candidate<Op>* const safe = safe_default(all);
    for (const TunedAdvice& advice : tuned_advice(Op::name, device, key_of(problem))) {
      const Candidate<Op>* match = nullptr;
      for (const auto& c : all)
        if (advice.row.kernel == c.kernel->name) match = &c;
      std::string reason;
      if (match == nullptr) reason = "unknown kernel";
      else if (!match->support.ok) reason = match->support.reason;
      else if (Config config; parse_config(advice.row.config, match->kernel->knobs, config, reason)) {
        const bool is_default = match == safe && config == safe->guess.config;
        if (!is_default && !is_worth_it(advice)) continue;
        best = match;
        route.config = config;
        route.origin = advice.kind == AdviceKind::interpolated ? Origin::interpolated : Origin::tuned;
        route.own_row = advice.kind == AdviceKind::exact;
        const std::string_view revision = kernel_revision(Op::name, match->kernel->target);
        if (why != nullptr) *why = describe(advice, revision);
        else if (is_stale(advice.row, revision)) counter("tuned.stale").fetch_add(1, std::memory_order_relaxed);
        break;
      }
      skipped_row(advice.row, reason);
    }
  }
  if (best == nullptr) {
    best = safe_default(all);
    if (best == nullptr) fail_unsupported<Op>(problem, all);
    route.config = best->guess.config;
    say("cost model: ", std::round(best->guess.us * 10) / 10, " us is the least of the supported rows");
  }
  route.kernel = best->kernel;
  route.predicted_us = best->guess.us;
  route.workspace = best->kernel->workspace == nullptr ? 0 : best->kernel->workspace(problem, route.config, device);
  route.launches = &counter(best->kernel->name);
  return route;
}

namespace detail {

/// The choice, loaded. A row whose kernel cannot be compiled or loaded here gives way to the next best, unless it was forced.
template <class Op> Route<Op> choose_and_load(const typename Op::Problem& problem, const Device& device, Stream stream) {
  std::optional<gpu::ContextScope> context;  // the null stream is that of the current context
  if (device.is_gpu()) context.emplace(device);
  auto all = candidates<Op>(problem, device);
  for (;;) {
    Route<Op> chosen = choose<Op>(problem, device, all, nullptr);
    if (chosen.kernel->sources == nullptr) return chosen;
    try {
      chosen.functions = load_sources(chosen.kernel->sources(problem, chosen.config, device), chosen.kernel->name, device, stream);
      return chosen;
    } catch (const Error& error) {
      // A device that fails says nothing about the kernel, and a capture ends before the next row could be tried.
      if (chosen.origin == Origin::forced || error.code() == Code::device_error || gpu::is_capturing(stream)) throw;
      bool others = false;
      for (auto& c : all) {
        if (c.kernel == chosen.kernel) c.support = Support::no("it cannot be loaded: ", error.what());
        others = others || c.support.ok;
      }
      if (!others) throw;
      failed_to_load(chosen.kernel->name, error.what());
    }
  }
}

}  // namespace detail

/// Looks the problem up; a miss asks every row once, and loads the chosen one's kernels. `where` is the device of the tensors;
/// `stream` only matters on a miss. The reference stays valid until the calling thread routes another problem of the op, so use it
/// at once (Plan copies it).
template <class Op> const Route<Op>& route(const typename Op::Problem& problem, DeviceId where = {}, Stream stream = nullptr) {
  using Problem = typename Op::Problem;
  struct Key {
    Problem problem;
    DeviceId where;
    bool operator==(const Key&) const = default;
    uint64_t hash() const {
      return hash_of(problem) + (static_cast<uint64_t>(where.kind) << 8 | static_cast<uint8_t>(where.index)) * 0x9e3779b97f4a7c15ull;
    }
  };
  struct Slot {
    Key key;
    Route<Op> route;
    uint32_t generation = 0;
    uint32_t reloads = 0;  // of tuned rows, when it was made
  };
  struct Hash {
    size_t operator()(const Key& k) const { return k.hash(); }
  };
  struct Shared {
    std::shared_mutex mutex;
    uint32_t generation = 0, reloads = 0;
    std::unordered_map<Key, Route<Op>, Hash> map;
    std::unordered_map<Key, Route<Op>, Hash> before;  // reloads alone: what captures go on with
  };
  // Per thread and op, direct mapped: no lock and no pointer chase on a hit. Made on first use; the bare pointer beside the
  // owner keeps the hot path free of the guard that a thread_local with a destructor needs.
  constexpr size_t kSlots = 256;
  static thread_local constinit Slot* slots = nullptr;
  static thread_local constinit uint32_t calls = 0;
  static Shared shared;
  if ((++calls & 31u) == 0) [[unlikely]]
    poll_tuned(stream);
  uint32_t generation = route_generation();
  const Key key{problem, where};
  const uint64_t hash = key.hash();
  if (slots != nullptr) [[likely]] {
    const Slot& slot = slots[hash % kSlots];
    if (slot.generation == generation && slot.key == key) [[likely]]
      return slot.route;
  } else {
    static thread_local std::unique_ptr<Slot[]> owner;
    owner = std::make_unique<Slot[]>(kSlots);
    slots = owner.get();
  }

  Slot& slot = slots[hash % kSlots];
  uint32_t reloads = tuned_reloads();
  const auto by_reloads_alone = [&](uint32_t since, uint32_t reloads_then) { return generation - since == reloads - reloads_then; };
  {
    // Rows changed while this stream captures: what the call was warmed up with, by any thread, still serves.
    const bool captures = stream != nullptr && gpu::is_capturing(stream);
    if (captures && slot.generation != 0 && slot.key == key && by_reloads_alone(slot.generation, slot.reloads)) return slot.route;
    std::shared_lock lock(shared.mutex);
    if (captures && by_reloads_alone(shared.generation, shared.reloads))
      for (const auto* map : {&shared.map, &shared.before})
        if (const auto it = map->find(key); it != map->end()) {
          slot = {key, it->second, shared.generation, shared.reloads};
          return slot.route;
        }
    if (shared.generation == generation)
      if (const auto it = shared.map.find(key); it != shared.map.end()) {
        slot = {key, it->second, generation, reloads};
        return slot.route;
      }
  }
  counter("route.miss").fetch_add(1, std::memory_order_relaxed);
  Route<Op> chosen = detail::choose_and_load<Op>(problem, device_for(where), stream);  // may route children: slot is written after it
  const auto is_miss = [&] { return chosen.origin != Origin::forced && !chosen.own_row; };
  if (is_miss() && tune_on_miss(Op::name, *chosen.device, key_of(problem), stream)) {
    generation = route_generation();
    reloads = tuned_reloads();
    chosen = detail::choose_and_load<Op>(problem, device_for(where), stream);
  }
  counter(str("route.", chosen.origin)).fetch_add(1, std::memory_order_relaxed);
  if (is_miss()) chosen.miss = record_miss(Op::name, *chosen.device, key_of(problem), chosen.kernel->name);
  {
    std::unique_lock lock(shared.mutex);
    if (shared.generation != generation) {
      if (by_reloads_alone(shared.generation, shared.reloads)) {
        shared.map.merge(shared.before);  // what is in both stays as it is in the newer one
        shared.before.swap(shared.map);
      } else {
        shared.before.clear();
      }
      shared.map.clear();
      shared.generation = generation;
      shared.reloads = reloads;
    }
    if (shared.before.size() > 65536) shared.before.clear();
    if (shared.map.size() > 65536) shared.map.clear();  // bounded; a server with ragged shapes refills it
    shared.map.emplace(key, chosen);
  }
  slot = {key, chosen, generation, reloads};
  return slot.route;
}

}  // namespace eitri
