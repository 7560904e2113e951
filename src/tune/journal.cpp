#include "tune/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/str.h"

namespace eitri::tune {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{1} << 30;

std::string key_of_record(const std::string& op, const std::string& arch, int units, const std::string& problem) {
  return str(op, "|", arch, "|", units, "|", problem);
}

ordered_json to_json(const JournalEntry& e) {
  ordered_json out = {{"kernel", e.kernel}, {"config", e.config}};
  if (!e.wrong.empty()) out["wrong"] = e.wrong;
  else out.update({{"us", e.us}, {"spread_us", e.spread_us}, {"error", e.error}, {"rounds", e.rounds}});
  return out;
}

}  // namespace

Journal::Journal(const std::string& folder) : path_(str(folder, "/journal.jsonl")) {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = read_file(path_, kMaxBytes);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    try {
      const auto json = ordered_json::parse(line);
      if (json.contains("why")) {
        quarantine_.push_back({json.at("op"), json.at("arch"), json.at("kernel"), json.at("config"), json.at("revision"),
                               json.at("problem"), json.at("why")});
        continue;
      }
      JournalRecord r{.op = json.at("op"),
                      .arch = json.at("arch"),
                      .units = json.at("units"),
                      .problem = json.at("problem"),
                      .revisions = json.at("revisions"),
                      .kernel = json.at("kernel"),
                      .config = json.at("config"),
                      .us = json.at("us"),
                      .control_us = json.at("control_us"),
                      .race_control_us = json.at("race_control_us"),
                      .date = json.at("date"),
                      .candidates = {}};
      for (const auto& c : json.at("candidates"))
        r.candidates.push_back({.kernel = c.at("kernel"),
                                .config = c.at("config"),
                                .wrong = c.value("wrong", ""),
                                .us = c.value("us", 0.0),
                                .spread_us = c.value("spread_us", 0.0),
                                .error = c.value("error", 0.0),
                                .rounds = c.value("rounds", 0)});
      records_[key_of_record(r.op, r.arch, r.units, r.problem)] = std::move(r);
    } catch (const ordered_json::exception&) {
      ++torn_;
    }
  }
}

void Journal::append(const std::string& line) const {
  std::error_code ignored;  // what is wrong with the folder, open() says
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail(Code::io_error, str("cannot open ", path_, ": ", std::strerror(errno)));
  const std::string text = "\n" + line + "\n";  // a line that a killed writer left does not swallow this one
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int code = errno;
  ::close(fd);
  if (written != static_cast<ssize_t>(text.size())) fail(Code::io_error, str("cannot write ", path_, ": ", std::strerror(code)));
}

void Journal::add(const JournalRecord& r) {
  ordered_json candidates = ordered_json::array();
  for (const JournalEntry& e : r.candidates) candidates.push_back(to_json(e));
  const ordered_json line = {{"op", r.op},
                             {"arch", r.arch},
                             {"units", r.units},
                             {"problem", r.problem},
                             {"revisions", r.revisions},
                             {"kernel", r.kernel},
                             {"config", r.config},
                             {"us", r.us},
                             {"control_us", r.control_us},
                             {"race_control_us", r.race_control_us},
                             {"date", r.date},
                             {"candidates", std::move(candidates)}};
  append(line.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  records_[key_of_record(r.op, r.arch, r.units, r.problem)] = r;
}

void Journal::add(const Quarantined& q) {
  const ordered_json line = {{"op", q.op},           {"arch", q.arch}, {"kernel", q.kernel}, {"config", q.config}, {"revision", q.revision},
                             {"problem", q.problem}, {"why", q.why}};
  append(line.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  quarantine_.push_back(q);
}

const JournalRecord* Journal::find(const std::string& op, const std::string& arch, int units, const std::string& problem) const {
  const auto it = records_.find(key_of_record(op, arch, units, problem));
  return it == records_.end() ? nullptr : &it->second;
}

std::string Journal::quarantined(const std::string& op, const std::string& arch, const std::string& kernel, const std::string& config,
                                 const std::string& revision, const std::string& problem) const {
  for (const Quarantined& q : quarantine_)
    if (q.op == op && q.arch == arch && q.kernel == kernel && q.config == config && q.revision == revision &&
        (q.problem.empty() || q.problem == problem))
      return q.why;
  return {};
}

std::vector<JournalRecord> Journal::records() const {
  std::vector<JournalRecord> out;
  for (const auto& [key, record] : records_) out.push_back(record);
  return out;
}

}  // namespace eitri::tune
