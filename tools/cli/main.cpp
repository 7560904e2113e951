// `eitri`: the command line.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "cli/command.h"
#include "eitri/eitri.hpp"

namespace {

/// CLI11 says only that a subcommand is missing where an unknown one was given. Returns what it should have said, or "".
std::string unknown_command(const CLI::App& app) {
  const CLI::App* level = &app;
  while (!level->get_subcommands().empty()) level = level->get_subcommands().front();
  const auto rest = app.remaining(true);
  if (rest.empty() || level->get_require_subcommand_min() == 0) return {};
  std::string known;
  for (const CLI::App* command : level->get_subcommands([](const CLI::App*) { return true; }))
    known += (known.empty() ? "" : ", ") + command->get_name();
  return fmt::format("eitri: unknown command '{}'; known: {}\n", rest.front(), known);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace eitri::cli;
  CLI::App app("Eitri, an AI tensor engine: runs, times and explains its operators on this machine.", "eitri");
  app.set_version_flag("--version", std::string(eitri::version()));
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("Exit codes: 0 fine, 1 a wrong result or a failure, 2 an argument that cannot be.");
  Common common;
  app.add_option("--isa", common.isa, "Highest instruction level to use")->type_name("LEVEL");
  app.add_option("--force", common.force, "Use this kernel for an operator (may be repeated)")
      ->type_name("OP=KERNEL")
      ->allow_extra_args(false);
  app.add_option("--threads", common.threads, "Threads to use (default: what OpenMP would)")->check(CLI::Range(1, 4096));
  Action action;
  add_moe(app, action);
  add_gemm(app, action);
  add_bench(app, action);
  add_explain(app, action);
  add_ops(app, action);
  add_doctor(app, action);
  add_cache(app, action);
  add_prebuild(app, action);
  add_tune(app, action);
  add_pack(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string message = unknown_command(app); !message.empty() && error.get_exit_code() != 0) {
      fmt::print(stderr, "{}", message);
      return kBadUsage;
    }
    return app.exit(error) == 0 ? kOk : kBadUsage;  // also how --help leaves
  }
  try {
    common.apply();
    const int code = action(common);
    // An answer that did not arrive (a full disk, a closed pipe) is no answer.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      fmt::print(stderr, "eitri: standard output cannot be written\n");
      return kFailed;
    }
    return code;
  } catch (const eitri::Error& error) {
    fmt::print(stderr, "eitri: {}\n", error.what());
    return error.code() == eitri::Code::invalid_argument || error.code() == eitri::Code::unsupported ? kBadUsage : kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "eitri: {}\n", error.what());
    return kFailed;
  }
}
