// The one cache of everything that is compiled at run time, for all compilers. An entry's name is the hash of all that
// determines its binary: the compiler's identity, target, flags, defines, and the text of the source and of every header that it
// includes. Times and paths play no part, so nothing is ever stale, and nothing is compiled twice.
//
// Whatever happens to the folder (killed writers, damaged files, a full disk, no folder at all), get() returns a verified binary
// or throws an Error that says what to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/settings.h"
#include "jit/compiler.h"
#include "jit/entry.h"
#include "jit/lock.h"

namespace eitri::jit {

struct CacheOptions {
  std::string root;  // absolute; empty: nothing is kept on disk
  std::string lock_folder = default_lock_folder();
  JitMode mode = JitMode::on;
  uint64_t max_bytes = uint64_t{4} << 30;  // the longest unused entries beyond it go
  double wait_s = 60;                      // for another process that compiles the same; then we compile as well
  /// A refused source is refused again without asking the compiler, until its key changes or this much time has passed: a
  /// cause outside the key (a missing system header, say) may have been mended.
  double failure_s = 600;
  Steps steps = {};  // tests only
};

enum class Origin : uint8_t { memory, disk, compiled };

struct Binary {
  std::string key;
  const Target* target = nullptr;
  std::string bytes;                 // verified
  std::string path;                  // of the file on disk; empty when it is only here
  std::string log;                   // what the compiler said
  Origin origin = Origin::compiled;  // where the first get() of this process had it from
  double seconds = 0;                // what the compile took, whoever did it
};

struct Counters {
  uint64_t memory = 0, disk = 0, compiled = 0, failed = 0;  // answers
  uint64_t stored_failures = 0;                             // failures that were shown again
  uint64_t waits = 0, waits_given_up = 0, quarantined = 0, evicted = 0, unpublished = 0;
};

/// What `eitri cache` shows.
struct EntryInfo {
  std::string key, folder;
  Manifest manifest;    // of a corrupt entry: empty
  uint64_t bytes = 0;   // on disk, all files
  int64_t used_ns = 0;  // last use, since 1970
  std::string problem;  // why it is corrupt
};

class Cache {
 public:
  explicit Cache(CacheOptions options);
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  /// The binary, from memory, disk or the compiler. Any thread; one compile per key. Throws Error: invalid_argument for the
  /// request, compile_failed with the compiler's own message, the command and the kept source, or because compiling is off.
  std::shared_ptr<const Binary> get(const Compiler& compiler, const CompileRequest& request);
  /// With compiler_for(target).
  std::shared_ptr<const Binary> get(const CompileRequest& request);
  /// True when get() would not compile.
  bool has(const Compiler& compiler, const CompileRequest& request);
  static std::string key_of(const Compiler& compiler, const CompileRequest& request, const Closure& closure);

  /// From now on a compile is an error.
  void seal() { sealed_ = true; }
  Counters counters() const;
  /// Empty when entries are kept on disk, else why not (or why only read).
  std::string disk_problem();

  /// All entries, failures last; a corrupt one has a problem. Only manifests are read.
  std::vector<EntryInfo> list();
  /// The entries whose key starts with `prefix`.
  std::vector<EntryInfo> show(const std::string& prefix);
  /// Reads everything; the entries that do not verify. They are quarantined with Repair::yes.
  enum class Repair : uint8_t { no, yes };
  std::vector<EntryInfo> verify(Repair repair);
  struct Removed {
    uint64_t entries = 0, bytes = 0;
  };
  /// Removes the entries that were not used for longest until at most `max_bytes` are left, failures and quarantined entries
  /// that nobody will look at again, and what killed writers have left. Entries in use by this process stay.
  Removed prune(uint64_t max_bytes);
  /// Removes all entries, failures and quarantined ones.
  Removed clear();

 private:
  enum class Access : uint8_t { unknown, none, read, write };
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const Binary> kept;  // what is nowhere on disk
    std::weak_ptr<const Binary> shared;
    std::shared_ptr<const Manifest> failure;
  };
  struct Job;  // one get() on its way

  Access access();
  std::shared_ptr<Slot> slot_for(const std::string& key);
  std::shared_ptr<const Binary> load(Job& job);
  std::shared_ptr<const Binary> wait_or_build(Job& job);
  std::shared_ptr<const Binary> build(Job& job);
  std::shared_ptr<const Binary> from_disk(Job& job);
  std::shared_ptr<const Binary> keep(Job& job, Manifest&& manifest, std::string&& bytes, Origin origin, bool on_disk);
  void throw_stored_failure(Job& job);
  [[noreturn]] void refuse(Job& job, const Compiled& compiled, Manifest&& manifest);
  bool store(Job& job, const Manifest& manifest, std::string& bytes);
  std::string entry_folder(const std::string& key) const { return options_.root + "/entries/" + key; }
  std::string failed_folder(const std::string& key) const { return options_.root + "/failed/" + key; }
  std::vector<EntryInfo> scan(const char* kind, WithBinary with);
  bool in_use(const std::string& key);
  void evict_if_due(uint64_t published);
  Removed remove_old(const char* kind, double seconds, size_t keep);

  const CacheOptions options_;
  std::atomic<bool> sealed_ = false;
  std::mutex mutex_;  // access_, problem_, slots_, used_, unscanned_
  Access access_ = Access::unknown;
  std::string problem_;
  std::unordered_map<std::string, std::shared_ptr<Slot>> slots_;
  std::set<std::string> used_;           // keys that this process has had
  uint64_t unscanned_ = UINT64_MAX / 2;  // bytes published since the last look at the size; large: look at once
  mutable std::mutex counter_mutex_;
  Counters counters_;
  void count(uint64_t Counters::*what, uint64_t n = 1);
};

/// The process's cache, by the settings: EITRI_CACHE_DIR/jit, EITRI_JIT.
Cache& default_cache();

}  // namespace eitri::jit
