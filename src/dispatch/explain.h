// explain: every row of an op for one problem: supported or why not, predicted time, chosen and why, recipe tree.
#pragma once

#include <string>
#include <vector>

#include "dispatch/op.h"

namespace eitri {

struct ExplainedRow {
  std::string kernel, family, target, reason, config;
  bool supported = false, chosen = false;
  double predicted_us = 0;
};
struct Explanation {
  std::string op, problem, device, chosen, why, origin;
  std::string tuned = {};  // why no tuned row of its own serves the problem; empty where one does
  std::vector<ExplainedRow> rows;
  std::vector<Explanation> children;
};
std::string to_text(const Explanation& explanation);
std::string to_json(const Explanation& explanation);

/// Recipes name the problems they will route: sink.add<Gemm>(problem).
class ChildSink {
 public:
  explicit ChildSink(const Device& device) : device(device) {}
  const Device& device;
  template <class Op> void add(const typename Op::Problem& problem);
  std::vector<Explanation> children;
};

template <Operator Op> Explanation explain(const typename Op::Problem& problem, const Device& device) {
  Explanation out{.op = Op::name,
                  .problem = key_of(problem),
                  .device = std::string(device.arch()),
                  .chosen = {},
                  .why = {},
                  .origin = {},
                  .rows = {},
                  .children = {}};
  auto all = candidates<Op>(problem, device);
  Route<Op> route;
  if (Op::empty(problem) && !device.is_gpu()) {
    out.why = "an extent is 0: the reference writes the (empty or constant) output";
  } else {
    route = choose<Op>(problem, device, all, &out.why);
    out.chosen = route.kernel->name;
    out.origin = to_string(route.origin);
    if (route.origin == Origin::interpolated || route.origin == Origin::predicted) out.tuned = why_no_row(Op::name, device, out.problem);
  }
  for (const auto& c : all) {
    const bool chosen = c.kernel == route.kernel;
    out.rows.push_back({.kernel = c.kernel->name,
                        .family = std::string(to_string(c.kernel->family)),
                        .target = std::string(to_string(c.kernel->target)),
                        .reason = c.support.reason,
                        .config = to_string(chosen ? route.config : c.guess.config, c.kernel->knobs),
                        .supported = c.support.ok,
                        .chosen = chosen,
                        .predicted_us = c.guess.us});
  }
  if (route.kernel != nullptr && route.kernel->children != nullptr) {
    ChildSink sink(device);
    route.kernel->children(problem, route.config, sink);
    out.children = std::move(sink.children);
  }
  return out;
}

template <class Op> void ChildSink::add(const typename Op::Problem& problem) { children.push_back(explain<Op>(problem, device)); }

}  // namespace eitri
