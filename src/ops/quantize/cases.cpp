// Problems of quantize, and how their tensors are made.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/quantize/quantize.h"

namespace eitri {

Cases<Quantize::Problem> Quantize::cases() {
  Cases<Problem> out;
  const auto add = [&](const char* note, int64_t rows, int64_t cols, DType x, bool sorted = false) {
    out.test.push_back({{.rows = rows, .cols = cols, .x = x, .sorted = sorted}, note});
  };
  for (DType x : {DType::f32, DType::bf16, DType::f16}) {
    add("B15 no tokens", 0, 128, x);
    add("no columns: scale 0", 3, 0, x);
    add("one element", 1, 1, x);
    for (int64_t tile : {8, 16, 32, 64})
      for (int64_t cols : {tile - 1, tile, tile + 1}) add("around a vector", 5, cols, x);
    add("prime extents", 13, 251, x);
    add("sorted rows", 96, 131, x, true);
    add("sorted, one row", 1, 64, x, true);
    add("sorted, many rows", 1280, 384, x, true);
  }
  add("odd hidden size", 7, 769, DType::f16);
  add("704 of 768 columns", 17, 704, DType::bf16);
  add("more rows than threads", 1031, 257, DType::bf16);
  add("wide row", 2, 14336, DType::bf16);
  struct Codes {
    DType q;
    Quant quant;
  };
  using enum Quant;
  constexpr Codes kCodes[] = {{DType::i8, per_tensor},        {DType::i8, per_1x128},          {DType::i8, per_1x32},
                              {DType::f8e4m3, per_tensor},    {DType::f8e4m3, per_token},      {DType::f8e4m3, per_1x128},
                              {DType::f8e4m3, per_1x32},      {DType::f8e4m3fnuz, per_tensor}, {DType::f8e4m3fnuz, per_token},
                              {DType::f8e4m3fnuz, per_1x128}, {DType::f4e2m1, per_1x32}};
  for (const Codes& codes : kCodes) {
    const auto coded = [&](const char* note, int64_t rows, int64_t cols, DType x, bool sorted = false) {
      if (codes.q == DType::f4e2m1) cols += cols % 2;
      out.test.push_back({{.rows = rows, .cols = cols, .x = x, .q = codes.q, .quant = codes.quant, .sorted = sorted}, note});
    };
    coded("B15 no tokens", 0, 128, DType::bf16);
    coded("no columns", 3, 0, DType::bf16);
    for (DType x : {DType::f32, DType::bf16, DType::f16}) {
      coded("one element", 1, 1, x);
      for (int64_t cols : {31, 32, 33, 127, 128, 129, 385}) coded("around a block", 6, cols, x);
      coded("sorted rows", 96, 131, x, true);
    }
    coded("more rows than threads", 1031, 257, DType::bf16);
    if (codes.q == DType::f8e4m3 && (codes.quant == per_tensor || codes.quant == per_1x128))
      for (int64_t cols : {1290, 5000}) coded("long rows", 3, cols, DType::bf16);
  }
  for (int64_t rows : {1, 64, 4096}) {
    out.bench.push_back(
        {{.rows = rows, .cols = 7168, .x = DType::bf16, .q = DType::f8e4m3, .quant = per_token}, "DeepSeek-V3 hidden, fp8"});
    out.bench.push_back(
        {{.rows = rows, .cols = 7168, .x = DType::bf16, .q = DType::f8e4m3, .quant = per_1x128}, "DeepSeek-V3 hidden, fp8 blocks"});
    out.bench.push_back({{.rows = rows, .cols = 7168, .x = DType::bf16, .q = DType::f8e4m3, .quant = per_1x32}, "mxfp8"});
    out.bench.push_back({{.rows = rows, .cols = 7168, .x = DType::bf16, .q = DType::f4e2m1, .quant = per_1x32}, "mxfp4"});
    out.bench.push_back({{.rows = rows, .cols = 7168, .x = DType::bf16, .q = DType::f8e4m3, .quant = per_tensor}, "fp8, one scale"});
    out.bench.push_back({{.rows = rows, .cols = 2048, .x = DType::bf16}, "Qwen3-30B-A3B hidden"});
    out.bench.push_back({{.rows = rows, .cols = 7168, .x = DType::bf16}, "DeepSeek-V3 hidden"});
  }
  return out;
}

void make_sorted(int64_t rows, Maker& maker, View& sorted_ids, View& num_valid, int64_t& tokens) {
  constexpr int32_t kTopK = 2;
  tokens = std::max<int64_t>(1, rows / 2);
  sorted_ids = maker.dense("sorted_ids", DType::i32, {rows}, Fill::zero);
  num_valid = maker.dense("num_valid", DType::i32, {2}, Fill::zero);
  auto* ids = static_cast<int32_t*>(sorted_ids.data);
  auto& rng = maker.rng();
  for (int64_t i = 0; i < rows; ++i) {
    const bool padding = i > 0 && rng() % 4 == 0;
    const auto token = static_cast<int32_t>(rng() % static_cast<uint64_t>(tokens));
    ids[i] = padding ? (kTopK << 24) | static_cast<int32_t>(tokens) : static_cast<int32_t>(rng() % kTopK) << 24 | token;
  }
  auto* valid = static_cast<int32_t*>(num_valid.data);
  valid[0] = static_cast<int32_t>(rows - rows / 4);
  valid[1] = static_cast<int32_t>(tokens);
}

namespace {

/// Rows that break careless kernels, as far as the tensor has them: zeros, NaN and infinity, tiny values, a lone huge one.
void put_special_rows(const View& x) {
  const int64_t rows = x.shape[0], cols = x.shape[1];
  if (rows < 5 || cols < 1) return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < cols; ++j) {
    store(x, {1, j}, 0);                                                                               // B26
    store(x, {3, j}, std::ldexp(static_cast<double>(j % 5 - 2), x.dtype == DType::f16 ? -24 : -133));  // subnormal
    store(x, {4, j}, 0);
  }
  store(x, {2, cols / 2}, std::numeric_limits<double>::quiet_NaN());  // B31
  store(x, {2, cols - 1}, -kInfinity);
  store(x, {4, 0}, kInfinity);  // nothing finite but zeros
}

}  // namespace

Quantize::Args Quantize::make(const Problem& p, Maker& maker) {
  Args args;
  args.x = maker.input("x", p.x, {p.rows, p.cols}, Fill::normal);
  if (maker.options().special_rows) put_special_rows(args.x);
  args.q = maker.output("q", p.q, {p.rows, p.cols});
  const DType scale = quantize_scale_dtype(p.q, p.quant);
  const int64_t block = quantize_block(p.quant, p.cols);
  if (has_block_scales(p.quant)) args.scale = maker.output("scale", scale, {p.rows, (p.cols + block - 1) / block});
  else args.scale = maker.output("scale", scale, {p.quant == Quant::per_tensor ? 1 : p.rows});
  args.quant = p.quant;
  if (p.sorted) make_sorted(p.rows, maker, args.sorted_ids, args.num_valid, args.tokens);
  return args;
}

}  // namespace eitri
