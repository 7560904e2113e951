// The process that the tests of this folder start, kill and race: `eitri_process_driver COMMAND name=value…`. It stands for a
// program that uses the library; what a test does to it (stopping at a step of a build, dying there) comes in through hooks of
// the inner interface, never through the library's own environment.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "base/log.h"
#include "jit/cache.h"
#include "jit/fake_compiler.h"
#include "jit/user_op.h"
#include "tune/bench.h"
#include "tune/sabotage_op.h"
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

}  // namespace

int main(int argc, char** argv) {
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
    if (command == "tune_worker") {
      const tune::TunedOp ops[] = {tune::tuned_op<Probe>()};
      return tune::worker_main(ops);
    }
  } catch (const Error& error) {
    std::printf("error: %s\n", error.what());
    return 2;
  }
  return 3;
}
