// Threads suffice: NVRTC 13.5 compiles on several at once (8 kernels on 2 threads took 0.62 of the time of 1), and the other
// compilers are processes.
#include "jit/prebuild.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"

namespace eitri::jit {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The compiler of each target, or why there is none.
struct Compilers {
  const Compiler* forced;
  std::map<const Target*, FoundCompiler> found = {};

  const FoundCompiler& of(const Target& target) {
    const auto [at, is_first] = found.try_emplace(&target);
    if (is_first) {
      try {
        const Compiler& compiler = forced != nullptr ? *forced : compiler_for(target);
        at->second.compiler =
            std::shared_ptr<const Compiler>(std::shared_ptr<void>(), &compiler);  // not owned: compilers are never removed
      } catch (const Error& error) {
        at->second.reason = error.what();
      }
    }
    return at->second;
  }
};

struct Work {
  const CompileRequest* request;
  const Compiler* compiler;  // null: the item has its error already
};

void get_item(Cache& cache, const Work& work, PrebuildItem& item) {
  if (work.compiler == nullptr) return;
  const auto start = Clock::now();
  try {
    const auto binary = cache.get(*work.compiler, *work.request);
    item.origin = binary->origin;
    item.compile_s = binary->seconds;
    if (binary->path.empty()) {
      const std::string why = cache.disk_problem();
      item.error = str("compiled, but not kept: ", why.empty() ? "the cache's disk is full, or it cannot be written to" : why);
    }
  } catch (const std::exception& error) {
    item.error = error.what();
  }
  item.get_s = seconds_since(start);
}

}  // namespace

std::string PrebuildReport::failures() const {
  std::map<std::string, std::vector<const PrebuildItem*>> by_reason;
  for (const PrebuildItem& item : items)
    if (!item.error.empty()) by_reason[item.error].push_back(&item);
  std::string out;
  for (const auto& [reason, failed] : by_reason) {
    out += str(out.empty() ? "" : "\n", failed[0]->label, " for ", failed[0]->target->name);
    if (failed.size() > 1) out += str(" and ", failed.size() - 1, " more");
    out += str(": ", reason, "\n");
  }
  return out;
}

PrebuildReport prebuild(Cache& cache, std::span<const CompileRequest> requests, const PrebuildOptions& options) {
  require(options.jobs >= 0, "prebuild: jobs is ", options.jobs, "; expected 1 or more, or 0 for the cores at hand");
  const auto start = Clock::now();
  PrebuildReport report = {.requests = requests.size()};
  std::vector<Work> work;
  Compilers compilers{options.compiler};
  std::unordered_map<std::string, size_t> seen;
  for (const CompileRequest& request : requests) {
    check_request(request);
    const FoundCompiler& found = compilers.of(*request.target);
    PrebuildItem item = {.label = request.label, .target = request.target, .error = found.reason};
    if (found.compiler) {
      try {
        item.key = Cache::key_of(*found.compiler, request, include_closure(request.source));
      } catch (const Error& error) {
        item.error = error.what();
      }
    }
    if (!item.key.empty() && !seen.emplace(item.key, report.items.size()).second) continue;
    work.push_back({&request, item.key.empty() ? nullptr : found.compiler.get()});
    report.items.push_back(std::move(item));
  }

  std::atomic<size_t> next = 0;
  std::mutex mutex;  // done, failure, and calls of progress
  size_t done = 0;
  std::exception_ptr failure;
  const auto run = [&] {
    for (size_t i; (i = next.fetch_add(1)) < work.size();) {
      get_item(cache, work[i], report.items[i]);
      const std::lock_guard lock(mutex);
      ++done;
      try {
        if (options.progress) options.progress(done, work.size(), report.items[i]);
      } catch (...) {
        if (!failure) failure = std::current_exception();
        next = work.size();
      }
    }
  };
  const size_t jobs = options.jobs > 0 ? static_cast<size_t>(options.jobs) : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min(jobs, work.size()); ++i) threads.emplace_back(run);
  run();
  threads.clear();  // joins
  if (failure) std::rethrow_exception(failure);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace eitri::jit
