#include "cli/tune_problems.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <ranges>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/hash.h"
#include "cli/command.h"
#include "cli/moe.h"
#include "dispatch/misses.h"
#include "dispatch/tuned_table.h"
#include "ops/gemm/gemm.h"
#include "ops/ops.h"
#include "ops/plain_weights.h"
#include "tune/ops.h"
#include "tune/tuned_writer.h"

namespace eitri::cli {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Cells of a line; a cell in double quotes may hold commas.
std::vector<std::string> cells_of(std::string line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    else if (c == ',' && !quoted) out.emplace_back();
    else if (c != '\r' && c != ' ') out.back() += c;
  }
  return out;
}

/// Our name of a dtype as the peer's files spell it ("torch.bfloat16"); the text itself when it is none of those.
std::string dtype_of_peer(std::string text) {
  text = lower(text);
  if (text.starts_with("torch.")) text.erase(0, 6);
  if (text == "bfloat16") return "bf16";
  if (text == "float16" || text == "half") return "f16";
  if (text == "float32" || text == "float") return "f32";
  if (text == "int8") return "i8";
  if (text == "float8_e4m3fn") return "f8e4m3";
  if (text == "float8_e4m3fnuz") return "f8e4m3fnuz";
  return text;
}

/// The problem field behind a column of a shapes file; "" for one that is passed over.
std::string field_of_column(const std::string& op, const std::string& column, const std::vector<TunedField>& fields) {
  const std::string name = lower(column);
  if (op == "gemm" && column == "B") return "batch";  // of the peer; `b` is the dtype of our weights
  for (const TunedField& field : fields)
    if (field.name == name) return field.name;
  if (op != "gemm") return {};
  if (name == "dtype" || name == "q_dtype_w") return "a";
  return name == "outdtype" ? "c" : "";
}

}  // namespace

tune::TuneProblem problem_from_text(const std::string& op, const std::string& text, const Device& device) {
  require(!text.empty(), "--problem is ''; expected KEY=VALUE,...");
  find_op(op).explain(text, device);  // refuses what cannot be, with the reason
  std::string key;
  for_each_op([&]<Operator Op>() {
    if (op != Op::name) return;
    auto problem = parse_problem<typename Op::Problem>(Op::name, text);
    // Codes have scales: one for each row and column where nothing else is said, which for a single one is one for the tensor.
    if constexpr (std::is_same_v<Op, Gemm>)
      if (problem.a == DType::f8e4m3 && problem.b == DType::none && problem.a_quant == Quant::none && problem.b_quant == Quant::none) {
        problem.a_quant = problem.m == 1 ? Quant::per_tensor : Quant::per_token;
        problem.b_quant = problem.n == 1 ? Quant::per_tensor : Quant::per_token;
      }
    // Without a mask all experts are here.
    if constexpr (std::is_same_v<Op, FusedMoe>)
      if (!problem.expert_mask && text.find("local_experts=") == std::string::npos) problem.local_experts = problem.experts;
    key = key_of(device.is_gpu() ? with_plain_weights(problem, text) : problem);
  });
  return {op, key};
}

Problems problems_from_csv(const std::string& op, const std::string& path, const std::vector<int64_t>& ladder, const Device& device) {
  find_op(op);
  const auto fields = fields_of(op);
  const size_t bucketed = bucketed_field(fields);
  std::string text = read_file(path, size_t{64} << 20);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::vector<std::string> columns;
  bool has_bucketed = false;
  size_t known = 0;
  for (const std::string& cell : cells_of(line)) {
    columns.push_back(field_of_column(op, cell, fields));
    known += columns.back().empty() ? 0 : 1;
    has_bucketed = has_bucketed || (bucketed < fields.size() && columns.back() == fields[bucketed].name);
  }
  std::string names;
  for (const TunedField& field : fields) names += str(names.empty() ? "" : ", ", field.name);
  // A file of another kind must not steer the terminal.
  std::string shown = line.substr(0, 80);
  for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
  require(known > 0, path, ": the first line is '", shown, line.size() > shown.size() ? "..." : "", "'; expected a header with some of ",
          names);
  Problems out;
  for (int number = 2; std::getline(lines, line); ++number) {
    if (line.empty() || line == "\r" || line.starts_with('#')) continue;
    const auto cells = cells_of(line);
    const std::string where = str(path, ":", number);
    require(cells.size() == columns.size(), where, ": has ", cells.size(), " columns; expected ", columns.size());
    std::string problem;
    const bool is_f16 = op == "gemm" && std::ranges::any_of(std::views::iota(size_t{0}, cells.size()), [&](size_t i) {
                          return columns[i] == "a" && dtype_of_peer(cells[i]) == "f16";
                        });
    for (size_t i = 0; i < cells.size(); ++i) {
      if (columns[i].empty()) continue;
      std::string value = cells[i];
      // What is not said has its default, but for an extent: one that was forgotten is not 1.
      static constexpr std::string_view kExtents[] = {"m", "n", "k", "tokens", "hidden", "inter", "experts", "top_k", "rows", "cols"};
      require(!value.empty() || std::ranges::find(kExtents, columns[i]) == std::end(kExtents), where, ": ", columns[i],
              " is empty; expected a number");
      if (value.empty()) continue;
      if (columns[i] == "a" || columns[i] == "c" || columns[i] == "x" || columns[i] == "w" || columns[i] == "out")
        value = dtype_of_peer(value);
      if (columns[i] == "bias" && op == "gemm") {
        value = lower(value);
        if (value == "false" || value == "0") value = "none";
        if (value == "true" || value == "1") value = is_f16 ? "f16" : "bf16";
      }
      problem += str(problem.empty() ? "" : ",", columns[i], "=", value);
    }
    try {
      if (has_bucketed || bucketed == fields.size()) {
        out.push_back(problem_from_text(op, problem, device));
      } else {
        for (const int64_t m : ladder) out.push_back(problem_from_text(op, str(problem, ",", fields[bucketed].name, "=", m), device));
      }
    } catch (const Error& error) {
      fail(error.code(), str(where, ": ", error.what()));
    }
  }
  require(!out.empty(), path, ": has no shapes");
  return out;
}

FusedMoe::Problem block_of(const checkpoint::MoeModel& model, int64_t tokens, DType w) {
  const Quant quant = w == DType::i8 ? Quant::per_token : Quant::none;
  return {.tokens = tokens,
          .hidden = model.hidden,
          .inter = model.inter,
          .local_experts = model.experts,
          .experts = model.experts,
          .top_k = model.top_k,
          .w = w,
          .a_quant = quant,
          .w_quant = quant,
          .activation = model.activation.kind,
          .gate = model.gate,
          .weight_stage = model.weight_stage,
          .bias1 = model.expert_bias,
          .bias2 = model.expert_bias,
          .shared_inter = model.shared_inter};
}

Problems problems_of_model(const std::string& name, const std::string& weights, const std::vector<int64_t>& tokens, const Device& device) {
  const checkpoint::MoeModel model = checkpoint::find_moe_model(name, model_folders());
  const DType w = dtype_from(weights).value_or(DType::none);
  Problems blocks, calls;
  for (const int64_t t : tokens) {
    FusedMoe::Problem problem = block_of(model, t, w);
    if (device.is_gpu()) problem = with_plain_weights(problem);
    blocks.push_back({FusedMoe::name, key_of(problem)});
  }
  // Calls of recipes first: when the block is timed, they run as they were tuned.
  for (const auto& block : blocks)
    for (const tune::TunedOp& op : tune::all_tuned_ops())
      if (op.name == block.op)
        for (const auto& [child, problem] : op.children(block.problem, device)) calls.push_back({child, problem});
  calls.insert(calls.end(), blocks.begin(), blocks.end());
  return without_repeats(std::move(calls));
}

Problems problems_from_record(const std::string& path, const Device& device, size_t& skipped, std::vector<std::string>& problems) {
  const MissFile file = read_misses(path);
  // Programs append for as long as they run.
  if (file.lines > 1000 && file.lines > 4 * file.misses.size() && std::filesystem::is_directory(path)) compact_misses(path);
  problems = file.problems;
  Problems out;
  for (const Miss& miss : file.misses) {
    if (miss.arch != device.arch() || miss.units != device.units) {
      ++skipped;
      continue;
    }
    try {
      out.push_back(problem_from_text(miss.op, miss.problem, device));
    } catch (const Error& error) {  // of another version, say
      problems.push_back(str(miss.op, " ", miss.problem, ": ", error.what()));
    }
  }
  return out;
}

bool is_of_the_past(const std::string& op, const TunedRow& row) {
  const auto& kernels = find_op(op).kernels;
  const auto kernel = std::ranges::find_if(kernels, [&](const KernelInfo& k) { return row.kernel == k.name; });
  return kernel == kernels.end() || is_stale(row, kernel_revision(op, kernel->target));
}

Problems stale_problems(const std::string& folder, const Device& device) {
  Problems out;
  for (const OpEntry& op : all_ops()) {
    std::string text;
    try {
      text = read_file(tune::tuned_file(folder, op.name, device.arch()), size_t{256} << 20);
    } catch (const Error&) {
      continue;  // no file of this op
    }
    for (const TunedRow& row : parse_tuned(text, op.name, device.arch(), fields_of(op.name)).rows) {
      if (row.units == device.units && is_of_the_past(op.name, row)) out.push_back({op.name, row.key});
    }
  }
  return without_repeats(std::move(out));
}

std::vector<int64_t> default_ladder(int64_t most) {
  std::vector<int64_t> out;
  for (const int64_t m : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096})
    if (m <= most) out.push_back(m);
  return out;
}

Problems without_repeats(Problems problems) {
  Problems out;
  std::set<std::string> seen;
  for (auto& p : problems)
    if (seen.insert(str(p.op, " ", p.problem)).second) out.push_back(std::move(p));
  return out;
}

Problems shard_of(const Problems& problems, const std::string& shard, bool grows) {
  size_t i = 0, n = 0;
  const char* const begin = shard.data();
  const char* const end = begin + shard.size();
  const auto first = std::from_chars(begin, end, i);
  const bool slash = first.ec == std::errc{} && first.ptr < end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, n) : first;
  require(slash && second.ec == std::errc{} && second.ptr == end && i >= 1 && i <= n, "--shard is '", shard,
          "'; expected i/n with i from 1 to n, for example 2/8");
  Problems out;
  for (size_t k = 0; k < problems.size(); ++k) {
    const std::string text = str(problems[k].op, " ", problems[k].problem);
    if ((grows ? hash_bytes(text) : k) % n == i - 1) out.push_back(problems[k]);
  }
  return out;
}

}  // namespace eitri::cli
