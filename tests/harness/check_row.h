// Everything the harness demands of one kernel row at one problem. Independent of GoogleTest, so that
// seeded_faults_test.cpp can prove that each demand is able to fail.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "dispatch/op.h"
#include "harness/caller.h"

namespace eitri::harness {

/// The bits of a call's outputs, with the gaps between rows.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(std::vector<Output> outputs);
  /// "" or the first element that differs from what `outputs` hold now; elements that the oracle leaves open are skipped.
  std::string difference(const std::vector<Output>& outputs, const Oracle& oracle) const;
  /// "" or the first output of a part of the call whose bits differ from the same memory at the time of the snapshot.
  std::string difference_in_part(const std::vector<Output>& part) const;

 private:
  std::vector<Output> outputs_;
  std::vector<std::vector<std::byte>> bytes_;
};

/// "" or what is wrong with the outputs.
std::string judge_all(const std::vector<Output>& outputs, const Oracle& oracle, const std::vector<Tolerance>& tolerance);

/// Calls for the bit-equality demand: 200 of a fast one, fewer when they would take longer than 8 ms, 2 of a reference.
int repeats_for(double first_us, Family family);

/// The oracle of the problem last asked for and one seed; rows of a table share it, for it is the slow part.
template <Operator Op> const Oracle& oracle_of(const typename Op::Problem& problem, const typename Op::Args& args, uint64_t seed) {
  struct Known {
    std::string key;
    Oracle oracle;
  };
  static Known known[2];
  Known& slot = known[seed % 2];
  if (std::string key = str(key_of(problem), "#", seed); slot.key != key) {
    slot.oracle = {};
    slot.key.clear();
    Op::reference(args, &slot.oracle);
    slot.key = std::move(key);
  }
  return slot.oracle;
}

namespace detail {

struct Variant {
  const char* name;
  uint64_t seed;
  bool strided, zero_pads;
};
// The last two hold the same numbers and must give the same bits: no padding reaches a result.
inline constexpr Variant kVariants[] = {
    {"dense", 1, false, false}, {"strided, NaN pads", 2, true, false}, {"strided, zero pads", 2, true, true}};

template <Operator Op>
std::string check_repeats(const typename Op::Args& args, Maker& maker, const Caller<Op>& caller, const Oracle& oracle,
                          const Snapshot& first, int calls) {
  for (int i = 1; i < calls; ++i) {
    maker.poison_outputs();
    caller.call(args);
    if (std::string d = first.difference(Op::outputs(args), oracle); !d.empty())
      return str("claims to be repeatable, but call ", i + 1, " differs: ", d);
  }
  return {};
}

/// Ops with a row dimension offer `Args rows_of(const Args&, int64_t begin, int64_t end)`: the same call for these rows alone, on
/// the same memory. The bits of a row must not depend on the other rows.
template <Operator Op>
std::string check_batch_invariance(const typename Op::Args& args, Maker& maker, const Caller<Op>& caller, const Snapshot& batch) {
  if constexpr (requires {
                  { Op::row_count(args) } -> std::convertible_to<int64_t>;
                  Op::rows_of(args, 0, 1);
                }) {
    const int64_t rows = Op::row_count(args);
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      if (row < 0) continue;
      maker.poison_outputs();
      const auto alone = Op::rows_of(args, row, row + 1);
      caller.call(alone);
      if (std::string d = batch.difference_in_part(Op::outputs(alone)); !d.empty())
        return str("claims to be batch-invariant, but row ", row, " alone differs: ", d);
    }
  }
  return {};
}

template <Operator Op>
std::string check_variant(const Kernel<Op>& kernel, const typename Op::Problem& problem, const Variant& variant, const Device* gpu,
                          Snapshot& nan_pads) {
  Maker maker({.seed = variant.seed, .guards = true, .strided = variant.strided, .poison = true, .zero_pads = variant.zero_pads});
  const typename Op::Args args = Op::make(problem, maker);
  if (const auto made = Op::check(args); !(made == problem)) return str("make() built ", key_of(made), " instead of the problem");
  maker.seal();
  const Oracle& oracle = oracle_of<Op>(problem, args, variant.seed);
  maker.poison_outputs();

  const Caller<Op> caller(maker, gpu);
  const auto start = std::chrono::steady_clock::now();
  caller.call(args);
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();

  const auto outputs = Op::outputs(args);
  if (std::string wrong = judge_all(outputs, oracle, tolerance_of(kernel, problem)); !wrong.empty()) return wrong;
  if (std::string damage = maker.damage(); !damage.empty()) return damage;
  const Snapshot first(outputs);
  if (variant.zero_pads) {
    if (std::string d = nan_pads.difference(outputs, oracle); !d.empty()) return str("reads padding: with zeros in it instead of NaN, ", d);
    return {};
  }
  if (variant.strided) nan_pads = first;
  else if (kernel.numerics.repeatable)
    if (std::string d = check_repeats<Op>(args, maker, caller, oracle, first, repeats_for(us, kernel.family)); !d.empty()) return d;
  if (kernel.numerics.batch_invariant && !Op::empty(problem))
    if (std::string d = check_batch_invariance<Op>(args, maker, caller, first); !d.empty()) return d;
  if (!variant.strided && gpu != nullptr) {
    maker.poison_outputs();
    caller.call_in_graph(args);
    if (std::string d = first.difference(outputs, oracle); !d.empty()) return str("differs in a graph: ", d);
  }
  return maker.damage();
}

}  // namespace detail

/// "" when the row, at the instruction level in force or on the GPU, is right on the problem; else the first demand that it misses.
template <Operator Op> std::string check_row(const Kernel<Op>& kernel, const typename Op::Problem& problem, const Device* gpu = nullptr) {
  const ForceScope force(Op::name, kernel.name);
  poison_workspace(true);
  std::string failure;
  Snapshot nan_pads;
  for (const detail::Variant& variant : detail::kVariants) {
    try {
      failure = detail::check_variant<Op>(kernel, problem, variant, gpu, nan_pads);
    } catch (const std::exception& error) {
      failure = str("claims support, but threw: ", error.what());
    }
    if (!failure.empty()) {
      failure = str(kernel.name, " (", variant.name, "): ", failure);
      break;
    }
  }
  poison_workspace(false);
  return failure;
}

}  // namespace eitri::harness
