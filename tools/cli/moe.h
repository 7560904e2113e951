// What `moe run` and `moe bench` share: which block, with which weights.
#pragma once

#include <string>

#include "checkpoint/moe_layer.h"
#include "cli/command.h"

namespace eitri::cli {

struct BlockChoice {
  std::string model;       // a name or a path; the default block when no checkpoint is named
  std::string checkpoint;  // a folder
  int64_t layer = -1;      // -1: the first one with a MoE block
  int64_t experts = 0;     // 0: all
  std::string quant = "none";
  uint64_t seed = 1;
};

inline constexpr const char* kDefaultModel = "qwen3-30b-a3b";

void add_block_options(CLI::App& app, BlockChoice& choice);
/// Where model descriptions lie: bench/models above the executable, or share/eitri of an installation.
std::vector<std::string> model_folders();
/// Loads or makes the block, quantised when asked. `copies`: how many times the weights will be held in all.
checkpoint::MoeLayer load_block(const BlockChoice& choice, size_t copies);

void add_moe_run(CLI::App& moe, Action& action);
void add_moe_bench(CLI::App& moe, Action& action);

}  // namespace eitri::cli
