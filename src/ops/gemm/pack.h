// Packed weights: the self-describing buffer that pack_weights writes, and its strict reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "eitri/eitri.hpp"
#include "ops/gemm/panel_kernels.h"

namespace eitri {

/// First 64 bytes of every packed buffer. A version that this build does not know is refused.
struct PackedHeader {
  char magic[8];         // "EITRIPK\0"
  uint16_t version;      // 1, or 2: coded panels (panel_kernels.h), which older builds do not know
  uint8_t format;        // PackFormat
  uint8_t dtype;         // DType
  uint8_t gate;          // GateLayout of the source: gated or not, and how bias and scale vectors lie
  uint8_t rank;          // 2 or 3
  uint16_t library;      // onednn: major * 100 + minor of the library that made it
  int64_t batch, n, k;   // logical extents; batch 1 for rank 2
  int64_t matrix_bytes;  // from one matrix of the batch to the next
  int32_t m_hint;        // onednn
  uint8_t quant;         // Quant of the block scales in the panels; none in version 1
  uint8_t reserved[3];   // 0
  uint64_t checksum;     // of the fields above
};
static_assert(sizeof(PackedHeader) == 64);
inline constexpr uint16_t kPackVersion = 2;

/// The header behind a packed view, verified (magic, version, checksum, and that it agrees with the view's shape and
/// dtype); Error names op and argument otherwise.
const PackedHeader& packed_header(const View& view, const char* op, const char* arg);
/// First byte of matrix `index` of the batch.
const std::byte* packed_matrix(const View& view, int64_t index);
/// How a weight operand lies, as a Problem field.
enum class WeightFormat : uint8_t { strided, panel32, onednn };
std::span<const char* const> enum_names(WeightFormat);
WeightFormat weight_format(const View& view, const char* op, const char* arg);
/// What the block scales in a packed weight belong to; none for a plain one.
Quant packed_quant(const View& view);
/// Element (b, n, k) of a strided or panel32 weight as double, times the block scale beside it: for references and tests. onednn blobs
/// are opaque: the reference asks the library row to unpack them.
double weight_at(const View& view, int64_t b, int64_t n, int64_t k);

}  // namespace eitri
