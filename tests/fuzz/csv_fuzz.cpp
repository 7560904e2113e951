// Texts that others write: tuned rows, problem keys, configs. Errors are fine, anything else is not. The first byte chooses
// the reader, so that one corpus serves all.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dispatch/database.h"
#include "dispatch/kernel.h"
#include "dispatch/tuned_curve.h"
#include "dispatch/tuned_table.h"
#include "ops/gemm/gemm.h"

namespace {

constexpr int kValues[] = {1, 2, 4};
constexpr eitri::Knob kKnobs[] = {{"tile_m", kValues}, {"split_k", kValues}};

void check(bool ok) {
  if (!ok) std::abort();
}

void tuned(std::string_view text) {
  const eitri::TunedFile file = eitri::parse_tuned(text, "fuzz.csv", "x86_avx2", {{.name = "m"}, {.name = "n"}});
  for (const auto& row : file.rows) check(row.us > 0 && row.rank >= 1 && row.key.starts_with("m="));
  // What is read can be asked for, and interpolated.
  const eitri::TunedTable table{std::string(text), "fuzz.csv", "x86_avx2", {{.name = "m", .match = eitri::Match::bucketed}, {.name = "n"}}};
  check(table.entries().size() == file.rows.size());
  for (const auto& entry : table.entries()) {
    check(table.find(entry.values, entry.units) != nullptr);
    std::vector<eitri::CurvePoint> ladder;
    for (const auto& point : table.ladder(entry.values, entry.units)) ladder.push_back({point.at, {table.row(*point.entry)}});
    check(!ladder.empty());
    for (const int64_t at : {ladder.front().at, ladder.back().at, ladder.front().at / 2 + ladder.back().at / 2})
      for (const auto& advice : eitri::interpolate(ladder, at)) check(advice.us > 0);
  }
  for (const auto& problem : file.problems) check(!problem.text.empty() && problem.origin.starts_with("fuzz.csv"));
}

void problem(std::string_view text) {
  try {
    const auto parsed = eitri::parse_problem<eitri::Gemm::Problem>("gemm", text);
    const std::string key = eitri::key_of(parsed);
    check(eitri::parse_problem<eitri::Gemm::Problem>("gemm", key) == parsed);
  } catch (const eitri::Error&) {
  }
}

void config(std::string_view text) {
  eitri::Config parsed, again;
  std::string why;
  if (!eitri::parse_config(text, kKnobs, parsed, why)) return check(!why.empty());
  check(eitri::parse_config(eitri::to_string(parsed, kKnobs), kKnobs, again, why) && parsed == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: tuned(text); break;
    case 1: problem(text); break;
    default: config(text); break;
  }
  return 0;
}
