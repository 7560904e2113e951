// The worker process: what runs candidates, so that one that never ends, faults or asks for all memory costs a process and not the
// tuning. Both ends of its protocol: a line of JSON a request on its standard input, lines of JSON as answers on descriptor 3.
//
//   {"do":"start","device","threads"}                              -> {"ok":true}: libraries and the device are ready
//   {"do":"open","op","problem","check","most_flops"}               -> {"ok":true,"fewer_rows":false}; the problem before is closed
//   {"do":"ring"}                                                   -> {"ok":true}
//   {"do":"check","kernel","config","repeats","most_us","inputs"}   -> {"ok":true,"wrong":"","damaged":false,"slow":false,"error":0.1,"us":12.5}
//   {"do":"damage"}                                                 -> {"ok":true,"found":""}: of inputs, since the problem was opened
//   {"do":"time","kernel","config","sample_us"}                     -> {"ok":true,"us":12.3}
//   {"do":"close"}                                                  -> {"ok":true}: the tensors are given back
//
// Anything that fails answers {"ok":false,"why":"..."}.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tune/tuned_op.h"

namespace eitri::tune {

/// Serves requests until its input ends; returns the exit status. The process ends with its parent, may take no more memory than is
/// available now, and leaves no core file.
int worker_main(std::span<const TunedOp> ops);

/// One answer, or how the worker ended instead.
struct Answer {
  nlohmann::json json;
  std::string death;  // "was killed by signal 11", "did not answer within 30 s and was killed", ...; empty: json is the answer
  bool timed_out = false;
  bool ok() const { return death.empty() && json.value("ok", false); }
  /// Why it is not ok.
  std::string why() const { return death.empty() ? json.value("why", std::string("an answer without a reason")) : "the worker " + death; }
};

/// The parent's end. Started on the first request and again after a death.
class WorkerProcess {
 public:
  /// `argv[0]` is a path. `environment`: NAME=VALUE, added to ours. `log`: file for what the worker prints; empty: nowhere.
  WorkerProcess(std::vector<std::string> argv, std::vector<std::string> environment, std::string log);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  Answer ask(const nlohmann::json& request, double time_limit_s);
  bool running() const { return pid_ > 0; }
  /// Ends it; the next request starts a fresh one.
  void stop();
  int started() const { return started_; }

 private:
  std::string start();
  Answer died(const char* when);

  const std::vector<std::string> argv_, environment_;
  const std::string log_;
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
  std::string buffer_;
  int started_ = 0;
};

}  // namespace eitri::tune
