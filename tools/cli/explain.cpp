// `eitri explain` and `eitri ops`: what the kernel tables say.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu.h"
#include "backend/gpu.h"
#include "base/error.h"
#include "cli/command.h"
#include "ops/ops.h"

namespace eitri::cli {
namespace {

struct ExplainOptions {
  std::string op, problem;
  bool json = false;
  std::string device = "cpu", target;
  bool target_given = false;
};

const Device& device_of(const ExplainOptions& options) {
  if (options.target_given) return nominal_gpu(options.target);
  if (options.device == "cpu") return cpu_device();
  int index = 0;
  const std::string_view text = options.device;
  const char* const begin = text.data() + std::min<size_t>(5, text.size());
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), index);
  const bool whole = error == std::errc{} && end == text.data() + text.size() && index >= 0;
  require(text.starts_with("cuda:") && whole, "--device is '", text, "'; expected cpu or cuda:N");
  return gpu::device(index);
}

/// The columns of the table: targets that any kernel names, in the order of the enum.
std::vector<Target> used_targets() {
  std::vector<Target> out;
  for (size_t i = 0; i < enum_names(Target{}).size(); ++i) {
    for (const OpEntry& op : all_ops()) {
      const auto target = static_cast<Target>(i);
      const bool used = std::any_of(op.kernels.begin(), op.kernels.end(), [&](const KernelInfo& k) { return k.target == target; });
      if (used && (out.empty() || out.back() != target)) out.push_back(target);
    }
  }
  return out;
}

/// Kernels of one op and target without the op's name in front, best first.
std::vector<std::string> cell(const OpEntry& op, Target target) {
  std::vector<std::string> out;
  for (const KernelInfo& k : op.kernels) {
    if (k.target == target) out.emplace_back(std::string_view(k.name).substr(std::string_view(op.name).size() + 1));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts, const char* separator, const char* quote) {
  std::string out;
  for (const std::string& part : parts) out += fmt::format("{}{}{}{}", out.empty() ? "" : separator, quote, part, quote);
  return out;
}

std::string ops_markdown() {
  std::string out = "# Operators and kernels\n\nMade by `eitri ops --markdown` from the kernel tables: run `make docs` after a change.\n\n";
  out += "A call takes the cheapest supported row by the rows' cost models, or the tuned one; `eitri explain OP` shows why.\n\n| op |";
  const auto targets = used_targets();
  for (const Target target : targets) out += fmt::format(" {} |", to_string(target));
  out += "\n|---|";
  for (size_t i = 0; i < targets.size(); ++i) out += "---|";
  out += "\n";
  for (const OpEntry& op : all_ops()) {
    out += fmt::format("| `{}` |", op.name);
    for (const Target target : targets) out += fmt::format(" {} |", joined(cell(op, target), "<br>", "`"));
    out += "\n";
  }
  for (const OpEntry& op : all_ops()) {
    out += fmt::format(
        "\n## {}\n\nProblem: {}\n\n| kernel | family | target | accumulates in | repeatable | batch-invariant | knobs "
        "|\n|---|---|---|---|---|---|---|\n",
        op.name, joined(op.fields, ", ", "`"));
    for (const KernelInfo& k : op.kernels) {
      std::string knobs;
      for (const Knob& knob : k.knobs) {
        knobs += fmt::format("{}{}=", knobs.empty() ? "" : "; ", knob.name);
        for (size_t i = 0; i < knob.values.size(); ++i) knobs += fmt::format("{}{}", i == 0 ? "" : ",", knob.values[i]);
      }
      out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", k.name, to_string(k.family), to_string(k.target),
                         to_string(k.numerics.accumulator), k.numerics.repeatable ? "yes" : "no", k.numerics.batch_invariant ? "yes" : "no",
                         knobs);
    }
  }
  return out;
}

std::string ops_json() {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpEntry& op : all_ops()) {
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    for (const KernelInfo& k : op.kernels) {
      nlohmann::ordered_json knobs = nlohmann::ordered_json::object();
      for (const Knob& knob : k.knobs) knobs[knob.name] = std::vector<int>(knob.values.begin(), knob.values.end());
      kernels.push_back({{"kernel", k.name},
                         {"family", to_string(k.family)},
                         {"target", to_string(k.target)},
                         {"accumulator", to_string(k.numerics.accumulator)},
                         {"repeatable", k.numerics.repeatable},
                         {"batch_invariant", k.numerics.batch_invariant},
                         {"runs_here", static_cast<bool>(target_runs_on(k.target, cpu_device()))},
                         {"knobs", std::move(knobs)}});
    }
    ops.push_back({{"op", op.name}, {"fields", op.fields}, {"kernels", std::move(kernels)}});
  }
  return ops.dump(2);
}

std::string ops_text() {
  const auto targets = used_targets();
  std::vector<std::string> header = {"op"};
  for (const Target target : targets) header.emplace_back(to_string(target));
  Table table(header, header.size());
  for (const OpEntry& op : all_ops()) {
    size_t lines = 1;
    for (const Target target : targets) lines = std::max(lines, cell(op, target).size());
    for (size_t line = 0; line < lines; ++line) {
      std::vector<std::string> row = {line == 0 ? op.name : ""};
      for (const Target target : targets) {
        const auto kernels = cell(op, target);
        row.push_back(line < kernels.size() ? kernels[line] : "");
      }
      table.add(std::move(row));
    }
  }
  return table.text();
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* explain =
      app.add_subcommand("explain", "Every kernel of an operator for one problem: supported or why not, the choice and why");
  explain->add_option("op", options->op, "Operator, e.g. gemm")->required();
  explain->add_option("problem", options->problem, "key=value,... ; fields left out take their defaults")->type_name("KEY=VALUE,...");
  explain->add_flag("--json", options->json, "One JSON object");
  auto* device = explain->add_option("--device", options->device, "cpu, cuda:0, ... (default cpu)");
  explain->add_option("--target", options->target, "A GPU that need not be here: sm_90a, gfx942, gfx950")->excludes(device);
  explain->callback([options, explain, &action] {
    options->target_given = explain->count("--target") > 0;
    action = [options](Common&) {
      const Explanation explanation = find_op(options->op).explain(options->problem, device_of(*options));
      fmt::print("{}{}", options->json ? to_json(explanation) : to_text(explanation), options->json ? "\n" : "");
      return kOk;
    };
  });
}

void add_ops(CLI::App& app, Action& action) {
  struct OpsOptions {
    bool markdown = false, json = false;
  };
  auto options = std::make_shared<OpsOptions>();
  CLI::App* ops = app.add_subcommand("ops", "The operators and their kernels by target");
  auto* markdown = ops->add_flag("--markdown", options->markdown, "As the page docs/generated/ops.md");
  ops->add_flag("--json", options->json, "One JSON array")->excludes(markdown);
  ops->callback([options, &action] {
    action = [options](Common&) {
      if (options->markdown) fmt::print("{}", ops_markdown());
      else if (options->json) fmt::print("{}\n", ops_json());
      else fmt::print("{}", ops_text());
      return kOk;
    };
  });
}

}  // namespace eitri::cli
