#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "ops/ops.h"

namespace eitri::cli {

void BenchReport::add(const BenchRow& row) {
  rows_.push_back(row);
  if (!json_) return;
  nlohmann::ordered_json object = {{"op", row.op},  {"case", row.name}, {"kernel", row.kernel}, {"us", row.us},
                                   {"vs", nullptr}, {"vs_us", nullptr}, {"ratio", nullptr},     {"limit_fraction", row.limit_fraction}};
  if (!row.vs.empty()) {
    object["vs"] = row.vs;
    object["vs_us"] = row.vs_us;
    object["ratio"] = row.ratio();
  }
  fmt::print("{}\n", object.dump());
  std::fflush(stdout);
}

const RowRace::Runner& RowRace::best() const { return *std::ranges::min_element(runners, {}, &Runner::us); }
const RowRace::Runner& RowRace::guessed() const { return *std::ranges::min_element(runners, {}, &Runner::expected_us); }

void BenchReport::add(const RowRace& race) {
  races_.push_back(race);
  if (!json_) return;
  auto runners = nlohmann::ordered_json::array();
  for (const auto& r : race.runners) runners.push_back({{"kernel", r.kernel}, {"us", r.us}, {"expected_us", r.expected_us}});
  const nlohmann::ordered_json object = {{"op", race.op},
                                         {"case", race.name},
                                         {"best", race.best().kernel},
                                         {"best_us", race.best().us},
                                         {"guess", race.guessed().kernel},
                                         {"guess_regret", race.regret()},
                                         {"raced", runners}};
  fmt::print("{}\n", object.dump());
  std::fflush(stdout);
}

void BenchReport::finish_races() const {
  Table table({"case", "row", "us", "expected us", "", ""}, 2);
  double logs = 0;
  for (const RowRace& race : races_) {
    logs += std::log1p(race.regret());
    for (const auto& r : race.runners) {
      const bool best = &r == &race.best(), guessed = &r == &race.guessed();
      table.add({race.name, r.kernel, fmt::format("{:.1f}", r.us), fmt::format("{:.1f}", r.expected_us), best ? "best" : "",
                 guessed ? fmt::format("guess, regret {:.1f} %", 100 * race.regret()) : ""});
    }
  }
  fmt::print("{}the guess takes {:.3f} times the best row's time in the geometric mean of {} cases\n", table.text(),
             std::exp(logs / static_cast<double>(races_.size())), races_.size());
}

void BenchReport::finish() const {
  if (!json_ && !races_.empty()) finish_races();
  if (json_ || rows_.empty()) return;
  const bool compared = !rows_.front().vs.empty();
  std::vector<std::string> header = {"case", "kernel", "us", "% of limit"};
  if (compared) header.insert(header.end(), {"other us", "ratio", "other"});
  Table table(header, 2);
  double logs = 0;
  for (const BenchRow& row : rows_) {
    std::vector<std::string> line = {row.name, row.kernel, fmt::format("{:.1f}", row.us), fmt::format("{:.0f}", 100 * row.limit_fraction)};
    if (compared) line.insert(line.end(), {fmt::format("{:.1f}", row.vs_us), fmt::format("{:.3f}", row.ratio()), row.vs});
    table.add(std::move(line));
    if (compared) logs += std::log(row.ratio());
  }
  fmt::print("{}", table.text());
  if (compared)
    fmt::print("geometric mean of the ratios over {} cases: {:.3f} (above 1: Eitri is faster)\n", rows_.size(),
               std::exp(logs / static_cast<double>(rows_.size())));
}

Step traced(const std::function<void()>& call) {
  Trace trace;
  call();
  require(!trace.steps().empty(), "bench: the call has no work");
  return trace.steps().front();
}

std::string kernel_of_family(std::string_view op, Family family) {
  for (const KernelInfo& kernel : find_op(op).kernels) {
    if (kernel.family == family) return kernel.name;
  }
  fail(Code::unsupported, str(op, " has no ", to_string(family), " row"));
}

}  // namespace eitri::cli
