// What must be compiled for problems on GPUs, once each: the kernels of every row that takes them, and of the calls that recipes make.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/explain.h"
#include "jit/compiler.h"
#include "ops/ops.h"

namespace eitri {

class PrebuildRequests {
 public:
  explicit PrebuildRequests(std::vector<const jit::Target*> targets) : targets_(std::move(targets)) {}

  template <class Op> void add(const typename Op::Problem& problem);
  /// A problem as text. Throws Error: invalid_argument as explain does, unsupported where some target has no kernel for it.
  void add(std::string_view op, std::string_view problem);

  const std::vector<jit::CompileRequest>& requests() const { return requests_; }
  size_t problems() const { return problems_; }  // that were looked at, recipes' children included, for one target

 private:
  template <class Op>
  void add_kernel(const Kernel<Op>& kernel, const typename Op::Problem& problem, const Config& config, const Device& device);
  void add_source(const Source& source, const char* label, const Device& device);
  void add_child(const Explanation& child);

  const std::vector<const jit::Target*> targets_;
  std::vector<jit::CompileRequest> requests_;
  std::set<std::string> seen_;  // target, file and defines of the requests; children of recipes
  size_t problems_ = 0;
};

/// "sm_90a,gfx942" as targets. Throws Error{invalid_argument} for others, with `what` ("--target") as the argument's name.
std::vector<const jit::Target*> parse_gpu_targets(std::string_view what, std::string_view text);

/// All rows that take the problem, as the cost models and tuned rows would run them: which one a call takes depends on settings, and a
/// row that cannot be loaded gives way to the next.
template <class Op> void PrebuildRequests::add(const typename Op::Problem& problem) {
  if (Op::empty(problem)) return;
  ++problems_;
  for (const jit::Target* target : targets_) {
    const Device& device = nominal_gpu(target->name);
    auto all = candidates<Op>(problem, device);
    for (const Candidate<Op>& candidate : all)
      if (candidate.support) add_kernel(*candidate.kernel, problem, candidate.guess.config, device);
    try {
      const Route<Op> route = choose<Op>(problem, device, all, nullptr);
      if (route.origin == Origin::tuned || route.origin == Origin::interpolated) add_kernel(*route.kernel, problem, route.config, device);
    } catch (const Error& error) {
      if (error.code() != Code::unsupported) throw;
    }
  }
}

template <class Op>
void PrebuildRequests::add_kernel(const Kernel<Op>& kernel, const typename Op::Problem& problem, const Config& config,
                                  const Device& device) {
  if (kernel.sources != nullptr)
    for (const Source& source : kernel.sources(problem, config, device))
      if (source.file != nullptr) add_source(source, kernel.name, device);
  if (kernel.children == nullptr) return;
  ChildSink sink(device);
  try {
    kernel.children(problem, config, sink);
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    return;  // some call of the recipe has no kernel there, so nobody runs it
  }
  for (const Explanation& child : sink.children) add_child(child);
}

}  // namespace eitri
