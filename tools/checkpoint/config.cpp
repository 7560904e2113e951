#include "checkpoint/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace eitri::checkpoint {
namespace {

constexpr Naming kGateUpDown = {"mlp", "gate", "gate_proj", "up_proj", "down_proj", false};
constexpr Naming kMixtral = {"block_sparse_moe", "gate", "w1", "w3", "w2", false};
constexpr Naming kGptOss = {"mlp", "router", "gate_proj", "up_proj", "down_proj", true};

/// config.json has far more keys than a MoE block needs, so unlike our own files unknown ones are passed over.
class Config {
 public:
  Config(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}
  const std::string& where() const { return where_; }

  /// The first key that is present and not null: releases of transformers renamed some.
  const nlohmann::json* find(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      const auto it = json_.find(key);
      if (it != json_.end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }
  int64_t integer(std::initializer_list<const char*> keys) const {
    const auto* value = find(keys);
    require(value != nullptr, where_, ": lacks '", *keys.begin(), "'");
    require(value->is_number_integer(), where_, ": ", *keys.begin(), " is ", value->dump(), "; expected an integer");
    return value->get<int64_t>();
  }
  int64_t integer(std::initializer_list<const char*> keys, int64_t fallback) const {
    return find(keys) == nullptr ? fallback : integer(keys);
  }
  float number(const char* key, float fallback) const {
    const auto* value = find({key});
    if (value == nullptr) return fallback;
    require(value->is_number(), where_, ": ", key, " is ", value->dump(), "; expected a number");
    return value->get<float>();
  }
  bool boolean(const char* key, bool fallback) const {
    const auto* value = find({key});
    if (value == nullptr) return fallback;
    require(value->is_boolean(), where_, ": ", key, " is ", value->dump(), "; expected true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const auto* value = find({key});
    if (value == nullptr) return fallback;
    require(value->is_string(), where_, ": ", key, " is ", value->dump(), "; expected a string");
    return value->get<std::string>();
  }

 private:
  const nlohmann::json& json_;
  std::string where_;
};

void read_activation(const Config& config, MoeModel& model) {
  const std::string act = config.text("hidden_act", "silu");
  if (act == "silu" || act == "swish") model.activation.kind = ActivationKind::silu;
  else if (act == "gelu") model.activation.kind = ActivationKind::gelu;
  else if (act == "gelu_pytorch_tanh" || act == "gelu_new") model.activation.kind = ActivationKind::gelu_tanh;
  else if (act == "relu") model.activation.kind = ActivationKind::relu;
  else fail(Code::invalid_argument, str(config.where(), ": hidden_act is '", act, "'; expected silu, gelu, gelu_pytorch_tanh or relu"));
}

void read_common(const Config& config, CheckpointConfig& out) {
  MoeModel& m = out.model;
  m.hidden = config.integer({"hidden_size"});
  m.layers = config.integer({"num_hidden_layers"});
  m.experts = config.integer({"num_experts", "num_local_experts", "n_routed_experts"});
  m.top_k = config.integer({"num_experts_per_tok", "experts_per_token"});
  require(m.layers >= 1 && m.layers <= 1 << 20, config.where(), ": num_hidden_layers is ", m.layers, "; expected 1 to 2^20");
  read_activation(config, m);
}

void every_layer(CheckpointConfig& out) {
  for (int64_t layer = 0; layer < out.model.layers; ++layer) out.moe_layers.push_back(layer);
}

/// Softmax over all experts, then the best top_k. Qwen3-MoE mixes dense layers in by rule and by list.
void read_qwen(const Config& config, CheckpointConfig& out) {
  MoeModel& m = out.model;
  m.inter = config.integer({"moe_intermediate_size", "intermediate_size"});
  m.router.renormalize = config.boolean("norm_topk_prob", false) ? Renormalize::yes : Renormalize::no;
  const int64_t step = config.integer({"decoder_sparse_step"}, 1);
  require(step >= 1, config.where(), ": decoder_sparse_step is ", step, "; expected at least 1");
  std::vector<int64_t> dense;
  if (const auto* list = config.find({"mlp_only_layers"})) {
    require(list->is_array(), config.where(), ": mlp_only_layers is ", list->dump(), "; expected a list of layers");
    for (const auto& layer : *list) {
      require(layer.is_number_integer(), config.where(), ": mlp_only_layers holds ", layer.dump(), "; expected integers");
      dense.push_back(layer.get<int64_t>());
    }
  }
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    if ((layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end()) out.moe_layers.push_back(layer);
  }
}

void read_olmoe(const Config& config, CheckpointConfig& out) {
  out.model.inter = config.integer({"intermediate_size"});
  out.model.router.renormalize = config.boolean("norm_topk_prob", false) ? Renormalize::yes : Renormalize::no;
  every_layer(out);
}

void read_mixtral(const Config& config, CheckpointConfig& out) {
  out.model.inter = config.integer({"intermediate_size"});
  out.model.router.renormalize = Renormalize::yes;
  every_layer(out);
}

/// DeepSeek V3's router scores with a sigmoid and picks with a bias, V2's with a softmax and without; both may first
/// pick groups of experts. Leading layers are dense; shared experts lie side by side in one wide expert.
void read_deepseek(const Config& config, CheckpointConfig& out) {
  MoeModel& m = out.model;
  const bool v2 = out.model_type == "deepseek_v2";
  m.inter = config.integer({"moe_intermediate_size"});
  m.shared_inter = m.inter * config.integer({"n_shared_experts"}, 0);
  const std::string scoring = config.text("scoring_func", v2 ? "softmax" : "sigmoid");
  require(scoring == "softmax" || scoring == "sigmoid", config.where(), ": scoring_func is '", scoring, "'; expected softmax or sigmoid");
  m.router.score = scoring == "softmax" ? Score::softmax : Score::sigmoid;
  m.router.renormalize = config.boolean("norm_topk_prob", !v2) ? Renormalize::yes : Renormalize::no;
  m.router.scale = config.number("routed_scaling_factor", 1.0f);
  m.router.correction_bias = !v2;
  const bool grouped = config.text("topk_method", v2 ? "greedy" : "noaux_tc") != "greedy";
  if (grouped) {
    m.router.groups = static_cast<int>(std::clamp<int64_t>(config.integer({"n_group"}, 1), 0, 1 << 20));
    m.router.topk_groups = static_cast<int>(std::clamp<int64_t>(config.integer({"topk_group"}, 1), 0, 1 << 20));
  }
  m.first_moe_layer = config.integer({"first_k_dense_replace"}, 0);
  const int64_t every = config.integer({"moe_layer_freq"}, 1);
  require(every >= 1, config.where(), ": moe_layer_freq is ", every, "; expected at least 1");
  for (int64_t layer = std::max<int64_t>(0, m.first_moe_layer); layer < m.layers; ++layer) {
    if (layer % every == 0) out.moe_layers.push_back(layer);
  }
}

/// Clamped swiglu with biases everywhere; gate and up columns alternate. Its softmax over the chosen logits is the
/// softmax over all of them, renormalised.
void read_gpt_oss(const Config& config, CheckpointConfig& out) {
  MoeModel& m = out.model;
  m.inter = config.integer({"intermediate_size"});
  m.activation = {
      .kind = ActivationKind::swiglu, .limit = config.number("swiglu_limit", 7.0f), .alpha = config.number("swiglu_alpha", 1.702f)};
  m.gate = GateLayout::interleaved;
  m.expert_bias = true;
  m.router.renormalize = Renormalize::yes;
  m.router.logit_bias = true;
  every_layer(out);
}

struct FamilyRow {
  const char* model_type;
  Naming naming;
  void (*read)(const Config&, CheckpointConfig&);
};
constexpr FamilyRow kFamilies[] = {
    {"qwen3_moe", kGateUpDown, read_qwen},    {"mixtral", kMixtral, read_mixtral},         {"deepseek_v3", kGateUpDown, read_deepseek},
    {"gpt_oss", kGptOss, read_gpt_oss},       {"deepseek_v2", kGateUpDown, read_deepseek}, {"kimi_k2", kGateUpDown, read_deepseek},
    {"glm4_moe", kGateUpDown, read_deepseek}, {"olmoe", kGateUpDown, read_olmoe},
};

}  // namespace

CheckpointConfig parse_config_json(std::string_view text, const std::string& where) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  require(!json.is_discarded() && json.is_object(), where, ": is not a JSON object");
  const Config config(json, where);
  CheckpointConfig out;
  out.model_type = config.text("model_type", "");
  const auto row =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const FamilyRow& f) { return out.model_type == f.model_type; });
  if (row == std::end(kFamilies)) {
    std::string known;
    for (const FamilyRow& f : kFamilies) known += str(known.empty() ? "" : ", ", f.model_type);
    fail(Code::invalid_argument, str(where, ": model_type is '", out.model_type, "'; known: ", known));
  }
  out.naming = row->naming;
  read_common(config, out);
  row->read(config, out);
  out.model.name = out.model_type;
  out.model.source = where;
  require(!out.moe_layers.empty(), where, ": none of its ", out.model.layers, " layers is a mixture of experts");
  out.model.first_moe_layer = out.moe_layers.front();
  if (const auto* quantization = config.find({"quantization_config"}); quantization != nullptr && quantization->is_object()) {
    if (const auto it = quantization->find("weight_block_size"); it != quantization->end()) {
      require(it->is_array() && it->size() == 2 && (*it)[0].is_number_integer() && (*it)[1].is_number_integer(), where,
              ": weight_block_size is ", it->dump(), "; expected two integers");
      out.block_rows = (*it)[0].get<int64_t>();
      out.block_cols = (*it)[1].get<int64_t>();
      require(out.block_rows >= 1 && out.block_cols >= 1, where, ": weight_block_size is ", it->dump(), "; expected positive integers");
    }
  }
  check_moe_model(out.model, where);
  return out;
}

}  // namespace eitri::checkpoint
