// `eitri pack`: a safetensors file with its weights packed, to be mapped and used as it is.
#include <fmt/format.h>

#include <chrono>

#include "base/dtype.h"
#include "base/error.h"
#include "base/str.h"
#include "checkpoint/pack_file.h"
#include "cli/command.h"

namespace eitri::cli {
namespace {

struct PackOptions {
  std::string in, out, gate = "separated", type, quant, scale;
  std::vector<std::string> weights, gated;
};

template <class E> E choice(const std::string& name, const char* option) {
  const auto names = enum_names(E{});
  for (size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<E>(i);
  fail(Code::invalid_argument, str(option, " is '", name, "'"));  // CLI11 has let only known ones through
}

int run(const PackOptions& options) {
  checkpoint::PackRules rules{.weights = options.weights, .gated = options.gated, .gate = choice<GateLayout>(options.gate, "--gate")};
  if (!options.type.empty()) rules.type = *dtype_from(options.type);
  if (!options.quant.empty()) {
    rules.quant = choice<Quant>(options.quant, "--quant");
    const size_t colon = options.scale.find(':');
    require(colon != std::string::npos && colon > 0, "--scale is '", options.scale,
            "'; expected FROM:TO, as in weight:weight_scale_inv (--quant needs the names of the scales)");
    rules.scale_from = options.scale.substr(0, colon);
    rules.scale_to = options.scale.substr(colon + 1);
  } else {
    require(options.scale.empty(), "--scale is '", options.scale, "' without --quant; expected both or none");
  }
  const auto start = std::chrono::steady_clock::now();
  checkpoint::PackSummary summary;
  {
    const Progress progress("packing " + options.in);
    summary = checkpoint::pack_file(options.in, options.out, rules);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} tensors packed ({:.1f} MB to {:.1f} MB), {} copied, {:.1f} s\n", options.out, summary.packed,
             static_cast<double>(summary.bytes_before) / 1e6, static_cast<double>(summary.bytes_after) / 1e6, summary.copied, seconds);
  return kOk;
}

}  // namespace

void add_pack(CLI::App& app, Action& action) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* pack = app.add_subcommand("pack", "Pack the weights of a safetensors file, so that they can be mapped and used as they are");
  pack->add_option("input", options->in, "A .safetensors file")->required()->check(CLI::ExistingFile);
  pack->add_option("output", options->out, "The file to write")->required();
  pack->add_option("--weights", options->weights, "Globs of the matrices to pack, [n, k] or [experts, n, k]")->required()->delimiter(',');
  pack->add_option("--gated", options->gated, "Globs of those with gate and up rows")->delimiter(',');
  pack->add_option("--gate", options->gate, "How these rows lie: separated (default) or interleaved")
      ->check(CLI::IsMember({"separated", "interleaved"}));
  pack->add_option("--type", options->type, "What U8 weights hold, two in a byte: f4e2m1 or i4")->check(CLI::IsMember({"f4e2m1", "i4"}));
  auto* quant = pack->add_option("--quant", options->quant, "Pack block scales beside the codes: what shares one")
                    ->check(CLI::IsMember({"per_1x16", "per_1x32", "per_1x128", "per_128x128"}));
  pack->add_option("--scale", options->scale, "FROM:TO: the scales' name is the weight's with the last FROM replaced by TO")->needs(quant);
  pack->callback([options, &action] { action = [options](Common&) { return run(*options); }; });
}

}  // namespace eitri::cli
