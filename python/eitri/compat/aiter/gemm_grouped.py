"""Products of groups of rows: aiter.ops.deepgemm, and gmm of aiter.ops.triton.gmm."""

import math

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.moe import _pairs
from eitri.compat.aiter.shuffle import plain_weight
from eitri.compat.aiter.table import check_dtype, local_peer, peer

DEEP = "aiter.ops.deepgemm"


@peer(DEEP, "deepgemm_ck")
def deepgemm(XQ, WQ, Y, group_layout, x_scale=None, w_scale=None):
    """Y[g, i] = XQ[g, i] WQ[g]^T for the first group_layout[g] (i32 [g], on the device) rows of each group; other rows of Y stay as they are.

    XQ: [g, m, k] of bf16 or fp16, or fp8 or i8 with x_scale f32 [g, m(, 1)] and w_scale f32 [g, n(, 1)]; WQ: [g, n, k] by shuffle_weight, or
    plain without its mark (AITER reads every WQ as shuffled: give views `is_shuffled = True`). fp8 on CPUs."""
    groups, m, k = XQ.shape
    weight = plain_weight(WQ) if getattr(WQ, "is_shuffled", False) else WQ
    tokens, block = groups * m, math.gcd(m, 32) or 1
    position = torch.arange(tokens, dtype=torch.int32, device=XQ.device)
    real = position % max(m, 1) < group_layout.to(torch.int32).repeat_interleave(m, output_size=tokens)
    ids = torch.where(real, position, (1 << 24) | tokens)
    experts = torch.arange(groups, dtype=torch.int32, device=XQ.device).repeat_interleave(m // block, output_size=groups * (m // block))
    valid = torch.full((2,), tokens, dtype=torch.int32, device=XQ.device)
    scales = {}
    if x_scale is not None:
        check_dtype("deepgemm", "XQ", XQ.dtype, (dtypes.fp8, torch.int8))
        quant = "per_token" if XQ.dtype == dtypes.fp8 else "none"
        scales = {"a_scale": x_scale.reshape(-1), "b_scale": w_scale.reshape(groups, -1), "a_quant": quant, "b_quant": quant}
    eitri.grouped_gemm(XQ.reshape(tokens, k), weight, ids, experts, valid, tokens=tokens, block=block, gather="position",
                       out=Y.view(tokens, Y.shape[-1]), **scales)
    return Y


@local_peer("aiter.ops.triton.gmm", "aiter.ops.triton.gemm.gmm")
def gmm(lhs, rhs, group_sizes, preferred_element_type=torch.bfloat16, existing_out=None, config=None, bias=None):
    """out [m, n]: rows of lhs [m, k], in consecutive groups of group_sizes (i32 [g], on the device), times rhs [g, k, n] of their group;
    bias [g, n]. Rows beyond the last group become 0."""
    m, groups = lhs.shape[0], rhs.shape[0]
    ends = group_sizes.long().cumsum(0)
    group = torch.searchsorted(ends, torch.arange(m, device=lhs.device), right=True).to(torch.int32).view(m, 1)  # `groups` beyond the last
    s = eitri.moe_sort(group, torch.ones(m, 1, dtype=torch.float32, device=lhs.device), groups)
    weight = rhs.transpose(1, 2).contiguous()
    dtype = preferred_element_type if existing_out is None else existing_out.dtype
    y = torch.empty(s.sorted_ids.shape[0], rhs.shape[2], dtype=dtype, device=lhs.device)
    eitri.grouped_gemm(lhs, weight, s.sorted_ids, s.sorted_expert_ids, s.num_valid, tokens=m, bias=None if bias is None else bias.float(), out=y)
    out = torch.empty(m, rhs.shape[2], dtype=dtype, device=lhs.device) if existing_out is None else existing_out
    return eitri.moe_combine(y, s.reverse, out=out)
