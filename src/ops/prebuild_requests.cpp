#include "ops/prebuild_requests.h"

#include <algorithm>

#include "base/error.h"
#include "ops/plain_weights.h"

namespace eitri {

void PrebuildRequests::add(std::string_view op, std::string_view problem) {
  const OpEntry& entry = find_op(op);
  for (const jit::Target* target : targets_) entry.explain(problem, nominal_gpu(target->name));
  for_each_op([&]<class Op>() {
    if (op == Op::name) add<Op>(with_plain_weights(parse_problem<typename Op::Problem>(Op::name, problem), problem));
  });
}

void PrebuildRequests::add_source(const Source& source, const char* label, const Device& device) {
  std::string id = str(device.arch(), " ", source.file);
  for (const std::string& define : source.defines) id += " " + define;
  if (seen_.insert(std::move(id)).second) requests_.push_back(compile_request(source, label, device));
}

void PrebuildRequests::add_child(const Explanation& child) {
  if (!seen_.insert(str(child.op, " ", child.problem)).second) return;
  for_each_op([&]<class Op>() {
    if (child.op == Op::name) add<Op>(parse_problem<typename Op::Problem>(Op::name, child.problem));
  });
}

std::vector<const jit::Target*> parse_gpu_targets(std::string_view what, std::string_view text) {
  std::string known;
  for (const char* arch : nominal_gpu_archs()) known += str(known.empty() ? "" : ", ", arch);
  std::vector<const jit::Target*> out;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view name = text.substr(at, comma - at);
    at = comma + 1;
    const bool found = std::ranges::any_of(nominal_gpu_archs(), [&](const char* arch) { return name == arch; });
    require(found, what, " is '", text, "'; expected some of ", known, ", separated by commas");
    const jit::Target* const target = &jit::target_named(name);
    if (std::ranges::find(out, target) == out.end()) out.push_back(target);
  }
  require(!out.empty(), what, " is '", text, "'; expected some of ", known, ", separated by commas");
  return out;
}

}  // namespace eitri
