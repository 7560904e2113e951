// An operator: the concept every src/ops/<op>/<op>.h fulfils, and the one path that every call takes.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "backend/cpu/memory.h"
#include "backend/gpu.h"
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
  Op::tensors(args, [](const char*, const View&) {});              // every tensor argument, given or not
  { Op::kernels() } -> std::same_as<std::span<const Kernel<Op>>>;  // best first, the reference last
  problem == problem;
};

/// Where the tensors of a call are: all on one device. Throws Error{invalid_argument} naming the one that is elsewhere.
template <Operator Op> DeviceId device_of(const typename Op::Args& args) {
  const View* first = nullptr;
  const char* first_name = "";
  Op::tensors(args, [&](const char* name, const View& view) {
    if (!view.given()) return;
    if (first == nullptr) {
      first = &view;
      first_name = name;
    } else if (!(view.device == first->device)) [[unlikely]] {
      fail(Code::invalid_argument,
           str(Op::name, ": ", name, " is on ", view.device, "; expected ", first->device, " (device of ", first_name, ")"));
    }
  });
  return first == nullptr ? DeviceId{} : first->device;
}

/// What a row may be off: the op's tolerance, for sums as the row adds them and operands as it rounds them.
template <Operator Op> std::vector<Tolerance> tolerance_of(const Kernel<Op>& kernel, const typename Op::Problem& problem) {
  std::vector<Tolerance> all = Op::tolerance(problem);
  const double operands = kernel.operand_error == nullptr ? 0 : kernel.operand_error(problem);
  for (Tolerance& t : all) t.bound_eps = t.bound_eps * kernel.numerics.sum_error + operands;
  return all;
}

namespace detail {

/// Runs the reference beside a finished call and compares; see verify.h.
template <Operator Op> class Verifier;

/// Adds to an error of the device what ran when it was reported.
template <Operator Op> [[noreturn]] void rethrow(const Error& error, const Route<Op>& route, const typename Op::Problem& problem) {
  if (error.code() != Code::device_error && error.code() != Code::out_of_memory) throw error;
  const std::string config = to_string(route.config, route.kernel->knobs);
  fail(error.code(), str(Op::name, ": ", route.kernel->name, config.empty() ? "" : " with ", config, " at ", key_of(problem), " on ",
                         route.device->id, ": ", error.what()));
}

template <Operator Op>
void launch_on_cpu(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem, Stream) {
  const WorkspaceScope workspace(route.workspace);
  Launch launch{.device = *route.device, .threads = max_threads(), .workspace = workspace.data(), .workspace_bytes = route.workspace};
  route.kernel->launch(args, problem, route.config, launch);
}
template <Operator Op>
void launch_on_gpu(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem, Stream stream) {
  try {
    const gpu::ContextScope context(*route.device);
    const gpu::WorkspaceScope workspace(*route.device, stream, route.workspace);
    struct Call {
      const Route<Op>& route;
      const typename Op::Problem& problem;
    } const call{route, problem};
    Launch launch{.device = *route.device,
                  .threads = 1,
                  .workspace = workspace.data(),
                  .workspace_bytes = route.workspace,
                  .stream = stream,
                  .functions = route.functions.data(),
                  .load = [](const Launch& l, size_t index) -> const gpu::Function& {
                    const Call& c = *static_cast<const Call*>(l.call);
                    const auto sources = c.route.kernel->sources(c.problem, c.route.config, l.device);
                    return load_source(sources.at(index), c.route.kernel->name, l.device, l.stream);
                  },
                  .call = &call};
    route.kernel->launch(args, problem, route.config, launch);
  } catch (const Error& error) {
    rethrow<Op>(error, route, problem);
  }
}

/// Counts a call that is recorded, and on a CPU its time.
class MissTimer {
 public:
  MissTimer(MissCounter* miss, bool timed) : miss_(miss) {
    if (miss_ != nullptr && timed) [[unlikely]]
      start_ = std::chrono::steady_clock::now();
  }
  ~MissTimer() {
    if (miss_ == nullptr) [[likely]]
      return;
    miss_->calls.fetch_add(1, std::memory_order_relaxed);
    if (start_.time_since_epoch().count() != 0)
      miss_->ns.fetch_add((std::chrono::steady_clock::now() - start_).count(), std::memory_order_relaxed);
  }
  MissTimer(const MissTimer&) = delete;
  MissTimer& operator=(const MissTimer&) = delete;

 private:
  MissCounter* const miss_;
  std::chrono::steady_clock::time_point start_ = {};
};

template <Operator Op>
void launch_unchecked(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem, Stream stream) {
  const auto run = route.device->is_gpu() ? launch_on_gpu<Op> : launch_on_cpu<Op>;
  route.launches->fetch_add(1, std::memory_order_relaxed);
  const MissTimer miss(route.miss, !route.device->is_gpu());
  Trace* const trace = Trace::current();
  if (trace == nullptr) [[likely]]
    return run(route, args, problem, stream);
  const size_t step = trace->begin();
  try {
    run(route, args, problem, stream);
    trace->wait(*route.device, stream);
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

template <Operator Op>
void launch(const Route<Op>& route, const typename Op::Args& args, const typename Op::Problem& problem, Stream stream) {
  if (!check_calls()) [[likely]]
    return launch_unchecked(route, args, problem, stream);
  Verifier<Op> verifier(args, *route.device, stream);
  launch_unchecked(route, args, problem, stream);
  verifier.compare(problem, *route.kernel);
}

/// An extent is 0. The reference writes what there is to write on a CPU; on a GPU the rows do, unless nothing is left.
template <Operator Op> bool is_done_without_kernel(const typename Op::Args& args, const typename Op::Problem& problem, DeviceId where) {
  if (!Op::empty(problem)) [[likely]]
    return false;
  if (where.kind == DeviceKind::cpu) {
    Op::reference(args, nullptr);
    return true;
  }
  for (const Output& output : Op::outputs(args))
    if (span_bytes(output.view) > 0) return false;
  return true;
}

inline void check_stream(const char* op, DeviceId where, Stream stream) {
  require(stream == nullptr || where.kind != DeviceKind::cpu, op,
          ": stream is not null; expected null (the tensors are on the CPU, which has no streams)");
}
}  // namespace detail

/// One call, top to bottom: check, route, launch. On a GPU it returns when the work is in the stream.
template <Operator Op> void call(const typename Op::Args& args, Stream stream = nullptr) {
  const typename Op::Problem problem = Op::check(args);
  const DeviceId where = device_of<Op>(args);
  detail::check_stream(Op::name, where, stream);
  if (detail::is_done_without_kernel<Op>(args, problem, where)) return;
  const Route<Op>& known = route<Op>(problem, where, stream);
  if (known.kernel->children == nullptr) [[likely]]
    return detail::launch<Op>(known, args, problem, stream);
  const Route<Op> chosen = known;  // its children may route the same op
  detail::launch<Op>(chosen, args, problem, stream);
}

}  // namespace eitri

#include "dispatch/verify.h"
