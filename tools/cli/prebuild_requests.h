// What `eitri prebuild` compiles: the kernels that problems need, once each.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/moe_model.h"
#include "dispatch/explain.h"
#include "jit/compiler.h"

namespace eitri::cli {

/// The problems of an op that stand for it.
enum class CasesOf : uint8_t { benchmarks, tests_too };

class RequestList {
 public:
  RequestList(std::vector<const jit::Target*> targets, CasesOf which) : targets_(std::move(targets)), which_(which) {}

  void add_cases(std::string_view op);
  void add_all_cases();
  /// The calls of a model's MoE block, at 1, 2, 4 … 4096 tokens.
  void add_model(const checkpoint::MoeModel& model);

  const std::vector<jit::CompileRequest>& requests() const { return requests_; }
  size_t problems() const { return problems_; }  // that were looked at, for one target

 private:
  template <class Op> void add(const typename Op::Problem& problem);
  template <class Op> void add_cases();
  void add_source(const Source& source, const char* label, const Device& device);
  void add_child(const Explanation& child);

  const std::vector<const jit::Target*> targets_;
  const CasesOf which_;
  std::vector<jit::CompileRequest> requests_;
  std::set<std::string> seen_;  // target, file and defines of the requests; children of recipes
  size_t problems_ = 0;
};

/// "sm_90a,gfx942" as targets; unknown ones are refused.
std::vector<const jit::Target*> parse_gpu_targets(const std::string& text);

}  // namespace eitri::cli
