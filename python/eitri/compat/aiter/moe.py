"""Mixtures of experts: aiter.fused_moe, aiter.ops.topk, aiter.ops.moe_op, aiter.ops.moe_sorting.

Routers write into topk_weights f32 [m, top_k] and ids i32 [m, top_k]. block sizes, split factors and dispatch policies steer AITER's kernels
and change no result, except that block_size shapes what moe_sorting returns."""

import torch

import eitri
from eitri.compat.aiter.enums import ACTIVATIONS, ActivationType, QuantType
from eitri.compat.aiter.shuffle import plain_weight
from eitri.compat.aiter.table import check_dtype, peer, refuse
from eitri.errors import InvalidArgument, Unsupported

OP, TOPK, FUSED = "aiter.ops.moe_op", "aiter.ops.topk", "aiter.fused_moe"


def _route(weights, ids, gating, **options):
    eitri.topk_gating(gating, ids.shape[1], out=(weights, ids), **options)


@peer(OP, "topk_softmax_asm")
def topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm, num_shared_experts=0,
                 shared_expert_scoring_func=""):
    """token_expert_indices i32 [m, top_k] becomes slot * m + token."""
    refuse("topk_softmax", num_shared_experts=(num_shared_experts, 0), shared_expert_scoring_func=(shared_expert_scoring_func, ""))
    _route(topk_weights, topk_indices, gating_output, renormalize=need_renorm)
    m, k = topk_indices.shape
    token_expert_indices.copy_(torch.arange(m * k, dtype=token_expert_indices.dtype, device=token_expert_indices.device).view(k, m).T)


@peer(OP)
def topk_sigmoid(topk_weights, topk_indices, gating_output):
    _route(topk_weights, topk_indices, gating_output, score="sigmoid")


@peer(TOPK)
def grouped_topk(gating_output, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, is_softmax=True, routed_scaling_factor=1.0):
    _route(topk_weights, topk_ids, gating_output, score="softmax" if is_softmax else "sigmoid", renormalize=need_renorm,
           groups=num_expert_group, topk_groups=topk_group, scale=routed_scaling_factor)


@peer(TOPK, "biased_grouped_topk_hip")
def biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm,
                        routed_scaling_factor=1.0):
    """DeepSeek-V3: sigmoid scores, chosen with the bias, weighted without."""
    _route(topk_weights, topk_ids, gating_output, correction_bias=correction_bias.float(), score="sigmoid", renormalize=need_renorm,
           groups=num_expert_group, topk_groups=topk_group, scale=routed_scaling_factor)


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
                dispatch_policy=0):
    """(sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, moe_buf of zeros [m, model_dim])."""
    s = eitri.moe_sort(topk_ids, topk_weights, num_experts, block=block_size, expert_mask=expert_mask, num_local_tokens=num_local_tokens)
    moe_buf = torch.zeros(topk_ids.shape[0], model_dim, dtype=moebuf_dtype, device=topk_ids.device)
    return s.sorted_ids, s.sorted_weights, s.sorted_expert_ids, s.num_valid, moe_buf


def _pairs(sorted_ids, num_valid, tokens, top_k):
    """(the pair token * top_k + slot of each position, tokens * top_k at padding; the position of each pair [pairs, 1], -1 for none)."""
    positions = torch.arange(sorted_ids.shape[0], dtype=torch.int32, device=sorted_ids.device)
    token, slot = sorted_ids & 0xFFFFFF, sorted_ids >> 24
    real = (token < tokens) & (positions < num_valid[0])
    pair = torch.where(real, token * top_k + slot, tokens * top_k).long()
    position = torch.full((tokens * top_k + 1,), -1, dtype=torch.int32, device=sorted_ids.device).scatter_(0, pair, positions)
    return pair, position[:-1].view(-1, 1)


def _stage_weight(weight, scale, quant_type, name):
    if quant_type not in (QuantType.No, QuantType.per_Token):
        raise Unsupported(f"aiter.{name}: quant_type is {quant_type}; eitri has No and per_Token (i8) so far")
    weight = plain_weight(weight) if getattr(weight, "is_shuffled", False) else weight
    return weight, None if scale is None else scale.view(weight.shape[0], -1)


@peer(OP)
def ck_moe_stage1_fwd(hidden_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, kernelName="", w1_scale=None,
                      a1_scale=None, block_m=32, sorted_weights=None, quant_type=QuantType.No, activation=ActivationType.Silu, splitk=0,
                      use_non_temporal_load=False, dst_type=None):
    """out [m, top_k, inter] = act(hidden_states w1[expert]^T) for each pair; 0 where a pair has no expert here. Returns out."""
    w1, scale = _stage_weight(w1, w1_scale, QuantType(quant_type), "ck_moe_stage1_fwd")
    activation, tokens = ActivationType(activation), hidden_states.shape[0]
    gated = w1.shape[1] == 2 * out.shape[-1]
    h = torch.empty(sorted_token_ids.shape[0], out.shape[-1], dtype=out.dtype, device=out.device)
    eitri.grouped_gemm(hidden_states, w1, sorted_token_ids, sorted_expert_ids, num_valid_ids, tokens=tokens, block=block_m,
                       a_scale=None if a1_scale is None else a1_scale.view(-1), b_scale=scale, row_weight=sorted_weights,
                       activation=ACTIVATIONS[activation], limit=7.0 if activation is ActivationType.Swiglu else 0.0,
                       gate="separated" if gated else "none", out=h)
    position = _pairs(sorted_token_ids, num_valid_ids, tokens, topk)[1]
    eitri.moe_combine(h, position, out=out.view(-1, out.shape[-1]))
    return out


@peer(OP)
def ck_moe_stage2_fwd(inter_states, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, kernelName="", w2_scale=None,
                      a2_scale=None, block_m=32, sorted_weights=None, quant_type=QuantType.No, activation=ActivationType.Silu,
                      use_non_temporal_load=False):
    """out [m, dim] = sum over slots of weight * (inter_states [m, top_k, inter] w2[expert]^T); it is overwritten. Returns out."""
    w2, scale = _stage_weight(w2, w2_scale, QuantType(quant_type), "ck_moe_stage2_fwd")
    tokens, inter = out.shape[0], inter_states.shape[-1]
    pair, position = _pairs(sorted_token_ids, num_valid_ids, tokens, topk)
    pair = pair.clamp(max=max(tokens * topk - 1, 0))  # at padding any row: its product is not written
    y = torch.empty(sorted_token_ids.shape[0], out.shape[-1], dtype=out.dtype, device=out.device)
    eitri.grouped_gemm(inter_states.reshape(-1, inter)[pair], w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, tokens=tokens,
                       block=block_m, gather="position", a_scale=None if a2_scale is None else a2_scale.reshape(-1)[pair], b_scale=scale,
                       row_weight=sorted_weights, out=y)
    eitri.moe_combine(y, position.view(tokens, topk), out=out)
    return out


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
              swiglu_limit=0.0, beta=4.0, linear_beta=25.0, gate_mode="separated"):
    """QuantType.No: weights of hidden_states' dtype. per_Token: i8 weights with w1_scale [e, rows(, 1)] and w2_scale [e, dim(, 1)];
    hidden_states bf16 or fp16, or i8 with a1_scale [m, 1]. w1 and w2 may be shuffled (shuffle_weight marks them)."""
    activation, quant_type = ActivationType(activation), QuantType(quant_type)
    if quant_type not in (QuantType.No, QuantType.per_Token):
        raise Unsupported(f"aiter.fused_moe: quant_type is {quant_type}; eitri has No and per_Token (i8) so far")
    if quant_type is QuantType.per_Token:
        check_dtype("fused_moe", "w1", w1.dtype, (torch.int8,))
    refuse("fused_moe", a2_scale=(a2_scale, None), hidden_pad=(hidden_pad, 0), intermediate_pad=(intermediate_pad, 0))
    if getattr(w1, "is_shuffled", False):
        w1 = plain_weight(w1)
    if getattr(w2, "is_shuffled", False):
        w2 = plain_weight(w2)
    if hidden_states.dtype != torch.int8:
        refuse("fused_moe", a1_scale=(a1_scale, None))
    gated = w1.shape[1] == 2 * w2.shape[2]
    if gate_mode not in ("separated", "interleave"):
        raise InvalidArgument(f"aiter.fused_moe: gate_mode is {gate_mode!r}; expected 'separated' or 'interleave'")
    gate = "none" if not gated else "interleaved" if gate_mode == "interleave" else "separated"
    dtype = dtype or (torch.bfloat16 if hidden_states.dtype == torch.int8 else hidden_states.dtype)
    check_dtype("fused_moe", "dtype", dtype, (torch.float16, torch.bfloat16))
    limit = swiglu_limit or (7.0 if activation is ActivationType.Swiglu else 0.0)
    out = torch.empty(hidden_states.shape[0], w2.shape[1], dtype=dtype, device=hidden_states.device)

    def scale_of(scale, weight):
        return None if scale is None else scale.view(weight.shape[0], -1)

    return eitri.fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, w1_scale=scale_of(w1_scale, w1), w2_scale=scale_of(w2_scale, w2),
                           x_scale=None if a1_scale is None else a1_scale.view(-1), bias1=bias1, bias2=bias2, expert_mask=expert_mask,
                           num_local_tokens=num_local_tokens, activation=ACTIVATIONS[activation], limit=limit, beta=beta,
                           linear_beta=linear_beta, gate=gate, weight_stage="first" if doweight_stage1 else "second", out=out)
