// Text and JSON of an Explanation.
#include "dispatch/explain.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace eitri {
namespace {

void write_text(std::string& out, const Explanation& e, int depth) {
  const std::string pad(size_t(depth) * 4, ' ');
  out += fmt::format("{}{} {} on {}\n", pad, e.op, e.problem, e.device);
  size_t width = 0;
  for (const auto& row : e.rows) width = std::max(width, row.kernel.size());
  for (const auto& row : e.rows) {
    if (row.supported)
      out += fmt::format("{}  {} {:<{}}  {:>12.1f} us predicted{}{}\n", pad, row.chosen ? '*' : ' ', row.kernel, width, row.predicted_us,
                         row.config.empty() ? "" : "  ", row.config);
    else out += fmt::format("{}    {:<{}}  no: {}\n", pad, row.kernel, width, row.reason);
  }
  if (e.chosen.empty()) out += fmt::format("{}  -> {}\n", pad, e.why);
  else out += fmt::format("{}  -> {} ({}: {})\n", pad, e.chosen, e.origin, e.why);
  if (!e.tuned.empty()) out += fmt::format("{}     {}\n", pad, e.tuned);
  for (const auto& child : e.children) write_text(out, child, depth + 1);
}

nlohmann::ordered_json to_object(const Explanation& e) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& r : e.rows) {
    nlohmann::ordered_json row = {
        {"kernel", r.kernel}, {"family", r.family}, {"target", r.target}, {"supported", r.supported}, {"chosen", r.chosen}};
    if (r.supported) {
      row["predicted_us"] = r.predicted_us;
      row["config"] = r.config;
    } else {
      row["reason"] = r.reason;
    }
    rows.push_back(std::move(row));
  }
  nlohmann::ordered_json children = nlohmann::ordered_json::array();
  for (const auto& child : e.children) children.push_back(to_object(child));
  return {{"op", e.op},         {"problem", e.problem},    {"device", e.device},
          {"chosen", e.chosen}, {"origin", e.origin},      {"why", e.why},
          {"tuned", e.tuned},   {"rows", std::move(rows)}, {"children", std::move(children)}};
}

}  // namespace

std::string to_text(const Explanation& explanation) {
  std::string out;
  write_text(out, explanation, 0);
  return out;
}

std::string to_json(const Explanation& explanation) { return to_object(explanation).dump(2); }

}  // namespace eitri
