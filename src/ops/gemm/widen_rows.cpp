#include "ops/gemm/widen_rows.h"

#include <algorithm>
#include <array>

#include "backend/cpu/threads.h"
#include "base/numeric.h"
#include "base/view.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

namespace {

constexpr std::array<float, 256> kValues = [] {
  std::array<float, 256> v = {};
  for (size_t i = 0; i < v.size(); ++i) v[i] = decode_f8e4m3(static_cast<uint8_t>(i));
  return v;
}();

void put(float x, float* to) { *to = x; }
void put(float x, uint16_t* to) { *to = encode_bf16(x); }

template <class T> void widen_row(const uint8_t* codes, int64_t k, const View& scale, int64_t row, int64_t block, T* to) {
  for (int64_t begin = 0; begin < k; begin += block) {
    const int64_t end = std::min(k, begin + block);
    const float factor = scale.given() ? static_cast<float>(load(scale, {row, begin / block})) : 1.0f;
    for (int64_t i = begin; i < end; ++i) put(kValues[codes[i]] * factor, to + i);
  }
}

}  // namespace

void widen_rows(const View& rows, const View& scale, Quant quant, DType to_dtype, std::byte* to, int threads) {
  const int64_t m = rows.shape[0], k = rows.shape[1], block = is_block(quant) ? block_k(quant) : std::max<int64_t>(k, 1);
  const View factors = is_block(quant) ? scale : View();
  const double us = static_cast<double>(m * k) / 1e3;  // about one element a nanosecond
  parallel(threads_for(us, threads), [&](int thread, int team) {
    const Span mine = split(m, thread, team);
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      const auto* codes = static_cast<const uint8_t*>(row(rows, r));
      if (to_dtype == DType::f32) widen_row(codes, k, factors, r, block, reinterpret_cast<float*>(to) + r * k);
      else widen_row(codes, k, factors, r, block, reinterpret_cast<uint16_t*>(to) + r * k);
    }
  });
}

}  // namespace eitri
