#include "ops/grouped_gemm/weight_rows.h"

#include "base/view.h"
#include "ops/gemm/library.h"
#include "ops/gemm/pack.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

WeightRows::WeightRows(const View& weights, int64_t index, const View& block_scale, Quant quant)
    : k_(weights.shape[weights.rank - 1]), rows_(weights.shape[weights.rank - 2]), dtype_(weights.dtype), index_(index) {
  if (weights.layout == Layout::strided) {
    plain_ = static_cast<const std::byte*>(weights.rank == 3 ? row(weights, index) : weights.data);
    row_stride_ = weights.stride[weights.rank - 2];
    element_stride_ = weights.stride[weights.rank - 1];
    if (is_block(quant)) block_scale_ = block_scale, quant_ = quant;
    return;
  }
  const PackedHeader& header = packed_header(weights, "weight_rows", "weights");
  if (header.format == static_cast<uint8_t>(PackFormat::panel32)) {
    panels_ = packed_matrix(weights, index);
    gate_ = static_cast<GateLayout>(header.gate);
    const auto packed = static_cast<Quant>(header.quant);
    if (packs_as_codes(dtype_, packed)) codes_ = panel_codes(dtype_, packed);
    return;
  }
  unpacked_.resize(static_cast<size_t>(bytes_for(dtype_, rows_ * k_)));
  library::unpack_matrix(weights, index, unpacked_.data());
  plain_ = unpacked_.data();
  row_stride_ = k_;
  element_stride_ = 1;
}

void WeightRows::decode(int64_t n, double* to) const {
  if (panels_ == nullptr) {
    for (int64_t k = 0; k < k_; ++k) to[k] = load_at(plain_, dtype_, n * row_stride_ + k * element_stride_);
    if (quant_ != Quant::none)
      for (int64_t k = 0; k < k_; ++k) to[k] *= block_scale_at(block_scale_, quant_, index_, n, k);
    return;
  }
  // Where the row went: panel_kernels.h has the picture.
  int64_t panel = n / kPanelColumns, tile = n % kPanelColumns / 16, column = n % 16;
  if (gate_ != GateLayout::none) {
    const int64_t half = rows_ / 2;
    const int64_t output = gate_ == GateLayout::separated ? n % half : n / 2;
    tile = gate_ == GateLayout::separated ? n / half : n % 2;
    panel = output / 16;
    column = output % 16;
  }
  if (codes_.dtype != DType::none) {
    const std::byte* const at = panels_ + panel * coded_panel_bytes(codes_, k_);
    for (int64_t k = 0; k < k_; ++k) to[k] = coded_value(codes_, at, tile * 16 + column, k);
    return;
  }
  const int64_t width = bits(dtype_) / 8;
  const std::byte* base = panels_ + panel * panel_bytes(k_, width) + tile * kTileBytes + column * 4;
  for (int64_t k = 0; k < k_; ++k) {
    const int64_t byte = k * width;
    const std::byte* at = base + byte / kStepBytes * 2 * kTileBytes + byte % kStepBytes / 4 * 64 + byte % 4;
    to[k] = load_at(at, dtype_, 0);
  }
}

}  // namespace eitri
