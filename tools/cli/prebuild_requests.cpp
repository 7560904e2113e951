#include "cli/prebuild_requests.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "ops/ops.h"

namespace eitri::cli {

/// The GPU rows that take the problem, as they would run without tuned rows; of recipes the calls that they make.
template <class Op> void RequestList::add(const typename Op::Problem& problem) {
  if (Op::empty(problem)) return;
  ++problems_;
  for (const jit::Target* target : targets_) {
    const Device& device = nominal_gpu(target->name);
    for (const Kernel<Op>& kernel : Op::kernels()) {
      if (!target_runs_on(kernel.target, device) || !kernel.supports(problem, device)) continue;
      const Config config = kernel.guess(problem, device).config;
      if (kernel.sources != nullptr)
        for (const Source& source : kernel.sources(problem, config, device))
          if (source.file != nullptr) add_source(source, kernel.name, device);
      if (kernel.children != nullptr) {
        ChildSink sink(device);
        try {
          kernel.children(problem, config, sink);
        } catch (const Error& error) {
          if (error.code() != Code::unsupported) throw;
          continue;  // some call of the recipe has no kernel there, so nobody runs it
        }
        for (const Explanation& child : sink.children) add_child(child);
      }
    }
  }
}

void RequestList::add_source(const Source& source, const char* label, const Device& device) {
  std::string id = str(device.arch(), " ", source.file);
  for (const std::string& define : source.defines) id += " " + define;
  if (seen_.insert(std::move(id)).second) requests_.push_back(compile_request(source, label, device));
}

void RequestList::add_child(const Explanation& child) {
  if (!seen_.insert(str(child.op, " ", child.problem)).second) return;
  for_each_op([&]<class Op>() {
    if (child.op == Op::name) add<Op>(parse_problem<typename Op::Problem>(Op::name, child.problem));
  });
}

template <class Op> void RequestList::add_cases() {
  const auto cases = Op::cases();
  for (const auto& one : cases.bench) add<Op>(one.problem);
  if (which_ == CasesOf::tests_too)
    for (const auto& one : cases.test) add<Op>(one.problem);
}

void RequestList::add_cases(std::string_view op) {
  const std::string_view name = find_op(op).name;  // throws for an unknown one
  for_each_op([&]<class Op>() {
    if (name == Op::name) add_cases<Op>();
  });
}

void RequestList::add_all_cases() {
  for_each_op([&]<class Op>() { add_cases<Op>(); });
}

void RequestList::add_model(const checkpoint::MoeModel& model) {
  using enum DType;
  struct Codes {
    DType dtype;
    Quant quant;
  };
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    for (const DType residual : {none, bf16}) {
      add<RmsNorm>({.tokens = tokens, .hidden = model.hidden, .residual = residual});
      for (const Codes codes : {Codes{f8e4m3, Quant::per_token}, {f8e4m3, Quant::per_1x128}, {i8, Quant::per_token}})
        add<RmsNorm>({.tokens = tokens, .hidden = model.hidden, .residual = residual, .out = codes.dtype, .quant = codes.quant});
    }
    for (const int64_t inter : {model.inter, model.shared_inter}) {
      if (inter == 0) continue;
      const int64_t rows = inter == model.inter ? tokens * model.top_k : tokens;
      add<Activation>(
          {.rows = rows, .inter = inter, .kind = model.activation.kind, .gate = model.gate, .limited = model.activation.limit != 0});
      add<Quantize>({.rows = rows, .cols = inter, .x = f32});
      add<Quantize>({.rows = rows, .cols = inter, .x = bf16});
    }
    add<Quantize>({.rows = tokens, .cols = model.hidden, .x = bf16});
    add<TopkGating>({.tokens = tokens,
                     .experts = model.experts,
                     .top_k = model.top_k,
                     .groups = model.router.groups,
                     .topk_groups = model.router.topk_groups,
                     .score = model.router.score,
                     .renormalize = model.router.renormalize,
                     .bias = model.router.correction_bias});
    for (const DType w : {bf16, i8}) {
      add<FusedMoe>({.tokens = tokens,
                     .hidden = model.hidden,
                     .inter = model.inter,
                     .local_experts = model.experts,
                     .experts = model.experts,
                     .top_k = model.top_k,
                     .w = w,
                     .a_quant = w == i8 ? Quant::per_token : Quant::none,
                     .w_quant = w == i8 ? Quant::per_token : Quant::none,
                     .w1_format = WeightFormat::strided,
                     .w2_format = WeightFormat::strided,
                     .activation = model.activation.kind,
                     .gate = model.gate,
                     .weight_stage = model.weight_stage,
                     .bias1 = model.expert_bias,
                     .bias2 = model.expert_bias,
                     .shared_inter = model.shared_inter,
                     .shared_w1_format = WeightFormat::strided,
                     .shared_w2_format = WeightFormat::strided});
    }
  }
}

std::vector<const jit::Target*> parse_gpu_targets(const std::string& text) {
  std::vector<const jit::Target*> out;
  std::string known;
  for (const char* arch : nominal_gpu_archs()) known += str(known.empty() ? "" : ", ", arch);
  std::stringstream parts(text);
  for (std::string name; std::getline(parts, name, ',');) {
    const bool found = std::ranges::any_of(nominal_gpu_archs(), [&](const char* arch) { return name == arch; });
    require(found, "--target is '", text, "'; expected some of ", known, ", separated by commas");
    const jit::Target* const target = &jit::target_named(name);
    if (std::ranges::find(out, target) == out.end()) out.push_back(target);
  }
  require(!out.empty(), "--target is '", text, "'; expected some of ", known, ", separated by commas");
  return out;
}

}  // namespace eitri::cli
