// Compiles many requests ahead of time, several at once, into a cache, so that no call has to.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "jit/cache.h"

namespace eitri::jit {

/// What became of one binary; requests with equal keys share one.
struct PrebuildItem {
  std::string label = {};  // of the first request for it
  const Target* target = nullptr;
  std::string key = {};
  Origin origin = Origin::compiled;
  double compile_s = 0;    // what the compile took, now or when it was made
  double get_s = 0;        // what getting it took here
  std::string error = {};  // not empty: there is no binary, and why
};

struct PrebuildReport {
  size_t requests = 0;
  std::vector<PrebuildItem> items = {};  // in the order of the requests
  double seconds = 0;
  /// What failed, once per reason, with the compiler's messages; empty when all is well.
  std::string failures() const;
};

struct PrebuildOptions {
  int jobs = 0;                        // compiles at once; 0: the cores that this process may use
  const Compiler* compiler = nullptr;  // null: compiler_for(target)
  /// After each item, one at a time, on the thread that has finished it.
  std::function<void(size_t done, size_t total, const PrebuildItem&)> progress = {};
};

/// Gets them all. A request that fails does not stop the others; what it said is in the report. Throws only for requests
/// that cannot be (check_request) and what `progress` throws.
PrebuildReport prebuild(Cache& cache, std::span<const CompileRequest> requests, const PrebuildOptions& options = {});

}  // namespace eitri::jit
