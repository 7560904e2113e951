// config.json of a checkpoint: which family it is, how that family names its tensors, and the block's sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/moe_model.h"

namespace eitri::checkpoint {

/// How a family names what a MoE block holds.
struct Naming {
  const char* block;   // "mlp"
  const char* router;  // "gate"
  const char* gate;    // of one expert
  const char* up;
  const char* down;
  bool transposed;  // fused experts are [experts, in, out] instead of [experts, out, in]
};

struct CheckpointConfig {
  std::string model_type;
  MoeModel model;
  std::vector<int64_t> moe_layers;  // ascending, never empty
  Naming naming;
  int64_t block_rows = 128, block_cols = 128;  // of fp8 block scales
};

/// `where` starts the messages.
CheckpointConfig parse_config_json(std::string_view json, const std::string& where);

}  // namespace eitri::checkpoint
