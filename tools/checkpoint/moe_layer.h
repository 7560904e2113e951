// One MoE block with its weights in memory, ready for eitri::fused_moe: from a checkpoint or random; bf16, f16 or int8;
// strided or packed.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/memory.h"
#include "checkpoint/moe_model.h"
#include "eitri/eitri.hpp"

namespace eitri::checkpoint {

/// Owns the memory of Views that it gives out.
class Arena {
 public:
  /// Contiguous, zero-filled, huge-page aligned when large.
  View make(DType dtype, std::initializer_list<int64_t> shape);
  std::byte* raw(size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  std::vector<Buffer> buffers_;
  size_t bytes_ = 0;
};

/// Shapes as in FusedMoeArgs; Views that the model lacks are not given.
struct MoeWeights {
  View w1, w2, w1_scale, w2_scale, bias1, bias2;
  View shared_w1, shared_w2, shared_w1_scale, shared_w2_scale;
  View router;  // [experts, hidden], of the layer's dtype, or f32 where a checkpoint's values do not fit that
};

struct MoeLayer {
  MoeModel model;
  DType dtype = DType::bf16;  // of activations
  Arena arena;                // router, biases
  Arena weight_arena;         // w1, w2, the shared experts
  MoeWeights weights;
  View router_bias;      // f32 [experts]
  View correction_bias;  // f32 [experts]
};

/// Router result for `tokens` rows.
struct Routing {
  Arena arena;
  View logits;   // f32 [tokens, experts]
  View weights;  // f32 [tokens, top_k]
  View ids;      // i32 [tokens, top_k]
};

/// Weights N(0, 1/k), biases N(0, 0.1), a router that spreads tokens over the experts: the scale of trained blocks.
MoeLayer random_layer(const MoeModel& model, uint64_t seed);
/// N(0, 1) in `dtype`, the scale of normalised hidden states.
void fill_normal(const View& view, uint64_t seed, float scale = 1);

/// Replaces the weights by int8 codes and scales per output channel, by the rules of base/numeric.h.
void quantize_weights(MoeLayer& layer);
/// Packs w1, w2, the router and the shared experts' weights; scales and biases are passed on.
MoeWeights pack_weights_of(const MoeWeights& weights, GateLayout gate, PackFormat format, int64_t m_hint, Arena& arena);
/// Bytes of w1, w2 and the shared experts.
size_t weight_bytes(const MoeModel& model, DType dtype);

/// The router's a operand: `x`, or a widened copy of it where the router is f32.
View router_input(const MoeWeights& weights, const View& x, Arena& arena);
GemmArgs router_args(const MoeLayer& layer, const MoeWeights& weights, const View& input, const Routing& routing);
TopkGatingArgs gating_args(const MoeLayer& layer, const Routing& routing);
/// Logits by gemm, ids and weights by topk_gating.
void run_router(const MoeLayer& layer, const MoeWeights& weights, const View& x, Routing& routing);
Routing make_routing(const MoeLayer& layer, int64_t tokens);
/// Routing without a router: distinct, uniformly drawn experts and weights that add up to the router's scale.
Routing random_routing(const MoeModel& model, int64_t tokens, uint64_t seed);

FusedMoeArgs moe_args(const MoeModel& model, const MoeWeights& weights, const View& x, const Routing& routing, const View& out);

}  // namespace eitri::checkpoint
