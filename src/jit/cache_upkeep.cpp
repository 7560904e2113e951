// Looking at the cache and cleaning it: list, verify, prune, clear.
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "jit/cache.h"
#include "jit/scratch.h"

namespace eitri::jit {

namespace fs = std::filesystem;

namespace {

constexpr double kHour = 3600;
constexpr size_t kKeptQuarantine = 16;
constexpr size_t kKeptFailures = 1000;

uint64_t bytes_of(const fs::path& folder) {
  uint64_t total = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    struct stat info = {};
    if (::lstat(at->path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) total += static_cast<uint64_t>(info.st_size);
  }
  return total;
}

std::vector<std::string> folders_in(const std::string& path) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) out.push_back(at->path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<EntryInfo> Cache::scan(const char* kind, WithBinary with) {
  std::vector<EntryInfo> out;
  if (access() == Access::none) return out;
  const std::string parent = str(options_.root, "/", kind);
  for (const std::string& key : folders_in(parent)) {
    const std::string folder = str(parent, "/", key);
    ReadEntry entry = read_entry(folder, key, nullptr, with);
    if (entry.state == ReadEntry::State::missing) continue;  // gone since
    out.push_back({key, folder, std::move(entry.manifest), bytes_of(folder), stamp_time(folder), std::move(entry.problem)});
  }
  return out;
}

std::vector<EntryInfo> Cache::list() {
  std::vector<EntryInfo> out = scan("entries", WithBinary::no), failed = scan("failed", WithBinary::no);
  std::move(failed.begin(), failed.end(), std::back_inserter(out));
  return out;
}

std::vector<EntryInfo> Cache::show(const std::string& prefix) {
  std::vector<EntryInfo> out = list();
  std::erase_if(out, [&](const EntryInfo& entry) { return !entry.key.starts_with(prefix); });
  return out;
}

std::vector<EntryInfo> Cache::verify(Repair repair) {
  std::vector<EntryInfo> out = scan("entries", WithBinary::yes), failed = scan("failed", WithBinary::yes);
  std::move(failed.begin(), failed.end(), std::back_inserter(out));
  std::erase_if(out, [](const EntryInfo& entry) { return entry.problem.empty(); });
  if (repair == Repair::yes && access() == Access::write) {
    for (const EntryInfo& entry : out) {
      if (move_to_quarantine(options_.root, entry.folder, entry.key)) count(&Counters::quarantined);
    }
  }
  return out;
}

bool Cache::in_use(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return used_.contains(key);
}

/// Removes the folders of `kind` that are older than `seconds`, and all but the newest `keep`.
Cache::Removed Cache::remove_old(const char* kind, double seconds, size_t keep) {
  struct Old {
    std::string path;
    int64_t time;
  };
  std::vector<Old> folders;
  const std::string parent = str(options_.root, "/", kind);
  for (const std::string& name : folders_in(parent)) {
    const std::string path = str(parent, "/", name);
    struct stat info = {};
    if (::lstat(path.c_str(), &info) == 0) folders.push_back({path, static_cast<int64_t>(info.st_mtim.tv_sec)});
  }
  std::sort(folders.begin(), folders.end(), [](const Old& a, const Old& b) { return a.time > b.time; });
  Removed out;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (i < keep && static_cast<double>(::time(nullptr) - folders[i].time) < seconds) continue;
    out.bytes += bytes_of(folders[i].path);
    ++out.entries;
    remove_tree(folders[i].path);
  }
  return out;
}

Cache::Removed Cache::prune(uint64_t max_bytes) {
  Removed out;
  if (access() != Access::write) return out;
  const auto add = [&](const Removed& more) { out.entries += more.entries, out.bytes += more.bytes; };
  // A compile takes minutes at most: what is an hour old was left by a process that was killed.
  add(remove_old("tmp", kHour, SIZE_MAX));
  add(remove_old("quarantine", 7 * 24 * kHour, kKeptQuarantine));
  add(remove_old("failed", 24 * kHour, kKeptFailures));

  struct Entry {
    std::string key, folder;
    uint64_t bytes;
    int64_t used;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  const std::string parent = options_.root + "/entries";
  for (std::string& key : folders_in(parent)) {
    std::string folder = str(parent, "/", key);
    const uint64_t bytes = bytes_of(folder);
    total += bytes;
    const int64_t used = stamp_time(folder);
    entries.push_back({std::move(key), std::move(folder), bytes, used});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes) break;
    if (in_use(entry.key) || !delete_entry(options_.root, entry.folder)) continue;
    total -= entry.bytes;
    add({1, entry.bytes});
    count(&Counters::evicted);
  }
  return out;
}

Cache::Removed Cache::clear() {
  Removed out;
  if (access() != Access::write) return out;
  for (const char* kind : {"entries", "failed", "quarantine"}) {
    const std::string parent = str(options_.root, "/", kind);
    for (const std::string& name : folders_in(parent)) {
      const std::string folder = str(parent, "/", name);
      const uint64_t bytes = bytes_of(folder);
      if (!delete_entry(options_.root, folder)) continue;
      ++out.entries;
      out.bytes += bytes;
    }
  }
  remove_old("tmp", kHour, SIZE_MAX);
  std::vector<std::shared_ptr<Slot>> slots;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, slot] : slots_) slots.push_back(slot);
  }
  for (const std::shared_ptr<Slot>& slot : slots) {
    const std::lock_guard lock(slot->mutex);
    slot->failure = nullptr;
  }
  return out;
}

void Cache::evict_if_due(uint64_t published) {
  {
    const std::lock_guard lock(mutex_);
    unscanned_ += published;
    if (unscanned_ < options_.max_bytes / 16) return;
    unscanned_ = 0;
  }
  const BuildLock lock(options_.lock_folder, "evict", "room in the cache");
  if (!lock.held() && lock.usable()) return;  // somebody is at it
  uint64_t total = 0;
  for (const std::string& key : folders_in(options_.root + "/entries")) total += bytes_of(str(options_.root, "/entries/", key));
  // A tenth more than needed goes, so that a full cache is not scanned on every publish.
  const Removed removed = prune(total > options_.max_bytes ? options_.max_bytes - options_.max_bytes / 10 : options_.max_bytes);
  if (removed.entries > 0) {
    log(LogLevel::info, LogTopic::jit, "the cache was above ", options_.max_bytes, " bytes or had leftovers: ", removed.entries,
        " entries with ", removed.bytes, " bytes removed");
  }
}

}  // namespace eitri::jit
