#include "cli/command.h"

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "backend/cpu/cpu.h"
#include "backend/cpu/threads.h"
#include "base/error.h"
#include "ops/ops.h"

namespace eitri::cli {

void Common::apply() {
  if (threads > 0) {
    setenv("EITRI_THREADS", str(threads).c_str(), 1);  // the option wins over the variable, which is read once
    omp_set_num_threads(threads);
  }
  if (!isa.empty()) {
    std::string known;
    bool found = false;
    const auto names = enum_names(Isa{});
    for (size_t i = 0; i < names.size(); ++i) {
      known += str(known.empty() ? "" : ", ", names[i]);
      if (isa != names[i]) continue;
      found = true;
      force_isa(static_cast<Isa>(i));
    }
    require(found, "--isa is '", isa, "'; expected one of ", known);
  }
  for (const std::string& pair : force) {
    const size_t equals = pair.find('=');
    require(equals != std::string::npos, "--force is '", pair, "'; expected OP=KERNEL");
    const OpEntry& op = find_op(pair.substr(0, equals));
    const std::string kernel = pair.substr(equals + 1);
    std::string known;
    bool found = false;
    for (const KernelInfo& k : op.kernels) {
      known += str(known.empty() ? "" : ", ", k.name);
      found |= kernel == k.name;
    }
    require(found, "--force ", op.name, " is '", kernel, "'; expected one of ", known);
    forced.push_back(std::make_unique<ForceScope>(op.name, kernel));
  }
}

int use_profile() {
  const int threads = max_threads();
  const Progress progress("measuring the machine (once; kept in the cache folder)");
  set_profile(cached_profile(cpu_device(), threads));
  return threads;
}

std::string device_name() { return fmt::format("{} ({})", cpu_device().name, cpu_device().arch()); }

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i < left_ ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("{:>{}}", row[i], width[i]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

Progress::Progress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  width_ = what.size() + 4;
  fmt::print(stderr, "{} ...", what);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (width_ > 0) fmt::print(stderr, "\r{:{}}\r", "", width_);
}

std::vector<int64_t> parse_numbers(const std::string& text, const char* option) {
  std::vector<int64_t> out;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    require(error == std::errc{} && end == part.data() + part.size() && value > 0 && value <= int64_t{1} << 31, option, " is '", text,
            "'; expected positive integers separated by commas");
    out.push_back(value);
  }
  require(!out.empty(), option, " is '", text, "'; expected positive integers separated by commas");
  return out;
}

void require_memory(size_t bytes, const std::string& what, const std::string& advice) {
  const size_t available = available_memory();
  if (bytes > available)
    fail(Code::out_of_memory, fmt::format("{} needs {:.1f} GiB; {:.1f} GiB are available{}", what, static_cast<double>(bytes) / (1 << 30),
                                          static_cast<double>(available) / (1 << 30), advice));
}

}  // namespace eitri::cli
