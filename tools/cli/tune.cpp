// `eitri tune`: times the candidates of problems and writes the best as tuned rows. docs/tuning.md has the protocol.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "backend/cpu/cpu.h"
#include "backend/cpu/threads.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/tune_problems.h"
#include "cli/tune_report.h"
#include "ops/ops.h"
#include "tune/ops.h"
#include "tune/regret.h"
#include "tune/tuned_writer.h"

namespace eitri::cli {
namespace {

using nlohmann::ordered_json;
using tune::Outcome;
using tune::TuneStatus;

struct TuneCommand {
  std::string op, shapes, model, weights = "bf16", record, out = kProjectTuned, device = "cpu", budget, shard, m;
  std::vector<std::string> problems, files;
  bool all_stale = false, dry_run = false, again = false, json = false, follow = false, beside = false, attached = false;
  double share = 100;
  double time_limit_s = 20, min_gain = 2, prune = tune::Pruning{}.kernels;
  int score = 0;
  double judge_gflop = 0.25;
};

/// For options that take numbers. CLI::Range lets NaN through.
CLI::Validator number_from(double low, double high) {
  return CLI::Validator(
      [=](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        return !text.empty() && *end == 0 && value >= low && value <= high ? std::string()
                                                                           : fmt::format("expected {} to {}; got {}", low, high, text);
      },
      fmt::format("{} to {}", low, high));
}

const Device& device_of(const std::string& text) {
  if (text == "cpu") return cpu_device();
  int index = -1;
  const char* const begin = text.data() + std::min<size_t>(5, text.size());
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), index);
  require(text.starts_with("cuda:") && error == std::errc{} && end == text.data() + text.size() && index >= 0, "--device is '", text,
          "'; expected cpu or cuda:N");
  return gpu::device(index);
}

/// "90", "90s", "15m", "2h" in seconds.
double seconds_of(const std::string& text) {
  if (text.empty()) return std::numeric_limits<double>::infinity();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  require(error == std::errc{} && factor > 0 && value > 0, "--budget is '", text, "'; expected a time such as 90s, 15m or 2h");
  return value * factor;
}

Problems problems_of(const TuneCommand& command, const Device& device) {
  Problems out;
  const auto ladder = command.m.empty() ? default_ladder(4096) : parse_numbers(command.m, "--m");
  for (const std::string& text : command.problems) out.push_back(problem_from_text(command.op, text, device));
  const auto add = [&](const Problems& more) { out.insert(out.end(), more.begin(), more.end()); };
  if (!command.shapes.empty()) add(problems_from_csv(command.op, command.shapes, ladder, device));
  if (!command.model.empty()) add(problems_of_model(command.model, command.weights, ladder, device));
  if (!command.record.empty()) {
    size_t skipped = 0;
    std::vector<std::string> unreadable;
    Problems recorded = problems_from_record(command.record, device, skipped, unreadable);
    if (!command.op.empty()) std::erase_if(recorded, [&](const auto& p) { return p.op != command.op; });
    static std::set<std::string> said;  // with --follow the file is read again and again
    for (const std::string& line : unreadable)
      if (said.insert(line).second) fmt::print(stderr, "eitri: tune: skipped: {}\n", line);
    if (skipped > 0 && said.insert("").second) fmt::print(stderr, "eitri: tune: {} recorded problems are of other machines\n", skipped);
    add(recorded);
  }
  if (command.all_stale) {
    Problems stale = stale_problems(command.out, device);
    if (!command.op.empty()) std::erase_if(stale, [&](const auto& p) { return p.op != command.op; });
    add(stale);
  }
  out = without_repeats(std::move(out));
  return command.shard.empty() ? out : shard_of(out, command.shard, !command.record.empty() || command.all_stale);
}

int dry_run(const TuneCommand& command, const Problems& problems, const tune::Tuner& tuner) {
  auto list = ordered_json::array();
  Table table({"op", "problem", "candidates", "default", "left out"}, 2);
  for (const auto& p : problems) {
    const tune::Choices choices = tuner.candidates(p);
    size_t usable = 0;
    for (const auto& c : choices.all) usable += c.refused.empty() ? 1 : 0;
    const std::string control = choices.control < choices.all.size() ? choices.all[choices.control].kernel : "none";
    list.push_back({{"op", p.op}, {"problem", p.problem}, {"candidates", usable}, {"default", control}});
    table.add({p.op, p.problem, str(usable), control, str(choices.all.size() - usable)});
  }
  if (command.json) fmt::print("{}\n", list.dump(1));
  else fmt::print("{}{} problems\n", table.text(), problems.size());
  return kOk;
}

/// Whether the program that started us with a pipe as our standard input has gone, or closed it.
bool input_has_ended() {
  struct pollfd input = {.fd = 0, .events = POLLIN, .revents = 0};
  char byte;
  return ::poll(&input, 1, 0) > 0 && ::read(0, &byte, 1) <= 0;
}

/// Ends this process soon after the program that started us has gone, whatever is being timed: workers end with their parent, rows are
/// replaced in one step, and a torn line of the journal is passed over.
void end_with_input() {
  std::thread([] {
    while (!input_has_ended()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::_Exit(kOk);
  }).detach();
}

/// One process of all that share the folder of rows follows; the others wait until it has gone.
void wait_for_turn(const TuneCommand& command, const Device& device) {
  ::setpriority(PRIO_PROCESS, 0, 19);
  std::error_code ignored;
  std::filesystem::create_directories(command.out, ignored);
  const std::string path = str(command.out, "/online.", device.arch(), ".lock");
  // Kept until this process ends; without locks (network file systems) there is no waiting.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  while (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && !input_has_ended())
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

/// Tunes what a running program records, until the budget is used up: the program obeys the new rows between its calls.
void follow(const TuneCommand& command, const Device& device, tune::Tuner& tuner, TuneReport& report) {
  std::set<std::string> done;
  const auto is_over = [&] { return tuner.out_of_time(); };
  while (!is_over()) {
    Problems fresh;
    try {
      fresh = problems_of(command, device);
    } catch (const Error& error) {
      const std::filesystem::path record = command.record;
      if (error.code() != Code::io_error || std::filesystem::is_regular_file(record) || std::filesystem::exists(record / "misses.csv"))
        throw;
      // Nothing has been recorded yet.
    }
    const auto next = std::ranges::find_if(fresh, [&](const auto& p) { return !done.contains(p.op + " " + p.problem); });
    if (next == fresh.end()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      continue;
    }
    done.insert(next->op + " " + next->problem);
    report.begin(*next);
    const Outcome outcome = tuner.tune(*next);
    if (!command.json && outcome.status != TuneStatus::known)
      fmt::print(
          "{} {}: {}{}{}\n", next->op, next->problem, to_string(outcome.status), outcome.kernel.empty() ? "" : ": ",
          outcome.kernel.empty() ? outcome.why : fmt::format("{} {}, {:.1f} %", outcome.kernel, outcome.config, 100 * outcome.gain()));
    std::fflush(stdout);
    // The program beside us has the rest of the machine.
    const double rest_s = outcome.status == TuneStatus::known ? 0 : outcome.seconds * (100 / command.share - 1);
    report.end(outcome);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(rest_s);
    while (std::chrono::steady_clock::now() < until && !is_over()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int run(const TuneCommand& command, const Common& common) {
  require(!command.follow || (!command.record.empty() && !command.dry_run), "tune: --follow needs --from-record, and no --dry-run");
  require(!command.problems.empty() || !command.shapes.empty() || !command.model.empty() || !command.record.empty() || command.all_stale,
          "tune: no problems are named; expected --problem, --shapes, --model, --from-record or --all-stale");
  require(!command.beside || command.follow, "tune: --beside needs --follow");
  const Device& device = device_of(command.device);
  if (command.beside) wait_for_turn(command, device);
  if (command.beside || command.attached) end_with_input();
  if (!device.is_gpu() && !command.dry_run) use_profile();
  const Problems problems = command.follow ? Problems{} : problems_of(command, device);
  tune::TuneOptions options;
  options.folder = command.out;
  if (!command.shard.empty()) {
    std::string part = command.shard;
    std::ranges::replace(part, '/', '-');
    options.folder += "/shard-" + part;
  }
  options.worker = {"/proc/self/exe", "tune", "worker"};
  if (!common.isa.empty()) options.worker.insert(options.worker.begin() + 1, {"--isa", common.isa});
  options.device = command.device;
  options.threads = device.is_gpu() ? 0 : max_threads();
  if (device.is_gpu()) options.sample_us = 500;  // events on a stream are steadier than threads
  options.budget_s = seconds_of(command.budget);
  options.time_limit_s = command.time_limit_s;
  options.min_gain = command.min_gain / 100;
  options.pruning.kernels = command.prune;
  if (command.prune == 0) options.pruning.configs = 0;
  if (command.score > 0) {
    options.score_rounds = command.score;
    options.pruning.configs = 0;
  }
  options.check.most_flops = command.judge_gflop * 1e9;
  options.again = command.again || command.all_stale;
  TuneReport report(problems.size());
  options.progress = [&](const std::string& what) { report.progress(what); };
  tune::Tuner tuner(tune::all_tuned_ops(), device, options);
  if (tuner.journal().torn_lines() > 0)
    fmt::print(stderr, "eitri: tune: {} lines of {} cannot be read: their problems are tuned again\n", tuner.journal().torn_lines(),
               tuner.journal().path());
  if (command.dry_run) return dry_run(command, problems, tuner);
  if (command.follow) {
    follow(command, device, tuner, report);
  } else {
    for (const auto& problem : problems) {
      report.begin(problem);
      try {
        report.end(tuner.tune(problem));
      } catch (const Error&) {  // a full disk: what has been found is said
        report.print(command.json, options.folder);
        throw;
      }
    }
  }
  report.print(command.json, options.folder);
  return report.failed() ? kFailed : kOk;
}

/// The op and arch in the name of a tuned file, "<op>.<arch>.csv"; nothing where it is another name.
std::optional<std::pair<std::string, std::string>> parts_of_name(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  const size_t first = name.find('.'), last = name.rfind('.');
  if (first == std::string::npos || last <= first || name.substr(last) != ".csv") return std::nullopt;
  return std::pair{name.substr(0, first), name.substr(first + 1, last - first - 1)};
}

int merge(const TuneCommand& command) {
  namespace fs = std::filesystem;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> groups;
  for (const std::string& path : command.files) {
    if (!fs::is_directory(path)) {
      const auto parts = parts_of_name(path);
      require(parts.has_value(), "tune merge: ", path, " is no tuned file; expected <op>.<arch>.csv");
      groups[*parts].push_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_regular_file() || entry.path().extension() != ".csv") continue;
      // Online tuning keeps its record of misses beside the rows.
      if (const auto parts = parts_of_name(entry.path())) groups[*parts].push_back(entry.path().string());
      else fmt::print(stderr, "eitri: tune merge: passed over: {} is no tuned file, <op>.<arch>.csv\n", entry.path().string());
    }
  }
  require(!groups.empty(), "tune merge: there are no tuned files in what was named");
  all_ops();
  auto list = ordered_json::array();
  bool failed = false;  // nothing of an operator could be read
  for (auto& [name, files] : groups) {
    find_op(name.first);
    // What is in --out already takes part: a faster row there stays.
    if (const std::string there = tune::tuned_file(command.out, name.first, name.second);
        fs::exists(there) && std::ranges::none_of(files, [&](const std::string& file) { return fs::equivalent(file, there); }))
      files.push_back(there);
    std::ranges::sort(files);
    const tune::Merged merged =
        tune::merge_tuned(files, name.first, name.second, [&](const TunedRow& row) { return is_of_the_past(name.first, row); });
    for (const TunedProblem& p : merged.problems) fmt::print(stderr, "eitri: tune merge: skipped: {}: {}\n", p.origin, p.text);
    if (merged.rows.empty() && !merged.problems.empty()) {
      failed = true;
      continue;
    }
    tune::write_tuned(command.out, name.first, name.second, merged.rows);
    list.push_back({{"op", name.first},
                    {"arch", name.second},
                    {"files", files.size()},
                    {"rows", merged.rows.size()},
                    {"in_several", merged.problems_merged}});
    if (!command.json)
      fmt::print("{}: {} rows of {} files; {} problems were in several\n", tune::tuned_file(command.out, name.first, name.second),
                 merged.rows.size(), files.size(), merged.problems_merged);
  }
  if (command.json) fmt::print("{}\n", list.dump(1));
  return failed ? kFailed : kOk;
}

int regret(const TuneCommand& command) {
  all_ops();
  const tune::Journal journal(command.out);
  if (journal.torn_lines() > 0)
    fmt::print(stderr, "eitri: tune regret: {} lines of {} cannot be read\n", journal.torn_lines(), journal.path());
  const tune::RegretReport report = tune::leave_one_out(journal.records());
  require(!report.points.empty(), "tune regret: ", journal.path(), " has no problem with tuned neighbours on both sides");
  if (command.json) {
    auto points = ordered_json::array();
    for (const auto& p : report.points)
      points.push_back({{"op", p.op},
                        {"problem", p.problem},
                        {"chosen", p.chosen},
                        {"best", p.best},
                        {"regret", p.regret},
                        {"default_regret", p.default_regret},
                        {"beyond_noise", p.beyond_noise}});
    fmt::print("{}\n", ordered_json{{"mean", report.mean},
                                    {"beyond_noise_mean", report.beyond_noise_mean},
                                    {"worst", report.worst},
                                    {"default_mean", report.default_mean},
                                    {"points", points}}
                           .dump(1));
    return kOk;
  }
  Table table({"op", "problem", "chosen without its row", "best of all", "regret", "of the default"}, 4);
  for (const auto& p : report.points)
    table.add(
        {p.op, p.problem, p.chosen, p.best, fmt::format("{:.1f} %", 100 * p.regret), fmt::format("{:.1f} %", 100 * p.default_regret)});
  fmt::print(
      "{}{} problems left out one at a time: regret {:.2f} % in the mean ({:.2f} % beyond noise), {:.1f} % at worst; of the default {:.2f} "
      "%\n",
      table.text(), report.points.size(), 100 * report.mean, 100 * report.beyond_noise_mean, 100 * report.worst, 100 * report.default_mean);
  return kOk;
}

void add_run_options(CLI::App& app, const std::shared_ptr<TuneCommand>& c) {
  app.add_option("--out", c->out, fmt::format("Folder of rows and journal (default {})", kProjectTuned));
  app.add_option("--device", c->device, "cpu (default), cuda:0, ...");
  app.add_option("--budget", c->budget, "Time for the whole run: 90s, 15m, 2h")->type_name("TIME");
  app.add_option("--shard", c->shard, "Part i of n of the problems, into a folder of its own")->type_name("I/N");
  app.add_option("--time-limit", c->time_limit_s, "Seconds for one check or sample of a candidate (default 20)")
      ->check(number_from(0.1, 3600));
  app.add_option("--min-gain", c->min_gain, "Percent that a candidate must save over the default (default 2)")->check(number_from(0, 90));
  app.add_option("--prune", c->prune, "Leave out kernels that the cost model expects to be this many times slower (default 4; 0: none)")
      ->check([](const std::string& text) {
        const double times = std::strtod(text.c_str(), nullptr);
        return times == 0 || (times >= 1 && times <= 1e9) ? std::string() : "expected 0, or 1 and more; got " + text;
      });
  app.add_option("--judge-gflop", c->judge_gflop, "Problems with more work are judged with fewer rows (default 0.25)")
      ->check(number_from(0.001, 1e6));
  app.add_option(
         "--score", c->score,
         "Tune nothing: time every config of every kernel in this many rounds, and compare the tuned row and the default with the best")
      ->type_name("ROUNDS")
      ->check(CLI::Range(3, 10000));
  app.add_flag("--again", c->again, "Also problems that the journal has");
  app.add_flag("--dry-run", c->dry_run, "Only list the problems and how many candidates they have");
  app.add_flag("--json", c->json, "For machines");
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto c = std::make_shared<TuneCommand>();
  CLI::App* tune = app.add_subcommand("tune", "Time the candidates of problems, and write the best as tuned rows");
  tune->require_subcommand(0, 1);
  add_run_options(*tune, c);
  tune->add_option("--from-record", c->record, "Problems of a folder or file that EITRI_RECORD made")->type_name("PATH");
  tune->add_flag("--follow", c->follow, "Goes on with what is recorded meanwhile, until the budget is used up");
  tune->add_option("--share", c->share, "With --follow: percent of the time that is spent on tuning (default 100)")
      ->check(number_from(1, 100));
  tune->add_flag("--beside", c->beside, "With --follow: for EITRI_TUNE=online; at the lowest priority, until the standard input ends");
  tune->add_flag("--attached", c->attached)->group("");
  tune->add_flag("--all-stale", c->all_stale, "Problems of rows whose kernel has changed since");
  const auto runs = [c, &action] { action = [c](Common& common) { return run(*c, common); }; };

  for_each_op([&]<Operator Op>() {
    CLI::App* sub = tune->add_subcommand(Op::name, fmt::format("Problems of {}", Op::name));
    add_run_options(*sub, c);
    sub->add_option("--problem", c->problems, "\"m=16,n=4096,k=4096\"; may be repeated")
        ->allow_extra_args(false)
        ->type_name("KEY=VALUE,...");
    sub->add_option("--shapes", c->shapes, "A CSV whose columns are fields of the problem")->check(CLI::ExistingFile);
    sub->add_option("--m", c->m, "Rows (tokens) for shapes without a column of them (default: a ladder from 1 to 4096)")
        ->type_name("M,M,...");
    sub->callback([c, runs] {
      c->op = Op::name;
      runs();
    });
  });
  CLI::App* moe = tune->add_subcommand("moe", "The MoE block of a model, and the calls that recipes make of it");
  add_run_options(*moe, c);
  moe->add_option("--model", c->model, "A model of bench/models, or a JSON file")->required();
  moe->add_option("--weights", c->weights, "bf16 (default) or i8")->check(CLI::IsMember({"bf16", "i8"}));
  moe->add_option("--tokens", c->m, "Token counts (default: a ladder from 1 to 4096)")->type_name("T,T,...");
  moe->callback(runs);
  CLI::App* merging = tune->add_subcommand("merge", "Merge tuned files, or folders of them, into --out; the order does not matter");
  merging->add_option("files", c->files, "Files and folders")->required();
  merging->add_option("--out", c->out, "Folder to write to")->required();
  merging->add_flag("--json", c->json, "For machines");
  merging->callback([c, &action] { action = [c](Common&) { return merge(*c); }; });
  CLI::App* regrets =
      tune->add_subcommand("regret", "What interpolation would have chosen for each tuned problem without its row, against the best");
  regrets->add_option("--out", c->out, "Folder with the journal of a run");
  regrets->add_flag("--json", c->json, "For machines");
  regrets->callback([c, &action] { action = [c](Common&) { return regret(*c); }; });
  tune->add_subcommand("worker", "")->group("")->callback([&action] {
    action = [](Common&) { return tune::worker_main(tune::all_tuned_ops()); };
  });
  tune->callback([tune, runs] {
    if (tune->get_subcommands().empty()) runs();
  });
}

}  // namespace eitri::cli
