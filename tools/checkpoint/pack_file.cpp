#include "checkpoint/pack_file.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/moe_layer.h"
#include "ops/gemm/weight_codes.h"

namespace eitri::checkpoint {
namespace {

bool matches(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

void require_matches(const std::vector<std::string>& globs, const SafetensorsFile& file, const char* option) {
  for (const std::string& glob : globs) {
    const auto tensors = file.tensors();
    const bool found = std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& t) { return matches({glob}, t.name); });
    require(found, file.path(), ": no tensor matches '", glob, "' of ", option);
  }
}

View view_of(const Tensor& tensor, DType dtype, std::vector<int64_t> shape) {
  require(shape.size() == 2 || shape.size() == 3, tensor.file, ": tensor '", tensor.name, "' is ", to_string(tensor),
          "; expected a matrix, or a stack of them");
  return shape.size() == 2 ? View(tensor.data, dtype, {shape[0], shape[1]}) : View(tensor.data, dtype, {shape[0], shape[1], shape[2]});
}

/// The weight as pack_weights takes it.
View weight_of(const Tensor& tensor, const PackRules& rules) {
  if (tensor.dtype != DType::u8) return view_of(tensor, tensor.dtype, tensor.shape);
  require(rules.type != DType::none, tensor.file, ": tensor '", tensor.name, "' is ", to_string(tensor),
          "; expected a type of its codes (f4e2m1 or i4) to be given");
  std::vector<int64_t> shape = tensor.shape;
  // [.., blocks, bytes of a block]: the last two are the bytes of a row.
  if (shape.size() == 4) {
    shape[2] *= shape[3];
    shape.pop_back();
  }
  if (!shape.empty()) shape.back() *= 2;
  return view_of(tensor, rules.type, shape);
}

std::string scale_name(const std::string& name, const PackRules& rules) {
  const size_t at = name.rfind(rules.scale_from);
  require(!rules.scale_from.empty() && at != std::string::npos, "pack: tensor '", name, "' has no '", rules.scale_from,
          "' in its name, which would be replaced by '", rules.scale_to, "' to find its scales");
  return std::string(name).replace(at, rules.scale_from.size(), rules.scale_to);
}

}  // namespace

PackSummary pack_file(const std::string& in, const std::string& out, const PackRules& rules) {
  const SafetensorsFile file = SafetensorsFile::open(in);
  require(!rules.weights.empty(), "pack: no globs of weights are given; expected at least one");
  require_matches(rules.weights, file, "the weights");
  require_matches(rules.gated, file, "the gated weights");
  Arena arena;
  PackSummary summary;
  std::vector<TensorToWrite> tensors;
  std::set<std::string> scales;  // that are in buffers now
  for (const Tensor& tensor : file.tensors()) {
    const bool gated = matches(rules.gated, tensor.name);
    if (!matches(rules.weights, tensor.name)) {
      require(!gated, in, ": tensor '", tensor.name, "' is gated but no weight; expected it among the weights as well");
      continue;
    }
    PackArgs args{.weights = weight_of(tensor, rules), .gate = gated ? rules.gate : GateLayout::none, .quant = rules.quant};
    if (is_block(rules.quant)) {
      const Tensor& scale = file.at(scale_name(tensor.name, rules));
      args.scale = view_of(scale, scale.dtype == DType::u8 ? DType::f8e8m0 : scale.dtype, scale.shape);
      scales.insert(scale.name);
      summary.bytes_before += scale.bytes;
    }
    const auto bytes = static_cast<int64_t>(packed_bytes(args));
    std::byte* const buffer = arena.raw(static_cast<size_t>(bytes));
    try {
      pack_weights(args, buffer);
    } catch (const Error& error) {
      fail(error.code(), str(in, ": tensor '", tensor.name, "': ", error.what()));
    }
    tensors.push_back({.name = tensor.name, .dtype = DType::u8, .shape = {bytes}, .data = buffer, .alignment = 64});
    ++summary.packed;
    summary.bytes_before += tensor.bytes;
    summary.bytes_after += bytes;
  }
  for (const Tensor& tensor : file.tensors()) {
    if (matches(rules.weights, tensor.name) || scales.contains(tensor.name)) continue;
    require(tensor.dtype != DType::none, in, ": tensor '", tensor.name, "' is ", to_string(tensor), ", a type that cannot be copied");
    tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = tensor.data});
    ++summary.copied;
  }
  write_safetensors(out, tensors, file.metadata());
  return summary;
}

View packed_weight(const Tensor& tensor) {
  require(tensor.dtype == DType::u8 && tensor.shape.size() == 1, tensor.file, ": tensor '", tensor.name, "' is ", to_string(tensor),
          "; expected the U8 bytes of a packed weight");
  try {
    return packed_view(tensor.data, static_cast<size_t>(tensor.bytes));
  } catch (const Error& error) {
    fail(error.code(), str(tensor.file, ": tensor '", tensor.name, "': ", error.what()));
  }
}

}  // namespace eitri::checkpoint
