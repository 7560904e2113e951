#include "ops/grouped_gemm/make_inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backend/cpu/threads.h"
#include "base/view.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

View make_weights(Maker& maker, const char* name, DType dtype, std::initializer_list<int64_t> shape, GateLayout gate, WeightFormat format,
                  int64_t m_hint) {
  const Fill how = dtype == DType::i8 ? Fill::code : Fill::weight;
  const bool strided = format == WeightFormat::strided;
  std::string key = str(name, " ", View(nullptr, dtype, shape), " gate ", static_cast<int>(gate), " format ", static_cast<int>(format));
  if (strided) key += maker.options().strided ? " with gaps" : "";
  if (format == WeightFormat::onednn) key += str(" for ", m_hint);
  return maker.shared(key, [&] {
    if (strided) return maker.input(name, dtype, shape, how);
    // The plain weights live only here: a layer of some GB need not be held twice.
    Maker plain({.seed = maker.options().seed});
    const PackArgs pack{.weights = plain.dense(name, dtype, shape, how),
                        .gate = gate,
                        .format = format == WeightFormat::onednn ? PackFormat::onednn : PackFormat::panel32,
                        .m_hint = std::max<int64_t>(1, m_hint)};
    return pack_weights(pack, maker.raw(name, packed_bytes(pack)));
  });
}

CodedWeights make_coded_weights(Maker& maker, const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Quant quant,
                                GateLayout gate, WeightFormat format) {
  const View logical(nullptr, dtype, shape);
  const int rank = logical.rank;
  const bool stacked = rank == 3;
  const int64_t experts = stacked ? logical.shape[0] : 1, n = logical.shape[rank - 2], k = logical.shape[rank - 1];
  // Codes spread over about a quarter of their range, i8 and i4 over more of it.
  const double typical = (is_float(dtype) ? 0.25 : 0.58) * max_finite(dtype);
  const double size = 100 / (typical * std::sqrt(static_cast<double>(std::max<int64_t>(1, k))));  // Fill::scale is about 1 / 100
  const auto grown = [](const View& scale, double factor) {
    const int64_t outer = scale.rank == 3 ? scale.shape[0] : 1, rows = scale.rank == 1 ? 1 : scale.shape[scale.rank - 2];
    parallel(scale.size() < 1 << 16 ? 1 : max_threads(), [&](int thread, int threads) {
      const Span mine = split(outer * rows, thread, threads);
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t j = 0; j < scale.shape[scale.rank - 1]; ++j) {
          if (scale.rank == 3) store(scale, {i / rows, i % rows, j}, load(scale, {i / rows, i % rows, j}) * factor);
          else if (scale.rank == 2) store(scale, {i, j}, load(scale, {i, j}) * factor);
          else store(scale, {j}, load(scale, {j}) * factor);
        }
    });
    return scale;
  };
  const bool packed = format != WeightFormat::strided, blocks = is_block(quant);
  const int64_t columns = is_packed(dtype) ? k + k % 2 : k;  // rows of packed dtypes are whole bytes
  const auto tensor = [&](Maker& to, const std::string& tensor_name, DType type, int64_t rows, int64_t last, Fill fill) {
    return stacked ? to.input(tensor_name.c_str(), type, {experts, rows, last}, fill)
                   : to.input(tensor_name.c_str(), type, {rows, last}, fill);
  };
  const auto codes = [&](Maker& to) {
    View rows = tensor(to, name, dtype, n, columns, Fill::code);
    rows.shape[rank - 1] = k;
    return rows;
  };
  const auto block_scale = [&](Maker& to) {
    return grown(tensor(to, name + "_scale", block_scale_dtype(dtype, quant), blocks_of(n, block_rows(quant)), blocks_of(k, block_k(quant)),
                        Fill::scale),
                 quant == Quant::per_1x16 ? 100 : size);
  };
  CodedWeights out;
  if (!blocks) {
    const int64_t extent = quant == Quant::per_tensor ? 1 : n;
    out.scale = grown(stacked ? maker.input((name + "_scale").c_str(), DType::f32, {experts, extent}, Fill::scale)
                              : maker.input((name + "_scale").c_str(), DType::f32, {extent}, Fill::scale),
                      size);
  }
  if (quant == Quant::per_1x16)
    out.global_scale = grown(maker.input((name + "_global_scale").c_str(), DType::f32, {experts}, Fill::scale), size);
  if (!packed) {
    out.weights = codes(maker);
    if (blocks) out.scale = block_scale(maker);
    return out;
  }
  const std::string key = str(name, " ", logical, " ", quant, " gate ", static_cast<int>(gate));
  out.weights = maker.shared(key, [&] {
    // The plain weights of packed ones live only here: a layer of some GB need not be held twice.
    Maker plain({.seed = maker.options().seed});
    PackArgs pack{.weights = codes(plain), .gate = gate};
    if (blocks) pack.quant = quant, pack.scale = block_scale(plain);
    return pack_weights(pack, maker.raw(name.c_str(), packed_bytes(pack)));
  });
  return out;
}

Routing make_routing(Maker& maker, int64_t tokens, int64_t top_k, int64_t experts) {
  Routing out{.ids = maker.dense("topk_ids", DType::i32, {tokens, top_k}, Fill::zero),
              .weights = maker.dense("topk_weights", DType::f32, {tokens, top_k}, Fill::probability)};
  auto* ids = static_cast<int32_t*>(out.ids.data);
  std::vector<int32_t> order(static_cast<size_t>(std::max<int64_t>(experts, 0)));
  std::iota(order.begin(), order.end(), 0);
  const auto below = [&](size_t n) { return maker.rng()() % n; };
  std::vector<double> sums;  // of loads; order is the order of popularity then
  if (maker.options().skew > 0) {
    for (size_t e = order.size(); e > 1; --e) std::swap(order[e - 1], order[below(e)]);
    for (size_t e = 0; e < order.size(); ++e)
      sums.push_back((sums.empty() ? 0 : sums.back()) + std::pow(static_cast<double>(e + 1), -maker.options().skew));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    int32_t* const own = ids + t * top_k;
    for (int64_t s = 0; s < top_k; ++s) {
      const auto place = static_cast<size_t>(s);
      if (place >= order.size()) {
        own[s] = -1;  // more slots than experts
        continue;
      }
      if (!sums.empty()) {
        // By load, until one is new; where few are left, the next one that is.
        const auto is_new = [&](int32_t e) { return std::find(own, own + s, e) == own + s; };
        size_t at = 0;
        for (int tries = 0; tries < 64; ++tries) {
          const double x = static_cast<double>(below(size_t{1} << 32)) * 0x1p-32 * sums.back();
          at = std::min(static_cast<size_t>(std::ranges::upper_bound(sums, x) - sums.begin()), order.size() - 1);
          if (is_new(order[at])) break;
        }
        while (!is_new(order[at])) at = (at + 1) % order.size();
        own[s] = order[at];
        continue;
      }
      std::swap(order[place], order[place + below(order.size() - place)]);
      own[s] = order[place];
    }
  }
  if (tokens % 2 == 1 && tokens > 1 && top_k > 0) {
    ids[top_k - 1] = ids[0];
    ids[(tokens - 1) * top_k] = -1;
    ids[tokens / 2 * top_k + top_k - 1] = static_cast<int32_t>(experts);
  }
  return out;
}

}  // namespace eitri
