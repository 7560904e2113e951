#include "cli/tune_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "dispatch/tuned_table.h"

namespace eitri::cli {

using nlohmann::ordered_json;
using tune::Outcome;
using tune::TuneStatus;

namespace {

double rounded(double us) { return std::round(us * 1000) / 1000; }

ordered_json to_json(const Outcome& o) {
  auto rejected = ordered_json::array();
  for (const auto& r : o.rejected) rejected.push_back({{"kernel", r.kernel}, {"config", r.config}, {"why", r.why}});
  ordered_json out = {{"op", o.problem.op},
                      {"problem", o.problem.problem},
                      {"status", std::string(to_string(o.status))},
                      {"why", o.why},
                      {"kernel", o.kernel},
                      {"config", o.config},
                      {"us", rounded(o.us)},
                      {"spread_us", rounded(o.spread_us)},
                      {"default_kernel", o.control_kernel},
                      {"default_config", o.control_config},
                      {"default_us", rounded(o.control_us)},
                      {"gain", rounded(o.gain())},
                      {"noise", std::isfinite(o.noise) ? ordered_json(rounded(o.noise)) : ordered_json(nullptr)},
                      {"noisy", o.noisy},
                      {"confirmed", o.confirmed},
                      {"default_is_wrong", o.control_is_wrong},
                      {"candidates", o.candidates},
                      {"slow", o.slow},
                      {"rejected", std::move(rejected)},
                      {"rounds", o.rounds},
                      {"discarded_rounds", o.discarded},
                      {"workers", o.workers},
                      {"samples", o.samples},
                      {"phases_s",
                       {{"start", rounded(o.phases.start)},
                        {"inputs", rounded(o.phases.inputs)},
                        {"check", rounded(o.phases.check)},
                        {"ring", rounded(o.phases.ring)},
                        {"race", rounded(o.phases.race)},
                        {"confirm", rounded(o.phases.confirm)}}},
                      {"seconds", rounded(o.seconds)}};
  auto every = ordered_json::array();
  for (const auto& t : o.score.every)
    every.push_back({{"kernel", t.kernel}, {"config", t.config}, {"us", rounded(t.us)}, {"guess_us", rounded(t.guess_us)}});
  if (o.status == TuneStatus::scored)
    out["score"] = {{"best_kernel", o.score.best_kernel},
                    {"best_config", o.score.best_config},
                    {"best_us", rounded(o.score.best_us)},
                    {"first_kernel", o.score.first_kernel},
                    {"first_config", o.score.first_config},
                    {"first_us", rounded(o.score.first_us)},
                    {"row_us", rounded(o.score.row_us)},
                    {"default_us", rounded(o.score.default_us)},
                    {"row_interval", rounded(o.score.row_interval)},
                    {"default_interval", rounded(o.score.default_interval)},
                    {"every", std::move(every)},
                    {"configs", o.score.configs},
                    {"every_us", rounded(o.score.every_us)},
                    {"every_config_us", rounded(o.score.every_config_us)},
                    {"round_us", rounded(o.score.round_us)}};
  return out;
}

/// Which kernel of an op serves how many rows of data, one entry a ladder.
struct Crossover {
  std::string op, rest;  // the problem without its rows
  std::map<int64_t, std::string> kernels;
};
std::vector<Crossover> crossovers(const std::vector<Outcome>& outcomes) {
  std::map<std::string, Crossover> ladders;
  for (const Outcome& o : outcomes) {
    const auto fields = fields_of(o.problem.op);
    const size_t bucketed = bucketed_field(fields);
    if (o.kernel.empty() || bucketed >= fields.size()) continue;
    std::string rest;
    int64_t rows = 0;
    for (const auto& [name, value] : eitri::detail::split_pairs(o.problem.problem, ','))
      if (name == fields[bucketed].name) std::from_chars(value.data(), value.data() + value.size(), rows);
      else rest += str(rest.empty() ? "" : ",", name, "=", value);
    Crossover& ladder = ladders[str(o.problem.op, " ", rest)];
    ladder.op = o.problem.op;
    ladder.rest = rest;
    ladder.kernels[rows] = o.kernel;
  }
  std::vector<Crossover> out;
  for (auto& [key, ladder] : ladders)
    if (ladder.op == "fused_moe" && ladder.kernels.size() > 1) out.push_back(std::move(ladder));
  return out;
}
/// "a for 1 to 16 tokens, b for 24 to 4096".
std::string text_of(const Crossover& crossover) {
  std::string out;
  for (auto it = crossover.kernels.begin(); it != crossover.kernels.end();) {
    auto last = it;
    while (std::next(last) != crossover.kernels.end() && std::next(last)->second == it->second) ++last;
    out += str(out.empty() ? "" : ", ", it->second, " for ", it->first, last == it ? std::string() : str(" to ", last->first), " tokens");
    it = std::next(last);
  }
  return out;
}

}  // namespace

TuneReport::~TuneReport() { wipe(); }

void TuneReport::wipe() {
  if (width_ > 0) fmt::print(stderr, "\r{:{}}\r", "", width_);
  width_ = 0;
}

void TuneReport::begin(const tune::TuneProblem& problem) {
  current_ = fmt::format("{} {}", problem.op, problem.problem);
  progress("preparing");
}

void TuneReport::progress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  constexpr size_t kBar = 20;
  const size_t full = total_ == 0 ? kBar : outcomes_.size() * kBar / total_;
  std::string line = fmt::format("[{:#<{}}{: <{}}] {}/{}", "", full, "", kBar - full, outcomes_.size(), total_);
  if (worked_ > 0 && total_ > outcomes_.size()) {
    const double left = worked_s_ / static_cast<double>(worked_) * static_cast<double>(total_ - outcomes_.size());
    line += fmt::format(", {:.0f}:{:02.0f} left", std::floor(left / 60), std::fmod(left, 60));
  }
  line += fmt::format("  {}: {}", current_, what);
  constexpr size_t kMost = 160;
  if (line.size() > kMost) line.resize(kMost);
  const size_t width = line.size();
  line.resize(std::max(line.size(), width_), ' ');
  width_ = width;
  fmt::print(stderr, "\r{}", line);
  std::fflush(stderr);
}

void TuneReport::end(Outcome outcome) {
  if (outcome.status != TuneStatus::known && outcome.status != TuneStatus::out_of_time) {
    worked_s_ += outcome.seconds;
    ++worked_;
  }
  outcomes_.push_back(std::move(outcome));
}

bool TuneReport::failed() const {
  return std::ranges::any_of(outcomes_, [](const Outcome& o) { return o.status == TuneStatus::failed || o.control_is_wrong; });
}

void TuneReport::print(bool json, const std::string& folder) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (json) {
    auto list = ordered_json::array();
    for (const Outcome& o : outcomes_) list.push_back(to_json(o));
    ordered_json all = {{"folder", folder}, {"seconds", rounded(seconds)}, {"problems", std::move(list)}};
    for (const Crossover& c : crossovers(outcomes_)) {
      auto kernels = ordered_json::object();
      for (const auto& [rows, kernel] : c.kernels) kernels[str(rows)] = kernel;
      all["kernel_by_rows"].push_back({{"op", c.op}, {"problem", c.rest}, {"kernels", std::move(kernels)}});
    }
    fmt::print("{}\n", all.dump(1, ' ', false, ordered_json::error_handler_t::replace));
    return;
  }
  Table table({"op", "problem", "result", "kernel", "config", "before us", "after us", "gain", "noise", "rejected", "s"}, 5);
  size_t tuned = 0, rejected = 0;
  double log_gain = 0;
  for (const Outcome& o : outcomes_) {
    const bool timed = o.us > 0;
    table.add({o.problem.op, o.problem.problem, fmt::format("{}{}", to_string(o.status), o.noisy ? " (noisy)" : ""), o.kernel, o.config,
               o.control_us > 0 ? fmt::format("{:.1f}", o.control_us) : "", timed ? fmt::format("{:.1f}", o.us) : "",
               timed ? fmt::format("{:.1f} %", 100 * o.gain()) : "",
               timed && std::isfinite(o.noise) && o.noise > 0 ? fmt::format("{:.1f} %", 100 * o.noise) : "",
               o.rejected.empty() ? "" : str(o.rejected.size()), fmt::format("{:.1f}", o.seconds)});
    tuned += o.status == TuneStatus::tuned ? 1 : 0;
    rejected += o.rejected.size();
    if (o.gain() < 1 && timed) log_gain += std::log(1 - o.gain());
  }
  fmt::print("{}", table.text());
  for (const Outcome& o : outcomes_) {
    if (o.status == TuneStatus::scored)
      fmt::print("{} {}: row {:.1f} %, default {:.1f} % over the best of {}: {} {}\n", o.problem.op, o.problem.problem,
                 100 * (o.score.row_us / o.score.best_us - 1), 100 * (o.score.default_us / o.score.best_us - 1), o.score.every.size(),
                 o.score.best_kernel, o.score.best_config);
    if (!o.why.empty() && o.status != TuneStatus::known)
      fmt::print("{} {}: {}: {}\n", o.problem.op, o.problem.problem, to_string(o.status), o.why);
    if (o.control_is_wrong) fmt::print("{} {}: THE DEFAULT IS WRONG: see below\n", o.problem.op, o.problem.problem);
    for (const auto& r : o.rejected) fmt::print("{} {}: rejected {} {}: {}\n", o.problem.op, o.problem.problem, r.kernel, r.config, r.why);
  }
  for (const Crossover& c : crossovers(outcomes_)) fmt::print("{} {}: {}\n", c.op, c.rest, text_of(c));
  const auto count = static_cast<double>(std::max<size_t>(1, outcomes_.size()));
  fmt::print("{} problems, {} with a gain, {:.1f} % saved in the mean, {} candidates rejected, in {:.0f} s; rows and journal in {}\n",
             outcomes_.size(), tuned, 100 * (1 - std::exp(log_gain / count)), rejected, seconds, folder);
}

}  // namespace eitri::cli
