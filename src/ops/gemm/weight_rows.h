// Rows of a weight operand in double, for references: any layout that pack_weights makes, decoded a row at a time, so
// that a reference over a whole layer takes seconds.
#pragma once

#include <cstdint>
#include <vector>

#include "eitri/types.hpp"
#include "ops/gemm/panel_kernels.h"

namespace eitri {

class WeightRows {
 public:
  /// Matrix `index` of weights [n, k] or [experts, n, k], any WeightFormat.
  WeightRows(const View& weights, int64_t index) : WeightRows(weights, index, {}, Quant::none) {}
  /// Of plain weights with block scales: [n', k'] or [experts, n', k']. Packed ones have theirs beside the codes.
  WeightRows(const View& weights, int64_t index, const View& block_scale, Quant quant);
  /// Row n of the source weight (gate and up rows as its owner laid them out), k values.
  void decode(int64_t n, double* to) const;
  /// Rows n to n + count - 1 as lanes: value k of the i-th is to[k * kLanes + i]. The other lanes keep what they held.
  static constexpr size_t kLanes = 8;
  void decode_lanes(int64_t n, size_t count, double* to) const;

 private:
  struct Place {
    int64_t panel, tile, column;
  };
  Place place_of(int64_t n) const;
  int64_t k_ = 0, rows_ = 0;
  DType dtype_;
  const std::byte* plain_ = nullptr;  // strided: element (0, 0); null when in panels
  int64_t row_stride_ = 0, element_stride_ = 0;
  const std::byte* panels_ = nullptr;
  GateLayout gate_ = GateLayout::none;
  PanelCodes codes_;  // of coded panels
  View block_scale_;
  Quant quant_ = Quant::none;
  int64_t index_ = 0;
  std::vector<std::byte> unpacked_;  // of a library's layout
};

}  // namespace eitri
