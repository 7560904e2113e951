// Where tuned files lie, when they are read again, and which of their rows answer a problem.
#include "dispatch/database.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "backend/cpu/cpu.h"
#include "backend/gpu.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"
#include "dispatch/misses.h"
#include "dispatch/route.h"
#include "dispatch/tuned_curve.h"
#include "dispatch/tuned_table.h"

namespace eitri {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr double kUnitsFactor = 1.25;  // how far a row carries to devices of other sizes
constexpr time_t kPollSeconds = 1;

/// What tells a changed file from an unchanged one. All 0: there is none.
struct Signature {
  int64_t seconds = 0, nanoseconds = 0, size = 0, inode = 0;
  bool operator==(const Signature&) const = default;
};
Signature signature_of(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec, static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_ino)};
}

struct Watched {
  std::string path;
  Signature seen;
};
/// The files of one op and arch, in the order of their priority.
struct Files {
  std::vector<std::unique_ptr<TunedTable>> tables;
  std::vector<TunedProblem> problems;
  std::vector<Watched> watched;  // also those that are not there yet
};

struct Store {
  std::mutex mutex;
  std::map<std::string, std::vector<TunedField>, std::less<>> fields;  // op -> problem fields
  std::map<std::string, CurveRules, std::less<>> rules;                // op -> what its rows say about other problems
  std::map<std::string, Files> files;                                  // "op.arch/units"
};
Store& store() {
  static Store& s = *new Store;  // reachable for threads that outlive main
  return s;
}
std::atomic<time_t> next_poll = 0;
std::atomic<uint32_t> reloads = 0;

/// Where the shipped rows may lie: beside an installed library, or in the source tree of a build.
std::vector<std::string> shipped_folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  Dl_info info;
  std::error_code error;
  std::vector<fs::path> homes;
  if (dladdr(reinterpret_cast<void*>(&shipped_folders), &info) != 0 && info.dli_fname != nullptr)
    homes.push_back(fs::weakly_canonical(info.dli_fname, error).parent_path());
  homes.push_back(fs::read_symlink("/proc/self/exe", error).parent_path());
  for (const fs::path& home : homes) {
    if (home.empty()) continue;
    for (const char* relative : {"../share/eitri/tuned", "../../tuned", "../../../tuned"}) {
      const fs::path folder = (home / relative).lexically_normal();
      if (fs::is_directory(folder, error)) out.push_back(folder.string());
    }
  }
  return out;
}

void count_reload() {
  reloads.fetch_add(1, std::memory_order_release);
  bump_route_generation();
  counter("tuned.reload").fetch_add(1, std::memory_order_relaxed);
}

/// Rows for devices of other sizes are kept (near ones may serve), and said: once for each size. A file that is shipped, or has rows for
/// this size too, is as it should be; one that a user named and that has none may be the wrong file.
void note_other_units(Files& files, const TunedTable& table, int units, bool is_shipped) {
  std::map<int, std::pair<uint32_t, size_t>> others;  // units -> first line, rows
  for (const auto& entry : table.entries())
    if (entry.units != units) ++others.try_emplace(entry.units, entry.line, 0).first->second.second;
  size_t rows = 0;
  for (const auto& [other, where] : others) rows += where.second;
  const bool is_note = is_shipped || rows < table.entries().size();
  for (const auto& [other, where] : others)
    files.problems.push_back(
        {.origin = str(table.file(), ":", where.first),
         .text = str("units is ", other, "; this machine has ", units, " (", where.second, where.second == 1 ? " row)" : " rows)"),
         .is_note = is_note});
}

const Files& files_for(std::string_view op, const Device& device, Store& s) {  // s.mutex is held
  namespace fs = std::filesystem;
  const std::string key = str(op, ".", device.arch(), "/", device.units);
  const auto it = s.files.find(key);
  if (it != s.files.end()) return it->second;
  const auto fields = s.fields.find(op);
  static const Files none;
  if (fields == s.fields.end()) return none;  // not kept: the operator may become known later
  Files& files = s.files[key];
  const std::string name = str(op, ".", device.arch(), ".csv");
  std::set<std::string> read;  // a file named twice counts once
  const std::vector<std::string> shipped = shipped_folders();
  for (const std::string& path : tuned_paths()) {
    std::error_code error;
    std::string file = path;
    if (fs::path(path).extension() != ".csv") file = (fs::path(path) / name).string();
    else if (fs::path(path).filename() != name) continue;  // a file of another op or machine
    if (!read.insert(file).second) continue;
    const Signature seen = signature_of(file);  // before the reading: a change meanwhile is seen next time
    files.watched.push_back({file, seen});
    if (seen == Signature{}) continue;
    try {
      auto table = std::make_unique<TunedTable>(read_file(file, kMaxFileBytes), file, device.arch(), fields->second);
      files.problems.insert(files.problems.end(), table->problems().begin(), table->problems().end());
      note_other_units(files, *table, device.units, std::ranges::find(shipped, path) != shipped.end());
      files.tables.push_back(std::move(table));
    } catch (const std::exception& e) {  // too little memory as well: the other files still count
      files.problems.push_back({file, e.what()});
    }
  }
  for (const auto& p : files.problems)
    if (!p.is_note) warn_once(LogTopic::tune, str(key, p.origin, p.text), "tuned row skipped: ", p.origin, ": ", p.text);
  return files;
}

/// Every rank of a problem as advice.
void add_ranks(const TunedTable& table, const TunedTable::Entry* entry, AdviceKind kind, std::vector<TunedAdvice>& out) {
  for (; entry != nullptr; entry = table.next(*entry)) {
    TunedAdvice advice{.row = table.row(*entry), .kind = kind};
    advice.us = advice.row.us;
    advice.baseline_us = advice.row.baseline_us;
    out.push_back(std::move(advice));
  }
}

bool near_units(int a, int b) { return a <= kUnitsFactor * b && b <= kUnitsFactor * a; }

/// Numbers of units in the table that are near the device's, the nearest first.
std::vector<int> other_units(const TunedTable& table, int units) {
  std::set<int> found;
  for (const auto& entry : table.entries())
    if (entry.units != units && near_units(entry.units, units)) found.insert(entry.units);
  std::vector<int> out(found.begin(), found.end());
  std::ranges::stable_sort(out, {}, [&](int u) { return std::fabs(std::log(static_cast<double>(u) / units)); });
  return out;
}

std::vector<TunedAdvice> interpolated(const Files& files, const std::vector<TunedField>& fields, const CurveRules& rules,
                                      const std::string& values, int units) {
  std::vector<std::string_view> cells;
  for (size_t at = 0; at <= values.size();) {
    const size_t comma = std::min(values.find(',', at), values.size());
    cells.push_back(std::string_view(values).substr(at, comma - at));
    at = comma + 1;
  }
  const size_t bucketed = bucketed_field(fields);
  int64_t at = 0;
  if (bucketed >= cells.size()) return {};
  std::from_chars(cells[bucketed].data(), cells[bucketed].data() + cells[bucketed].size(), at);
  std::map<int64_t, CurvePoint> ladder;
  for (const auto& table : files.tables)
    for (const TunedTable::Point& point : table->ladder(values, units)) {
      const auto [it, is_new] = ladder.try_emplace(point.at, CurvePoint{.at = point.at, .rows = {}});
      if (!is_new) continue;  // a file before this one has it
      for (const auto* entry = point.entry; entry != nullptr; entry = table->next(*entry)) it->second.rows.push_back(table->row(*entry));
    }
  std::vector<CurvePoint> points;
  for (auto& [m, point] : ladder) points.push_back(std::move(point));
  return interpolate(points, at, rules);
}

}  // namespace

TunedFile parse_tuned(std::string_view text, std::string_view file, std::string_view arch, const std::vector<TunedField>& fields) {
  const TunedTable table(std::string(text), std::string(file), arch, fields);
  TunedFile out{.rows = {}, .problems = table.problems()};
  for (const auto& entry : table.entries()) out.rows.push_back(table.row(entry));
  return out;
}

void set_tuned_fields(std::string_view op, std::vector<TunedField> fields, CurveRules rules) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.fields[std::string(op)] = std::move(fields);
  s.rules[std::string(op)] = std::move(rules);
}

CurveRules curve_rules_of(std::string_view op) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  const auto it = s.rules.find(op);
  return it == s.rules.end() ? CurveRules{} : it->second;
}

std::vector<TunedField> fields_of(std::string_view op) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  const auto it = s.fields.find(op);
  return it == s.fields.end() ? std::vector<TunedField>{} : it->second;
}

std::vector<std::string> tuned_paths() {
  std::vector<std::string> paths = settings().tuned;
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  if (!error) paths.push_back((here / kProjectTuned).string());
  for (auto& folder : shipped_folders()) paths.push_back(std::move(folder));
  return paths;
}

std::vector<TunedAdvice> tuned_advice(std::string_view op, const Device& device, const std::string& key) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  const Files& files = files_for(op, device, s);
  const std::string values = values_of(key);
  std::vector<TunedAdvice> out;
  for (const auto& table : files.tables) add_ranks(*table, table->find(values, device.units), AdviceKind::exact, out);
  if (!out.empty()) return out;
  if (files.tables.empty()) return out;
  out = interpolated(files, s.fields.find(op)->second, s.rules.find(op)->second, values, device.units);
  for (const auto& table : files.tables)
    for (const int units : other_units(*table, device.units)) add_ranks(*table, table->find(values, units), AdviceKind::near_units, out);
  return out;
}

std::string why_no_row(std::string_view op, const Device& device, const std::string& key) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  const Files& files = files_for(op, device, s);
  const auto& fields = s.fields[std::string(op)];
  const std::string wanted = values_of(key);
  const auto cell = [](std::string_view& rest) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view out = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    return out;
  };
  const TunedTable* best_table = nullptr;
  const TunedTable::Entry* best = nullptr;
  size_t rows = 0, least = fields.size() + 2;
  for (const auto& table : files.tables) {
    for (const auto& entry : table->entries()) {
      ++rows;
      std::string_view a = wanted, b = entry.values;
      size_t differ = entry.units == device.units ? 0 : 1;
      for (size_t i = 0; i < fields.size(); ++i) differ += cell(a) != cell(b) ? 1 : 0;
      if (differ >= least) continue;
      least = differ;
      best = &entry;
      best_table = table.get();
    }
  }
  const std::string name = str(op, ".", device.arch(), ".csv");
  if (best == nullptr)
    return str("no row: ", files.tables.empty() ? "there is no file " : "there are no rows in ", name, " (", files.watched.size(),
               " places)");
  if (least == 0) return str("its own row is passed over (", best_table->file(), ":", best->line, "; the log says why)");
  std::string out = "no row:";
  if (best->units != device.units) out += str(" units ", device.units, " wanted, file has ", best->units, ",");
  std::string_view a = wanted, b = best->values;
  for (const TunedField& field : fields) {
    const std::string_view want = cell(a), have = cell(b);
    if (want != have) out += str(" ", field.name, " ", want, " wanted, file has ", have, ",");
  }
  out.pop_back();
  return str(out, " (", best_table->file(), ":", best->line, ", the nearest of ", rows, rows == 1 ? " row)" : " rows)");
}

std::vector<TunedProblem> tuned_problems(std::string_view op, const Device& device) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  return files_for(op, device, s).problems;
}

void tuned_rows_changed() {
  Store& s = store();
  {
    std::lock_guard lock(s.mutex);
    s.files.clear();
  }
  count_reload();
}

void skipped_row(const TunedRow& row, std::string_view reason) {
  counter("tuned.skipped").fetch_add(1, std::memory_order_relaxed);
  warn_once(LogTopic::tune, row.origin, "tuned row skipped: ", row.origin, ": ", row.kernel, ": ", reason);
}

void poll_tuned(Stream stream) {
  struct timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  time_t due = next_poll.load(std::memory_order_relaxed);
  if (now.tv_sec < due) [[likely]]
    return;
  if (stream != nullptr && gpu::is_capturing(stream)) return;  // what a graph was warmed up with stays
  if (!next_poll.compare_exchange_strong(due, now.tv_sec + kPollSeconds, std::memory_order_relaxed)) return;
  Store& s = store();
  std::unique_lock lock(s.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const size_t before = s.files.size();
  std::erase_if(s.files, [](const auto& entry) {
    return std::ranges::any_of(entry.second.watched, [](const Watched& w) { return signature_of(w.path) != w.seen; });
  });
  const bool changed = s.files.size() != before;
  lock.unlock();
  if (changed) {
    count_reload();
    log(LogLevel::info, LogTopic::tune, "tuned rows have changed; routes are made anew");
  }
  flush_misses_if_due();
}

uint32_t tuned_reloads() { return reloads.load(std::memory_order_acquire); }

void reload_tuned() {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.files.clear();
  next_poll.store(0, std::memory_order_relaxed);
  bump_route_generation();
}

}  // namespace eitri
