// A Hugging Face folder (config.json + safetensors) as mixture-of-experts blocks. Families: Qwen3-MoE, Mixtral,
// DeepSeek-V3 and gpt-oss, and those that share their tensor names (OLMoE, DeepSeek-V2, GLM-4 MoE, Kimi K2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/moe_layer.h"
#include "checkpoint/safetensors.h"

namespace eitri::checkpoint {

class Checkpoint {
 public:
  /// Reads config.json and the tensors' headers; weights stay on disk. Error names the file and what is wrong.
  static Checkpoint open(const std::string& folder);

  const MoeModel& model() const { return config_.model; }
  /// Layers that have a MoE block, ascending.
  const std::vector<int64_t>& moe_layers() const { return config_.moe_layers; }
  /// Stacks the layer's experts: fp8 and MXFP4 weights are dequantised to bf16, f32 ones rounded to it. A layer without a
  /// MoE block is an error that lists those that have one.
  MoeLayer load(int64_t layer);

 private:
  Checkpoint(CheckpointConfig config, TensorFolder tensors) : config_(std::move(config)), tensors_(std::move(tensors)) {}
  const Tensor& tensor(const std::string& name, std::initializer_list<int64_t> shape);
  DType layer_dtype(const std::string& block);
  void load_router(MoeLayer& out, const std::string& block);
  void load_separate_experts(MoeLayer& out, const std::string& experts);
  void load_fused_experts(MoeLayer& out, const std::string& experts);
  void load_mxfp4_experts(MoeLayer& out, const std::string& experts);
  /// One gated expert: gate rows then up rows into w1, the down matrix into w2.
  void load_expert(const std::string& prefix, int64_t inter, DType dtype, std::byte* w1, std::byte* w2);
  void load_matrix(const std::string& name, int64_t rows, int64_t cols, std::byte* out, DType dtype);
  /// As f32.
  View load_floats(Arena& arena, const std::string& name, std::initializer_list<int64_t> shape);

  CheckpointConfig config_;
  TensorFolder tensors_;
};

}  // namespace eitri::checkpoint
