// Hugging Face folders of every supported spelling give the stacked weights that fused_moe wants, and bad ones say why not.
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/numeric.h"
#include "base/view.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/temporary_folder.h"

namespace eitri::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHidden = 32, kInter = 64, kExperts = 3;

/// Tensors of a checkpoint under construction; values are bf16 and depend on name and index.
class Writer {
 public:
  using Value = std::function<float(int64_t)>;

  void add(const std::string& name, std::vector<int64_t> shape, const Value& value) {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    auto& data = bytes_[name];
    data.resize(static_cast<size_t>(2 * n));
    for (int64_t i = 0; i < n; ++i) store_at(data.data(), DType::bf16, i, value(i));
    tensors_.push_back({name, DType::bf16, std::move(shape), data.data()});
  }
  void add_raw(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> data) {
    auto& kept = bytes_[name] = std::move(data);
    tensors_.push_back({name, dtype, std::move(shape), kept.data()});
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& t) { return t.name == name; });
  }
  void write(const TemporaryFolder& folder) const { write_safetensors(folder.file("model.safetensors"), tensors_); }

 private:
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::vector<TensorToWrite> tensors_;
};

/// A value that names its place: matrix 0 gate, 1 up, 2 down. Exact in bf16.
float place(int matrix, int64_t expert, int64_t row, int64_t col) {
  return static_cast<float>((matrix * 37 + expert * 11 + row * 3 + col * 5) % 127) / 32.0f * ((row + col) % 2 == 0 ? 1.0f : -1.0f);
}

std::string qwen_config(const std::string& more = "") {
  return R"({"model_type":"qwen3_moe","hidden_size":32,"num_hidden_layers":4,"num_experts":3,"num_experts_per_tok":2,"moe_intermediate_size":64,"norm_topk_prob":true)" +
         more + "}";
}

void add_separate(Writer& w, const std::string& block, const char* gate, const char* up, const char* down) {
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = str(block, ".experts.", e, ".");
    w.add(expert + gate + ".weight", {kInter, kHidden}, [e](int64_t i) { return place(0, e, i / kHidden, i % kHidden); });
    w.add(expert + up + ".weight", {kInter, kHidden}, [e](int64_t i) { return place(1, e, i / kHidden, i % kHidden); });
    w.add(expert + down + ".weight", {kHidden, kInter}, [e](int64_t i) { return place(2, e, i / kInter, i % kInter); });
  }
}

void add_router(Writer& w, const std::string& name) {
  w.add(name + ".weight", {kExperts, kHidden}, [](int64_t i) { return static_cast<float>(i % 64) / 16; });
}

/// The stacked weights are what place() says; `interleaved`: gate and up rows alternate.
void expect_stacked(const MoeLayer& layer, bool interleaved = false) {
  ASSERT_EQ(layer.weights.w1.shape[1], 2 * kInter);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t r = 0; r < kInter; ++r) {
      const int64_t gate = interleaved ? 2 * r : r, up = interleaved ? 2 * r + 1 : kInter + r;
      for (int64_t c = 0; c < kHidden; ++c) {
        ASSERT_EQ(load(layer.weights.w1, {e, gate, c}), place(0, e, r, c)) << e << " " << r << " " << c;
        ASSERT_EQ(load(layer.weights.w1, {e, up, c}), place(1, e, r, c)) << e << " " << r << " " << c;
        ASSERT_EQ(load(layer.weights.w2, {e, c, r}), place(2, e, c, r)) << e << " " << r << " " << c;
      }
    }
  }
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Checkpoint, Qwen3MoeSeparateExperts) {
  const TemporaryFolder folder;
  folder.write("config.json", qwen_config(R"(,"mlp_only_layers":[3])"));
  Writer w;
  add_separate(w, "model.layers.1.mlp", "gate_proj", "up_proj", "down_proj");
  add_router(w, "model.layers.1.mlp.gate");
  w.write(folder);
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.moe_layers(), (std::vector<int64_t>{0, 1, 2}));
  const MoeLayer layer = checkpoint.load(1);
  expect_stacked(layer);
  EXPECT_EQ(layer.dtype, DType::bf16);
  EXPECT_EQ(layer.model.router.renormalize, Renormalize::yes);
  EXPECT_EQ(load(layer.weights.router, {1, 3}), 35.0 / 16);
  EXPECT_THAT(refusal([&] { checkpoint.load(3); }),
              HasSubstr("layer 3 of " + folder.path() + " is dense; its mixture-of-experts layers: 0-2"));
  EXPECT_THAT(refusal([&] { checkpoint.load(4); }), HasSubstr("layer is 4; " + folder.path() + " has layers 0 to 3"));
  EXPECT_THAT(refusal([&] { checkpoint.load(-1); }), HasSubstr("layer is -1"));
  EXPECT_THAT(refusal([&] { checkpoint.load(2); }), HasSubstr("has no tensor 'model.layers.2.mlp.experts.0.gate_proj.weight'"));
}

TEST(Checkpoint, FusedExperts) {
  const TemporaryFolder folder;
  folder.write("config.json", qwen_config());
  Writer w;
  w.add("model.layers.0.mlp.experts.gate_up_proj", {kExperts, 2 * kInter, kHidden}, [](int64_t i) {
    const int64_t e = i / (2 * kInter * kHidden), r = i / kHidden % (2 * kInter);
    return r < kInter ? place(0, e, r, i % kHidden) : place(1, e, r - kInter, i % kHidden);
  });
  w.add("model.layers.0.mlp.experts.down_proj", {kExperts, kHidden, kInter},
        [](int64_t i) { return place(2, i / (kHidden * kInter), i / kInter % kHidden, i % kInter); });
  add_router(w, "model.layers.0.mlp.gate");
  w.write(folder);
  expect_stacked(Checkpoint::open(folder.path()).load(0));
}

TEST(Checkpoint, Mixtral) {
  const TemporaryFolder folder;
  folder.write(
      "config.json",
      R"({"model_type":"mixtral","hidden_size":32,"num_hidden_layers":1,"num_local_experts":3,"num_experts_per_tok":2,"intermediate_size":64})");
  Writer w;
  add_separate(w, "model.layers.0.block_sparse_moe", "w1", "w3", "w2");
  add_router(w, "model.layers.0.block_sparse_moe.gate");
  w.write(folder);
  const MoeLayer layer = Checkpoint::open(folder.path()).load(0);
  expect_stacked(layer);
  EXPECT_EQ(layer.model.router.renormalize, Renormalize::yes);
}

constexpr const char* kDeepseek =
    R"({"model_type":"deepseek_v3","hidden_size":32,"num_hidden_layers":3,"n_routed_experts":3,"num_experts_per_tok":2,
  "moe_intermediate_size":64,"n_shared_experts":1,"first_k_dense_replace":1,"n_group":3,"topk_group":2,"routed_scaling_factor":2.5,
  "norm_topk_prob":true,"scoring_func":"sigmoid","topk_method":"noaux_tc","quantization_config":{"weight_block_size":[48,16]}})";

void add_deepseek_rest(Writer& w, const std::string& block) {
  add_router(w, block + ".gate");
  w.add(block + ".gate.e_score_correction_bias", {kExperts}, [](int64_t i) { return static_cast<float>(i) / 8; });
  w.add(block + ".shared_experts.gate_proj.weight", {kInter, kHidden}, [](int64_t i) { return place(0, 9, i / kHidden, i % kHidden); });
  w.add(block + ".shared_experts.up_proj.weight", {kInter, kHidden}, [](int64_t i) { return place(1, 9, i / kHidden, i % kHidden); });
  w.add(block + ".shared_experts.down_proj.weight", {kHidden, kInter}, [](int64_t i) { return place(2, 9, i / kInter, i % kInter); });
}

TEST(Checkpoint, DeepseekV3) {
  const TemporaryFolder folder;
  folder.write("config.json", kDeepseek);
  Writer w;
  add_separate(w, "model.layers.1.mlp", "gate_proj", "up_proj", "down_proj");
  add_deepseek_rest(w, "model.layers.1.mlp");
  w.write(folder);
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  const MoeLayer layer = checkpoint.load(1);
  expect_stacked(layer);
  EXPECT_EQ(layer.model.router.score, Score::sigmoid);
  EXPECT_EQ(layer.model.router.groups, 3);
  EXPECT_EQ(layer.model.router.topk_groups, 2);
  EXPECT_EQ(layer.model.router.scale, 2.5f);
  EXPECT_EQ(load(layer.correction_bias, {2}), 0.25);
  EXPECT_EQ(load(layer.weights.shared_w1, {kInter + 5, 7}), place(1, 9, 5, 7));
  EXPECT_EQ(load(layer.weights.shared_w2, {5, 7}), place(2, 9, 5, 7));
  EXPECT_THAT(refusal([&] { checkpoint.load(0); }), HasSubstr("is dense; its mixture-of-experts layers: 1-2"));
}

TEST(Checkpoint, DeepseekBlockScaledFp8) {
  const TemporaryFolder folder;
  folder.write("config.json", kDeepseek);
  Writer w;
  const std::string block = "model.layers.1.mlp";
  add_deepseek_rest(w, block);
  const auto add_fp8 = [&](const std::string& name, int64_t rows, int64_t cols, int salt) {
    std::vector<std::byte> codes(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::byte>(encode_f8e4m3(static_cast<float>((static_cast<int>(i) * 7 + salt) % 31) - 15));
    const int64_t br = (rows + 47) / 48, bc = (cols + 15) / 16;
    std::vector<std::byte> scales(static_cast<size_t>(4 * br * bc));
    for (int64_t i = 0; i < br * bc; ++i) store_at(scales.data(), DType::f32, i, std::ldexp(1.0, static_cast<int>(i % 5) - 2));
    w.add_raw(name, DType::f8e4m3, {rows, cols}, std::move(codes));
    w.add_raw(name + "_scale_inv", DType::f32, {br, bc}, std::move(scales));
  };
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = str(block, ".experts.", e, ".");
    add_fp8(expert + "gate_proj.weight", kInter, kHidden, static_cast<int>(e));
    add_fp8(expert + "up_proj.weight", kInter, kHidden, static_cast<int>(e) + 3);
    add_fp8(expert + "down_proj.weight", kHidden, kInter, static_cast<int>(e) + 5);
  }
  w.write(folder);
  const MoeLayer layer = Checkpoint::open(folder.path()).load(1);
  for (int64_t r = 0; r < kInter; ++r) {
    for (int64_t c = 0; c < kHidden; ++c) {
      const double code =
          static_cast<double>((r * kHidden + c) * 7 % 31 + 0) - 15;  // expert 0, gate: salt 0; |code| <= 15 is exact in e4m3
      const int64_t b = r / 48 * 2 + c / 16;
      ASSERT_EQ(load(layer.weights.w1, {0, r, c}), code * std::ldexp(1.0, static_cast<int>(b % 5) - 2)) << r << " " << c;
    }
  }
  // The scale tensor has a shape of its own, which is checked.
  w.remove(block + ".experts.1.up_proj.weight_scale_inv");
  w.write(folder);
  EXPECT_THAT(refusal([&] { Checkpoint::open(folder.path()).load(1); }), HasSubstr("is F8_E4M3 but there is no"));
  w.add(block + ".experts.1.up_proj.weight_scale_inv", {1, 1}, [](int64_t) { return 1.0f; });
  w.write(folder);
  EXPECT_THAT(refusal([&] { Checkpoint::open(folder.path()).load(1); }), HasSubstr("is BF16[1, 1]; expected shape [2, 2]"));
}

constexpr const char* kGptOssConfig =
    R"({"model_type":"gpt_oss","hidden_size":32,"num_hidden_layers":1,"num_local_experts":3,"num_experts_per_tok":2,"intermediate_size":64,"swiglu_limit":7.0})";

void add_gpt_oss_rest(Writer& w) {
  const std::string block = "model.layers.0.mlp";
  add_router(w, block + ".router");
  w.add(block + ".router.bias", {kExperts}, [](int64_t i) { return static_cast<float>(i) / 4; });
  w.add(block + ".experts.gate_up_proj_bias", {kExperts, 2 * kInter}, [](int64_t i) { return static_cast<float>(i % 100) / 8; });
  w.add(block + ".experts.down_proj_bias", {kExperts, kHidden}, [](int64_t i) { return static_cast<float>(i % 100) / 16; });
}

TEST(Checkpoint, GptOssTransposedInterleaved) {
  const TemporaryFolder folder;
  folder.write("config.json", kGptOssConfig);
  Writer w;
  w.add("model.layers.0.mlp.experts.gate_up_proj", {kExperts, kHidden, 2 * kInter}, [](int64_t i) {
    const int64_t row = i % (2 * kInter), col = i / (2 * kInter) % kHidden, e = i / (2 * kInter * kHidden);
    return place(static_cast<int>(row % 2), e, row / 2, col);
  });
  w.add("model.layers.0.mlp.experts.down_proj", {kExperts, kInter, kHidden},
        [](int64_t i) { return place(2, i / (kHidden * kInter), i % kHidden, i / kHidden % kInter); });
  add_gpt_oss_rest(w);
  w.write(folder);
  const MoeLayer layer = Checkpoint::open(folder.path()).load(0);
  expect_stacked(layer, true);
  EXPECT_EQ(layer.model.gate, GateLayout::interleaved);
  EXPECT_EQ(layer.model.activation.kind, ActivationKind::swiglu);
  EXPECT_EQ(layer.model.activation.limit, 7.0f);
  EXPECT_EQ(load(layer.router_bias, {2}), 0.5);
  EXPECT_EQ(load(layer.weights.bias1, {0, 9}), 9.0 / 8);
}

TEST(Checkpoint, GptOssMxfp4) {
  const TemporaryFolder folder;
  folder.write("config.json", kGptOssConfig);
  Writer w;
  add_gpt_oss_rest(w);
  const auto add_mx = [&](const std::string& name, int64_t rows, int64_t cols) {
    std::vector<std::byte> blocks(static_cast<size_t>(kExperts * rows * cols / 2)),
        scales(static_cast<size_t>(kExperts * rows * cols / 32));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>((i * 37 + 11) & 0xff);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i % 9);
    w.add_raw(name + "_blocks", DType::u8, {kExperts, rows, cols / 32, 16}, std::move(blocks));
    w.add_raw(name + "_scales", DType::u8, {kExperts, rows, cols / 32}, std::move(scales));
  };
  add_mx("model.layers.0.mlp.experts.gate_up_proj", 2 * kInter, kHidden);
  add_mx("model.layers.0.mlp.experts.down_proj", kHidden, kInter);
  w.write(folder);
  const MoeLayer layer = Checkpoint::open(folder.path()).load(0);
  constexpr double kValues[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const int64_t rows = kHidden, cols = kInter;
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = (e * rows + r) * cols + c;
        const int64_t pair = (i / 2 * 37 + 11) & 0xff;
        const double value = kValues[i % 2 == 0 ? pair & 15 : pair >> 4] * std::ldexp(1.0, static_cast<int>(120 + i / 32 % 9) - 127);
        ASSERT_EQ(load(layer.weights.w2, {e, r, c}), value);
      }
    }
  }
}

TEST(Checkpoint, Refusals) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& config) {
    folder.write("config.json", config);
    return refusal([&] { Checkpoint::open(folder.path()); });
  };
  EXPECT_THAT(refusal([] { Checkpoint::open("/nowhere"); }), HasSubstr("'/nowhere' is not a folder"));
  EXPECT_THAT(refusal([&] { Checkpoint::open(folder.path()); }), HasSubstr("has no config.json"));
  EXPECT_THAT(open("{"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(open("{}"), HasSubstr("model_type is ''; known: qwen3_moe, mixtral, deepseek_v3, gpt_oss"));
  EXPECT_THAT(open(R"({"model_type":"llama"})"), HasSubstr("model_type is 'llama'; known: qwen3_moe"));
  EXPECT_THAT(open(R"({"model_type":"mixtral"})"), HasSubstr("lacks 'hidden_size'"));
  EXPECT_THAT(open(qwen_config(R"(,"hidden_act":"tanh")")), HasSubstr("hidden_act is 'tanh'; expected silu"));
  EXPECT_THAT(open(qwen_config(R"(,"decoder_sparse_step":0)")), HasSubstr("decoder_sparse_step is 0"));
  EXPECT_THAT(open(qwen_config(R"(,"mlp_only_layers":[0,1,2,3])")), HasSubstr("none of its 4 layers is a mixture of experts"));
  EXPECT_THAT(open(qwen_config(R"(,"hidden_size":"x")")), HasSubstr("hidden_size is \"x\"; expected an integer"));
  EXPECT_THAT(open(qwen_config(R"(,"num_experts_per_tok":4)")), HasSubstr("top_k is 4; expected at most experts, 3"));
  EXPECT_THAT(open(qwen_config(R"(,"hidden_size":-5)")), HasSubstr("hidden is -5"));
  EXPECT_THAT(open(qwen_config()), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
}

TEST(Checkpoint, WrongShapeNamesTensorAndBothShapes) {
  const TemporaryFolder folder;
  folder.write("config.json", qwen_config());
  Writer w;
  add_separate(w, "model.layers.0.mlp", "gate_proj", "up_proj", "down_proj");
  w.remove("model.layers.0.mlp.experts.1.up_proj.weight");
  w.add("model.layers.0.mlp.experts.1.up_proj.weight", {kInter, kHidden - 1}, [](int64_t) { return 0.0f; });
  add_router(w, "model.layers.0.mlp.gate");
  w.write(folder);
  EXPECT_THAT(refusal([&] { Checkpoint::open(folder.path()).load(0); }),
              HasSubstr("tensor 'model.layers.0.mlp.experts.1.up_proj.weight' is BF16[64, 31]; expected shape [64, 32] by config.json"));
}

TEST(MoeModel, ShippedModelsParse) {
  const std::vector<std::string> folders = {EITRI_SOURCE_DIR "/bench/models"};
  const auto names = moe_model_names(folders);
  EXPECT_GE(names.size(), 9u);
  for (const std::string& name : names) EXPECT_EQ(find_moe_model(name, folders).name, name);
  EXPECT_THAT(refusal([&] { find_moe_model("qwen", folders); }), HasSubstr("unknown model 'qwen'; known: deepseek-v2-lite, deepseek-v3"));
}

TEST(MoeModel, Refusals) {
  const auto parse = [](const std::string& text) { return refusal([&] { parse_moe_model(text, "m.json"); }); };
  const std::string start = R"({"name":"m","hidden":8,"inter":8,"experts":4,"activation":{"kind":"silu"},)";
  EXPECT_EQ(parse(start + R"("top_k":2,"router":{"score":"softmax"}})"), "accepted");
  EXPECT_THAT(parse("["), HasSubstr("m.json: is not valid JSON"));
  EXPECT_THAT(parse(start + R"("router":{"score":"softmax"}})"), HasSubstr("m.json: lacks 'top_k'"));
  EXPECT_THAT(parse(start + R"("top_k":2,"router":{"score":"max"}})"),
              HasSubstr("m.json: router: score is 'max'; expected one of softmax, sigmoid"));
  EXPECT_THAT(parse(start + R"("top_k":2,"colour":1,"router":{"score":"softmax"}})"), HasSubstr("unknown key 'colour'"));
  EXPECT_THAT(parse(start + R"("top_k":5,"router":{"score":"softmax"}})"), HasSubstr("top_k is 5; expected at most experts, 4"));
  EXPECT_THAT(parse(start + R"("top_k":2,"router":{"score":"softmax","groups":3}})"),
              HasSubstr("router groups is 3; expected a divisor of experts"));
  EXPECT_THAT(parse(start + R"("top_k":2.5,"router":{"score":"softmax"}})"), HasSubstr("top_k is 2.5; expected an integer"));
}

}  // namespace
}  // namespace eitri::checkpoint
