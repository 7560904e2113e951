"""Products of fp4: aiter.ops.gemm_op_a4w4. An fp4 value is exact in fp8, so that activations are widened and meet the weights as mxfp8. CPUs."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.shuffle import as_e8m0, plain_weight, shuffled_scale
from eitri.compat.aiter.table import peer, refuse

MODULE = "aiter.ops.gemm_op_a4w4"


def as_fp8(codes):
    """fp4 pairs [.., n / 2] as f8e4m3 [.., n]: the same values."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=codes.device)
    table = torch.cat([values, -values]).to(dtypes.fp8).view(torch.uint8)
    data = codes.view(torch.uint8)
    pairs = torch.stack([table[(data & 15).long()], table[(data >> 4).long()]], -1)
    return pairs.flatten(-2).view(dtypes.fp8)


def product(a, b, a_scale, b_scale, out, bias=None):
    """out [m, n] = a b^T + bias: fp4 pairs [m, k / 2] and [n, k / 2], E8M0 scales [rows, k / 32]."""
    return eitri.gemm(as_fp8(a), eitri.typed(b.view(torch.uint8), "f4e2m1"), a_scale=as_e8m0(a_scale), b_scale=as_e8m0(b_scale), a_quant="per_1x32", b_quant="per_1x32", bias=bias, out=out)


def _shuffled_product(A, B, A_scale, B_scale, out, bias, bpreshuffle, apreshuffle=False):
    columns = A.shape[-1] // 16
    a = plain_weight(A) if apreshuffle or getattr(A, "is_shuffled", False) else A
    b = plain_weight(B) if bpreshuffle or getattr(B, "is_shuffled", False) else B
    product(a, b, shuffled_scale(A_scale, A.shape[0], columns), shuffled_scale(B_scale, B.shape[0], columns), out,
            None if bias is None else bias.reshape(-1))
    return out


@peer(MODULE)
def gemm_a4w4(A, B, A_scale, B_scale, bias=None, dtype=dtypes.bf16, alpha=1.0, beta=0.0, bpreshuffle=True, apreshuffle=False):
    """A: fp4x2 [m, k / 2], B: fp4x2 [n, k / 2], by shuffle_weight with bpreshuffle; scales E8M0 [rows, k / 32] as shuffle_scale makes them (or
    plain, where their shape shows it or per_1x32_f4_quant made them); bias f32 [1, n]."""
    refuse("gemm_a4w4", alpha=(alpha, 1.0), beta=(beta, 0.0))
    out = torch.empty(A.shape[0], B.shape[0], dtype=dtype, device=A.device)
    return _shuffled_product(A, B, A_scale, B_scale, out, bias, bpreshuffle, apreshuffle)


@peer(MODULE)
def gemm_a4w4_asm(A, B, A_scale, B_scale, out, kernelName="", bias=None, alpha=1.0, beta=0.0, bpreshuffle=True, log2_k_split=None):
    """gemm_a4w4 into out."""
    refuse("gemm_a4w4_asm", alpha=(alpha, 1.0), beta=(beta, 0.0))
    return _shuffled_product(A, B, A_scale, B_scale, out, bias, bpreshuffle)


@peer(MODULE)
def gemm_a4w4_blockscale(XQ, WQ, x_scale, w_scale, out, splitK=0):
    """gemm_a4w4 into out; WQ shuffled if it is marked so."""
    return _shuffled_product(XQ, WQ, x_scale, w_scale, out, None, False)
