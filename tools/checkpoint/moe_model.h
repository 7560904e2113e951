// What a mixture-of-experts block is, apart from its numbers: the schema of bench/models/*.json, and what is read out of
// a checkpoint's config.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eitri/ops.hpp"

namespace eitri::checkpoint {

/// Largest JSON description that is read.
inline constexpr size_t kMaxConfigBytes = 16 << 20;

struct Router {
  Score score = Score::softmax;
  Renormalize renormalize = Renormalize::no;
  float scale = 1;
  int groups = 1;
  int topk_groups = 1;
  bool correction_bias = false;  // added to the scores for the choice only
  bool logit_bias = false;       // added to the logits
};

struct MoeModel {
  std::string name;
  std::string source;  // where the numbers come from
  int64_t hidden = 0;
  int64_t inter = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t shared_inter = 0;  // inter of all shared experts together; 0: none
  int64_t layers = 0;
  int64_t first_moe_layer = 0;
  ActivationParams activation = {.kind = ActivationKind::silu};
  GateLayout gate = GateLayout::separated;
  bool expert_bias = false;
  WeightStage weight_stage = WeightStage::second;
  Router router;

  int64_t w1_rows() const { return gate == GateLayout::none ? inter : 2 * inter; }
  int64_t shared_w1_rows() const { return gate == GateLayout::none ? shared_inter : 2 * shared_inter; }
};

/// Parses bench/models/*.json; `file` is for messages. Unknown and missing keys are refused.
MoeModel parse_moe_model(std::string_view json, const std::string& file);
MoeModel read_moe_model(const std::string& file);

/// Refuses sizes that no block can have (`where` starts the message).
void check_moe_model(const MoeModel& model, const std::string& where);

/// `model` is a name of a file in one of `folders`, or a path to a JSON file. An unknown name lists the known ones.
MoeModel find_moe_model(const std::string& model, const std::vector<std::string>& folders);
/// Names of the models in `folders`, sorted.
std::vector<std::string> moe_model_names(const std::vector<std::string>& folders);

}  // namespace eitri::checkpoint
