"""Quantisation in the order of sorted positions: the part of aiter.ops.quant that goes with moe_sorting.

sorted_ids and num_valid_ids are those of moe_sorting. Inputs have a row for each token (stage 1), or for each pair token * top_k + slot
(stage 2)."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.quant import MODULE, per_1x32_mx_quant_hip, smooth_per_token_scaled_quant
from eitri.compat.aiter.shuffle import mark_scale, plain_scale
from eitri.compat.aiter.table import check_dtype, local_peer, peer, refuse
from eitri.errors import InvalidArgument


def row_of_position(sorted_ids, num_valid, tokens, rows):
    """(whether a position is of a pair, the row of the input that it reads, 0 where it is not); rows: of the input."""
    token, slot = sorted_ids & 0xFFFFFF, sorted_ids >> 24
    real = (token < tokens) & (torch.arange(sorted_ids.shape[0], device=sorted_ids.device) < num_valid.reshape(-1)[0])
    top_k = rows // max(tokens, 1)
    return real, torch.where(real, token * top_k + slot if top_k > 1 else token, 0).long()


def _sorted_scale(scale, sorted_ids, num_valid, tokens, columns):
    """E8M0 scales [rows, columns] by position, 0 at padding, in the tiles of 32 positions and 8 columns that AITER's kernels read:
    [positions, columns], padded to multiples of those."""
    data = scale.contiguous().view(torch.uint8).view(-1, columns)
    tall, wide = -(-sorted_ids.shape[0] // 32) * 32, -(-columns // 8) * 8
    padded = torch.zeros(tall, wide, dtype=torch.uint8, device=data.device)
    if data.shape[0]:
        real, row = row_of_position(sorted_ids, num_valid, tokens, data.shape[0])
        padded[: sorted_ids.shape[0], :columns] = torch.where(real[:, None], data[row], 0)
    return padded.view(tall // 32, 2, 16, wide // 8, 2, 4).permute(0, 3, 5, 2, 4, 1).contiguous().view(tall, wide)


def _mark(scale, positions, columns):
    """Products here know by it that scales are by position."""
    scale = mark_scale(scale, (positions, columns))
    scale.is_sorted = True
    return scale


def by_position(scale):
    """What _mark marked, as [positions, columns]."""
    return plain_scale(scale, *scale.plain_shape)


@peer(MODULE)
def mxfp4_moe_sort_hip(out_scale, scale, sorted_ids, num_valid_ids, token_num, cols):
    """out_scale: scale (E8M0 [rows, cols / 32]) by sorted position, shuffled; cols: columns of the codes."""
    found = _sorted_scale(scale, sorted_ids, num_valid_ids, token_num, -(-cols // 32))
    out_scale.view(torch.uint8).view(-1)[: found.numel()].copy_(found.view(-1))
    _mark(out_scale, sorted_ids.shape[0], -(-cols // 32))


@peer(MODULE)
def mxfp4_moe_sort_fwd(scale, sorted_ids, num_valid_ids, token_num, cols):
    """mxfp4_moe_sort_hip into a new tensor."""
    columns = -(-cols // 32)
    return _mark(_sorted_scale(scale, sorted_ids, num_valid_ids, token_num, columns).view(dtypes.fp8_e8m0), sorted_ids.shape[0], columns)


@local_peer("aiter.utility.fp4_utils")
def moe_mxfp4_sort(blockscale_e8m0, sorted_ids, num_valid_ids, token_num, block_size=32):
    """mxfp4_moe_sort_fwd of scales [tokens, columns] or [tokens, top_k, columns]."""
    return mxfp4_moe_sort_fwd(blockscale_e8m0, sorted_ids, num_valid_ids, token_num, 32 * blockscale_e8m0.shape[-1])


@peer(MODULE)
def fused_dynamic_mx_quant_moe_sort(input, sorted_ids, num_valid_ids, token_num, topk, block_size, quant_dtype=dtypes.fp4x2, num_rows=None,
                                    group_size=32, sorted_weights=None, num_experts_upper_bound=None):
    """(codes of input's rows: fp4x2 [rows, n / 2] or fp8 [rows, n]; their E8M0 scales by sorted position, shuffled)."""
    name = "fused_dynamic_mx_quant_moe_sort"
    refuse(name, group_size=(group_size, 32), sorted_weights=(sorted_weights, None))
    check_dtype(name, "quant_dtype", quant_dtype, (dtypes.fp4x2, dtypes.fp8))
    rows = input.reshape(-1, input.shape[-1])
    if rows.shape[0] not in (token_num, token_num * topk):
        raise InvalidArgument(f"aiter.{name}: input has {rows.shape[0]} rows; expected {token_num} tokens, or {token_num * topk} pairs")
    codes, scale = per_1x32_mx_quant_hip(rows, quant_dtype=quant_dtype, scale_type=dtypes.fp8_e8m0)
    return codes, mxfp4_moe_sort_fwd(scale, sorted_ids, num_valid_ids, token_num, rows.shape[1])


@peer(MODULE)
def fused_dynamic_mxfp4_quant_moe_sort(input, sorted_ids, num_valid_ids, token_num, topk, block_size, num_rows=None, group_size=32,
                                       sorted_weights=None, num_experts_upper_bound=None):
    return fused_dynamic_mx_quant_moe_sort(input, sorted_ids, num_valid_ids, token_num, topk, block_size, dtypes.fp4x2, num_rows, group_size,
                                           sorted_weights, num_experts_upper_bound)


@peer(MODULE)
def fused_dynamic_mxfp8_quant_moe_sort(input, sorted_ids, num_valid_ids, token_num, topk, block_size, num_rows=None, group_size=32,
                                       sorted_weights=None, num_experts_upper_bound=None):
    return fused_dynamic_mx_quant_moe_sort(input, sorted_ids, num_valid_ids, token_num, topk, block_size, dtypes.fp8, num_rows, group_size,
                                           sorted_weights, num_experts_upper_bound)


@peer(MODULE)
def moe_smooth_per_token_scaled_quant_v1(out, input, scales, smooth_scale, smooth_scale_map, shuffle_scale=False, smooth_scale_map_hash=None,
                                         transpose_out=False):
    """input [m, n] times smooth_scale f32 [experts, n] of each slot's expert (smooth_scale_map [m, top_k]), quantised per row: out i8 or fp8,
    scales f32, token by token [m, top_k], or with transpose_out slot by slot [top_k, m]."""
    m, top_k = smooth_scale_map.shape
    rows = input.reshape(m, 1, -1).expand(m, top_k, input.shape[-1])
    if transpose_out:
        rows, smooth_scale_map = rows.transpose(0, 1), smooth_scale_map.t()
    smooth_per_token_scaled_quant(out.view(rows.shape), rows, scales, smooth_scale, smooth_scale_map, shuffle_scale,
                                  smooth_scale_map_hash=smooth_scale_map_hash)


@peer(MODULE)
def moe_smooth_per_token_scaled_quant_v2(out, input, scales, smooth_scale, sorted_token_ids, sorted_expert_ids, num_valid_ids, block_m,
                                         shuffle_scale=False, transpose_out=False):
    """The same by sorted positions, also of input [m, top_k, n] (stage 2): row token * top_k + slot of out, or with transpose_out
    slot * m + token, is quantised with the expert of its position. Rows without one are left as they are."""
    name = "moe_smooth_per_token_scaled_quant_v2"
    refuse(name, shuffle_scale=(shuffle_scale, False))
    n = input.shape[-1]
    rows, pairs = input.reshape(-1, n), out.numel() // n
    # Stage 1 has a row for each token. Of one row for each pair nothing tells how many slots a token has but the shape.
    tokens = input.shape[0]
    top_k = pairs // max(tokens, 1)
    positions = torch.arange(sorted_token_ids.shape[0], device=out.device)
    token, slot = sorted_token_ids & 0xFFFFFF, sorted_token_ids >> 24
    real = (token < tokens) & (positions < num_valid_ids.reshape(-1)[0])
    pair = torch.where(real, slot * tokens + token if transpose_out else token * top_k + slot, pairs).long()
    expert = torch.full((pairs + 1,), -1, dtype=torch.int64, device=out.device).scatter_(0, pair, sorted_expert_ids[positions // block_m].long())
    expert = expert[:-1]
    if rows.shape[0] == tokens and top_k > 1:
        rows = rows.repeat(top_k, 1) if transpose_out else rows.repeat_interleave(top_k, 0)
    elif transpose_out:
        rows = rows.view(tokens, top_k, n).transpose(0, 1).reshape(pairs, n)
    value = rows.float() * smooth_scale.float().reshape(-1, n)[expert.clamp(min=0)]
    codes, found = eitri.quantize(value, out_dtype="i8" if out.dtype == torch.int8 else out.dtype)
    there = expert >= 0
    flat = out.view(torch.uint8).view(pairs, n)
    flat.copy_(torch.where(there[:, None], codes.view(torch.uint8), flat))
    scales.view(-1).copy_(torch.where(there, found, scales.view(-1)))


@peer(MODULE)
def moe_smooth_per_token_scaled_quant(out, input, scales, smooth_scale, topk_ids, sorted_token_ids, sorted_expert_ids, num_valid_ids, block_m,
                                      local_expert_hash=None, shuffle_scale=False, transpose_out=False, is_balanced=False):
    """By sorted positions; local_expert_hash and is_balanced only steer AITER's kernels."""
    moe_smooth_per_token_scaled_quant_v2(out, input, scales, smooth_scale, sorted_token_ids, sorted_expert_ids, num_valid_ids, block_m,
                                         shuffle_scale, transpose_out)
