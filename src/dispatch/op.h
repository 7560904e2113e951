// An operator: the concept every src/ops/<op>/<op>.h fulfils, and the one path that every call takes.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "dispatch/kernel.h"
#include "dispatch/maker.h"
#include "dispatch/oracle.h"
#include "dispatch/route.h"
#include "dispatch/trace.h"

namespace eitri {

/// A problem that tests or benchmarks run. `note` says what it is for ("prime extents", "B01").
template <class P> struct Case {
  P problem;
  const char* note = "";
};
template <class P> struct Cases {
  std::vector<Case<P>> test;
  std::vector<Case<P>> bench;
};
/// An output of a call, for the harness and EITRI_CHECK.
struct Output {
  const char* name;
  View view;
};

template <class Op>
concept Operator = requires(const typename Op::Args& args, const typename Op::Problem& problem, Maker& maker, const Kernel<Op>& kernel,
                            Oracle* oracle) {
  { Op::name } -> std::convertible_to<const char*>;
  { Op::check(args) } -> std::same_as<typename Op::Problem>;  // the only validation; throws Error
  { Op::empty(problem) } -> std::same_as<bool>;               // some extent is 0: the reference serves it
  {Op::reference(args, oracle)};                              // double arithmetic; fills *oracle unless null
  { Op::outputs(args) } -> std::same_as<std::vector<Output>>;
  { Op::tolerance(problem) } -> std::same_as<std::vector<Tolerance>>;  // one per output
  { Op::cost(problem) } -> std::same_as<Cost>;
  { Op::cases() } -> std::same_as<Cases<typename Op::Problem>>;
  { Op::make(problem, maker) } -> std::same_as<typename Op::Args>;
  { Op::kernels() } -> std::same_as<std::span<const Kernel<Op>>>;  // best first, the reference last
  problem == problem;
};

namespace detail {
using OutputBytes = std::vector<std::vector<std::byte>>;
inline OutputBytes bytes_of(const std::vector<Output>& outputs) {
  OutputBytes bytes;
  for (const Output& o : outputs) {
    const auto* p = static_cast<const std::byte*>(o.view.data);
    bytes.emplace_back(p, p + span_bytes(o.view));
  }
  return bytes;
}
inline void put_bytes(const OutputBytes& bytes, const std::vector<Output>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) std::copy(bytes[i].begin(), bytes[i].end(), static_cast<std::byte*>(outputs[i].view.data));
}
/// Compares the outputs of a finished call with the reference; throws Error{internal} naming kernel and element. `before` is what
/// the outputs held before the call: an output may be an input as well, and the reference must see that one as it was.
template <Operator Op>
void verify(const typename Op::Args& args, const typename Op::Problem& problem, const char* kernel, const OutputBytes& before) {
  Oracle oracle;
  const auto outputs = Op::outputs(args);
  const OutputBytes results = bytes_of(outputs);
  put_bytes(before, outputs);
  Op::reference(args, &oracle);
  put_bytes(results, outputs);
  const auto tolerance = Op::tolerance(problem);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Verdict v = judge(outputs[i].view, oracle[i], tolerance[i], outputs[i].name);
    if (!v.ok) fail(Code::internal, str(Op::name, ": ", kernel, " differs from the reference at ", key_of(problem), ": ", v.first));
  }
}

template <Operator Op> void launch_unchecked(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem) {
  WorkspaceScope workspace(route.workspace);
  Launch launch{*route.device, max_threads(), workspace.data(), route.workspace};
  route.launches->fetch_add(1, std::memory_order_relaxed);
  if (Trace* trace = Trace::current(); trace == nullptr) [[likely]] {
    route.kernel->launch(args, problem, route.config, launch);
  } else {
    const size_t step = trace->begin();
    try {
      route.kernel->launch(args, problem, route.config, launch);
    } catch (...) {
      trace->drop(step);
      throw;
    }
    const Cost cost = Op::cost(problem);
    trace->end(step, {.op = Op::name,
                      .kernel = route.kernel->name,
                      .family = route.kernel->family,
                      .problem = key_of(problem),
                      .flops = cost.flops,
                      .bytes = cost.bytes,
                      .math = cost.math});
  }
}

template <Operator Op> void launch(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem) {
  if (!check_calls()) [[likely]]
    return launch_unchecked(route, args, problem);
  const OutputBytes before = bytes_of(Op::outputs(args));
  launch_unchecked(route, args, problem);
  verify<Op>(args, problem, route.kernel->name, before);
}
}  // namespace detail

/// One call, top to bottom: check, route, launch.
template <Operator Op> void call(const typename Op::Args& args) {
  const typename Op::Problem problem = Op::check(args);
  if (Op::empty(problem)) {
    Op::reference(args, nullptr);
    return;
  }
  const Route<Op> chosen = route<Op>(problem);  // a copy: a recipe's children may route the same op
  detail::launch<Op>(chosen, args, problem);
}

}  // namespace eitri
