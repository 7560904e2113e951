#include "checkpoint/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "backend/cpu/threads.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/numeric.h"
#include "base/view.h"

namespace eitri::checkpoint {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// The sum of four 16-bit uniforms, centred and scaled to variance 1: near enough to a normal, and one multiplication.
float normal_from(uint64_t bits) {
  const int sum = static_cast<int>(bits & 0xffff) + static_cast<int>((bits >> 16) & 0xffff) + static_cast<int>((bits >> 32) & 0xffff) +
                  static_cast<int>(bits >> 48);
  constexpr float kDeviation = 37837.2f;  // 65536 * sqrt(4 / 12)
  return (static_cast<float>(sum) - 131070.0f) / kDeviation;
}

/// Both matrices of an expert as [rows, k] with all leading dimensions merged.
int64_t row_count(const View& view) { return view.size() / std::max<int64_t>(1, view.shape[view.rank - 1]); }

View quantize_rows(const View& w, View& scale, Arena& arena) {
  const int64_t k = w.shape[w.rank - 1], rows = row_count(w);
  View q, s;
  if (w.rank == 3) {
    q = arena.make(DType::i8, {w.shape[0], w.shape[1], k});
    s = arena.make(DType::f32, {w.shape[0], w.shape[1]});
  } else {
    q = arena.make(DType::i8, {w.shape[0], k});
    s = arena.make(DType::f32, {w.shape[0]});
  }
  const auto* in = static_cast<const uint16_t*>(w.data);
  auto* out = static_cast<int8_t*>(q.data);
  auto* scales = static_cast<float*>(s.data);
  const bool half = w.dtype == DType::f16;
  parallel(max_threads(), [&](int part, int parts) {
    std::vector<float> row(static_cast<size_t>(k));
    const Span span = split(rows, part, parts);
    for (int64_t r = span.begin; r < span.end; ++r) {
      float amax = 0;
      for (int64_t i = 0; i < k; ++i) {
        const float v = half ? decode_f16(in[r * k + i]) : decode_bf16(in[r * k + i]);
        row[static_cast<size_t>(i)] = v;
        amax = std::max(amax, finite_abs(v));
      }
      scales[r] = scale_from_amax(amax, kI8Max);
      const float inverse = inverse_scale(scales[r]);
      for (int64_t i = 0; i < k; ++i) out[r * k + i] = encode_i8(row[static_cast<size_t>(i)] * inverse);
    }
  });
  scale = s;
  return q;
}

}  // namespace

View Arena::make(DType dtype, std::initializer_list<int64_t> shape) {
  View view(nullptr, dtype, shape);
  view.data = raw(static_cast<size_t>(bytes_for(dtype, view.size())));
  return view;
}

std::byte* Arena::raw(size_t bytes) {
  buffers_.emplace_back(bytes == 0 ? 1 : bytes);  // an empty tensor keeps a valid address
  bytes_ += bytes;
  return buffers_.back().data();
}

void fill_normal(const View& view, uint64_t seed, float scale) {
  const int64_t n = view.size();
  parallel(max_threads(), [&](int part, int parts) {
    const Span span = split(n, part, parts, 64);
    auto* p16 = static_cast<uint16_t*>(view.data);
    auto* p32 = static_cast<float*>(view.data);
    const uint64_t start = mix(seed);
    for (int64_t i = span.begin; i < span.end; ++i) {
      const float value = scale * normal_from(mix(start + static_cast<uint64_t>(i)));
      if (view.dtype == DType::bf16) p16[i] = encode_bf16(value);
      else if (view.dtype == DType::f16) p16[i] = encode_f16(value);
      else p32[i] = value;
    }
  });
}

MoeLayer random_layer(const MoeModel& model, uint64_t seed) {
  MoeLayer layer;
  layer.model = model;
  Arena& arena = layer.arena;
  const auto scale = [](int64_t k) { return 1.0f / std::sqrt(static_cast<float>(k)); };
  MoeWeights& w = layer.weights;
  w.w1 = layer.weight_arena.make(layer.dtype, {model.experts, model.w1_rows(), model.hidden});
  w.w2 = layer.weight_arena.make(layer.dtype, {model.experts, model.hidden, model.inter});
  fill_normal(w.w1, seed * 16 + 1, scale(model.hidden));
  fill_normal(w.w2, seed * 16 + 2, scale(model.inter));
  if (model.expert_bias) {
    w.bias1 = arena.make(DType::f32, {model.experts, model.w1_rows()});
    w.bias2 = arena.make(DType::f32, {model.experts, model.hidden});
    fill_normal(w.bias1, seed * 16 + 3, 0.1f);
    fill_normal(w.bias2, seed * 16 + 4, 0.1f);
  }
  if (model.shared_inter > 0) {
    w.shared_w1 = layer.weight_arena.make(layer.dtype, {model.shared_w1_rows(), model.hidden});
    w.shared_w2 = layer.weight_arena.make(layer.dtype, {model.hidden, model.shared_inter});
    fill_normal(w.shared_w1, seed * 16 + 5, scale(model.hidden));
    fill_normal(w.shared_w2, seed * 16 + 6, scale(model.shared_inter));
  }
  layer.weights.router = arena.make(layer.dtype, {model.experts, model.hidden});
  fill_normal(layer.weights.router, seed * 16 + 7, scale(model.hidden));
  if (model.router.logit_bias) {
    layer.router_bias = arena.make(DType::f32, {model.experts});
    fill_normal(layer.router_bias, seed * 16 + 8, 0.1f);
  }
  if (model.router.correction_bias) {
    layer.correction_bias = arena.make(DType::f32, {model.experts});
    fill_normal(layer.correction_bias, seed * 16 + 9, 0.02f);
  }
  return layer;
}

void quantize_weights(MoeLayer& layer) {
  Arena arena;
  MoeWeights& w = layer.weights;
  w.w1 = quantize_rows(w.w1, w.w1_scale, arena);
  w.w2 = quantize_rows(w.w2, w.w2_scale, arena);
  if (w.shared_w1.given()) {
    w.shared_w1 = quantize_rows(w.shared_w1, w.shared_w1_scale, arena);
    w.shared_w2 = quantize_rows(w.shared_w2, w.shared_w2_scale, arena);
  }
  layer.weight_arena = std::move(arena);
}

MoeWeights pack_weights_of(const MoeWeights& weights, GateLayout gate, PackFormat format, int64_t m_hint, Arena& arena) {
  MoeWeights out = weights;
  const auto pack = [&](View& view, GateLayout layout) {
    if (!view.given()) return;
    const PackArgs args{.weights = view, .gate = layout, .format = format, .m_hint = m_hint};
    view = pack_weights(args, arena.raw(packed_bytes(args)));
  };
  pack(out.w1, gate);
  pack(out.w2, GateLayout::none);
  pack(out.shared_w1, gate);
  pack(out.shared_w2, GateLayout::none);
  pack(out.router, GateLayout::none);
  return out;
}

size_t weight_bytes(const MoeModel& m, DType dtype) {
  const int64_t routed = m.experts * (m.w1_rows() * m.hidden + m.hidden * m.inter);
  const int64_t shared = m.shared_w1_rows() * m.hidden + m.hidden * m.shared_inter;
  return static_cast<size_t>(bytes_for(dtype, routed + shared));
}

Routing make_routing(const MoeLayer& layer, int64_t tokens) {
  Routing routing;
  routing.logits = routing.arena.make(DType::f32, {tokens, layer.model.experts});
  routing.weights = routing.arena.make(DType::f32, {tokens, layer.model.top_k});
  routing.ids = routing.arena.make(DType::i32, {tokens, layer.model.top_k});
  return routing;
}

View router_input(const MoeWeights& weights, const View& x, Arena& arena) {
  if (weights.router.dtype == x.dtype) return x;
  const View wide = arena.make(DType::f32, {x.shape[0], x.shape[1]});
  for (int64_t i = 0; i < x.size(); ++i) store_at(wide.data, DType::f32, i, load_at(x.data, x.dtype, i));
  return wide;
}

GemmArgs router_args(const MoeLayer& layer, const MoeWeights& weights, const View& input, const Routing& routing) {
  GemmArgs args;
  args.a = input;
  args.b = weights.router;
  args.c = routing.logits;
  args.bias = layer.router_bias;
  return args;
}

TopkGatingArgs gating_args(const MoeLayer& layer, const Routing& routing) {
  TopkGatingArgs args;
  args.logits = routing.logits;
  args.correction_bias = layer.correction_bias;
  args.weights = routing.weights;
  args.ids = routing.ids;
  const Router& r = layer.model.router;
  args.score = r.score;
  args.renormalize = r.renormalize;
  args.scale = r.scale;
  args.groups = r.groups;
  args.topk_groups = r.topk_groups;
  return args;
}

void run_router(const MoeLayer& layer, const MoeWeights& weights, const View& x, Routing& routing) {
  Arena arena;
  gemm(router_args(layer, weights, router_input(weights, x, arena), routing));
  topk_gating(gating_args(layer, routing));
}

Routing random_routing(const MoeModel& model, int64_t tokens, uint64_t seed) {
  Routing routing;
  routing.weights = routing.arena.make(DType::f32, {tokens, model.top_k});
  routing.ids = routing.arena.make(DType::i32, {tokens, model.top_k});
  std::mt19937_64 rng(mix(seed));
  std::vector<int32_t> order(static_cast<size_t>(model.experts));
  std::iota(order.begin(), order.end(), 0);
  auto* ids = static_cast<int32_t*>(routing.ids.data);
  auto* weights = static_cast<float*>(routing.weights.data);
  for (int64_t t = 0; t < tokens; ++t) {
    float sum = 0;
    for (int64_t s = 0; s < model.top_k; ++s) {
      const auto at = static_cast<size_t>(s + static_cast<int64_t>(rng() % static_cast<uint64_t>(model.experts - s)));
      std::swap(order[static_cast<size_t>(s)], order[at]);
      ids[t * model.top_k + s] = order[static_cast<size_t>(s)];
      weights[t * model.top_k + s] = 0.5f + static_cast<float>(rng() % 1024) / 1024;
      sum += weights[t * model.top_k + s];
    }
    for (int64_t s = 0; s < model.top_k; ++s) weights[t * model.top_k + s] *= model.router.scale / sum;
  }
  return routing;
}

FusedMoeArgs moe_args(const MoeModel& model, const MoeWeights& w, const View& x, const Routing& routing, const View& out) {
  FusedMoeArgs args;
  args.x = x;
  args.w1 = w.w1;
  args.w2 = w.w2;
  args.topk_weights = routing.weights;
  args.topk_ids = routing.ids;
  args.out = out;
  args.w1_scale = w.w1_scale;
  args.w2_scale = w.w2_scale;
  args.bias1 = w.bias1;
  args.bias2 = w.bias2;
  args.shared_w1 = w.shared_w1;
  args.shared_w2 = w.shared_w2;
  args.shared_w1_scale = w.shared_w1_scale;
  args.shared_w2_scale = w.shared_w2_scale;
  args.activation = model.activation;
  args.gate = model.gate;
  args.weight_stage = model.weight_stage;
  return args;
}

}  // namespace eitri::checkpoint
