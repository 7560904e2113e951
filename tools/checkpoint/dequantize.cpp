#include "checkpoint/dequantize.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "base/numeric.h"

namespace eitri::checkpoint {
namespace {

void require_source(const Tensor& t) {
  const bool ok =
      t.dtype == DType::bf16 || t.dtype == DType::f16 || t.dtype == DType::f32 || t.dtype == DType::f8e4m3 || t.dtype == DType::f8e5m2;
  require(ok, t.file, ": tensor '", t.name, "' is ", t.type, "; expected BF16, F16, F32, F8_E4M3 or F8_E5M2 weights");
}

float decode(const std::byte* data, DType dtype, int64_t i) {
  const auto half = [&] {
    uint16_t code;
    std::memcpy(&code, data + 2 * i, 2);
    return code;
  };
  switch (dtype) {
    case DType::bf16: return decode_bf16(half());
    case DType::f16: return decode_f16(half());
    case DType::f8e4m3: return decode_f8e4m3(static_cast<uint8_t>(data[i]));
    case DType::f8e5m2: return decode_f8e5m2(static_cast<uint8_t>(data[i]));
    default: break;
  }
  float value;
  std::memcpy(&value, data + 4 * i, 4);
  return value;
}

void encode(void* out, DType dtype, int64_t i, float value) {
  if (dtype == DType::bf16) static_cast<uint16_t*>(out)[i] = encode_bf16(value);
  else if (dtype == DType::f16) static_cast<uint16_t*>(out)[i] = encode_f16(value);
  else static_cast<float*>(out)[i] = value;
}

}  // namespace

void copy_matrix(const MatrixSource& source, int64_t rows, int64_t cols, void* out, DType dtype, int64_t out_stride) {
  const Tensor& t = *source.values;
  require_source(t);
  if (t.dtype == dtype && source.block_scale == nullptr) {
    const int64_t width = bytes_for(dtype, 1);
    const std::byte* in = t.data + source.offset * width;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<std::byte*>(out) + r * out_stride * width, in + r * cols * width, static_cast<size_t>(cols * width));
    return;
  }
  const int64_t blocks_per_row = (cols + source.block_cols - 1) / source.block_cols;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t begin = 0; begin < cols; begin += source.block_cols) {
      const float scale = source.block_scale == nullptr ? 1.0f
                                                        : decode(source.block_scale->data, DType::f32,
                                                                 r / source.block_rows * blocks_per_row + begin / source.block_cols);
      for (int64_t c = begin; c < std::min(cols, begin + source.block_cols); ++c)
        encode(out, dtype, r * out_stride + c, decode(t.data, t.dtype, source.offset + r * cols + c) * scale);
    }
  }
}

void copy_transposed(const MatrixSource& source, int64_t rows, int64_t cols, void* out, DType dtype) {
  const Tensor& t = *source.values;
  require_source(t);
  require(source.block_scale == nullptr, t.file, ": tensor '", t.name, "': block scales on a transposed matrix are not supported");
  constexpr int64_t kTile = 32;  // both sides of a tile stay in the first-level cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          encode(out, dtype, r * cols + c, decode(t.data, t.dtype, source.offset + c * rows + r));
      }
    }
  }
}

void copy_mxfp4(const Tensor& blocks, const Tensor& scales, int64_t first_block, int64_t rows, int64_t cols, void* out, DType dtype) {
  constexpr int64_t kBlock = 32;
  const int64_t count = rows * (cols / kBlock);
  for (int64_t b = 0; b < count; ++b) {
    const float scale = decode_e8m0(static_cast<uint8_t>(scales.data[first_block + b]));
    const std::byte* in = blocks.data + (first_block + b) * (kBlock / 2);
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      const auto pair = static_cast<uint8_t>(in[i]);
      encode(out, dtype, b * kBlock + 2 * i, decode_f4e2m1(unpack_nibble(pair, 0)) * scale);
      encode(out, dtype, b * kBlock + 2 * i + 1, decode_f4e2m1(unpack_nibble(pair, 1)) * scale);
    }
  }
}

}  // namespace eitri::checkpoint
