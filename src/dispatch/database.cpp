// Reading of tuned rows. Whatever a file holds, the worst that happens is a skipped line with a reason.
#include "dispatch/database.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "backend/cpu/cpu.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"

namespace eitri {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
// Columns after the problem fields.
constexpr const char* kTail[] = {"rank", "kernel", "config", "us", "spread_us", "baseline_us", "error", "revision", "toolchain", "date"};

std::vector<std::string_view> split_commas(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

template <class T> bool number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

struct Table {
  std::unordered_map<std::string, std::vector<TunedRow>> rows;  // by problem key, best first
  std::vector<TunedProblem> problems;
};

struct Store {
  std::mutex mutex;
  std::map<std::string, std::vector<std::string>, std::less<>> fields;  // op -> problem fields
  std::map<std::string, Table> tables;                                  // "op.arch/units"
};
Store& store() {
  static Store s;
  return s;
}

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

void read_into(Table& table, const std::string& path, std::string_view arch, int units, const std::vector<std::string>& fields) {
  std::string text;
  try {
    text = read_file(path, kMaxFileBytes);
  } catch (const Error& error) {
    table.problems.push_back({path, error.what()});
    return;
  }
  TunedFile file = parse_tuned(text, path, arch, fields);
  for (auto& p : file.problems) table.problems.push_back(std::move(p));
  for (TunedRow& row : file.rows) {
    if (row.units != units) {
      table.problems.push_back({row.origin, str("units is ", row.units, "; this machine has ", units)});
      continue;
    }
    table.rows[row.key].push_back(std::move(row));
  }
}

const Table& table_for(std::string_view op, const Device& device, Store& s) {  // s.mutex is held
  namespace fs = std::filesystem;
  const std::string key = str(op, ".", device.arch(), "/", device.units);
  const auto it = s.tables.find(key);
  if (it != s.tables.end()) return it->second;
  Table& table = s.tables[key];
  const auto fields = s.fields.find(op);
  if (fields == s.fields.end()) return table;
  const std::string name = str(op, ".", device.arch(), ".csv");
  std::vector<std::string> paths = settings().tuned;
  for (auto& folder : shipped_folders()) paths.push_back(std::move(folder));
  std::set<std::string> read;  // a file named twice counts once
  for (const std::string& path : paths) {
    std::error_code error;
    std::string file = path;
    if (fs::is_directory(path, error)) file = (fs::path(path) / name).string();
    else if (fs::path(path).filename() != name) continue;  // a file of another op or machine
    if (!fs::exists(file, error) || !read.insert(file).second) continue;
    read_into(table, file, device.arch(), device.units, fields->second);
  }
  // Files keep their order (the user's first); inside one file, by rank.
  for (auto& [problem, rows] : table.rows) {
    std::map<std::string, int> file_order;
    for (const auto& row : rows) file_order.emplace(row.origin.substr(0, row.origin.rfind(':')), int(file_order.size()));
    std::stable_sort(rows.begin(), rows.end(), [&](const TunedRow& a, const TunedRow& b) {
      const int fa = file_order[a.origin.substr(0, a.origin.rfind(':'))];
      const int fb = file_order[b.origin.substr(0, b.origin.rfind(':'))];
      return fa != fb ? fa < fb : a.rank < b.rank;
    });
  }
  for (const auto& p : table.problems) warn_once(LogTopic::tune, str(key, p.origin, p.text), "tuned row skipped: ", p.origin, ": ", p.text);
  return table;
}

}  // namespace

TunedFile parse_tuned(std::string_view text, std::string_view file, std::string_view arch, const std::vector<std::string>& fields) {
  TunedFile out;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t n_columns = 2 + fields.size() + std::size(kTail);
  int64_t line_number = 0;
  bool header_seen = false;
  std::set<std::pair<std::string, int>> seen;
  const auto problem = [&](auto&&... parts) { out.problems.push_back({str(file, ":", line_number), str(parts...)}); };
  while (!text.empty()) {
    ++line_number;
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const auto cells = split_commas(line);
    if (!header_seen) {
      header_seen = true;
      std::vector<std::string_view> wanted = {"arch", "units"};
      wanted.insert(wanted.end(), fields.begin(), fields.end());
      wanted.insert(wanted.end(), std::begin(kTail), std::end(kTail));
      if (!std::equal(cells.begin(), cells.end(), wanted.begin(), wanted.end())) {
        std::string list;
        for (const auto& w : wanted) list += str(list.empty() ? "" : ",", w);
        problem("the header differs from this version's columns; expected ", list);
        return out;  // cells would be read as other columns
      }
      continue;
    }
    if (cells.size() != n_columns) {
      problem("the line has ", cells.size(), " cells; expected ", n_columns);
      continue;
    }
    TunedRow row;
    const size_t tail = 2 + fields.size();
    if (cells[0] != arch) {
      problem("arch is ", cells[0], "; this machine is ", arch);
      continue;
    }
    for (size_t i = 0; i < fields.size(); ++i) row.key += str(i == 0 ? "" : ",", fields[i], "=", cells[2 + i]);
    row.kernel = cells[tail + 1];
    row.config = cells[tail + 2];
    row.revision = cells[tail + 7];
    row.origin = str(file, ":", line_number);
    if (!number(cells[1], row.units) || !number(cells[tail], row.rank) || !number(cells[tail + 3], row.us)) {
      problem("units, rank or us is no number");
      continue;
    }
    if (!(row.us > 0) || !std::isfinite(row.us) || row.rank < 1) {
      problem("us is ", cells[tail + 3], " and rank ", row.rank, "; expected us > 0 and rank >= 1");
      continue;
    }
    if (!seen.insert({str(row.units, ":", row.key), row.rank}).second) {
      problem("a row for this problem and rank came before; the first one counts");
      continue;
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

void set_tuned_fields(std::string_view op, std::vector<std::string> fields) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.fields[std::string(op)] = std::move(fields);
}

std::vector<const TunedRow*> tuned_rows(std::string_view op, const Device& device, const std::string& key) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  const Table& table = table_for(op, device, s);
  std::vector<const TunedRow*> out;
  if (const auto it = table.rows.find(key); it != table.rows.end())
    for (const TunedRow& row : it->second) out.push_back(&row);
  return out;
}

std::vector<TunedProblem> tuned_problems(std::string_view op, const Device& device) {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  return table_for(op, device, s).problems;
}

void skipped_row(const TunedRow& row, std::string_view reason) {
  warn_once(LogTopic::tune, row.origin, "tuned row skipped: ", row.origin, ": ", row.kernel, ": ", reason);
}

void reload_tuned() {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.tables.clear();
  bump_route_generation();
}

}  // namespace eitri
