// Arguments of every operator. A View that is not given (default-constructed) means "absent"; extents may be 0.
// Row-major shapes in brackets. m n k tokens hidden inter experts top_k as in the glossary of ARCHITECTURE.md.
#pragma once

#include "eitri/types.hpp"

namespace eitri {

/// c[.., m, n] = act(sum_k(a[.., m, k] * b[.., n, k]) * a_scale[m] * b_scale[n] + bias[n]).
/// With a gate layout, b has 2*n_out rows and c has n_out columns: c = act(gate, up).
/// dtypes: a, b both f32, bf16 or f16, or both i8 or f8e4m3 (then both scales are required); c f32, bf16 or f16.
/// Weight-only: a f32, bf16 or f16 and b of fewer bits, with b_scale alone. What shares a scale is said by a_quant and b_quant, never
/// guessed; the last block of k, or of rows, may be partial:
///   b f8e4m3  per_tensor, per_token, per_1x128, per_128x128 of f32; per_1x32 of f8e8m0 (mxfp8)
///   b i8, i4  per_tensor, per_token, per_1x32, per_1x128 of f32
///   b f4e2m1  per_1x32 of f8e8m0 (mxfp4); per_1x16 of f8e4m3, times b_global_scale (nvfp4)
///   a i8      b i8 or i4 with one f32 scale for each row of both
///   a f8e4m3  per_tensor or per_token with such a b; per_1x128 of f32 with b per_128x128; per_1x32 of f8e8m0 with b per_1x32
/// Block scales of a packed b are in its buffer: b_scale is then absent. Block scales of weights are finite and at most 2^100;
/// f8e8m0 ones at least 2^-100, except of blocks of zeros.
struct GemmArgs {
  View a = {};        // [m, k] or [batch, m, k]
  View b = {};        // [n, k] or [batch, n, k]; strided or packed by pack_weights
  View c = {};        // [m, n] or [batch, m, n]
  View bias = {};     // f32 or dtype of c, [n] or [batch, n]
  View a_scale = {};  // f32 [m] or [batch, m]; f8e4m3 also [1] or [batch, 1]: one for all rows; per_1xN: [m, ceil(k / N)]
  View b_scale = {};  // f32 [n], [1]; per_1xN: [n, ceil(k / N)]; per_128x128: [ceil(n / 128), ceil(k / 128)]; before these: [batch, ...]
  ActivationParams activation = {};
  GateLayout gate = GateLayout::none;
  View b_global_scale = {};     // f32 [1] or [batch, 1], with b per_1x16
  Quant a_quant = Quant::none;  // none: a_scale of one element is per_tensor, else per_token
  Quant b_quant = Quant::none;  // none: likewise; of a packed b: what it was packed with
};

/// A gemm per expert over rows that `moe_sort` has grouped. For each sorted position p that is no padding, with expert
/// e and a-row r (the token of p when gather == token, else p itself):
/// c[p, n] = act(row_weight[p] * sum_k(a[r, k] * b[e, n, k]) * a_scale[r] * b_scale[e, n] + bias[e, n]).
/// Rows of c at padding positions and beyond num_valid are not written.
/// dtypes, codes and their scales as in GemmArgs; b_scale has a dimension of experts before: [experts, n], [experts, 1], blocks.
enum class Gather : uint8_t { token, position };
struct GroupedGemmArgs {
  View a = {};                  // [rows, k]
  View b = {};                  // [experts, n, k]
  View c = {};                  // [max_padded, n]
  View bias = {};               // f32 [experts, n]
  View a_scale = {};            // f32 [rows]; f8e4m3 also [1], or blocks
  View b_scale = {};            // f32 [experts, n]; of codes also [experts, 1], or blocks
  View row_weight = {};         // f32 [max_padded]
  View sorted_ids = {};         // i32 [max_padded], of moe_sort
  View sorted_expert_ids = {};  // i32 [max_blocks]
  View num_valid = {};          // i32 [2]
  int64_t tokens = 0;           // rows of the token matrix that sorted_ids index; an id >= tokens is padding
  int64_t block = 32;
  Gather gather = Gather::token;
  ActivationParams activation = {};
  GateLayout gate = GateLayout::none;
  View b_global_scale = {};     // f32 [experts], with b per_1x16
  Quant a_quant = Quant::none;  // none: per_token for i8
  Quant b_quant = Quant::none;
};

/// How an f8e8m0 scale becomes a power of two: the next one up (nothing saturates), down (the OCP MX rule), or after the largest magnitude is
/// rounded to the code's width (even).
enum class ScaleRounding : uint8_t;
inline constexpr ScaleRounding kScaleDown{0}, kScaleUp{1}, kScaleEven{2};
/// q = code(x / scale), rounded to nearest even, saturating; scale = the largest finite magnitude / the largest code. `quant` says what
/// shares a scale: per_tensor, per_token (a row), per_1x128, per_1x32 (the last block of a row may be partial). q i8, f8e4m3 or
/// f8e4m3fnuz; with per_1x32 i8, f8e4m3 (mxfp8) or f4e2m1 (mxfp4). See base/numeric.h for the rules.
/// With sorted_ids, rows at padding positions are neither read nor written.
struct QuantizeArgs {
  View x = {};      // f32, bf16, f16 [rows, cols]; with f4e2m1 an even number of columns
  View q = {};      // [rows, cols]
  View scale = {};  // f32 [1], [rows], or of any strides [rows, ceil(cols / N)]; f8e8m0 with per_1x32 of f8e4m3 and f4e2m1
  Quant quant = Quant::per_token;
  View sorted_ids = {};  // i32 [rows], optional
  View num_valid = {};   // i32 [2], with sorted_ids
  int64_t tokens = 0;
  ScaleRounding scale_rounding = kScaleUp;  // of f8e8m0 scales
};

/// out = act(x); with a gate layout x has 2*inter columns. An i8 out is quantised per row into `scale`.
struct ActivationArgs {
  View x = {};      // f32, bf16, f16 [rows, inter] or [rows, 2*inter]
  View out = {};    // f32, bf16, f16 or i8 [rows, inter]
  View scale = {};  // f32 [rows], with an i8 out
  ActivationParams activation = {};
  GateLayout gate = GateLayout::none;
  View sorted_ids = {};  // as in QuantizeArgs
  View num_valid = {};
  int64_t tokens = 0;
};

/// out[t] = s[t] / sqrt(mean(s[t]^2) + eps) * w, with s = x, or with a residual s = x + residual in fp32, rounded to the dtype of
/// residual_out and stored there: what is normed is what is kept. w in fp32; nothing else is rounded before out.
/// With an i8 or f8 out, `quant` says what shares a scale: the row, or 128 columns of it. Rules: base/numeric.h.
/// An output may be the very same tensor as an input of its dtype (in place), and must else be apart from it. A row with a NaN is
/// all NaN; one whose sum of squares overflows fp32 is 0, NaN where x is infinite.
struct RmsNormArgs {
  View x = {};             // f32, bf16, f16 [tokens, hidden]
  View weight = {};        // f32 or dtype of x [hidden], optional (absent: 1)
  View residual = {};      // f32 or dtype of x [tokens, hidden], optional
  View residual_out = {};  // with residual, of its dtype
  View out = {};           // f32, bf16, f16, i8, f8e4m3 or f8e4m3fnuz [tokens, hidden]
  View scale = {};         // f32, with an i8 or f8 out: [tokens], or [tokens, ceil(hidden / 128)] of any strides
  float eps = 1e-6f;
  NormWeight norm_weight = NormWeight::plain;
  Quant quant = Quant::none;  // per_token or per_1x128 with an i8 or f8 out
};

enum class Score : uint8_t { softmax, sigmoid, sqrt_softplus };
enum class Renormalize : uint8_t { no, yes };
/// Router: scores = score(logits); experts are chosen by scores + correction_bias, within the best topk_groups of
/// `groups` groups when groups > 1 (a group's rank is the sum of its two best biased scores, or its best score without
/// bias); weights are the unbiased scores, divided by their sum with Renormalize::yes, times scale. NaN counts as -inf;
/// ties go to the lowest id; ids are distinct; slots are ordered by descending choice score.
struct TopkGatingArgs {
  View logits = {};           // f32, bf16, f16 [tokens, experts]
  View correction_bias = {};  // f32 [experts], optional
  View weights = {};          // f32 [tokens, top_k]
  View ids = {};              // i32 [tokens, top_k]
  Score score = Score::softmax;
  Renormalize renormalize = Renormalize::no;
  float scale = 1;
  int groups = 1;
  int topk_groups = 1;
};

/// Groups (token, slot) pairs by expert; layout bit for bit that of AITER's moe_sorting. max_padded =
/// tokens*top_k + experts*block - top_k, max_blocks = ceil(max_padded / block), experts = global count.
struct MoeSortArgs {
  View topk_ids = {};           // i32 [tokens, top_k]
  View topk_weights = {};       // f32 [tokens, top_k]
  View expert_mask = {};        // i32 [experts] of 0 and 1, optional (expert parallelism)
  View num_local_tokens = {};   // i32 [1], optional: rows from there on are ignored
  View sorted_ids = {};         // out i32 [max_padded]: (slot << 24) | token; padding (top_k << 24) | tokens
  View sorted_weights = {};     // out f32 [max_padded]; 0 at padding
  View sorted_expert_ids = {};  // out i32 [max_blocks]: local expert of each block; -1 beyond the last used block
  View num_valid = {};          // out i32 [2]: positions used, tokens considered
  View reverse = {};            // out i32 [tokens, top_k], optional: sorted position of each pair, -1 when it has none
  int64_t experts = 0;
  int64_t block = 32;
};

/// out[t] = sum_slot(weights[t, slot] * y[reverse[t, slot]]) + shared[t], slots in ascending order; a slot whose
/// reverse is -1 adds nothing. Rows of out from num_local_tokens on become 0.
struct MoeCombineArgs {
  View y = {};                 // f32, bf16, f16 [rows, hidden]
  View reverse = {};           // i32 [tokens, top_k]
  View weights = {};           // f32 [tokens, top_k], optional (absent: 1)
  View shared = {};            // dtype of y [tokens, hidden], optional
  View out = {};               // f32, bf16, f16 [tokens, hidden]
  View num_local_tokens = {};  // i32 [1], optional
};

/// Which stage the routing weight multiplies: the sums of stage 1 before bias and activation (Llama 4), or stage 2.
enum class WeightStage : uint8_t { first, second };
/// A mixture-of-experts feed-forward block:
/// out[t] = sum_slot(w * (act(x[t] w1[e]^T + bias1[e]) w2[e]^T + bias2[e])) (+ shared expert), e = topk_ids[t, slot].
/// dtypes: x bf16 or f16 (or i8 or f8e4m3 with x_scale); w1, w2 of x's dtype, or i8 with scales (activations are then quantised
/// per token, twice; i4 weights likewise with an a_quant of per_token), or with w_quant and no a_quant weight-only: f8e4m3, i8, i4 or
/// f4e2m1, scaled as a b of GemmArgs is, with a dimension of experts before; out bf16, f16 or f32.
/// f8e4m3 activations (as they are, or quantised twice): a_quant per_token with f8e4m3 weights per_tensor or per_token; per_1x128 with
/// per_128x128; per_1x32 (f8e8m0 scales, rounded up) with f8e4m3 or f4e2m1 weights per_1x32. Ids outside [0, experts) and masked
/// experts add nothing; repeated ids add.
struct FusedMoeArgs {
  View x = {};                 // [tokens, hidden]
  View w1 = {};                // [local_experts, 2*inter or inter, hidden], strided or packed
  View w2 = {};                // [local_experts, hidden, inter]
  View topk_weights = {};      // f32 [tokens, top_k]
  View topk_ids = {};          // i32 [tokens, top_k], global ids
  View out = {};               // [tokens, hidden]
  View w1_scale = {};          // f32 [local_experts, 2*inter or inter]
  View w2_scale = {};          // f32 [local_experts, hidden]
  View x_scale = {};           // with an i8 or f8e4m3 x: f32 [tokens]; by blocks [tokens, ceil(hidden / N)]
  View bias1 = {};             // f32 [local_experts, 2*inter or inter]
  View bias2 = {};             // f32 [local_experts, hidden]
  View expert_mask = {};       // i32 [experts]
  View num_local_tokens = {};  // i32 [1]; rows of out from there on become 0
  View shared_w1 = {};         // [2*shared_inter or shared_inter, hidden], weight 1 for every token
  View shared_w2 = {};         // [hidden, shared_inter]
  View shared_w1_scale = {};   // f32
  View shared_w2_scale = {};   // f32
  ActivationParams activation = {.kind = ActivationKind::silu};
  GateLayout gate = GateLayout::separated;
  WeightStage weight_stage = WeightStage::second;
  View w1_global_scale = {};         // f32 [local_experts], with w per_1x16
  View w2_global_scale = {};         // f32 [local_experts]
  View shared_w1_global_scale = {};  // f32 [1]
  View shared_w2_global_scale = {};  // f32 [1]
  Quant a_quant = Quant::none;       // of activations, to the type that meets w; none: per_token with i8 weights and no w_quant
  Quant w_quant = Quant::none;       // what shares a scale of the weights
};

}  // namespace eitri
