"""Mixtures of experts: aiter.fused_moe, aiter.ops.topk, aiter.ops.moe_op, aiter.ops.moe_sorting.

Routers write into topk_weights f32 [m, top_k] and ids i32 [m, top_k]. block sizes, split factors and dispatch policies steer AITER's kernels
and change no result, except that block_size shapes what moe_sorting returns."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.enums import ACTIVATIONS, ActivationType, QuantType
from eitri.compat.aiter.gemm_a4w4 import as_fp8
from eitri.compat.aiter.shuffle import as_e8m0, plain_scale, plain_weight, rows_of_turned, shuffled_scale
from eitri.compat.aiter.sorted_quant import by_position, row_of_position
from eitri.compat.aiter.table import check_dtype, peer, refuse
from eitri.errors import InvalidArgument, Unsupported

OP, TOPK, FUSED = "aiter.ops.moe_op", "aiter.ops.topk", "aiter.fused_moe"


def _route(weights, ids, gating, **options):
    eitri.topk_gating(gating, ids.shape[1], out=(weights, ids), **options)


@peer(OP, "topk_softmax_asm")
def topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm, num_shared_experts=0,
                 shared_expert_scoring_func=""):
    """token_expert_indices i32 [m, top_k] becomes slot * m + token. With shared experts gating_output has their columns at the end, and the
    sigmoid of those goes to the columns of topk_weights [m, top_k + num_shared_experts] after top_k."""
    m, k = topk_indices.shape
    if num_shared_experts:
        refuse("topk_softmax", shared_expert_scoring_func=(shared_expert_scoring_func, "sigmoid"))
        routed = gating_output[:, :-num_shared_experts].contiguous()
        weights = torch.empty(m, k, dtype=torch.float32, device=gating_output.device)
        _route(weights, topk_indices, routed, renormalize=need_renorm)
        topk_weights[:, :k] = weights
        topk_weights[:, k : k + num_shared_experts] = gating_output[:, -num_shared_experts:].float().sigmoid()
    else:
        _route(topk_weights, topk_indices, gating_output, renormalize=need_renorm)
    token_expert_indices.copy_(torch.arange(m * k, dtype=token_expert_indices.dtype, device=token_expert_indices.device).view(k, m).T)


@peer(OP)
def topk_sigmoid(topk_weights, topk_indices, gating_output):
    _route(topk_weights, topk_indices, gating_output, score="sigmoid")


@peer(TOPK)
def grouped_topk(gating_output, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, is_softmax=True, routed_scaling_factor=1.0):
    _route(topk_weights, topk_ids, gating_output, score="softmax" if is_softmax else "sigmoid", renormalize=need_renorm,
           groups=num_expert_group, topk_groups=topk_group, scale=routed_scaling_factor)


@peer(TOPK)
def biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm,
                        routed_scaling_factor=1.0):
    """DeepSeek-V3: sigmoid scores, chosen with the bias, weighted without."""
    _route(topk_weights, topk_ids, gating_output, correction_bias=correction_bias.float(), score="sigmoid", renormalize=need_renorm,
           groups=num_expert_group, topk_groups=topk_group, scale=routed_scaling_factor)


@peer(TOPK)
def biased_grouped_topk_hip(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_grp, need_renorm,
                            routed_scaling_factor=1.0):
    biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_grp, need_renorm, routed_scaling_factor)


@peer(TOPK)
def moe_fused_gate(input, bias, topk_weights, topk_ids, num_expert_group, topk_group, topk, n_share_experts_fusion, routed_scaling_factor=1.0):
    refuse("moe_fused_gate", n_share_experts_fusion=(n_share_experts_fusion, 0), topk=(topk, topk_ids.shape[1]))
    biased_grouped_topk(input, bias, topk_weights, topk_ids, num_expert_group, topk_group, True, routed_scaling_factor)
    return topk_weights, topk_ids


@peer(TOPK, "topk_softplus")
def topk_gating(topk_weights, topk_indices, gating_output, correction_bias=None, need_renorm=True, routed_scaling_factor=1.0,
                score_func="sqrtsoftplus"):
    _route(topk_weights, topk_indices, gating_output, correction_bias=None if correction_bias is None else correction_bias.float(),
           score={"sqrtsoftplus": "sqrt_softplus"}.get(score_func, score_func), renormalize=need_renorm, scale=routed_scaling_factor)


def _new_route(gating, top_k, **options):
    return eitri.topk_gating(gating.float().contiguous(), top_k, **options)


@peer(TOPK)
def biased_grouped_topk_torch(gating_output, correction_bias, topk, renormalize, num_expert_group=0, topk_group=0, return_score=False):
    """(weights f32, ids i32 [m, topk]), with return_score also the sigmoid scores: AITER's reference of biased_grouped_topk."""
    found = _new_route(gating_output, topk, correction_bias=correction_bias.float(), score="sigmoid", renormalize=renormalize,
                       groups=num_expert_group or 1, topk_groups=topk_group or 1)
    return (*found, gating_output.float().sigmoid()) if return_score else found


@peer(TOPK)
def grouped_topk_torch(gating_output, topk, renormalize, num_expert_group=0, topk_group=0, scoring_func="softmax"):
    """(weights f32, ids i32 [m, topk]): AITER's reference of grouped_topk."""
    return _new_route(gating_output, topk, score=scoring_func, renormalize=renormalize, groups=num_expert_group or 1, topk_groups=topk_group or 1)


@peer(FUSED)
def fused_topk(hidden_states, gating_output, topk, renormalize, topk_ids=None, topk_weights=None):
    """(weights, ids) of a softmax router."""
    if hidden_states.shape[0] != gating_output.shape[0]:
        raise InvalidArgument(f"aiter.fused_topk: gating_output is {list(gating_output.shape)}; expected {hidden_states.shape[0]} rows")
    m = gating_output.shape[0]
    if topk_weights is None:
        topk_weights = torch.empty(m, topk, dtype=torch.float32, device=gating_output.device)
    if topk_ids is None:
        topk_ids = torch.empty(m, topk, dtype=torch.int32, device=gating_output.device)
    _route(topk_weights, topk_ids, gating_output, renormalize=renormalize)
    return topk_weights, topk_ids


@peer("aiter.ops.moe_sorting", "moe_sorting_opus_fwd")
def moe_sorting_fwd(topk_ids, topk_weights, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, moe_buf, num_experts,
                    unit_size, local_expert_mask=None, num_local_tokens=None, dispatch_policy=0):
    """Writes the five outputs; moe_buf becomes 0."""
    reverse = torch.empty_like(topk_ids)
    eitri.moe_sort(topk_ids, topk_weights, num_experts, block=unit_size, expert_mask=local_expert_mask, num_local_tokens=num_local_tokens,
                   out=(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, reverse))
    moe_buf.zero_()


@peer(FUSED)
def moe_sorting(topk_ids, topk_weights, num_experts, model_dim, moebuf_dtype, block_size=32, expert_mask=None, num_local_tokens=None,
                dispatch_policy=0, return_local_topk_ids=False, accumulate=True, flat=False, output_aux=False):
    """(sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, moe_buf of zeros [m, model_dim], [0, 0] with accumulate=False)."""
    refuse("moe_sorting", return_local_topk_ids=(return_local_topk_ids, False), flat=(flat, False), output_aux=(output_aux, False))
    s = eitri.moe_sort(topk_ids, topk_weights, num_experts, block=block_size, expert_mask=expert_mask, num_local_tokens=num_local_tokens)
    shape = (topk_ids.shape[0], model_dim) if accumulate or expert_mask is not None else (0, 0)
    moe_buf = torch.zeros(shape, dtype=moebuf_dtype, device=topk_ids.device)
    return s.sorted_ids, s.sorted_weights, s.sorted_expert_ids, s.num_valid, moe_buf


def _pairs(sorted_ids, num_valid, tokens, top_k):
    """(the pair token * top_k + slot of each position, tokens * top_k at padding; the position of each pair [pairs, 1], -1 for none)."""
    positions = torch.arange(sorted_ids.shape[0], dtype=torch.int32, device=sorted_ids.device)
    token, slot = sorted_ids & 0xFFFFFF, sorted_ids >> 24
    real = (token < tokens) & (positions < num_valid[0])
    pair = torch.where(real, token * top_k + slot, tokens * top_k).long()
    position = torch.full((tokens * top_k + 1,), -1, dtype=torch.int32, device=sorted_ids.device).scatter_(0, pair, positions)
    return pair, position[:-1].view(-1, 1)


# QuantType -> (what shares a scale of activations, of weights).
QUANTS = {
    QuantType.per_Tensor: ("per_tensor", "per_tensor"),
    QuantType.per_Token: ("per_token", "per_token"),
    QuantType.per_1x32: ("per_1x32", "per_1x32"),
    QuantType.per_1x128: ("per_1x128", "per_128x128"),
    QuantType.per_128x128: ("per_1x128", "per_128x128"),
}


def _is_fp4(tensor):
    return tensor.dtype in (dtypes.fp4x2, torch.uint8)


def _weight(weight):
    """Plain rows; bytes of fp4x2 as eitri reads them."""
    plain = plain_weight(weight) if getattr(weight, "is_shuffled", False) else weight
    return eitri.typed(plain.view(torch.uint8), "f4e2m1") if _is_fp4(weight) else plain


def _weight_scale(scale, weight, quant):
    """[experts, ..] as eitri wants scales of a weight [experts, n, k]. AITER has those of fp4 weights always shuffled: one without a mark is taken
    so where its shape can be."""
    if scale is None:
        return None
    experts, n, k = weight.shape
    k *= 2 if _is_fp4(weight) else 1
    if quant == "per_1x32":
        if _is_fp4(weight):
            lanes = getattr(weight, "lanes", None)
            plain = shuffled_scale(scale, experts * n, k // 32, None if lanes is None else (experts, lanes[2]))
        else:
            plain = plain_scale(scale, experts * n, k // 32)
        return as_e8m0(plain.view(experts, n, k // 32))
    if quant == "per_128x128":
        return scale.reshape(experts, -(-n // 128), -(-k // 128))
    return scale.reshape(experts, 1) if quant == "per_tensor" else scale.reshape(experts, n)


def _activation_scale(scale, rows):
    """Scales of blocks of [rows, k], shuffled or not, as [rows, blocks]."""
    if getattr(scale, "is_shuffled", False):
        return plain_scale(scale, *(getattr(scale, "plain_shape", None) or (rows, scale.shape[-1])))
    return scale.reshape(rows, -1)


class _Quants:
    """What a call's QuantType means for weights of this dtype: arguments of eitri's grouped_gemm."""

    def __init__(self, function, quant_type, weight):
        quant_type = QuantType(quant_type)
        self.a = self.w = "none"
        if quant_type is QuantType.No:
            return
        if quant_type not in QUANTS:
            raise Unsupported(f"aiter.{function}: quant_type is {quant_type.name}; eitri has No, {', '.join(q.name for q in QUANTS)}")
        if weight.dtype == torch.int8:
            if quant_type is not QuantType.per_Token:
                raise Unsupported(f"aiter.{function}: quant_type is {quant_type.name} with i8 weights; eitri has per_Token")
            self.w = "per_token"
            return
        check_dtype(function, "w1", weight.dtype, (torch.int8, dtypes.fp8, dtypes.fp4x2, torch.uint8))
        if _is_fp4(weight) and quant_type is not QuantType.per_1x32:
            raise Unsupported(f"aiter.{function}: quant_type is {quant_type.name} with fp4 weights; eitri has per_1x32")
        self.a, self.w = QUANTS[quant_type]

    def a_scale(self, scale, rows):
        """Of activations [rows, k]."""
        if scale is None:
            return None
        if self.a in ("none", "per_tensor", "per_token"):
            return scale.reshape(-1)
        return _activation_scale(scale, rows)


def _activations(rows):
    """fp4 pairs as fp8, which has their values."""
    return as_fp8(rows) if rows.dtype == dtypes.fp4x2 else rows


def _gathered(x, index):
    """Rows of a tensor whose dtype torch may not know how to index."""
    return x.view(torch.uint8)[index].view(x.dtype) if x.element_size() == 1 else x[index]


def _stage1(quants, hidden_states, w1, lists, out, topk, w1_scale, a1_scale, block_m, sorted_weights, activation, bias=None):
    ids, experts, valid = lists
    tokens, x, gather = hidden_states.shape[0], _activations(hidden_states), "token"
    plain = out.shape[-1] == w1.shape[1] and activation is None  # sums, gate and up rows side by side
    gated = not plain and w1.shape[1] == 2 * out.shape[-1]
    if getattr(a1_scale, "is_sorted", False):
        scale, gather = by_position(a1_scale), "position"
        x = _gathered(x, row_of_position(ids, valid, tokens, tokens)[1])
    else:
        scale = quants.a_scale(a1_scale, tokens)
    h = torch.empty(ids.shape[0], out.shape[-1], dtype=out.dtype, device=out.device)
    eitri.grouped_gemm(x, _weight(w1), ids, experts, valid, tokens=tokens, block=block_m, gather=gather, bias=bias, a_scale=as_e8m0(scale),
                       b_scale=_weight_scale(w1_scale, w1, quants.w), a_quant=quants.a, b_quant="none" if w1.dtype == torch.int8 else quants.w,
                       row_weight=sorted_weights, activation="none" if plain else ACTIVATIONS[activation],
                       limit=7.0 if activation is ActivationType.Swiglu else 0.0, gate="separated" if gated else "none", out=h)
    position = _pairs(ids, valid, tokens, topk)[1]
    eitri.moe_combine(h, position, out=out.view(-1, out.shape[-1]))
    return out


def _stage2(quants, inter_states, w2, lists, out, topk, w2_scale, a2_scale, block_m, sorted_weights, bias=None):
    ids, experts, valid = lists
    tokens = out.shape[0]
    if tokens == 0:
        return out
    pair, position = _pairs(ids, valid, tokens, topk)
    pair = pair.clamp(max=max(tokens * topk - 1, 0))  # at padding any row: its product is not written
    y = torch.empty(ids.shape[0], out.shape[-1], dtype=out.dtype, device=out.device)
    if getattr(a2_scale, "is_sorted", False):
        scale = by_position(a2_scale)
    else:
        scale = quants.a_scale(a2_scale, tokens * topk)
        if scale is not None and quants.a != "per_tensor":
            scale = _gathered(scale, pair)
    rows = _activations(_gathered(inter_states.reshape(-1, inter_states.shape[-1]), pair))
    weights = None
    if bias is not None and sorted_weights is not None:  # a routing weight multiplies the bias too
        last = torch.cat([sorted_weights, sorted_weights.new_zeros(1)])
        weights, sorted_weights = last[position.view(tokens, topk).long()], None
    eitri.grouped_gemm(rows, _weight(w2), ids, experts, valid, tokens=tokens, block=block_m, gather="position", bias=bias, a_scale=as_e8m0(scale),
                       b_scale=_weight_scale(w2_scale, w2, quants.w), a_quant=quants.a, b_quant="none" if w2.dtype == torch.int8 else quants.w,
                       row_weight=sorted_weights, out=y)
    eitri.moe_combine(y, position.view(tokens, topk), weights, out=out)
    return out


@peer(OP)
def ck_moe_stage1_fwd(hidden_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, kernelName="", w1_scale=None,
                      a1_scale=None, block_m=32, sorted_weights=None, quant_type=QuantType.No, activation=ActivationType.Silu, splitk=0,
                      use_non_temporal_load=False, dst_type=None):
    """out [m, top_k, inter] = act(hidden_states w1[expert]^T) for each pair; 0 where a pair has no expert here. a1_scale of 1x32 blocks by row,
    or by position (fused_dynamic_mx_quant_moe_sort). Returns out."""
    quants = _Quants("ck_moe_stage1_fwd", quant_type, w1)
    return _stage1(quants, hidden_states, w1, (sorted_token_ids, sorted_expert_ids, num_valid_ids), out, topk, w1_scale, a1_scale, block_m,
                   sorted_weights, ActivationType(activation))


@peer(OP)
def ck_moe_stage2_fwd(inter_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, kernelName="", w2_scale=None,
                      a2_scale=None, block_m=32, sorted_weights=None, quant_type=QuantType.No, activation=ActivationType.Silu,
                      use_non_temporal_load=False):
    """out [m, dim] = sum over slots of weight * (inter_states [m, top_k, inter] w2[expert]^T); it is overwritten. Returns out."""
    quants = _Quants("ck_moe_stage2_fwd", quant_type, w2)
    return _stage2(quants, inter_states, w2, (sorted_token_ids, sorted_expert_ids, num_valid_ids), out, topk, w2_scale, a2_scale, block_m,
                   sorted_weights)


def _cktile_quants(name, x, weight):
    """fp4 weights, with 16-bit activations as they are or fp8 ones by 1x32 blocks."""
    quants = _Quants(name, QuantType.per_1x32, weight)
    if x.dtype not in (dtypes.fp8, dtypes.fp4x2):
        quants.a = "none"
    return quants


@peer(OP, "moe_cktile2stages_gemm1_ck")
def moe_cktile2stages_gemm1(XQ, WQ, Y, sorted_ids, sorted_expert_ids, max_token_ids, topk, n_padded_zeros=0, k_padded_zeros=0, topk_weight=None,
                            x_scale=None, w_scale=None, exp_bias=None, activation=0, block_m=32, split_k=1, kernel_name=""):
    """XQ: bf16 or fp16 [m, dim], or fp8 with x_scale E8M0; WQ: fp4x2 [e, 2 * inter, dim / 2] (gate rows, then up rows, shuffled or not) with w_scale
    E8M0 [e, 2 * inter, dim / 32]; exp_bias f32 [e, 2 * inter]. Y [m, top_k, inter], or with split_k > 1 the sums [m, top_k, 2 * inter]. CPUs."""
    activation = None if split_k is not None and split_k > 1 else ActivationType(activation)
    return _stage1(_cktile_quants("moe_cktile2stages_gemm1", XQ, WQ), XQ, WQ, (sorted_ids, sorted_expert_ids, max_token_ids), Y, topk, w_scale,
                   x_scale, block_m, topk_weight, activation, exp_bias)


@peer(OP, "moe_cktile2stages_gemm2_ck")
def moe_cktile2stages_gemm2(XQ, WQ, Y, sorted_ids, sorted_expert_ids, max_token_ids, topk, n_padded_zeros=0, k_padded_zeros=0, topk_weight=None,
                            x_scale=None, w_scale=None, exp_bias=None, activation=0, block_m=32, split_k=1, kernel_name=""):
    """XQ [m, top_k, inter], WQ fp4x2 [e, dim, inter / 2], exp_bias f32 [e, dim]: Y [m, dim] = sum over slots of weight * (XQ WQ^T + bias). CPUs."""
    return _stage2(_cktile_quants("moe_cktile2stages_gemm2", XQ, WQ), XQ, WQ, (sorted_ids, sorted_expert_ids, max_token_ids), Y, topk, w_scale,
                   x_scale, block_m, topk_weight, exp_bias)


@peer(OP)
def moe_stage1_g1u1(input, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, inter_dim, kernelName="", block_m=32, ksplit=0,
                    activation=ActivationType.Silu, quant_type=QuantType.No, a1_scale=None, w1_scale=None, sorted_weights=None):
    """ck_moe_stage1_fwd with a gate; out [m, top_k, inter_dim] of bf16, fp16 or f32 (AITER's fp8 with rows of scales after it is refused). With
    per_1x128 and per_128x128 the memory of a1_scale is that of its transpose, f32 [dim / 128, m]: per_group_quant_hip(transpose_scale=True)."""
    if out.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise Unsupported(f"aiter.moe_stage1_g1u1: out is {out.dtype}; eitri has bf16, fp16 and f32: quantise them after it")
    if QuantType(quant_type) in (QuantType.per_1x128, QuantType.per_128x128) and a1_scale is not None:
        a1_scale = rows_of_turned(a1_scale, input.shape[0], -(-input.shape[1] // 128))
    ck_moe_stage1_fwd(input, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, out.shape[1], w1_scale=w1_scale,
                      a1_scale=a1_scale, block_m=block_m, sorted_weights=sorted_weights, quant_type=quant_type, activation=activation)


@peer(OP)
def moe_align_block_size(topk_ids, num_experts, block_size, sorted_token_ids, experts_ids, token_nums, num_tokens_post_pad):
    """vLLM's layout: pairs token * top_k + slot by expert, padded with their number; token_nums i32 [experts]: pairs of each expert."""
    pairs = topk_ids.numel()
    weights = torch.ones(topk_ids.shape, dtype=torch.float32, device=topk_ids.device)
    s = eitri.moe_sort(topk_ids.to(torch.int32).contiguous(), weights, num_experts, block=block_size)
    pair = _pairs(s.sorted_ids, s.num_valid, topk_ids.shape[0], topk_ids.shape[1])[0]
    sorted_token_ids.fill_(pairs)
    n = min(pair.shape[0], sorted_token_ids.shape[0])
    sorted_token_ids[:n] = pair[:n].to(sorted_token_ids.dtype)
    blocks = min(s.sorted_expert_ids.shape[0], experts_ids.shape[0])
    experts_ids[:blocks] = s.sorted_expert_ids[:blocks].to(experts_ids.dtype)
    known = topk_ids.reshape(-1).long()
    known = known[(known >= 0) & (known < num_experts)]
    token_nums.copy_(torch.bincount(known, minlength=num_experts).to(token_nums.dtype))
    num_tokens_post_pad.copy_(s.num_valid[:1].to(num_tokens_post_pad.dtype))


@peer(OP)
def moe_sum(input, output):
    """output [m, d] = sum over slots of input [m, top_k, d]."""
    m, k, d = input.shape
    rows = torch.arange(m * k, dtype=torch.int32, device=input.device).view(m, k)
    eitri.moe_combine(input.reshape(m * k, d), rows, out=output)


@peer(FUSED)
def fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None, activation=ActivationType.Silu, quant_type=QuantType.No,
              doweight_stage1=False, w1_scale=None, w2_scale=None, a1_scale=None, a2_scale=None, block_size_M=None, num_local_tokens=None,
              moe_sorting_dispatch_policy=0, dtype=None, hidden_pad=0, intermediate_pad=0, bias1=None, bias2=None, splitk=0,
              swiglu_limit=None, beta=None, linear_beta=None, gate_mode="separated", shared_w1=None, shared_w2=None, shared_w1_scale=None,
              shared_w2_scale=None, shared_expert_id=-1, stage2_scatter=None, output=None):
    """QuantType.No: weights of hidden_states' dtype. per_Token: i8 or fp8 weights with w1_scale [e, rows(, 1)], w2_scale [e, dim(, 1)];
    per_Tensor: fp8, [e(, 1)]; per_1x128 and per_128x128: fp8, [e, rows / 128, k / 128]; per_1x32: fp8 or fp4x2, E8M0 [e, rows, k / 32], shuffled
    or not. Scales of fp4 weights without a mark are shuffled, as AITER has them, where e * rows is a multiple of 256 and k / 32 of 8;
    `scale.is_shuffled = False` says that they are plain. hidden_pad and intermediate_pad: columns of zeros, which change nothing. Activations are
    quantised alike, except that per_Tensor's are by token, and that fp4 weights meet bf16 or fp16 as they are; or hidden_states are codes with
    a1_scale. w1 and w2 may be shuffled (shuffle_weight marks them; what gate_up put into turns counts as separated). output: where the result goes, [m, dim] of dtype. i8 and No on GPUs too."""
    activation, quants = ActivationType(activation), _Quants("fused_moe", quant_type, w1)
    refuse("fused_moe", a2_scale=(a2_scale, None), shared_w1=(shared_w1, None), shared_w2=(shared_w2, None), shared_w1_scale=(shared_w1_scale, None),
           shared_w2_scale=(shared_w2_scale, None), shared_expert_id=(shared_expert_id, -1), stage2_scatter=(stage2_scatter, None))
    gate_mode = "separated" if gate_mode is None else gate_mode
    hidden_states = _activations(hidden_states)
    coded = hidden_states.dtype in (torch.int8, dtypes.fp8)
    if not coded:
        refuse("fused_moe", a1_scale=(a1_scale, None))
    gated = w1.shape[1] == 2 * w2.shape[2] * (2 if _is_fp4(w2) else 1)
    if gate_mode not in ("separated", "interleave"):
        raise InvalidArgument(f"aiter.fused_moe: gate_mode is {gate_mode!r}; expected 'separated' or 'interleave'")
    in_turns = gate_mode == "interleave" and not getattr(w1, "is_guinterleave", False)  # of the rows before shuffle_weight
    gate = "none" if not gated else "interleaved" if in_turns else "separated"
    dtype = dtype or (torch.bfloat16 if coded else hidden_states.dtype)
    check_dtype("fused_moe", "dtype", dtype, (torch.float16, torch.bfloat16))
    limit = swiglu_limit or (7.0 if activation is ActivationType.Swiglu else 0.0)
    out = torch.empty(hidden_states.shape[0], w2.shape[1], dtype=dtype, device=hidden_states.device) if output is None else output
    if out.dtype != dtype:
        raise InvalidArgument(f"aiter.fused_moe: output is {out.dtype}; expected {dtype} (dtype)")
    a_quant, w_quant = quants.a, quants.w
    if w1.dtype == torch.int8:
        a_quant = w_quant = "none"  # the only way of i8, on GPUs too
    elif a_quant == "per_tensor":
        a_quant = "per_token"
        if coded:
            if a1_scale is None:
                raise InvalidArgument(f"aiter.fused_moe: a1_scale is None; expected the scale of hidden_states ({hidden_states.dtype})")
            a1_scale = a1_scale.reshape(-1).expand(hidden_states.shape[0]).contiguous()
    elif _is_fp4(w1) and not coded:
        a_quant = "none"
    if a1_scale is not None:
        if a_quant in ("none", "per_token"):
            a1_scale = a1_scale.reshape(-1)
        else:
            a1_scale = _activation_scale(a1_scale, hidden_states.shape[0])
    return eitri.fused_moe(hidden_states, _weight(w1), _weight(w2), topk_weight, topk_ids, w1_scale=_weight_scale(w1_scale, w1, quants.w),
                           w2_scale=_weight_scale(w2_scale, w2, quants.w), x_scale=as_e8m0(a1_scale), bias1=bias1, bias2=bias2,
                           expert_mask=expert_mask, num_local_tokens=num_local_tokens, activation=ACTIVATIONS[activation], limit=limit,
                           beta=4.0 if beta is None else beta, linear_beta=25.0 if linear_beta is None else linear_beta, gate=gate, weight_stage="first" if doweight_stage1 else "second",
                           a_quant=a_quant, w_quant=w_quant, out=out)
