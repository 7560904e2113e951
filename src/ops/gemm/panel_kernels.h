// The matrix micro-engine that gemm, grouped_gemm and fused_moe share on x86: one function per instruction level and
// operand type, plain pointers and sizes only (these files are compiled per ISA, see ARCHITECTURE.md).
//
// Packed weights ("panel32"): columns of the product (rows of the weight) in panels of 32; a panel is a run of k-steps of
// 64 bytes of k; a k-step is two tiles of 1 KiB (columns 0..15, then 16..31); a tile is 16 rows of 64 bytes, row r holding
// for each of 16 columns the 4 bytes of k that start at byte 4*r of the step (VNNI order; f32: one k, 16 bit: two, 8 bit: four):
//
//   panel 0                                             panel 1 ...
//   [step 0: tile cols 0-15 | tile cols 16-31][step 1 ...]...[i32 column sums of the panel, i8 only: 128 bytes]
//
// k and n are padded with zeros. A gated weight puts 16 gate columns in the first tile and the matching 16 up columns in
// the second, so that one panel yields 16 finished outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kStepBytes = 64;  // of k, per column
inline constexpr int64_t kTileBytes = 1024;
inline constexpr int64_t kPanelSumsBytes = 128;

/// Bytes of one panel of k elements of `element_bytes` each.
constexpr int64_t panel_bytes(int64_t k, int64_t element_bytes) {
  const int64_t steps = (k * element_bytes + kStepBytes - 1) / kStepBytes;
  return steps * 2 * kTileBytes + (element_bytes == 1 ? kPanelSumsBytes : 0);
}

/// Panels of a weight that yields n outputs: 32 columns each, or 16 gate and 16 up columns.
constexpr int64_t panel_count(int64_t n, GateLayout gate) {
  const int64_t outputs = gate == GateLayout::none ? kPanelColumns : kPanelColumns / 2;
  return (n + outputs - 1) / outputs;
}
/// The weight's row (and the index of its scale and bias) that lies in `column` of `panel`; -1 in the padding.
constexpr int64_t weight_row(int64_t n, GateLayout gate, int64_t panel, int64_t column) {
  if (gate == GateLayout::none) {
    const int64_t row = panel * kPanelColumns + column;
    return row < n ? row : -1;
  }
  const int64_t up = column / 16, output = panel * 16 + column % 16;
  if (output >= n) return -1;
  return gate == GateLayout::separated ? up * n + output : 2 * output + up;
}

/// Panels of codes that a kernel turns into a's type ("coded" panels). k is cut into spans of 128; a span holds its block scales,
/// group after group of k, 32 columns each, then its codes in tiles as above:
///
///   8 bit  two k-steps of two tiles. i8: bytes of a dword in order of k. f8e4m3: k, k+2, k+1, k+3
///   4 bit  one k-step of two tiles; a dword holds eight k, from its lowest nibble k, k+2, k+4, k+6, k+1, k+3, k+5, k+7
///
/// so that codes of neighbouring k are 16 bits apart, as the halves of a bf16 pair are, and a stream reads memory in order. k is padded
/// to whole spans with zero codes of scale 1. i8 without scales is the exception: panels as above, which the i8 kernels read as well.
struct PanelCodes {
  DType dtype = DType::none;  // f8e4m3, i8, i4, f4e2m1; none: the weight is of a's type
  DType scale = DType::none;  // f32, f8e8m0, f8e4m3; none: there are no block scales
  int32_t group = 0;          // elements of k that share a scale: 16, 32 or 128
  bool operator==(const PanelCodes&) const = default;

  constexpr int64_t bits() const { return dtype == DType::i4 || dtype == DType::f4e2m1 ? 4 : 8; }
  constexpr int64_t scale_width() const { return scale == DType::none ? 0 : scale == DType::f32 ? 4 : 1; }
};
inline constexpr int64_t kSpan = 128;         // elements of k
inline constexpr int64_t kDecodedSteps = 32;  // k that a decoder makes at a time: two rows of sixteen bf16 pairs

/// Bytes of the block scales of a span, and of a whole one.
constexpr int64_t span_scale_bytes(const PanelCodes& codes) {
  return codes.group == 0 ? 0 : kSpan / codes.group * kPanelColumns * codes.scale_width();
}
constexpr int64_t span_bytes(const PanelCodes& codes) { return span_scale_bytes(codes) + kSpan * kPanelColumns * codes.bits() / 8; }
constexpr int64_t coded_panel_bytes(const PanelCodes& codes, int64_t k) {
  if (codes.dtype == DType::i8 && codes.scale == DType::none) return panel_bytes(k, 1);
  return (k + kSpan - 1) / kSpan * span_bytes(codes);
}
/// Where a decoder finds step `step` (32 k) of a panel: the codes of 16 columns, 64 bytes a row, 4-bit codes in 4 rows and 8-bit ones
/// in 8; and the scales of 32 columns for the group of k that the step begins in.
constexpr int64_t coded_tile_offset(const PanelCodes& codes, int64_t step, int64_t tile) {
  const int64_t span = step / 4, part = step % 4, at = span * span_bytes(codes) + span_scale_bytes(codes);
  return codes.bits() == 4 ? at + tile * kTileBytes + part * 256 : at + part / 2 * 2 * kTileBytes + tile * kTileBytes + part % 2 * 512;
}
constexpr int64_t coded_scale_offset(const PanelCodes& codes, int64_t step) {
  return step / 4 * span_bytes(codes) + step % 4 * kDecodedSteps / codes.group * kPanelColumns * codes.scale_width();
}

/// Rows [0, m) of A times panels [panel_begin, panel_end) of one weight matrix.
struct PanelTask {
  // A: row i starts at a + source(i) * a_stride bytes, source(i) = row_index ? row_index[i] & row_mask : i. k elements;
  // nothing beyond them is read.
  const std::byte* a = nullptr;
  int64_t a_stride = 0;
  const int32_t* row_index = nullptr;
  int32_t row_mask = 0x7fffffff;
  int64_t m = 0, n = 0, k = 0;  // n: logical outputs (with a gate: inter, half the weight's rows)

  // B: packed panels, or plain rows (b_row_stride != 0) that the kernel packs panel by panel into its scratch.
  const std::byte* b = nullptr;        // packed: panel 0; plain: row 0
  int64_t b_row_stride = 0;            // bytes; 0 = packed
  GateLayout gate = GateLayout::none;  // separated / interleaved: how plain rows lie; packed: only gated or not matters
  int64_t panel_begin = 0, panel_end = 0;

  PanelCodes codes = {};  // of packed panels: for the coded kernels, which know no plain rows

  // Epilogue, per row i and column j: x = sum * sum_scale * a_scale[source(i)] * b_scale[j] * row_weight[i] + bias[j]; then activation.
  // With a gate, b_scale and bias are indexed by the weight's row (layout `gate`, also when packed: `gate` then says how
  // the vectors lie).
  float sum_scale = 1;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  const float* row_weight = nullptr;
  const float* bias = nullptr;
  ActivationParams activation = {};

  // C: row i at c + (c_row_index ? c_row_index[i] : i) * c_stride bytes; column j of the panel range at its logical place.
  std::byte* c = nullptr;
  int64_t c_stride = 0;
  DType c_dtype = DType::f32;  // f32, bf16, f16
  const int32_t* c_row_index = nullptr;
  int64_t c_bytes =
      0;  // of the whole c, which tasks beside this one write as well and nobody reads before all of it is there; 0: of this task
  // accumulate: c (f32) += c_weight[i] * x. Rows may repeat within a task; they add in row order.
  bool accumulate = false;
  const float* c_weight = nullptr;

  const std::byte* next = nullptr;  // weights that this thread reads after these: a kernel may fetch the first of them

  // Tuning, 0 = the kernel's default.
  int32_t block_m = 0;  // rows of A packed at a time
  int32_t chunk_k = 0;  // k-steps of a panel that stay in L1

  std::byte* scratch = nullptr;  // panel_scratch() bytes, 64-byte aligned, this thread's own; contents arbitrary
};

using PanelFn = void (*)(const PanelTask&);

/// Scratch bytes that any panel kernel may need for a task of these extents: an A block of at most kScratchRows rows and
/// kScratchA bytes, sums for those rows and all columns of the task, a packed panel, kScratchFixed of buffers.
inline constexpr int64_t kScratchRows = 512, kScratchA = 2 << 20, kScratchFixed = 128 << 10;
int64_t panel_scratch(int64_t m, int64_t k, int64_t panels, int64_t element_bytes, bool plain_b);

// bf16, f16, f32: a and b of that type; coded_: a of that type, b coded panels;
// coded_i8: of i4 without block scales. i8: both i8, a_scale and b_scale required, k <= kMaxI8K.
inline constexpr int64_t kMaxI8K = 131071;  // 128 * 128 * k stays within int32

inline constexpr int64_t kFewRows = 16, kFewK = 20480;  // rows of a whole k that lie in L2 as tiles: 640 KiB

namespace amx {
void panel_bf16(const PanelTask&);
void panel_i8(const PanelTask&);
void coded_bf16(const PanelTask&);
void coded_i8(const PanelTask&);
void coded_few_bf16(const PanelTask&);  // what coded_bf16 calls: 1 to kFewRows rows, 0 < k <= kFewK
}  // namespace amx
namespace amx_emulated {  // the same source with the tile instructions in software
void panel_bf16(const PanelTask&);
void panel_i8(const PanelTask&);
void coded_bf16(const PanelTask&);
void coded_i8(const PanelTask&);
void coded_few_bf16(const PanelTask&);
}  // namespace amx_emulated
namespace avx512 {
void panel_bf16(const PanelTask&);
void panel_f16(const PanelTask&);
void panel_f32(const PanelTask&);
void panel_i8(const PanelTask&);
void coded_bf16(const PanelTask&);
void coded_i8(const PanelTask&);
void coded_f16(const PanelTask&);
void coded_f32(const PanelTask&);
}  // namespace avx512
namespace avx512vbmi {
void coded_bf16(const PanelTask&);
void coded_f16(const PanelTask&);
void coded_f32(const PanelTask&);
}  // namespace avx512vbmi
/// The epilogue alone, for sums that something else computed: row r of the task's sums (f32, or i32) starts at
/// sums + r * stride bytes and holds 32 columns of panel task.panel_begin, then of the following panels. Up to 31 sums
/// beyond the last column are read (not used).
using FinishFn = void (*)(const PanelTask&, const void* sums, int64_t stride, bool i32);

namespace avx2 {
void finish_panels(const PanelTask&, const void* sums, int64_t stride, bool i32);
void panel_bf16(const PanelTask&);
void panel_f16(const PanelTask&);
void panel_f32(const PanelTask&);
void panel_i8(const PanelTask&);
void coded_bf16(const PanelTask&);
void coded_i8(const PanelTask&);
void coded_f16(const PanelTask&);
void coded_f32(const PanelTask&);
}  // namespace avx2
namespace portable {
void finish_panels(const PanelTask&, const void* sums, int64_t stride, bool i32);
void panel_bf16(const PanelTask&);
void panel_f16(const PanelTask&);
void panel_f32(const PanelTask&);
void panel_i8(const PanelTask&);
void coded_bf16(const PanelTask&);
void coded_i8(const PanelTask&);
void coded_f16(const PanelTask&);
void coded_f32(const PanelTask&);
}  // namespace portable

}  // namespace eitri
