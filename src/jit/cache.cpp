#include "jit/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "eitri/version.hpp"
#include "jit/sha256.h"

namespace eitri::jit {

namespace {

using Clock = std::chrono::steady_clock;

/// Changes when the same key parts would be compiled differently by us (our own fixed options).
constexpr std::string_view kKeySchema = "eitri-jit-key 1";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The folder holds what we execute: nobody else may have been able to write to it. Empty when that is so.
std::string unsafe_to_read(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return str(path, " is not there");
  if (!S_ISDIR(info.st_mode)) return str(path, " is not a folder");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return str(path, " belongs to user ", info.st_uid);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0) return str("others may write to ", path);
  return {};
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

}  // namespace

/// One get() on its way.
struct Cache::Job {
  const Compiler& compiler;
  const CompileRequest& request;
  const Closure closure;
  const std::string key;
  Slot& slot;
  std::string corrupt = {};  // why the entry on disk cannot be used
  std::string what() const { return str(request.label, " for ", request.target->name); }
};

Cache::Cache(CacheOptions options) : options_(std::move(options)) {}

std::string Cache::key_of(const Compiler& compiler, const CompileRequest& request, const Closure& closure) {
  Sha256 hash;
  const auto list = [&](const std::vector<std::string>& items) {
    hash.update_field(str(items.size()));
    for (const std::string& item : items) hash.update_field(item);
  };
  hash.update_field(kKeySchema);
  hash.update_field(kVersion);  // the options that our compilers add are those of this version
  hash.update_field(compiler.identity());
  hash.update_field(request.target->name);
  list(request.flags);  // in order: the later one of two wins
  list(request.defines);
  hash.update_field(request.source.name);  // __FILE__, and the language where the name tells it
  hash.update_field(request.source.text);
  hash.update_field(str(closure.headers.size()));
  for (const auto& [name, text] : closure.headers) {
    hash.update_field(name);
    hash.update_field(text);
  }
  return hash.hex();
}

void Cache::count(uint64_t Counters::*what, uint64_t n) {
  const std::lock_guard lock(counter_mutex_);
  counters_.*what += n;
}

Counters Cache::counters() const {
  const std::lock_guard lock(counter_mutex_);
  return counters_;
}

Cache::Access Cache::access() {
  const std::lock_guard lock(mutex_);
  if (access_ != Access::unknown) return access_;
  access_ = Access::none;
  if (options_.root.empty()) {
    problem_ = "there is no cache folder (set EITRI_CACHE_DIR or HOME)";
    return access_;
  }
  try {
    make_private_dir(options_.root);
  } catch (const Error& error) {
    problem_ = error.what();
  }
  std::string unsafe = unsafe_to_read(options_.root);
  if (unsafe.empty()) unsafe = unsafe_to_read(parent_of(options_.root));
  struct stat info = {};
  const bool shared = ::stat(options_.root.c_str(), &info) == 0 && (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (unsafe.empty() && shared) unsafe = str("others may write to ", options_.root);
  if (!unsafe.empty()) {
    if (problem_.empty()) problem_ = str("cannot use the cache: ", unsafe);
  } else if (!problem_.empty()) {
    access_ = Access::read;  // an installed cache that belongs to root
  } else if (::access(options_.root.c_str(), W_OK) != 0) {
    access_ = Access::read;
    problem_ = str("cannot write to ", options_.root, ": it is read-only");
  } else {
    access_ = Access::write;
  }
  if (!problem_.empty()) {
    warn_once(LogTopic::jit, options_.root, "compiled kernels are ",
              access_ == Access::read ? "read from, but not kept in, the cache: " : "not kept: ", problem_);
  }
  return access_;
}

std::string Cache::disk_problem() {
  access();
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::shared_ptr<Cache::Slot> Cache::slot_for(const std::string& key) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Slot>& slot = slots_[key];
  if (!slot) slot = std::make_shared<Slot>();
  return slot;
}

std::shared_ptr<const Binary> Cache::get(const CompileRequest& request) {
  check_request(request);
  return get(compiler_for(*request.target), request);
}

std::shared_ptr<const Binary> Cache::get(const Compiler& compiler, const CompileRequest& request) {
  check_request(request);
  require(compiler.makes(*request.target), "jit: ", request.label, ": target is ", request.target->name, "; expected one that ",
          compiler.name(), " makes");
  if (options_.mode == JitMode::off) {
    fail(Code::compile_failed,
         str("jit: ", request.label, " for ", request.target->name, " would be compiled at run time, and EITRI_JIT is off"));
  }
  Closure closure = include_closure(request.source);
  std::string key = key_of(compiler, request, closure);
  const std::shared_ptr<Slot> slot = slot_for(key);
  const std::lock_guard lock(slot->mutex);  // one thread compiles, the others of this process wait here
  if (std::shared_ptr<const Binary> known = slot->shared.lock()) {
    count(&Counters::memory);
    return known;
  }
  Job job{compiler, request, std::move(closure), std::move(key), *slot};
  return load(job);
}

bool Cache::has(const Compiler& compiler, const CompileRequest& request) {
  check_request(request);
  const std::string key = key_of(compiler, request, include_closure(request.source));
  const std::shared_ptr<Slot> slot = slot_for(key);
  const std::lock_guard lock(slot->mutex);
  if (!slot->shared.expired()) return true;
  return access() >= Access::read && read_entry(entry_folder(key), key, request.target).state == ReadEntry::State::good;
}

std::shared_ptr<const Binary> Cache::load(Job& job) {
  if (auto found = from_disk(job)) return found;
  throw_stored_failure(job);
  if (sealed_ || options_.mode == JitMode::cached) {
    fail(Code::compile_failed,
         str("jit: ", job.what(), " is not in the cache (", options_.root.empty() ? "none" : options_.root, ", key ", job.key.substr(0, 12),
             job.corrupt.empty() ? "" : ", where an entry is damaged: ", job.corrupt, "), and compiling is not allowed (",
             sealed_ ? "seal() was called" : "EITRI_JIT=cached", "); prebuild it, or allow compiling"));
  }
  return wait_or_build(job);
}

std::shared_ptr<const Binary> Cache::keep(Job& job, Manifest&& manifest, std::string&& bytes, Origin origin, bool on_disk) {
  auto binary = std::make_shared<Binary>();
  binary->key = job.key;
  binary->target = job.request.target;
  binary->bytes = std::move(bytes);
  if (on_disk) binary->path = str(entry_folder(job.key), "/", manifest.file);
  binary->log = std::move(manifest.log);
  binary->origin = origin;
  binary->seconds = manifest.seconds;
  job.slot.shared = binary;
  job.slot.kept = on_disk ? nullptr : binary;
  job.slot.failure = nullptr;
  const std::lock_guard lock(mutex_);
  used_.insert(job.key);
  return binary;
}

std::shared_ptr<const Binary> Cache::from_disk(Job& job) {
  if (access() == Access::none) return nullptr;
  const std::string folder = entry_folder(job.key);
  ReadEntry entry = read_entry(folder, job.key, job.request.target);
  job.corrupt = entry.problem;
  if (entry.state == ReadEntry::State::good && entry.manifest.failed) job.corrupt = "its manifest is that of a failure";
  if (entry.state != ReadEntry::State::good || entry.manifest.failed) return nullptr;
  touch_stamp(folder);
  count(&Counters::disk);
  log(LogLevel::debug, LogTopic::jit, job.what(), ": from the cache, key ", job.key.substr(0, 12));
  return keep(job, std::move(entry.manifest), std::move(entry.binary), Origin::disk, true);
}

void Cache::throw_stored_failure(Job& job) {
  std::shared_ptr<const Manifest> failure = job.slot.failure;
  const std::string folder = failed_folder(job.key);
  bool on_disk = false;
  if (!failure && access() != Access::none) {
    ReadEntry entry = read_entry(folder, job.key, job.request.target);
    if (entry.state == ReadEntry::State::good && entry.manifest.failed) {
      failure = std::make_shared<Manifest>(std::move(entry.manifest));
      on_disk = true;
    }
  }
  if (!failure) return;
  const auto age = static_cast<double>(::time(nullptr) - failure->created);
  if (age < 0 || age >= options_.failure_s) {
    job.slot.failure = nullptr;
    return;
  }
  count(&Counters::stored_failures);
  struct stat info = {};
  on_disk = on_disk || (access() != Access::none && ::stat(folder.c_str(), &info) == 0);
  fail(Code::compile_failed, str("jit: ", job.what(), " does not compile (", failure->compiler, " said so ", static_cast<int64_t>(age),
                                 " s ago and is asked again when the source, the flags or the compiler change, or in ",
                                 static_cast<int64_t>(options_.failure_s - age), " s):\n", failure->log, "\ncommand: ", failure->command,
                                 on_disk ? "\nsource: " : "", on_disk ? str(folder, "/", failure->source) : std::string()));
}

/// Takes the lock, or waits for who has it: until the entry is there, the lock is free, or the time is up.
std::shared_ptr<const Binary> Cache::wait_or_build(Job& job) {
  if (access() != Access::write) return build(job);  // nothing that another process publishes could be used
  // Caches in different folders have nothing to do with each other.
  const std::string lock_key = sha256(str(options_.root, "\n", job.key));
  const auto start = Clock::now();
  auto pause = std::chrono::milliseconds(1);
  bool waited = false, said = false;
  for (;;) {
    const BuildLock lock(options_.lock_folder, lock_key, job.what());
    if (lock.held() || !lock.usable()) {
      options_.steps.at("locked");
      if (waited || !job.corrupt.empty()) {  // what another one has made, or mended
        if (auto found = from_disk(job)) return found;
        throw_stored_failure(job);
      } else if (auto found = from_disk(job)) {  // published between our look and our lock
        return found;
      }
      return build(job);
    }
    if (!waited) {
      waited = true;
      count(&Counters::waits);
      options_.steps.at("waiting");
    }
    const double so_far = seconds_since(start);
    if (so_far >= options_.wait_s) {
      count(&Counters::waits_given_up);
      log(LogLevel::warning, LogTopic::jit, job.what(), ": waited ", so_far, " s for ", lock_holder(options_.lock_folder, lock_key),
          "; compiling it here as well");
      return build(job);
    }
    if (so_far > 0.5 && !said) {
      said = true;
      log(LogLevel::info, LogTopic::jit, job.what(), ": waiting for ", lock_holder(options_.lock_folder, lock_key), ", at most ",
          options_.wait_s, " s");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
    // The key's lock may be held for another key that shares it: then our entry is there before the lock is free.
    struct stat info = {};
    if (::stat(entry_folder(job.key).c_str(), &info) == 0) {
      if (auto found = from_disk(job)) return found;
    }
  }
}

std::shared_ptr<const Binary> Cache::build(Job& job) {
  if (!job.corrupt.empty()) {
    // Under the lock and after a second look (unless there is no lock), so that nobody's fresh entry is moved away.
    const bool moved = access() == Access::write && move_to_quarantine(options_.root, entry_folder(job.key), job.key);
    if (moved) count(&Counters::quarantined);
    warn_once(LogTopic::jit, job.key, "the cached ", job.what(), " is damaged (", job.corrupt, "); it is ", moved ? "set aside and " : "",
              "compiled again");
  }
  const auto start = Clock::now();
  log(LogLevel::info, LogTopic::jit, job.what(), ": compiling with ", job.compiler.name());
  options_.steps.at("compiling");
  Compiled compiled = job.compiler.compile(job.request, job.closure);
  options_.steps.at("compiled");
  if (compiled.ok) {
    if (const std::string problem = binary_problem(compiled.binary, *job.request.target); !problem.empty()) {
      compiled.ok = compiled.verdict = false;
      compiled.log += str(compiled.log.empty() ? "" : "\n", "the binary cannot be used: ", problem);
    }
  }
  Manifest manifest = {.key = job.key,
                       .failed = !compiled.ok,
                       .label = job.request.label,
                       .target = job.request.target->name,
                       .compiler = std::string(job.compiler.name()),
                       .identity = job.compiler.identity(),
                       .source = job.request.source.name,
                       .defines = job.request.defines,
                       .flags = job.request.flags,
                       .system = job.closure.system,
                       .closure = {{job.request.source.name, sha256(job.request.source.text)}},
                       .command = compiled.command,
                       .log = compiled.log,
                       .created = ::time(nullptr),
                       .seconds = seconds_since(start),
                       .file = {},
                       .size = 0,
                       .checksum = {}};
  for (const auto& [name, text] : job.closure.headers) manifest.closure.emplace_back(name, sha256(text));
  if (!compiled.ok) refuse(job, compiled, std::move(manifest));

  count(&Counters::compiled);
  log(LogLevel::info, LogTopic::jit, job.what(), ": compiled in ", manifest.seconds, " s, ", compiled.binary.size(), " bytes");
  manifest.file = str("binary.", job.request.target->suffix);
  manifest.size = compiled.binary.size();
  manifest.checksum = sha256(compiled.binary);
  const bool on_disk = store(job, manifest, compiled.binary);
  auto out = keep(job, std::move(manifest), std::move(compiled.binary), Origin::compiled, on_disk);
  if (on_disk) evict_if_due(out->bytes.size());
  return out;
}

/// Publishes the binary. When another process was faster, its verified binary replaces ours. False: it is not on disk.
bool Cache::store(Job& job, const Manifest& manifest, std::string& bytes) {
  if (access() != Access::write) return false;
  const std::string folder = entry_folder(job.key);
  try {
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (publish(options_.root, folder, manifest, {{manifest.file, bytes}}, options_.steps) == Published::ours) {
        struct stat info = {};  // an earlier failure of this key is history
        if (::stat(failed_folder(job.key).c_str(), &info) == 0) delete_entry(options_.root, failed_folder(job.key));
        return true;
      }
      ReadEntry theirs = read_entry(folder, job.key, job.request.target);
      if (theirs.state == ReadEntry::State::good && !theirs.manifest.failed && theirs.manifest.file == manifest.file) {
        bytes = std::move(theirs.binary);
        return true;
      }
      if (theirs.state == ReadEntry::State::corrupt && move_to_quarantine(options_.root, folder, job.key)) count(&Counters::quarantined);
    }
  } catch (const Error& error) {
    warn_once(LogTopic::jit, options_.root + " publish", "compiled kernels are not kept: ", error.what());
  }
  count(&Counters::unpublished);
  return false;
}

void Cache::refuse(Job& job, const Compiled& compiled, Manifest&& manifest) {
  count(&Counters::failed);
  const std::string folder = failed_folder(job.key);
  std::string kept;
  if (compiled.verdict) {
    job.slot.failure = std::make_shared<Manifest>(manifest);
    if (access() == Access::write) {
      std::vector<std::pair<std::string, std::string_view>> files = {{job.request.source.name, job.request.source.text}};
      for (const auto& [name, text] : job.closure.headers) files.emplace_back(name, text);
      try {
        for (int attempt = 0; attempt < 2 && kept.empty(); ++attempt) {
          if (publish(options_.root, folder, manifest, files, {}) == Published::ours) kept = str(folder, "/", job.request.source.name);
          else delete_entry(options_.root, folder);  // an older failure
        }
      } catch (const Error& error) {
        log(LogLevel::warning, LogTopic::jit, "the source that does not compile is not kept: ", error.what());
      }
    }
  }
  fail(Code::compile_failed, str("jit: ", job.what(), " does not compile (", job.compiler.name(), "):\n", compiled.log,
                                 "\ncommand: ", compiled.command, kept.empty() ? "" : "\nsource: ", kept));
}

Cache& default_cache() {
  static std::mutex mutex;
  // Earlier ones stay alive for those who use them; only tests make a second one. Never destroyed, as late threads may ask.
  static auto& all = *new std::vector<std::unique_ptr<Cache>>;
  static Cache* current = nullptr;
  static const Settings* of = nullptr;
  const Settings& now = settings();
  const std::lock_guard lock(mutex);
  if (current == nullptr || of != &now) {
    CacheOptions options = {.root = now.cache_dir.empty() ? std::string() : now.cache_dir + "/jit"};
    options.mode = now.jit;
    all.push_back(std::make_unique<Cache>(std::move(options)));
    current = all.back().get();
    of = &now;
  }
  return *current;
}

}  // namespace eitri::jit
