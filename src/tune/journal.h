// What a tuning run has done so far, one line of JSON an event, appended to <folder>/journal.jsonl: it resumes from there, and every
// candidate's times stay for later questions (regret, a new candidate). A line that was cut off is passed over.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace eitri::tune {

/// One candidate of a tuned problem.
struct JournalEntry {
  std::string kernel, config;
  std::string wrong;  // why it was rejected; empty: timed
  double us = 0, spread_us = 0, error = 0;
  int rounds = 0;
};
/// A problem that is done.
struct JournalRecord {
  std::string op, arch;
  int units = 0;
  std::string problem, revisions;  // revisions: of the candidates' kernels, "a,b"
  std::string kernel, config;      // adopted
  double us = 0, control_us = 0;   // of the confirmation
  double race_control_us = 0;      // of the default in the race, which the candidates' times are from
  std::string date;
  std::vector<JournalEntry> candidates;
};
/// A candidate that is not tried again: wrong or faulting ones nowhere, slow or hungry ones not at that problem.
struct Quarantined {
  std::string op, arch, kernel, config, revision;
  std::string problem;  // empty: at every problem
  std::string why;
};

class Journal {
 public:
  /// Reads what is there; the first line that is added makes the folder. Throws Error{io_error}.
  explicit Journal(const std::string& folder);
  void add(const JournalRecord& record);
  void add(const Quarantined& entry);
  /// The last record of the problem; null: none.
  const JournalRecord* find(const std::string& op, const std::string& arch, int units, const std::string& problem) const;
  /// Why the candidate is not tried; empty: it is. An entry counts for the revision of the kernel that it was made with.
  std::string quarantined(const std::string& op, const std::string& arch, const std::string& kernel, const std::string& config,
                          const std::string& revision, const std::string& problem) const;
  std::vector<JournalRecord> records() const;
  const std::vector<Quarantined>& quarantine() const { return quarantine_; }
  const std::string& path() const { return path_; }
  size_t torn_lines() const { return torn_; }

 private:
  void append(const std::string& line) const;
  std::string path_;
  std::map<std::string, JournalRecord> records_;
  std::vector<Quarantined> quarantine_;
  size_t torn_ = 0;
};

}  // namespace eitri::tune
