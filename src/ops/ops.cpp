// Erases the op templates once, and checks the kernel tables.
#include "ops/ops.h"

#include <set>

namespace eitri {
namespace {

template <Operator Op> OpEntry entry() {
  OpEntry e{.name = Op::name,
            .kernels = {},
            .fields = field_names<typename Op::Problem>(),
            .explain = [](std::string_view text, const Device& device) {
              return explain<Op>(parse_problem<typename Op::Problem>(Op::name, text), device);
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
  set_tuned_fields(Op::name, e.fields);
  return e;
}

}  // namespace

std::span<const OpEntry> all_ops() {
  static const std::vector<OpEntry> ops = [] {
    std::vector<OpEntry> list;
    for_each_op([&]<class Op>() { list.push_back(entry<Op>()); });
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
