// Packs the weights of a safetensors file once, so that a server maps them: `eitri pack`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "eitri/eitri.hpp"

namespace eitri::checkpoint {

/// What to pack, and how. Globs are those of fnmatch(3) and match whole names.
struct PackRules {
  std::vector<std::string> weights = {};  // globs of matrices [n, k], [experts, n, k]; each has to match something
  std::vector<std::string> gated = {};    // globs of those with gate and up rows, laid out as `gate` says
  GateLayout gate = GateLayout::separated;
  DType type = DType::none;   // f4e2m1 or i4: what U8 tensors [.., k / 2] (or [.., k / b, b / 2]) hold; their U8 scales are f8e8m0
  Quant quant = Quant::none;  // what shares a block scale, which goes into the buffer; scales of rows and tensors stay tensors
  std::string scale_from = {}, scale_to = {};  // a weight's scale has its name with the last `scale_from` replaced by `scale_to`
};

struct PackSummary {
  int64_t packed = 0, copied = 0;             // tensors
  int64_t bytes_before = 0, bytes_after = 0;  // of the packed ones, scales included
};

/// Writes `out`: every packed weight is a U8 tensor of its old name at a multiple of 64 bytes of the file, so that packed_weight() of
/// the mapped file is ready for calls; scales that went into buffers are left out, everything else is copied. `out` appears whole or not
/// at all. Holds the packed tensors in memory: pack big checkpoints shard by shard. Throws Error, naming the tensor.
PackSummary pack_file(const std::string& in, const std::string& out, const PackRules& rules);

/// The packed weight in a tensor that pack_file wrote; the file stays mapped as long as it is used.
View packed_weight(const Tensor& tensor);

}  // namespace eitri::checkpoint
