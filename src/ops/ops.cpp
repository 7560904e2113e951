// Erases the op templates once, and checks the kernel tables.
#include "ops/ops.h"

#include <set>

#include "base/settings.h"
#include "ops/plain_weights.h"

namespace eitri {
namespace {

/// A problem typed by a user: every extent at least 0 and below 2^40, no field twice. What only check() knows of arguments
/// (which dtypes go together) is left to the rows.
template <Operator Op> typename Op::Problem possible_problem(std::string_view text) {
  std::set<std::string_view> seen;
  for (const auto& pair : detail::split_pairs(text, ','))
    require(seen.insert(pair.first).second, Op::name, ": field ", pair.first, " is given twice; expected once");
  const auto problem = parse_problem<typename Op::Problem>(Op::name, text);
  problem.fields([](const char* name, const auto& value, Match = Match::exact) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>)
      require(value >= 0 && value < (int64_t{1} << 40), Op::name, ": ", name, " is ", value, "; expected 0 to 2^40");
  });
  return problem;
}

template <Operator Op> OpEntry entry() {
  OpEntry e{.name = Op::name,
            .kernels = {},
            .fields = field_names<typename Op::Problem>(),
            .explain = [](std::string_view text, const Device& device) {
              const auto problem = possible_problem<Op>(text);
              return explain<Op>(device.is_gpu() ? with_plain_weights(problem, text) : problem, device);
            }};
  std::set<std::string_view> names;
  for (const Kernel<Op>& k : Op::kernels()) {
    const std::string_view name = k.name;
    if (!name.starts_with(str(Op::name, ".")) || !names.insert(name).second)
      fail(Code::internal, str(Op::name, ": kernel name ", name, " is not unique or lacks the op's prefix"));
    if (k.knobs.size() > kMaxKnobs) fail(Code::internal, str(name, ": more than ", kMaxKnobs, " knobs"));
    e.kernels.push_back({k.name, k.family, k.target, k.numerics, k.knobs});
  }
  if (e.kernels.empty() || e.kernels.back().family != Family::reference)
    fail(Code::internal, str(Op::name, ": the last row of the table must be the reference"));
  CurveRules rules{.whole_tiles = std::ranges::find(e.fields, "experts") == e.fields.end()};
  for (const KernelInfo& k : e.kernels)
    if (std::ranges::any_of(k.knobs, &Knob::is_place)) {
      Config first;
      for (size_t i = 0; i < k.knobs.size(); ++i) first.value[i] = k.knobs[i].values[0];
      rules.elsewhere[k.name] = to_string(first, k.knobs);
    }
  set_tuned_fields(Op::name, tuned_fields<typename Op::Problem>(), std::move(rules));
  return e;
}

}  // namespace

std::span<const OpEntry> all_ops() {
  static const std::vector<OpEntry> ops = [] {
    std::vector<OpEntry> list;
    for_each_op([&]<class Op>() { list.push_back(entry<Op>()); });
    // A setting with a misspelt name would force nothing and say nothing.
    for (const auto& [op, kernel] : settings().force) {
      std::string known, kernels;
      bool found = false;
      for (const OpEntry& e : list) {
        known += str(known.empty() ? "" : ", ", e.name);
        if (op != e.name) continue;
        for (const KernelInfo& k : e.kernels) {
          kernels += str(kernels.empty() ? "" : ", ", k.name);
          found = found || kernel == k.name;
        }
      }
      require(!kernels.empty(), "EITRI_FORCE: op is \"", op, "\"; expected one of ", known);
      require(found, "EITRI_FORCE: kernel of ", op, " is \"", kernel, "\"; expected one of ", kernels);
    }
    return list;
  }();
  return ops;
}

const OpEntry& find_op(std::string_view name) {
  std::string known;
  for (const OpEntry& op : all_ops()) {
    if (name == op.name) return op;
    known += str(known.empty() ? "" : ", ", op.name);
  }
  fail(Code::invalid_argument, str("op is \"", name, "\"; expected one of ", known));
}

}  // namespace eitri
