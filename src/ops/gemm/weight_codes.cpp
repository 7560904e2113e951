#include "ops/gemm/weight_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "base/view.h"
#include "ops/gemm/pack.h"

namespace eitri {

namespace {

// 2^-100 .. 2^100 as f8e8m0: the products of f8e4m3 and f4e2m1 codes are then normal numbers of bf16 and f32.
constexpr uint8_t kLeastE8m0 = 27, kMostE8m0 = 227;
constexpr double kMostScale = 0x1p100;

bool is_nibble(DType dtype) { return bits(dtype) == 4; }

/// Is code `element` of the row at `row` (of elements `stride` apart) a zero?
bool is_zero(const std::byte* row, DType dtype, int64_t stride, int64_t element) { return load_at(row, dtype, element * stride) == 0; }

/// k, k+1, ... k+7 in nibbles become k, k+2, k+4, k+6, k+1, k+3, k+5, k+7.
uint32_t part_nibbles(uint32_t x) {
  const auto squeeze = [](uint32_t y) {  // the low nibbles of four bytes side by side
    y = (y | y >> 4) & 0x00ff00ffu;
    return (y | y >> 8) & 0xffffu;
  };
  return squeeze(x & 0x0f0f0f0fu) | squeeze(x >> 4 & 0x0f0f0f0fu) << 16;
}
/// k, k+1, k+2, k+3 in bytes become k, k+2, k+1, k+3.
uint32_t part_bytes(uint32_t x) { return (x & 0xff0000ffu) | (x & 0xff00u) << 8 | (x & 0xff0000u) >> 8; }

/// `count` codes from element `begin` of a row on, packed as memory has them, zeros behind them up to 128.
void load_span(const CodedRows& rows, int64_t row, int64_t begin, int64_t count, std::byte* to) {
  const int64_t width = bits(rows.dtype);
  std::memset(to, 0, static_cast<size_t>(kSpan * width / 8));
  const std::byte* from = rows.first + row * rows.row_stride * width / 8;
  if (width == 8 && rows.element_stride != 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[(begin + i) * rows.element_stride];
    return;
  }
  std::memcpy(to, from + begin * width / 8, static_cast<size_t>((count * width + 7) / 8));
  if (width == 4 && count % 2 != 0) to[count / 2] &= std::byte{0x0f};
}

uint32_t scale_code(const CodedRows& rows, DType dtype, int64_t row, int64_t begin) {
  if (row < 0 || begin >= rows.k) return dtype == DType::f32 ? float_bits(1.0f) : dtype == DType::f8e8m0 ? 127u : encode_f8e4m3(1.0f);
  const int64_t block = row / block_rows(rows.quant) * rows.scale_row_stride + begin / block_k(rows.quant) * rows.scale_stride;
  uint32_t code = 0;
  if (dtype == DType::f32) {
    std::memcpy(&code, rows.scale + block * 4, 4);
    return code;
  }
  code = std::to_integer<uint32_t>(rows.scale[block]);
  return dtype == DType::f8e8m0 && (code < kLeastE8m0 || code > kMostE8m0) ? 127u : code;  // of a block of zeros
}

}  // namespace

void check_block_scale(const View& scale, const char* op, const char* arg, DType dtype, Quant quant, int64_t batch, int64_t n, int64_t k) {
  const DType wanted = block_scale_dtype(dtype, quant);
  const int64_t rows = blocks_of(n, block_rows(quant)), blocks = blocks_of(k, block_k(quant));
  const int rank = batch < 0 ? 2 : 3;
  const View shape = batch < 0 ? View(nullptr, wanted, {rows, blocks}) : View(nullptr, wanted, {batch, rows, blocks});
  bool same = scale.dtype == wanted && scale.rank == rank && scale.layout == Layout::strided;
  for (int i = 0; i < rank; ++i) same = same && scale.shape[i] == shape.shape[i];
  if (!same) [[unlikely]]
    require(false, op, ": ", arg, " is ", scale, "; expected ", shape, " (", dtype, " ", quant, ")");
  check_view(scale, op, arg, rank);
}

Quant check_block_quant(const ScaleNames& names, const View& weight, const View& scale, Quant asked, int64_t batch, int64_t n, int64_t k) {
  const auto [op, weight_name, scale_name, quant_name] = names;
  const DType dtype = weight.dtype;
  const Quant packed = packed_quant(weight), quant = packed != Quant::none && asked == Quant::none ? packed : asked;
  require(asked <= Quant::per_1x16, op, ": ", quant_name, " is number ", static_cast<int>(asked), "; expected a Quant");
  require(packed == quant || (packed == Quant::none && !(is_block(quant) && weight.layout == Layout::packed)), op, ": ", quant_name, " is ",
          asked, "; expected ", packed, " (", weight_name, " was packed with it)");
  if (is_block(quant)) {
    require(block_scale_dtype(dtype, quant) != DType::none, op, ": ", quant_name, " is ", quant, "; expected another (", weight_name,
            " is ", dtype,
            "): i8 and i4 go with per_1x32 and per_1x128, f8e4m3 with per_1x32, per_1x128 and per_128x128, f4e2m1 with per_1x32 and ",
            "per_1x16");
    if (packed == Quant::none) check_block_scale(scale, op, scale_name, dtype, quant, batch, n, k);
    else require(!scale.given(), op, ": ", scale_name, " is ", scale, "; expected none (", weight_name, " was packed with its scales)");
    return quant;
  }
  require(dtype != DType::f4e2m1, op, ": ", quant_name, " is ", quant, "; expected per_1x32 or per_1x16 (", weight_name, " is f4e2m1)");
  return quant;
}

Quant check_weight_scale(const ScaleNames& names, const View& weight, const View& scale, Quant asked, int64_t batch, int64_t n, int64_t k) {
  const auto [op, weight_name, scale_name, quant_name] = names;
  const Quant quant = check_block_quant(names, weight, scale, asked, batch, n, k);
  if (is_block(quant)) return quant;
  const int rank = batch < 0 ? 1 : 2;
  const bool one = quant == Quant::per_tensor || (quant == Quant::none && scale.rank == rank && scale.shape[rank - 1] == 1);
  const int64_t extent = one ? 1 : n;
  const View wanted = batch < 0 ? View(nullptr, DType::f32, {extent}) : View(nullptr, DType::f32, {batch, extent});
  bool same = scale.dtype == DType::f32 && scale.rank == rank && scale.layout == Layout::strided;
  for (int i = 0; i < rank; ++i) same = same && scale.shape[i] == wanted.shape[i];
  require(same, op, ": ", scale_name, " is ", scale, "; expected ", wanted, " (", weight_name, " is ", weight.dtype, ")");
  check_view(scale, op, scale_name, rank);
  require(has_unit_inner_stride(scale), op, ": ", scale_name, " is ", scale, "; expected inner stride 1");
  return extent == 1 ? Quant::per_tensor : Quant::per_token;
}

double block_scale_at(const View& scale, Quant quant, int64_t b, int64_t n, int64_t k) {
  const int64_t row = n / block_rows(quant), block = k / block_k(quant);
  return scale.rank == 3 ? load(scale, {b, row, block}) : load(scale, {row, block});
}

CodedRows coded_rows(const View& weights, const View& scale, Quant quant, int64_t index) {
  const View &w = weights, &s = scale;
  CodedRows rows{.first = static_cast<const std::byte*>(w.rank == 3 ? row(w, index) : w.data),
                 .row_stride = w.stride[w.rank - 2],
                 .element_stride = w.stride[w.rank - 1],
                 .n = w.shape[w.rank - 2],
                 .k = w.shape[w.rank - 1],
                 .dtype = w.dtype,
                 .quant = is_block(quant) ? quant : Quant::none};
  if (is_block(quant)) {
    rows.scale = static_cast<const std::byte*>(s.rank == 3 ? row(s, index) : s.data);
    rows.scale_row_stride = s.stride[s.rank - 2];
    rows.scale_stride = s.stride[s.rank - 1];
  }
  return rows;
}

void check_scale_values(const CodedRows& rows, const char* op) {
  if (!is_block(rows.quant)) return;
  const DType dtype = block_scale_dtype(rows.dtype, rows.quant);
  const int64_t step = block_k(rows.quant), tall = block_rows(rows.quant);
  const auto refuse = [&](int64_t row, int64_t block, double x, const char* wanted) {
    fail(Code::invalid_argument, str(op, ": scale[", row, ", ", block, "] is ", x, "; expected ", wanted));
  };
  for (int64_t row = 0; row < blocks_of(rows.n, tall); ++row) {
    for (int64_t block = 0; block < blocks_of(rows.k, step); ++block) {
      const std::byte* at = rows.scale + (row * rows.scale_row_stride + block * rows.scale_stride) * (dtype == DType::f32 ? 4 : 1);
      if (dtype == DType::f8e8m0) {
        const auto code = std::to_integer<uint8_t>(*at);
        if (code >= kLeastE8m0 && code <= kMostE8m0) continue;
        bool zeros = code != 255;  // NaN
        const std::byte* codes = rows.first + row * rows.row_stride * bits(rows.dtype) / 8;
        for (int64_t k = block * step; zeros && k < std::min(rows.k, (block + 1) * step); ++k)
          zeros = is_zero(codes, rows.dtype, rows.element_stride, k);
        if (!zeros) refuse(row, block, load_at(at, dtype, 0), "2^-100 to 2^100, or a block of zeros");
        continue;
      }
      const double x = load_at(at, dtype, 0);
      if (!(std::fabs(x) <= kMostScale)) refuse(row, block, x, "a finite number of at most 2^100");
    }
  }
}

void pack_coded_panel(const CodedRows& rows, int64_t outputs, GateLayout gate, int64_t panel, std::byte* to) {
  const PanelCodes codes = panel_codes(rows.dtype, rows.quant);
  const bool nibbles = is_nibble(rows.dtype);
  const int64_t dwords = nibbles ? 16 : 32;  // of a column in a span
  int64_t source[kPanelColumns];
  for (int64_t column = 0; column < kPanelColumns; ++column) source[column] = weight_row(outputs, gate, panel, column);
  for (int64_t begin = 0; begin < rows.k; begin += kSpan, to += span_bytes(codes)) {
    const int64_t width = codes.scale_width();
    for (int64_t g = 0; g < (codes.group == 0 ? 0 : kSpan / codes.group); ++g) {
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        const uint32_t code = scale_code(rows, codes.scale, source[column], begin + g * codes.group);
        std::memcpy(to + (g * kPanelColumns + column) * width, &code, static_cast<size_t>(width));
      }
    }
    std::byte* const tiles = to + span_scale_bytes(codes);
    const int64_t count = std::min(kSpan, rows.k - begin);
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      alignas(64) std::byte line[kSpan] = {};
      if (source[column] >= 0) load_span(rows, source[column], begin, count, line);
      std::byte* const out = tiles + column / 16 * kTileBytes + column % 16 * 4;
      for (int64_t d = 0; d < dwords; ++d) {
        uint32_t x;
        std::memcpy(&x, line + d * 4, 4);
        if (nibbles) x = part_nibbles(x);
        else if (rows.dtype == DType::f8e4m3) x = part_bytes(x);
        std::memcpy(out + d / 16 * 2 * kTileBytes + d % 16 * 64, &x, 4);
      }
    }
  }
}

double coded_value(const PanelCodes& codes, const std::byte* panel, int64_t column, int64_t k) {
  const int64_t step = k / kDecodedSteps, i = k % kDecodedSteps, tile = column / 16;
  const bool nibbles = codes.bits() == 4;
  const int64_t per = nibbles ? 8 : 4, part = i % per;
  const std::byte* dword = panel + coded_tile_offset(codes, step, tile) + i / per * 64 + column % 16 * 4;
  double x = 0;
  if (nibbles) x = load_at(dword, codes.dtype, part % 2 * 4 + part / 2);
  else x = load_at(dword, codes.dtype, codes.dtype != DType::f8e4m3 ? part : part == 1 ? 2 : part == 2 ? 1 : part);
  if (codes.group == 0) return x;
  const std::byte* scale = panel + coded_scale_offset(codes, step) + (i / codes.group * kPanelColumns + column) * codes.scale_width();
  return x * load_at(scale, codes.scale, 0);
}

}  // namespace eitri
