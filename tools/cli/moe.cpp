#include "cli/moe.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace eitri::cli {
namespace fs = std::filesystem;

void add_block_options(CLI::App& app, BlockChoice& choice) {
  // An unset shell variable must not mean the default model.
  const auto not_empty = [](const std::string& value) {
    return value.empty() ? std::string("is empty; expected a name or a path") : std::string();
  };
  auto* model =
      app.add_option("--model", choice.model, fmt::format("A model of bench/models by name, or a JSON file (default {})", kDefaultModel))
          ->check(not_empty);
  auto* checkpoint = app.add_option("--checkpoint", choice.checkpoint, "A Hugging Face folder: config.json and safetensors")
                         ->check(not_empty)
                         ->excludes(model);
  app.add_option("--layer", choice.layer, "Layer of the checkpoint (default: the first with a MoE block)")
      ->needs(checkpoint)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--experts", choice.experts, "Keep only the first N experts, as a rank of an expert-parallel group does")
      ->excludes(checkpoint)
      ->check(CLI::PositiveNumber);
  app.add_option("--quant", choice.quant, "Weights: none, or int8 per output channel with int8 activations per token")
      ->check(CLI::IsMember({"none", "int8"}));
  app.add_option("--seed", choice.seed, "Seed of random weights, hidden states and routing");
}

std::vector<std::string> model_folders() {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path(); !folder.empty(); folder = folder.parent_path()) {
    for (const char* below : {"bench/models", "share/eitri/bench/models"}) {
      if (fs::is_directory(folder / below, error)) out.push_back((folder / below).string());
    }
    if (folder == folder.parent_path()) break;
  }
  return out;
}

checkpoint::MoeLayer load_block(const BlockChoice& choice, size_t copies) {
  const bool int8 = choice.quant == "int8";
  const auto check_memory = [&](const checkpoint::MoeModel& model, const std::string& advice) {
    const size_t wide = checkpoint::weight_bytes(model, DType::bf16);
    const size_t held = checkpoint::weight_bytes(model, int8 ? DType::i8 : DType::bf16);
    const size_t peak = std::max((int8 ? wide : 0) + held, copies * held);
    require_memory(peak + (size_t{1} << 29), fmt::format("{}: {} copies of its weights", model.name, copies), advice);
  };
  checkpoint::MoeLayer layer;
  if (!choice.checkpoint.empty()) {
    auto folder = checkpoint::Checkpoint::open(choice.checkpoint);
    check_memory(folder.model(), "");
    const Progress progress("loading the layer");
    const int64_t number = choice.layer < 0 ? folder.moe_layers().front() : choice.layer;
    layer = folder.load(number);
    layer.model.name = fmt::format("{} layer {}", fs::path(choice.checkpoint).lexically_normal().filename().string(), number);
  } else {
    auto model = checkpoint::find_moe_model(choice.model.empty() ? kDefaultModel : choice.model, model_folders());
    if (choice.experts > 0) {
      require(choice.experts <= model.experts, "--experts is ", choice.experts, "; ", model.name, " has ", model.experts);
      model.experts = choice.experts;
      model.name += fmt::format(" ({} experts)", model.experts);
      checkpoint::check_moe_model(model, "--experts");
    }
    check_memory(model, fmt::format(" (--experts N keeps only some of its {} experts)", model.experts));
    const Progress progress("making random weights");
    layer = checkpoint::random_layer(model, choice.seed);
  }
  if (int8) {
    const Progress progress("quantising");
    checkpoint::quantize_weights(layer);
  }
  return layer;
}

void add_moe(CLI::App& app, Action& action) {
  CLI::App* moe = app.add_subcommand("moe", "A mixture-of-experts block: router and fused_moe");
  moe->require_subcommand(1);
  add_moe_run(*moe, action);
  add_moe_bench(*moe, action);
}

}  // namespace eitri::cli
