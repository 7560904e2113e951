#include "ops/gemm/weight_rows.h"

#include <cstring>

#include "base/numeric.h"
#include "base/view.h"
#include "ops/gemm/library.h"
#include "ops/gemm/pack.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

namespace {

template <class T> T bits_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
/// `each(read)` with a function from an element's place to its value: the dtype is looked at once for many.
template <class Each> void read_as(DType dtype, Each&& each) {
  switch (dtype) {
    case DType::f32: return each([](const std::byte* at) { return double{bits_at<float>(at)}; });
    case DType::f16: return each([](const std::byte* at) { return double{decode_f16(bits_at<uint16_t>(at))}; });
    case DType::bf16: return each([](const std::byte* at) { return double{decode_bf16(bits_at<uint16_t>(at))}; });
    case DType::f8e4m3: return each([](const std::byte* at) { return double{decode_f8e4m3(bits_at<uint8_t>(at))}; });
    case DType::i8: return each([](const std::byte* at) { return double(bits_at<int8_t>(at)); });
    default: return each([dtype](const std::byte* at) { return load_at(at, dtype, 0); });
  }
}

}  // namespace

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

/// Where the row went: panel_kernels.h has the picture.
WeightRows::Place WeightRows::place_of(int64_t n) const {
  if (gate_ == GateLayout::none) return {n / kPanelColumns, n % kPanelColumns / 16, n % 16};
  const int64_t half = rows_ / 2;
  const int64_t output = gate_ == GateLayout::separated ? n % half : n / 2;
  return {output / 16, gate_ == GateLayout::separated ? n / half : n % 2, output % 16};
}

void WeightRows::decode(int64_t n, double* to) const {
  if (panels_ == nullptr) {
    if (is_packed(dtype_)) {
      for (int64_t k = 0; k < k_; ++k) to[k] = load_at(plain_, dtype_, n * row_stride_ + k * element_stride_);
    } else {
      const int64_t width = bits(dtype_) / 8, step = element_stride_ * width;
      const std::byte* const from = plain_ + n * row_stride_ * width;
      read_as(dtype_, [&](auto read) {
        for (int64_t k = 0; k < k_; ++k) to[k] = read(from + k * step);
      });
    }
    if (quant_ != Quant::none)
      for (int64_t k = 0; k < k_; ++k) to[k] *= block_scale_at(block_scale_, quant_, index_, n, k);
    return;
  }
  const auto [panel, tile, column] = place_of(n);
  if (codes_.dtype != DType::none) {
    const std::byte* const at = panels_ + panel * coded_panel_bytes(codes_, k_);
    for (int64_t k = 0; k < k_; ++k) to[k] = coded_value(codes_, at, tile * 16 + column, k);
    return;
  }
  const int64_t width = bits(dtype_) / 8;
  const std::byte* base = panels_ + panel * panel_bytes(k_, width) + tile * kTileBytes + column * 4;
  read_as(dtype_, [&](auto read) {
    // Four bytes of a row lie together.
    for (int64_t k = 0, byte = 0; k < k_; byte += 4) {
      const std::byte* at = base + byte / kStepBytes * 2 * kTileBytes + byte % kStepBytes / 4 * 64;
      for (int64_t in = 0; in < 4 && k < k_; in += width, ++k) to[k] = read(at + in);
    }
  });
}

void WeightRows::decode_lanes(int64_t n, size_t count, double* to) const {
  const bool in_panels = panels_ != nullptr && codes_.dtype == DType::none && count == kLanes;
  const Place first = in_panels ? place_of(n) : Place{}, last = in_panels ? place_of(n + int64_t{kLanes} - 1) : Place{};
  if (in_panels && first.panel == last.panel && first.tile == last.tile && last.column - first.column == int64_t{kLanes} - 1) {
    // Neighbours in a tile: each line of memory is read once.
    const int64_t width = bits(dtype_) / 8;
    const std::byte* base = panels_ + first.panel * panel_bytes(k_, width) + first.tile * kTileBytes + first.column * 4;
    read_as(dtype_, [&](auto read) {
      for (int64_t k = 0, byte = 0; k < k_; byte += 4) {
        const std::byte* at = base + byte / kStepBytes * 2 * kTileBytes + byte % kStepBytes / 4 * 64;
        for (int64_t in = 0; in < 4 && k < k_; in += width, ++k)
          for (size_t lane = 0; lane < kLanes; ++lane) to[static_cast<size_t>(k) * kLanes + lane] = read(at + in + lane * 4);
      }
    });
    return;
  }
  std::vector<double> row(static_cast<size_t>(k_));
  for (size_t lane = 0; lane < count; ++lane) {
    decode(n + static_cast<int64_t>(lane), row.data());
    for (size_t k = 0; k < row.size(); ++k) to[k * kLanes + lane] = row[k];
  }
}

}  // namespace eitri
