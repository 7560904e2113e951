#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/view.h"
#include "checkpoint/dequantize.h"

namespace eitri::checkpoint {
namespace fs = std::filesystem;
namespace {

/// "1-60", "0, 2, 4".
std::string ranges(const std::vector<int64_t>& values) {
  std::string out;
  for (size_t i = 0; i < values.size();) {
    size_t last = i;
    while (last + 1 < values.size() && values[last + 1] == values[last] + 1) ++last;
    out += str(out.empty() ? "" : ", ", values[i]);
    if (last > i) out += str("-", values[last]);
    i = last + 1;
  }
  return out;
}

std::byte* at(const View& view, int64_t row) {
  int64_t step = 1;
  for (int i = 1; i < view.rank; ++i) step *= view.shape[i];
  return static_cast<std::byte*>(view.data) + bytes_for(view.dtype, row * step);
}

std::string list(std::initializer_list<int64_t> shape) {
  std::string out = "[";
  for (const int64_t extent : shape) out += str(out.size() == 1 ? "" : ", ", extent);
  return out + "]";
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail(Code::io_error, str("checkpoint: '", folder, "' is not a folder"));
  const fs::path path = fs::path(folder) / "config.json";
  if (!fs::exists(path, error)) fail(Code::io_error, str("checkpoint: ", folder, " has no config.json"));
  CheckpointConfig config = parse_config_json(read_file(path.string(), kMaxConfigBytes), path.string());
  return Checkpoint(std::move(config), TensorFolder::open(folder));
}

const Tensor& Checkpoint::tensor(const std::string& name, std::initializer_list<int64_t> shape) {
  const Tensor& t = tensors_.at(name);
  require(std::equal(t.shape.begin(), t.shape.end(), shape.begin(), shape.end()), t.file, ": tensor '", name, "' is ", to_string(t),
          "; expected shape ", list(shape), " by config.json");
  return t;
}

void Checkpoint::load_matrix(const std::string& name, int64_t rows, int64_t cols, std::byte* out, DType dtype) {
  MatrixSource source{.values = &tensor(name, {rows, cols}), .block_rows = config_.block_rows, .block_cols = config_.block_cols};
  const std::string scale = name + "_scale_inv";
  if (bits(source.values->dtype) == 8 && tensors_.has(scale)) {
    const Tensor& t =
        tensor(scale, {(rows + config_.block_rows - 1) / config_.block_rows, (cols + config_.block_cols - 1) / config_.block_cols});
    require(t.dtype == DType::f32, t.file, ": tensor '", scale, "' is ", t.type, "; expected F32 block scales");
    source.block_scale = &t;
  } else {
    require(bits(source.values->dtype) != 8, source.values->file, ": tensor '", name, "' is ", source.values->type, " but there is no '",
            scale, "'");
  }
  copy_matrix(source, rows, cols, out, dtype, cols);
}

View Checkpoint::load_floats(Arena& arena, const std::string& name, std::initializer_list<int64_t> shape) {
  const Tensor& t = tensor(name, shape);
  View view = arena.make(DType::f32, shape);
  copy_matrix({.values = &t}, 1, view.size(), view.data, DType::f32, view.size());
  return view;
}

/// f16 checkpoints run in f16; every other type in bf16.
DType Checkpoint::layer_dtype(const std::string& block) {
  for (const std::string& name : tensors_.names(block + ".experts.")) {
    if (tensors_.at(name).dtype == DType::f16) return DType::f16;
    if (tensors_.at(name).dtype == DType::bf16) return DType::bf16;
  }
  return DType::bf16;
}

void Checkpoint::load_expert(const std::string& prefix, int64_t inter, DType dtype, std::byte* w1, std::byte* w2) {
  const int64_t hidden = config_.model.hidden;
  load_matrix(str(prefix, ".", config_.naming.gate, ".weight"), inter, hidden, w1, dtype);
  load_matrix(str(prefix, ".", config_.naming.up, ".weight"), inter, hidden, w1 + bytes_for(dtype, inter * hidden), dtype);
  load_matrix(str(prefix, ".", config_.naming.down, ".weight"), hidden, inter, w2, dtype);
}

void Checkpoint::load_separate_experts(MoeLayer& out, const std::string& experts) {
  for (int64_t e = 0; e < config_.model.experts; ++e)
    load_expert(str(experts, ".", e), config_.model.inter, out.dtype, at(out.weights.w1, e), at(out.weights.w2, e));
}

void Checkpoint::load_fused_experts(MoeLayer& out, const std::string& experts) {
  const MoeModel& m = config_.model;
  const std::string up = experts + ".gate_up_proj", down = experts + ".down_proj";
  const int64_t rows = m.w1_rows();
  const bool turn = config_.naming.transposed;
  const Tensor& t1 = turn ? tensor(up, {m.experts, m.hidden, rows}) : tensor(up, {m.experts, rows, m.hidden});
  const Tensor& t2 = turn ? tensor(down, {m.experts, m.inter, m.hidden}) : tensor(down, {m.experts, m.hidden, m.inter});
  for (int64_t e = 0; e < m.experts; ++e) {
    const MatrixSource s1{.values = &t1, .offset = e * rows * m.hidden}, s2{.values = &t2, .offset = e * m.hidden * m.inter};
    if (turn) {
      copy_transposed(s1, rows, m.hidden, at(out.weights.w1, e), out.dtype);
      copy_transposed(s2, m.hidden, m.inter, at(out.weights.w2, e), out.dtype);
    } else {
      copy_matrix(s1, rows, m.hidden, at(out.weights.w1, e), out.dtype, m.hidden);
      copy_matrix(s2, m.hidden, m.inter, at(out.weights.w2, e), out.dtype, m.inter);
    }
  }
}

void Checkpoint::load_mxfp4_experts(MoeLayer& out, const std::string& experts) {
  constexpr int64_t kBlock = 32;
  const MoeModel& m = config_.model;
  const auto load = [&](const std::string& name, const View& w) {
    const int64_t rows = w.shape[1], cols = w.shape[2];
    require(cols % kBlock == 0, "checkpoint: MXFP4 tensor '", name, "_blocks' has ", cols,
            " columns by config.json; expected a multiple of 32");
    const Tensor& blocks = tensor(name + "_blocks", {m.experts, rows, cols / kBlock, kBlock / 2});
    const Tensor& scales = tensor(name + "_scales", {m.experts, rows, cols / kBlock});
    require(blocks.bytes == m.experts * rows * cols / 2, blocks.file, ": tensor '", blocks.name, "' is ", blocks.type,
            "; expected U8 MXFP4 blocks");
    require(scales.bytes == m.experts * rows * (cols / kBlock), scales.file, ": tensor '", scales.name, "' is ", scales.type,
            "; expected U8 MXFP4 scales");
    for (int64_t e = 0; e < m.experts; ++e) copy_mxfp4(blocks, scales, e * rows * (cols / kBlock), rows, cols, at(w, e), out.dtype);
  };
  load(experts + ".gate_up_proj", out.weights.w1);
  load(experts + ".down_proj", out.weights.w2);
}

void Checkpoint::load_router(MoeLayer& out, const std::string& block) {
  const MoeModel& m = config_.model;
  const std::string router = str(block, ".", config_.naming.router);
  const Tensor& weight = tensor(router + ".weight", {m.experts, m.hidden});
  out.weights.router = out.arena.make(out.dtype, {m.experts, m.hidden});
  copy_matrix({.values = &weight}, m.experts, m.hidden, out.weights.router.data, out.dtype, m.hidden);
  if (weight.dtype != out.dtype) {  // keep every bit: an f32 router that the layer's dtype cannot hold stays f32
    const View wide = load_floats(out.arena, router + ".weight", {m.experts, m.hidden});
    for (int64_t i = 0; i < wide.size(); ++i) {
      if (load_at(wide.data, DType::f32, i) == load_at(out.weights.router.data, out.dtype, i)) continue;
      out.weights.router = wide;
      break;
    }
  }
  if (m.router.logit_bias) out.router_bias = load_floats(out.arena, router + ".bias", {m.experts});
  if (m.router.correction_bias) out.correction_bias = load_floats(out.arena, router + ".e_score_correction_bias", {m.experts});
}

MoeLayer Checkpoint::load(int64_t layer) {
  const MoeModel& m = config_.model;
  const auto& known = config_.moe_layers;
  require(layer >= 0 && layer < m.layers, "checkpoint: layer is ", layer, "; ", tensors_.path(), " has layers 0 to ", m.layers - 1);
  require(std::binary_search(known.begin(), known.end(), layer), "checkpoint: layer ", layer, " of ", tensors_.path(),
          " is dense; its mixture-of-experts layers: ", ranges(known));
  const std::string block = str("model.layers.", layer, ".", config_.naming.block);
  const std::string experts = block + ".experts";

  MoeLayer out;
  out.model = m;
  out.dtype = layer_dtype(block);
  out.weights.w1 = out.weight_arena.make(out.dtype, {m.experts, m.w1_rows(), m.hidden});
  out.weights.w2 = out.weight_arena.make(out.dtype, {m.experts, m.hidden, m.inter});
  if (tensors_.has(experts + ".gate_up_proj_blocks")) load_mxfp4_experts(out, experts);
  else if (tensors_.has(experts + ".gate_up_proj")) load_fused_experts(out, experts);
  else load_separate_experts(out, experts);
  if (m.expert_bias) {
    out.weights.bias1 = load_floats(out.arena, experts + ".gate_up_proj_bias", {m.experts, m.w1_rows()});
    out.weights.bias2 = load_floats(out.arena, experts + ".down_proj_bias", {m.experts, m.hidden});
  }
  if (m.shared_inter > 0) {
    out.weights.shared_w1 = out.weight_arena.make(out.dtype, {m.shared_w1_rows(), m.hidden});
    out.weights.shared_w2 = out.weight_arena.make(out.dtype, {m.hidden, m.shared_inter});
    load_expert(block + ".shared_experts", m.shared_inter, out.dtype, at(out.weights.shared_w1, 0), at(out.weights.shared_w2, 0));
  }
  load_router(out, block);
  return out;
}

}  // namespace eitri::checkpoint
