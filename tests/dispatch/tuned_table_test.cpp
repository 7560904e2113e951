// One tuned file in memory: what a lookup finds, how long it and the loading take, and what broken files cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <time.h>

#include <algorithm>
#include <random>
#include <unordered_map>

#include "dispatch/tuned_table.h"
#include "ops/gemm/gemm.h"

namespace eitri {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::vector<TunedField> kGemm = tuned_fields<Gemm::Problem>();

TunedRow row_of(const Gemm::Problem& problem, int rank, double us, int units = 2) {
  return {.key = key_of(problem),
          .units = units,
          .rank = rank,
          .kernel = "gemm.x86_avx512.panel",
          .config = "split=1;block_m=64;chunk_k=8",
          .us = us,
          .spread_us = us / 100,
          .baseline_us = us * 1.25,
          .error = 0.125,
          .revision = "0123456789ab",
          .toolchain = "gcc 12.2.0",
          .date = "2024-05-01"};
}

std::string file_of(const std::vector<TunedRow>& rows) {
  std::string text = tuned_header(kGemm) + "\n";
  for (const TunedRow& row : rows) text += tuned_line(row, "x86_avx512") + "\n";
  return text;
}

TunedTable table_of(std::string text) { return TunedTable(std::move(text), "gemm.x86_avx512.csv", "x86_avx512", kGemm); }

TEST(TunedTable, what_is_written_is_read_back) {
  const TunedRow row = row_of({.m = 16, .n = 4096, .k = 7168, .activation = ActivationKind::silu}, 1, 812.5);
  const TunedTable table = table_of(file_of({row}));
  EXPECT_THAT(table.problems(), IsEmpty());
  const auto* entry = table.find(values_of(row.key), 2);
  ASSERT_NE(entry, nullptr);
  const TunedRow back = table.row(*entry);
  EXPECT_EQ(back.key, row.key);
  EXPECT_EQ(back.units, 2);
  EXPECT_EQ(back.kernel, row.kernel);
  EXPECT_EQ(back.config, row.config);
  EXPECT_EQ(back.us, row.us);
  EXPECT_EQ(back.spread_us, row.spread_us);
  EXPECT_EQ(back.baseline_us, 1015.6);  // five digits
  EXPECT_EQ(back.error, row.error);
  EXPECT_EQ(back.revision, row.revision);
  EXPECT_EQ(back.toolchain, row.toolchain);
  EXPECT_EQ(back.date, row.date);
  EXPECT_EQ(back.origin, "gemm.x86_avx512.csv:2");
  EXPECT_EQ(parse_problem<Gemm::Problem>("gemm", back.key).activation, ActivationKind::silu);
}

TEST(TunedTable, cells_that_would_break_a_line_are_replaced) {
  TunedRow row = row_of({.m = 1}, 1, 1);
  row.toolchain = "gcc, 12\nclang";
  const TunedTable table = table_of(file_of({row}));
  EXPECT_THAT(table.problems(), IsEmpty());
  ASSERT_THAT(table.entries(), SizeIs(1));
  EXPECT_EQ(table.row(table.entries()[0]).toolchain, "gcc  12 clang");
}

TEST(TunedTable, ranks_are_chained_in_order_whatever_the_order_of_lines) {
  const Gemm::Problem problem{.m = 8, .n = 64, .k = 64};
  const TunedTable table = table_of(file_of({row_of(problem, 3, 3), row_of(problem, 1, 1), row_of(problem, 2, 2), row_of(problem, 2, 9)}));
  const auto* entry = table.find(values_of(key_of(problem)), 2);
  for (int rank = 1; rank <= 3; ++rank, entry = table.next(*entry)) {
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->rank, rank);
    EXPECT_EQ(entry->us, rank);
  }
  EXPECT_EQ(entry, nullptr);
  ASSERT_THAT(table.problems(), SizeIs(1));
  EXPECT_THAT(table.problems()[0].text, HasSubstr("came before"));
}

TEST(TunedTable, other_problems_and_units_are_not_found) {
  const TunedTable table = table_of(file_of({row_of({.m = 8, .n = 64, .k = 64}, 1, 1)}));
  EXPECT_EQ(table.find(values_of(key_of(Gemm::Problem{.m = 9, .n = 64, .k = 64})), 2), nullptr);
  EXPECT_EQ(table.find(values_of(key_of(Gemm::Problem{.m = 8, .n = 64, .k = 64})), 3), nullptr);
  EXPECT_EQ(table.find("", 2), nullptr);
}

TEST(TunedTable, cells_of_the_wrong_type_are_said_and_cost_their_line_only) {
  const std::string good = tuned_line(row_of({.m = 8, .n = 64, .k = 64}, 1, 1), "x86_avx512");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = good;
    line.replace(line.find(from), from.size(), to);
    return line;
  };
  struct {
    std::string line;
    const char* text;
  } const bad[] = {{with(",8,64,", ",eight,64,"), "m is \"eight\"; expected an integer"},
                   {with(",8,64,", ",08,64,"), "m is \"08\"; expected an integer"},
                   {with(",8,64,", ",,64,"), "m is \"\"; expected an integer"},
                   {with("bf16,bf16", "bf16,bf17"), "c is \"bf17\""},
                   {with("panel32", "panel33"), "b_format is \"panel33\""},
                   {with("gemm.x86_avx512.panel", ""), "kernel is empty"},
                   {with(",0.01,", ",wide,"), "spread_us, baseline_us or error"},
                   {with(",1.25,", ",-1,"), "spread_us, baseline_us or error"},
                   {with(",0.125,", ",inf,"), "spread_us, baseline_us or error"}};
  std::string text = tuned_header(kGemm) + "\n";
  for (const auto& b : bad) text += b.line + "\n";
  const TunedTable table = table_of(text + good + "\n");
  ASSERT_THAT(table.entries(), SizeIs(1));
  ASSERT_THAT(table.problems(), SizeIs(std::size(bad)));
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_THAT(table.problems()[i].text, HasSubstr(bad[i].text));
    EXPECT_EQ(table.problems()[i].origin, str("gemm.x86_avx512.csv:", i + 2));
  }
  EXPECT_THAT(table.rejected(), SizeIs(std::size(bad)));
  EXPECT_EQ(table.rejected()[0], bad[0].line);
}

TEST(TunedTable, a_file_of_bad_lines_says_a_thousand_and_counts_the_rest) {
  std::string text = tuned_header(kGemm) + "\n";
  for (int i = 0; i < 1500; ++i) text += "x\n";
  const TunedTable table = table_of(text);
  ASSERT_THAT(table.problems(), SizeIs(1001));
  EXPECT_EQ(table.problems().back().text, "and 500 more lines");
}

TEST(TunedTable, ladder_holds_the_rows_that_differ_in_m_alone) {
  std::vector<TunedRow> rows;
  for (const int64_t m : {64, 1, 16}) rows.push_back(row_of({.m = m, .n = 64, .k = 64}, 1, static_cast<double>(m)));
  rows.push_back(row_of({.m = 16, .n = 64, .k = 64}, 2, 17));
  rows.push_back(row_of({.m = 4, .n = 65, .k = 64}, 1, 1));
  rows.push_back(row_of({.m = 2, .n = 64, .k = 64}, 1, 1, 3));
  const TunedTable table = table_of(file_of(rows));
  const auto ladder = table.ladder(values_of(key_of(Gemm::Problem{.m = 7, .n = 64, .k = 64})), 2);
  ASSERT_THAT(ladder, SizeIs(3));
  const int64_t wanted[] = {1, 16, 64};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ladder[i].at, wanted[i]);
    EXPECT_EQ(ladder[i].entry->us, static_cast<double>(wanted[i]));
  }
}

std::vector<TunedRow> many_rows(int64_t count) {
  std::vector<TunedRow> rows;
  for (int64_t i = 0; i < count; ++i)
    rows.push_back(row_of({.m = 1 + i % 97, .n = 64 * (1 + i / 97), .k = 128 * (1 + i % 13)}, 1 + static_cast<int>(i % 3),
                          100.0 + static_cast<double>(i)));
  return rows;
}

/// Time that this thread ran: other programs on the machine do not count.
double thread_seconds() {
  struct timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The limits are for an optimised build; a sanitizer's is only run.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kTimed = true;
#else
constexpr bool kTimed = false;
#endif

TEST(TunedTable, fifty_thousand_rows_load_within_50_ms) {
  const std::string text = file_of(many_rows(50000));
  double best_ms = 1e9;
  for (int i = 0; i < 7; ++i) {
    std::string copy = text;
    const double start = thread_seconds();
    const TunedTable table = table_of(std::move(copy));
    best_ms = std::min(best_ms, 1e3 * (thread_seconds() - start));
    ASSERT_THAT(table.entries(), SizeIs(50000));
    ASSERT_THAT(table.problems(), IsEmpty());
  }
  RecordProperty("load_ms", std::to_string(best_ms));
  if (kTimed) EXPECT_LT(best_ms, 50);
}

TEST(TunedTable, lookup_takes_less_than_100_ns_or_a_map) {
  const auto rows = many_rows(50000);
  const TunedTable table = table_of(file_of(rows));
  std::vector<std::string> keys;
  for (const TunedRow& row : rows) keys.push_back(values_of(row.key));
  std::shuffle(keys.begin(), keys.end(), std::mt19937(1));
  std::unordered_map<std::string, size_t> peer;
  for (const TunedRow& row : rows) peer.emplace(values_of(row.key), peer.size());
  // A thousand keys that a process asks for again and again, in an order that no prefetcher knows.
  const auto ns = [&](const auto& lookup) {
    size_t found = 0;
    const double start = thread_seconds();
    for (int pass = 0; pass < 20; ++pass)
      for (size_t k = 0; k < 1000; ++k) found += lookup(keys[k]) ? 1 : 0;
    EXPECT_EQ(found, 20000u);
    return 1e9 * (thread_seconds() - start) / 20000;
  };
  double best_ns = 1e9, peer_ns = 1e9;
  for (int i = 0; i < 15; ++i) {
    best_ns = std::min(best_ns, ns([&](const std::string& key) { return table.find(key, 2) != nullptr; }));
    peer_ns = std::min(peer_ns, ns([&](const std::string& key) { return peer.contains(key); }));
  }
  RecordProperty("lookup_ns", std::to_string(best_ns));
  RecordProperty("unordered_map_ns", std::to_string(peer_ns));
  // 100 ns is what the interface promises on a server core of today; a slower one is held to the standard library's map, less noise.
  if (kTimed) EXPECT_LT(best_ns, std::max(100.0, 1.25 * peer_ns));
}

}  // namespace
}  // namespace eitri
