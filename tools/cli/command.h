// What the subcommands of `eitri` share: options that every one of them takes, exit codes, tables, progress.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/available_memory.h"
#include "dispatch/route.h"

namespace eitri::cli {

// Exit codes, documented in `eitri --help`.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;    // a wrong result, or something broke
inline constexpr int kBadUsage = 2;  // an argument that cannot be

/// Options of the command itself, valid before and after the subcommand.
struct Common {
  std::string isa;
  std::vector<std::string> force;  // "op=kernel"
  int threads = 0;                 // 0: OpenMP's, or EITRI_THREADS
  std::vector<std::unique_ptr<ForceScope>> forced;

  /// Puts them into force; unknown names are errors that list the known ones. Called once, before any operator.
  void apply();
};

/// What main runs once the command line is read.
using Action = std::function<int(Common&)>;

void add_moe(CLI::App& app, Action& action);
void add_gemm(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_ops(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_cache(CLI::App& app, Action& action);
void add_prebuild(CLI::App& app, Action& action);
void add_tune(CLI::App& app, Action& action);
void add_pack(CLI::App& app, Action& action);

/// Takes the measured profile of the machine for the threads in use, and returns their number.
int use_profile();
/// "Intel(R) Xeon(R) Processor (x86_amx)".
std::string device_name();

/// A table for people: the first `left` columns are left-aligned, the others right-aligned.
class Table {
 public:
  Table(std::vector<std::string> header, size_t left) : left_(left), rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

/// Says on stderr what takes long, only when that is a terminal; the line is wiped at the end.
class Progress {
 public:
  explicit Progress(const std::string& what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  size_t width_ = 0;
};

/// The parts of a comma-separated list of positive integers; `option` starts the message.
std::vector<int64_t> parse_numbers(const std::string& text, const char* option);

/// Refuses what will not fit; `what` starts the message, `advice` ends it.
void require_memory(size_t bytes, const std::string& what, const std::string& advice);

}  // namespace eitri::cli
