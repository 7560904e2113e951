#include "ops/grouped_gemm/make_inputs.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace eitri {

View make_weights(Maker& maker, const char* name, DType dtype, std::initializer_list<int64_t> shape, GateLayout gate, WeightFormat format,
                  int64_t m_hint) {
  const Fill how = dtype == DType::i8 ? Fill::code : Fill::weight;
  if (format == WeightFormat::strided) return maker.input(name, dtype, shape, how);
  // The plain weights live only here: a layer of some GB need not be held twice.
  Maker plain({.seed = maker.options().seed});
  const PackArgs pack{.weights = plain.dense(name, dtype, shape, how),
                      .gate = gate,
                      .format = format == WeightFormat::onednn ? PackFormat::onednn : PackFormat::panel32,
                      .m_hint = std::max<int64_t>(1, m_hint)};
  return pack_weights(pack, maker.raw(name, packed_bytes(pack)));
}

Routing make_routing(Maker& maker, int64_t tokens, int64_t top_k, int64_t experts) {
  Routing out{.ids = maker.dense("topk_ids", DType::i32, {tokens, top_k}, Fill::zero),
              .weights = maker.dense("topk_weights", DType::f32, {tokens, top_k}, Fill::probability)};
  auto* ids = static_cast<int32_t*>(out.ids.data);
  std::vector<int32_t> order(static_cast<size_t>(std::max<int64_t>(experts, 0)));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t s = 0; s < top_k; ++s) {
      const auto place = static_cast<size_t>(s);
      if (place >= order.size()) {
        ids[t * top_k + s] = -1;  // more slots than experts
        continue;
      }
      std::swap(order[place], order[place + maker.rng()() % (order.size() - place)]);
      ids[t * top_k + s] = order[place];
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
