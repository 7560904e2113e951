#include "tune/tuned_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "dispatch/tuned_table.h"

namespace eitri::tune {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

/// Held while a folder's files are written. On the folder itself, so that no lock file is left.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0) fail(Code::io_error, str("cannot open folder ", folder, ": ", std::strerror(errno)));
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      warn_once(LogTopic::tune, folder, folder, " has no locks (", std::strerror(errno), "): of two writers at once the last one wins");
      return;
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int fd_;
};

/// Numbers by value, other cells by text.
bool cell_less(std::string_view a, std::string_view b) {
  int64_t x = 0, y = 0;
  const auto number = [](std::string_view text, int64_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size();
  };
  if (number(a, x) && number(b, y)) return x < y;
  return a < b;
}

std::vector<std::string_view> cells_of(std::string_view values) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= values.size();) {
    const size_t comma = std::min(values.find(',', at), values.size());
    out.push_back(values.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

/// Order of a file: the bucketed field last, so that a ladder stands together; then units and rank.
struct FileOrder {
  size_t bucketed;
  bool operator()(const TunedRow& a, const TunedRow& b) const {
    const std::string va = values_of(a.key), vb = values_of(b.key);
    const auto ca = cells_of(va), cb = cells_of(vb);
    for (size_t i = 0; i < std::min(ca.size(), cb.size()); ++i)
      if (i != bucketed && ca[i] != cb[i]) return cell_less(ca[i], cb[i]);
    if (bucketed < std::min(ca.size(), cb.size()) && ca[bucketed] != cb[bucketed]) return cell_less(ca[bucketed], cb[bucketed]);
    return std::tie(a.units, a.rank) < std::tie(b.units, b.rank);
  }
};

}  // namespace

std::string tuned_file(const std::string& folder, std::string_view op, std::string_view arch) {
  return str(folder, "/", op, ".", arch, ".csv");
}

void require_own_columns(const TunedTable& table, const std::string& path) {
  if (!table.readable() && !table.problems().empty())
    fail(Code::invalid_argument, str(path, " has other columns than this version writes; move it away. ", table.problems()[0].text));
}

void write_tuned(const std::string& folder, std::string_view op, std::string_view arch, const std::vector<TunedRow>& rows) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const FolderLock lock(folder);
  const std::string path = tuned_file(folder, op, arch);
  const auto fields = fields_of(op);
  std::set<std::pair<int, std::string>> replaced;
  for (const TunedRow& row : rows) replaced.emplace(row.units, row.key);
  std::vector<TunedRow> all = rows;
  std::vector<std::string> kept;
  std::string comments;
  if (std::filesystem::exists(path)) {
    const TunedTable table(read_file(path, kMaxFileBytes), path, arch, fields);
    require_own_columns(table, path);
    for (const auto& entry : table.entries())
      if (TunedRow row = table.row(entry); !replaced.contains({row.units, row.key})) all.push_back(std::move(row));
    for (const std::string_view line : table.rejected()) kept.emplace_back(line);
    for (const std::string_view line : table.comments()) comments += str(line, "\n");
  }
  std::stable_sort(all.begin(), all.end(), FileOrder{bucketed_field(fields)});
  std::string text = comments + tuned_header(fields) + "\n";
  for (const TunedRow& row : all) text += tuned_line(row, arch) + "\n";
  for (const std::string& line : kept) text += line + "\n";
  write_file_atomic(path, text);
}

Merged merge_tuned(const std::vector<std::string>& files, std::string_view op, std::string_view arch,
                   const std::function<bool(const TunedRow&)>& is_stale) {
  const auto fields = fields_of(op);
  Merged out;
  using Ranks = std::vector<TunedRow>;
  std::map<std::pair<std::string, int>, std::vector<Ranks>> all;
  for (const std::string& file : files) {
    const TunedTable table(read_file(file, kMaxFileBytes), file, arch, fields);
    out.problems.insert(out.problems.end(), table.problems().begin(), table.problems().end());
    for (const auto& entry : table.entries()) {
      if (table.find(entry.values, entry.units) != &entry) continue;  // the others follow the best rank
      Ranks ranks;
      for (const auto* e = &entry; e != nullptr; e = table.next(*e)) ranks.push_back(table.row(*e));
      auto& known = all[{ranks[0].key, entry.units}];
      known.push_back(std::move(ranks));
    }
  }
  for (auto& [problem, versions] : all) {
    if (versions.size() > 1) ++out.problems_merged;
    // The time of a kernel that is no more says nothing, however short it is.
    const auto is_old = [&](const Ranks& ranks) { return is_stale(ranks[0]); };
    if (!std::ranges::all_of(versions, is_old)) std::erase_if(versions, is_old);
    const auto fastest = std::ranges::min_element(versions, {}, [](const Ranks& r) { return r[0].us; });
    const TunedRow best = (*fastest)[0];
    const Ranks* chosen = nullptr;
    for (const Ranks& ranks : versions) {
      const TunedRow& row = ranks[0];
      if (row.us - row.spread_us > best.us + best.spread_us) continue;  // surely slower
      if (chosen == nullptr) {
        chosen = &ranks;
        continue;
      }
      const TunedRow& other = (*chosen)[0];
      // The latest date first; the rest only makes the choice the same in every order of the files.
      if (std::tie(other.date, row.kernel, row.config, row.us, row.toolchain) <
          std::tie(row.date, other.kernel, other.config, other.us, other.toolchain))
        chosen = &ranks;
    }
    out.rows.insert(out.rows.end(), chosen->begin(), chosen->end());
  }
  std::stable_sort(out.rows.begin(), out.rows.end(), FileOrder{bucketed_field(fields)});
  return out;
}

}  // namespace eitri::tune
