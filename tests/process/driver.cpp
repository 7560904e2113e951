// The process that the tests of this folder start, kill and race: `eitri_process_driver COMMAND name=value…`. It stands for a
// program that uses the library; what a test does to it (stopping at a step of a build, dying there) comes in through hooks of
// the inner interface, never through the library's own environment.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/log.h"
#include "dispatch/misses.h"
#include "dispatch/op.h"
#include "dispatch/tune_on_miss.h"
#include "jit/cache.h"
#include "jit/fake_compiler.h"
#include "jit/user_op.h"
#include "tune/bench.h"
#include "tune/sabotage_op.h"
#include "tune/tuner.h"
#include "tune/worker.h"

namespace {

using namespace eitri;
using namespace eitri::jit;

std::map<std::string, std::string> values;

std::string value(const std::string& name, const std::string& fallback = {}) {
  const auto at = values.find(name);
  return at == values.end() ? fallback : at->second;
}
double number(const std::string& name, double fallback) { return values.contains(name) ? std::atof(values[name].c_str()) : fallback; }

/// Says where it is and stays there until it is killed.
void stop_at(std::string_view step, void*) {
  if (step == "waiting") {
    std::printf("waiting\n");
    std::fflush(stdout);
  }
  if (step != value("stop_at")) return;
  std::printf("stopped\n");
  std::fflush(stdout);
  for (;;) ::pause();
}

CacheOptions cache_options() {
  CacheOptions options;
  options.root = value("root");
  options.lock_folder = value("locks");
  options.wait_s = number("wait", 30);
  options.steps = {.hook = stop_at};
  if (value("mode") == "cached") options.mode = JitMode::cached;
  return options;
}

std::string summary(const Counters& c) {
  return str("compiled=", c.compiled, " disk=", c.disk, " memory=", c.memory, " waits=", c.waits, " gave_up=", c.waits_given_up,
             " quarantined=", c.quarantined, " unpublished=", c.unpublished, " failed=", c.failed, " stored_failures=", c.stored_failures);
}

/// Gets `keys` binaries of the fake compiler, in an order of its own, and checks each.
int get() {
  Cache cache(cache_options());
  FakeCompiler compiler;
  compiler.id = value("identity", "fake 1");
  compiler.log_file = value("log");
  compiler.seconds = number("seconds", 0);
  const int keys = static_cast<int>(number("keys", 1));
  std::vector<int> order;
  for (int i = 0; i < keys; ++i) order.push_back(i);
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(number("seed", 0))));
  int wrong = 0;
  for (const int i : order) {
    CompileRequest request = fake_request(str("kernel ", i, value("text")));
    if (values.contains("flag")) request.flags = {value("flag")};
    if (values.contains("header")) {
      request.source.text += "\n#include \"h.h\"\n";
      request.source.headers.add("h.h", value("header"));
    }
    const auto binary = cache.get(compiler, request);
    const std::string wanted = fake_binary(*request.target, request.source.text + (values.contains("header") ? "|" + value("header") : ""));
    wrong += binary->bytes != wanted;
  }
  std::printf("%s wrong=%d path=%s problem=%s\n", summary(cache.counters()).c_str(), wrong,
              keys > 0 && !cache.list().empty() ? "kept" : "none", cache.disk_problem().c_str());
  return wrong != 0;
}

/// A user op through the settings of the environment.
int user_op() {
  const jit::UserOp op("twice(x: f32[n], y: out f32[n])", {.body = str("for (int64_t i = 0; i < n; ++i) y(i) = 2 * x(i);", value("text"))});
  const float x[2] = {1, 2};
  float y[2] = {};
  op(View(x, DType::f32, {2}), View(y, DType::f32, {2}));
  std::printf("%s y=%g,%g problem=%s\n", summary(default_cache().counters()).c_str(), static_cast<double>(y[0]), static_cast<double>(y[1]),
              default_cache().disk_problem().c_str());
  return y[0] == 2 && y[1] == 4 ? 0 : 1;
}

std::span<const tune::TunedOp> probe() {
  static const tune::TunedOp kOps[] = {tune::tuned_op<Probe>()};
  set_tuned_fields("probe", tuned_fields<Probe::Problem>());
  return kOps;
}

/// Without the faults, whose time limits would make a test long.
std::span<const tune::TunedOp> right_probe() {
  static const tune::TunedOp kOps[] = {{.name = "probe",
                                        .plain = tune::plain_text_of<Probe>,
                                        .choices =
                                            [](std::string_view problem, const Device& device, const tune::Pruning& pruning) {
                                              tune::Choices choices = tune::choices_of<Probe>(problem, device, pruning);
                                              for (tune::Choice& c : choices.all)
                                                if (c.kernel.find(".right.") == std::string::npos) c.refused = "not of this test";
                                              return choices;
                                            },
                                        .subject = tune::subject_of<Probe>,
                                        .children = tune::children_of<Probe>}};
  probe();
  return kOps;
}

/// `eitri tune` for the operator of sabotage, as EITRI_TUNE starts it.
int tune_as_told(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i < argc; ++i)
    if (const std::string name = argv[i]; name.starts_with("--") && i + 1 < argc) options[name] = argv[i + 1];
  tune::TuneOptions o;
  o.folder = options.at("--out");
  o.worker = {"/proc/self/exe", "tune_worker"};
  o.time_limit_s = 2;
  o.sample_us = 800;
  o.race.gate = 0.5;
  o.race.rungs = {3, 5};
  o.confirm_rounds = 5;
  o.again = options.contains("--problem");
  tune::Tuner tuner(o.again ? right_probe() : probe(), cpu_device(), o);
  if (options.contains("--problem")) return tuner.tune({"probe", options["--problem"]}).status == tune::TuneStatus::failed ? 1 : 0;
  struct pollfd input = {.fd = 0, .events = POLLIN, .revents = 0};
  for (std::set<std::string> done; ::poll(&input, 1, 50) == 0;) {
    try {
      for (const Miss& miss : read_misses(options.at("--from-record")).misses)
        if (miss.op == "probe" && done.insert(miss.problem).second) tuner.tune({"probe", miss.problem});
    } catch (const Error&) {  // nothing has been recorded yet
    }
  }
  return 0;
}

/// Calls the operator of sabotage for each of the numbers of rows, as a program does, and says which kernels serve then.
int call_probe() {
  probe();
  set_tune_command({"/proc/self/exe", "tune"});
  for (const std::string name : {"first", "second"}) {
    const Probe::Problem problem{.m = static_cast<int64_t>(number(name, 1)), .k = 33};
    Maker maker;
    call<Probe>(Probe::make(problem, maker));
    const Route<Probe>& now = route<Probe>(problem);
    std::printf("m=%d %s %s %s\n", static_cast<int>(problem.m), now.kernel->name, to_string(now.config, now.kernel->knobs).c_str(),
                std::string(to_string(now.origin)).c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "tune") return tune_as_told(argc, argv);
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return 3;
    values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const std::string command = argc > 1 ? argv[1] : "";
  try {
    if (command == "get") return get();
    if (command == "user_op") return user_op();
    if (command == "tune_worker") return tune::worker_main(probe());
    if (command == "call_probe") return call_probe();
  } catch (const Error& error) {
    std::printf("error: %s\n", error.what());
    return 2;
  }
  return 3;
}
