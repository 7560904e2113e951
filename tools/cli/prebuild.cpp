// `eitri prebuild`: compiles kernels into the cache ahead of time, for GPUs that need not be there.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/settings.h"
#include "cli/command.h"
#include "cli/moe.h"
#include "cli/prebuild_requests.h"
#include "jit/prebuild.h"

extern char** environ;

namespace eitri::cli {
namespace {

using jit::Origin;
using jit::PrebuildItem;
using jit::PrebuildReport;
using nlohmann::ordered_json;

struct PrebuildCommand {
  std::string model, op, targets;
  bool all = false, tests = false, verify = false, json = false;
  int jobs = 0;
};

/// One line on a terminal, rewritten as kernels are done.
class Bar {
 public:
  void show(size_t done, size_t total, const PrebuildItem& item) {
    if (!on_) return;
    constexpr size_t kWidth = 30;
    const size_t full = done * kWidth / total;
    std::string line = fmt::format("[{:#<{}}{: <{}}] {}/{} {} {}", "", full, "", kWidth - full, done, total, item.target->name, item.label);
    line.resize(std::max(line.size(), width_), ' ');
    width_ = line.size();
    fmt::print(stderr, "\r{}", line);
    std::fflush(stderr);
  }
  ~Bar() {
    if (width_ > 0) fmt::print(stderr, "\r{:{}}\r", "", width_);
  }

 private:
  const bool on_ = isatty(STDERR_FILENO) != 0;
  size_t width_ = 0;
};

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}
double largest_of(const std::vector<double>& values) { return values.empty() ? 0 : *std::max_element(values.begin(), values.end()); }

/// The kernels of one target.
struct Summary {
  std::string target;
  size_t kernels = 0, compiled = 0, cached = 0, failed = 0;
  std::vector<double> compile_s;
  double total_s() const {
    double sum = 0;
    for (const double s : compile_s) sum += s;
    return sum;
  }
};

std::vector<Summary> summaries(const PrebuildReport& report) {
  std::vector<Summary> out;
  for (const PrebuildItem& item : report.items) {
    auto at = std::find_if(out.begin(), out.end(), [&](const Summary& s) { return s.target == item.target->name; });
    if (at == out.end()) at = out.insert(out.end(), Summary{.target = item.target->name, .compile_s = {}});
    ++at->kernels;
    if (!item.error.empty()) {
      ++at->failed;
      continue;
    }
    ++(item.origin == Origin::compiled ? at->compiled : at->cached);
    at->compile_s.push_back(item.compile_s);
  }
  return out;
}

const char* origin_name(const PrebuildItem& item) {
  if (!item.error.empty()) return "failed";
  return item.origin == Origin::compiled ? "compiled" : item.origin == Origin::disk ? "disk" : "memory";
}

ordered_json to_json(const PrebuildReport& report, size_t problems) {
  ordered_json targets = ordered_json::array(), kernels = ordered_json::array();
  for (const Summary& s : summaries(report)) {
    targets.push_back({{"target", s.target},
                       {"kernels", s.kernels},
                       {"compiled", s.compiled},
                       {"cached", s.cached},
                       {"failed", s.failed},
                       {"compile_s", s.total_s()},
                       {"median_s", median_of(s.compile_s)},
                       {"max_s", largest_of(s.compile_s)}});
  }
  for (const PrebuildItem& item : report.items) {
    kernels.push_back({{"kernel", item.label},
                       {"target", item.target->name},
                       {"key", item.key},
                       {"origin", origin_name(item)},
                       {"compile_s", item.compile_s},
                       {"get_ms", item.get_s * 1e3},
                       {"error", item.error}});
  }
  return {{"problems", problems},
          {"kernels", report.items.size()},
          {"seconds", report.seconds},
          {"targets", std::move(targets)},
          {"items", std::move(kernels)}};
}

std::string dumped(const ordered_json& json) { return json.dump(2, ' ', false, ordered_json::error_handler_t::replace); }

/// The same list in a fresh process in which nothing may be compiled; its JSON.
ordered_json second_pass(const PrebuildCommand& command) {
  std::vector<std::string> argv = {"/proc/self/exe", "prebuild", "--json", "--target", command.targets};
  if (command.all) argv.emplace_back("--all");
  if (command.tests) argv.emplace_back("--tests");
  if (!command.model.empty()) argv.insert(argv.end(), {"--model", command.model});
  if (!command.op.empty()) argv.insert(argv.end(), {"--op", command.op});
  argv.insert(argv.end(), {"--jobs", "1"});  // one at a time, so that the times mean something
  std::vector<char*> pointers;
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::setenv("EITRI_JIT", "cached", 1);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(Code::io_error, "prebuild --verify: no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char chunk[1 << 16];
  for (ssize_t got; error == 0 && (got = ::read(ends[0], chunk, sizeof chunk)) != 0;) {
    if (got > 0) text.append(chunk, static_cast<size_t>(got));
    else if (errno != EINTR) break;
  }
  ::close(ends[0]);
  if (error != 0) fail(Code::io_error, str("prebuild --verify: the second process cannot be started: error ", error));
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  try {
    return ordered_json::parse(text);
  } catch (const nlohmann::json::exception&) {
    fail(Code::internal, str("prebuild --verify: the second process has not answered but \"", text.substr(0, 200), "\""));
  }
}

/// What the second pass did not get from disk, a line each; fills `verify` with its times.
std::string check_second_pass(const PrebuildReport& first, const ordered_json& second, ordered_json& verify) {
  std::vector<double> ms;
  std::string wrong;
  size_t found = 0;
  for (const auto& item : second.at("items")) {
    ++found;
    if (item.at("origin") == "disk") {
      ms.push_back(item.at("get_ms"));
      continue;
    }
    wrong += fmt::format("{} for {}: {}\n", item.at("kernel").get<std::string>(), item.at("target").get<std::string>(),
                         item.at("origin") == "failed" ? item.at("error").get<std::string>() : item.at("origin").get<std::string>());
  }
  if (found != first.items.size())
    wrong += fmt::format("the second pass asked for {} kernels, the first for {}\n", found, first.items.size());
  verify = {{"from_disk", ms.size()}, {"median_ms", median_of(ms)}, {"max_ms", largest_of(ms)}, {"ok", wrong.empty()}};
  return wrong;
}

PrebuildRequests requests_of(const PrebuildCommand& command) {
  PrebuildRequests list(parse_gpu_targets("--target", command.targets));
  const CasesOf which = command.tests ? CasesOf::tests_too : CasesOf::benchmarks;
  if (command.all) add_all_cases(list, which);
  if (!command.op.empty()) add_cases(list, command.op, which);
  if (!command.model.empty()) add_model(list, checkpoint::find_moe_model(command.model, model_folders()));
  return list;
}

int run(const PrebuildCommand& command, const Common& common) {
  require(command.all || !command.op.empty() || !command.model.empty(),
          "prebuild: nothing to compile is named; expected --model, --op or --all");
  const PrebuildRequests list = requests_of(command);
  jit::Cache& cache = jit::default_cache();
  // A folder that cannot be written to (an image, say) serves as long as nothing has to be compiled.
  const std::string problem = settings().jit == JitMode::on ? cache.disk_problem() : "";
  const auto is_kept = [&](const jit::CompileRequest& request) { return cache.has(jit::compiler_for(*request.target), request); };
  if (!problem.empty() && !std::ranges::all_of(list.requests(), is_kept))
    fail(Code::io_error, str("prebuild: nothing that is compiled now would be kept: ", problem));
  if (list.requests().empty())
    fail(Code::unsupported, str("prebuild: no kernel is needed for ", list.problems(), " problems on ", command.targets,
                                "; `eitri explain OP PROBLEM --target T` says which rows take one, and why not"));
  PrebuildReport report;
  {
    Bar bar;
    report = jit::prebuild(cache, list.requests(),
                           {.jobs = command.jobs > 0 ? command.jobs : common.threads,
                            .progress = [&](size_t done, size_t total, const PrebuildItem& item) { bar.show(done, total, item); }});
  }
  const std::string failures = report.failures();
  ordered_json verify;
  std::string wrong;
  if (command.verify && failures.empty()) wrong = check_second_pass(report, second_pass(command), verify);

  if (command.json) {
    ordered_json out = to_json(report, list.problems());
    if (!verify.is_null()) out["verify"] = verify;
    fmt::print("{}\n", dumped(out));
  } else {
    Table table({"target", "kernels", "compiled", "from cache", "failed", "compile", "median", "max"}, 1);
    for (const Summary& s : summaries(report)) {
      table.add({s.target, str(s.kernels), str(s.compiled), str(s.cached), str(s.failed), fmt::format("{:.1f} s", s.total_s()),
                 fmt::format("{:.2f} s", median_of(s.compile_s)), fmt::format("{:.2f} s", largest_of(s.compile_s))});
    }
    if (!report.items.empty()) fmt::print("{}", table.text());
    fmt::print("{} kernels of {} problems in {:.1f} s, in {}/jit\n", report.items.size(), list.problems(), report.seconds,
               settings().cache_dir);
    if (!verify.is_null())
      fmt::print("second pass: {} from disk, {:.2f} ms each (median), {:.2f} ms the slowest\n", verify["from_disk"].get<size_t>(),
                 verify["median_ms"].get<double>(), verify["max_ms"].get<double>());
  }
  if (!failures.empty()) fmt::print(stderr, "eitri: prebuild: these kernels are not there:\n{}", failures);
  if (!wrong.empty()) fmt::print(stderr, "eitri: prebuild --verify: not served from disk in a fresh process:\n{}", wrong);
  return failures.empty() && wrong.empty() ? kOk : kFailed;
}

}  // namespace

void add_prebuild(CLI::App& app, Action& action) {
  auto command = std::make_shared<PrebuildCommand>();
  CLI::App* prebuild = app.add_subcommand("prebuild", "Compile kernels into the cache ahead of time; no GPU is needed");
  auto* model = prebuild->add_option("--model", command->model, "What the MoE block of a model of bench/models (or a JSON file) needs");
  auto* op = prebuild->add_option("--op", command->op, "What an operator's benchmarks need")->excludes(model);
  prebuild->add_flag("--all", command->all, "What the benchmarks of all operators need")->excludes(model)->excludes(op);
  prebuild->add_flag("--tests", command->tests, "With --op or --all: also what their tests need")->excludes(model);
  prebuild->add_option("--target", command->targets, "GPU architectures, e.g. sm_90a,gfx942")->type_name("T,T,...")->required();
  prebuild->add_option("--jobs", command->jobs, "Compiles at once (default: --threads, or all cores)")->check(CLI::Range(1, 1024));
  prebuild->add_flag("--verify", command->verify, "Then get everything from disk in a fresh process that may not compile");
  prebuild->add_flag("--json", command->json, "Print JSON, kernel by kernel");
  prebuild->callback([command, &action] { action = [command](Common& common) { return run(*command, common); }; });
}

}  // namespace eitri::cli
