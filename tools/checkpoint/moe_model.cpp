#include "checkpoint/moe_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/error.h"
#include "ops/activation/activation.h"
#include "ops/fused_moe/fused_moe.h"
#include "ops/topk_gating/topk_gating.h"

namespace eitri::checkpoint {
namespace fs = std::filesystem;
namespace {

template <NamedEnum Enum> Enum enum_from(std::string_view name, const std::string& where) {
  std::string known;
  const auto names = enum_names(Enum{});
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    known += str(known.empty() ? "" : ", ", names[i]);
  }
  fail(Code::invalid_argument, str(where, " is '", name, "'; expected one of ", known));
}

/// An object whose keys must all be read: what nobody asked for is refused by done().
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    require(object.is_object(), where_, ": is ", object.type_name(), "; expected an object");
  }
  const nlohmann::json* optional(const char* key) {
    seen_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }
  const nlohmann::json& required(const char* key) {
    const auto* value = optional(key);
    require(value != nullptr, where_, ": lacks '", key, "'");
    return *value;
  }
  int64_t integer(const char* key) {
    const auto& value = required(key);
    require(value.is_number_integer(), name(key), " is ", value.dump(), "; expected an integer");
    return value.get<int64_t>();
  }
  int64_t integer(const char* key, int64_t fallback) { return optional(key) == nullptr ? fallback : integer(key); }
  float number(const char* key, float fallback) {
    const auto* value = optional(key);
    if (value == nullptr) return fallback;
    require(value->is_number(), name(key), " is ", value->dump(), "; expected a number");
    return value->get<float>();
  }
  bool boolean(const char* key, bool fallback) {
    const auto* value = optional(key);
    if (value == nullptr) return fallback;
    require(value->is_boolean(), name(key), " is ", value->dump(), "; expected true or false");
    return value->get<bool>();
  }
  std::string text(const char* key) {
    const auto& value = required(key);
    require(value.is_string(), name(key), " is ", value.dump(), "; expected a string");
    return value.get<std::string>();
  }
  std::string text(const char* key, std::string fallback) { return optional(key) == nullptr ? fallback : text(key); }
  std::string name(const char* key) const { return str(where_, ": ", key); }
  void done() const {
    for (const auto& [key, value] : object_.items()) {
      if (seen_.contains(key)) continue;
      std::string known;
      for (const auto& k : seen_) known += str(known.empty() ? "" : ", ", k);
      fail(Code::invalid_argument, str(where_, ": has the unknown key '", key, "'; known: ", known));
    }
  }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

}  // namespace

MoeModel parse_moe_model(std::string_view text, const std::string& file) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  require(!json.is_discarded(), file, ": is not valid JSON");
  Fields fields(json, file);
  MoeModel model;
  model.name = fields.text("name");
  model.source = fields.text("source", "");
  model.hidden = fields.integer("hidden");
  model.inter = fields.integer("inter");
  model.experts = fields.integer("experts");
  model.top_k = fields.integer("top_k");
  model.shared_inter = fields.integer("shared_inter", 0);
  model.layers = fields.integer("layers", 1);
  model.first_moe_layer = fields.integer("first_moe_layer", 0);
  model.gate = enum_from<GateLayout>(fields.text("gate", "separated"), fields.name("gate"));
  model.expert_bias = fields.boolean("expert_bias", false);
  model.weight_stage = enum_from<WeightStage>(fields.text("weight_stage", "second"), fields.name("weight_stage"));

  Fields activation(fields.required("activation"), fields.name("activation"));
  model.activation.kind = enum_from<ActivationKind>(activation.text("kind"), activation.name("kind"));
  model.activation.limit = activation.number("limit", model.activation.limit);
  model.activation.alpha = activation.number("alpha", model.activation.alpha);
  model.activation.beta = activation.number("beta", model.activation.beta);
  model.activation.linear_beta = activation.number("linear_beta", model.activation.linear_beta);
  activation.done();

  Fields router(fields.required("router"), fields.name("router"));
  model.router.score = enum_from<Score>(router.text("score"), router.name("score"));
  model.router.renormalize = router.boolean("renormalize", false) ? Renormalize::yes : Renormalize::no;
  model.router.scale = router.number("scale", 1);
  model.router.groups = static_cast<int>(std::clamp<int64_t>(router.integer("groups", 1), 0, 1 << 20));
  model.router.topk_groups = static_cast<int>(std::clamp<int64_t>(router.integer("topk_groups", 1), 0, 1 << 20));
  model.router.correction_bias = router.boolean("correction_bias", false);
  model.router.logit_bias = router.boolean("logit_bias", false);
  router.done();
  fields.done();
  check_moe_model(model, file);
  return model;
}

void check_moe_model(const MoeModel& m, const std::string& where) {
  constexpr int64_t kMaxExtent = 1 << 20;
  const auto extent = [&](const char* name, int64_t value, int64_t least) {
    require(value >= least && value <= kMaxExtent, where, ": ", name, " is ", value, "; expected ", least, " to ", kMaxExtent);
  };
  extent("hidden", m.hidden, 1);
  extent("inter", m.inter, 1);
  extent("experts", m.experts, 1);
  extent("top_k", m.top_k, 1);
  extent("shared_inter", m.shared_inter, 0);
  extent("layers", m.layers, 1);
  extent("first_moe_layer", m.first_moe_layer, 0);
  require(m.top_k <= m.experts, where, ": top_k is ", m.top_k, "; expected at most experts, ", m.experts);
  require(m.first_moe_layer < m.layers, where, ": first_moe_layer is ", m.first_moe_layer, "; expected less than layers, ", m.layers);
  require(m.router.groups >= 1 && m.experts % m.router.groups == 0, where, ": router groups is ", m.router.groups,
          "; expected a divisor of experts, ", m.experts);
  require(m.router.topk_groups >= 1 && m.router.topk_groups <= m.router.groups, where, ": router topk_groups is ", m.router.topk_groups,
          "; expected 1 to groups, ", m.router.groups);
  require(m.top_k <= m.experts / m.router.groups * m.router.topk_groups, where, ": top_k is ", m.top_k, "; expected at most the ",
          m.experts / m.router.groups * m.router.topk_groups, " experts of ", m.router.topk_groups, " groups");
  require(std::isfinite(m.router.scale), where, ": router scale is not finite");
}

MoeModel read_moe_model(const std::string& file) { return parse_moe_model(read_file(file, kMaxConfigBytes), file); }

std::vector<std::string> moe_model_names(const std::vector<std::string>& folders) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

MoeModel find_moe_model(const std::string& model, const std::vector<std::string>& folders) {
  std::error_code error;
  if (model.find('/') != std::string::npos || model.ends_with(".json")) return read_moe_model(model);
  for (const std::string& folder : folders) {
    const fs::path path = fs::path(folder) / (model + ".json");
    if (fs::exists(path, error)) return read_moe_model(path.string());
  }
  std::string known;
  for (const std::string& name : moe_model_names(folders)) known += str(known.empty() ? "" : ", ", name);
  fail(Code::invalid_argument,
       str("unknown model '", model, "'; known: ", known.empty() ? "none found" : known, "; or a path to a JSON file"));
}

}  // namespace eitri::checkpoint
