"""Matrix products: aiter.tuned_gemm, aiter.ops.gemm_op_a8w8, aiter.ops.batched_gemm_op_*. Y = X @ W^T, X [.., m, k], W [.., n, k].

splitK and check only steer or verify AITER's kernels; results do not depend on them, and so they are not looked at."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.shuffle import as_e8m0, plain_scale, plain_weight, rows_of_turned
from eitri.compat.aiter.table import check_dtype, peer, refuse
from eitri.errors import InvalidArgument

A8W8 = "aiter.ops.gemm_op_a8w8"


def _bias(bias, dtype):
    """[n] of f32 or of the output's dtype."""
    if bias is None:
        return None
    bias = bias.reshape(-1)
    return bias if bias.dtype in (torch.float32, dtype) else bias.float()


def _with_unit_stride(rows):
    """AITER leaves other strides to torch, which takes them."""
    return rows if rows.stride(-1) == 1 or rows.shape[-1] <= 1 else rows.contiguous()


@peer("aiter.tuned_gemm")
def gemm_a16w16(A, B, bias=None, otype=None, scale_a=None, scale_b=None, scale_c=None):
    """A: [.., k] of bf16, fp16, fp32, or fp8 with scale_a and scale_b (f32 [1]; None is 1). B: [n, k]. Returns [.., n] of otype (A's)."""
    refuse("gemm_a16w16", scale_c=(scale_c, None))
    if getattr(B, "is_shuffled", False):
        B = plain_weight(B)
    otype = otype or A.dtype
    rows, B = _with_unit_stride(A.reshape(-1, A.shape[-1])), _with_unit_stride(B)
    out = torch.empty(rows.shape[0], B.shape[0], dtype=otype, device=A.device)
    scales = {}
    if A.dtype == dtypes.fp8:
        one = torch.ones(1, dtype=torch.float32, device=A.device) if scale_a is None or scale_b is None else None
        scales = {"a_scale": one if scale_a is None else scale_a.reshape(-1), "b_scale": one if scale_b is None else scale_b.reshape(-1)}
    else:
        refuse("gemm_a16w16", scale_a=(scale_a, None), scale_b=(scale_b, None))
    eitri.gemm(rows, B, bias=_bias(bias, otype), out=out, **scales)
    return out.view(*A.shape[:-1], B.shape[0])


class TunedGemm:
    """aiter.tuned_gemm.tgemm."""

    def mm(self, inp, weights, bias=None, otype=None, scale_a=None, scale_b=None, scale_c=None):
        return gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


tgemm = TunedGemm()


def _a8w8(XQ, WQ, x_scale, w_scale, bias, dtype):
    batch = XQ.shape[:-2]
    out = torch.empty(*XQ.shape[:-1], WQ.shape[-2], dtype=dtype, device=XQ.device)
    eitri.gemm(XQ, WQ, a_scale=x_scale.reshape(*batch, -1), b_scale=w_scale.reshape(*batch, -1), bias=bias, out=out)
    return out


@peer(A8W8)
def gemm_a8w8(XQ, WQ, x_scale, w_scale, bias=None, dtype=dtypes.bf16, splitK=None):
    """XQ: i8 or fp8 [m, k]; x_scale f32 [m, 1], w_scale f32 [1, n] or [n, 1]; for fp8 also [1]."""
    return _a8w8(XQ, WQ, x_scale, w_scale, _bias(bias, dtype), dtype)


@peer(A8W8)
def gemm_a8w8_CK(XQ, WQ, x_scale, w_scale, bias=None, dtype=dtypes.bf16, splitK=None):
    return gemm_a8w8(XQ, WQ, x_scale, w_scale, bias, dtype, splitK)


@peer(A8W8)
def gemm_a8w8_ASM(XQ, WQ, x_scale, w_scale, bias, dtype=dtypes.bf16, check=False):
    """i8 only; WQ by shuffle_weight(w, layout=(32, 16))."""
    check_dtype("gemm_a8w8_ASM", "WQ", WQ.dtype, (torch.int8,))
    return gemm_a8w8(XQ, plain_weight(WQ, (32, 16)), x_scale, w_scale, bias, dtype)


@peer(A8W8)
def gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, bias=None, dtype=dtypes.bf16, check=False):
    """WQ by shuffle_weight(w, layout=(16, 16)); its k may be padded beyond that of XQ."""
    check_dtype("gemm_a8w8_bpreshuffle", "dtype", dtype, (torch.bfloat16, torch.float16))
    k = XQ.shape[-1]
    if WQ.shape[-1] < k:
        raise InvalidArgument(f"aiter.gemm_a8w8_bpreshuffle: WQ is {list(WQ.shape)}; expected at least {k} columns (k of XQ)")
    return gemm_a8w8(XQ, plain_weight(WQ)[:, :k], x_scale, w_scale, bias, dtype)


@peer(A8W8)
def gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype=dtypes.bf16, isBpreshuffled=False):
    """XQ: fp8 [m, k]; WQ: fp8 [n, k]; x_scale f32 [m, ceil(k / 128)], w_scale f32 [ceil(n / 128), ceil(k / 128)]. On CPUs so far."""
    check_dtype("gemm_a8w8_blockscale", "dtype", dtype, (torch.bfloat16, torch.float16))
    weight = plain_weight(WQ) if isBpreshuffled else WQ
    out = torch.empty(XQ.shape[0], WQ.shape[0], dtype=dtype, device=XQ.device)
    return eitri.gemm(XQ, weight, a_scale=x_scale, b_scale=w_scale, a_quant="per_1x128", b_quant="per_128x128", out=out)


@peer(A8W8)
def gemm_a8w8_blockscale_bpreshuffle(XQ, WQ, x_scale, w_scale, dtype=dtypes.bf16, out=None):
    """WQ by shuffle_weight(w, layout=(16, 16)); x_scale [m, ceil(k / 128)] has the memory of its transpose, f32 [ceil(k / 128), m]."""
    got = gemm_a8w8_blockscale(XQ, WQ, rows_of_turned(x_scale, *x_scale.shape), w_scale, dtype, isBpreshuffled=True)
    return got if out is None else out.copy_(got)


@peer(A8W8, "flatmm_a8w8_blockscale_asm", "gfx950_a8w8_blockscale_ASM")
def flatmm_a8w8_blockscale_ASM(XQ, WQ, x_scale, w_scale, out):
    """gemm_a8w8_blockscale into out, f16 or bf16; WQ shuffled if it is marked so."""
    weight = plain_weight(WQ) if getattr(WQ, "is_shuffled", False) else WQ
    return eitri.gemm(XQ, weight, a_scale=x_scale, b_scale=w_scale, a_quant="per_1x128", b_quant="per_128x128", out=out)


def _mxfp8(A, B, ScaleA, ScaleB, dtype, fp4):
    m, k = A.shape
    a = plain_weight(A) if getattr(A, "is_shuffled", False) else A
    b = plain_weight(B) if getattr(B, "is_shuffled", False) else B
    out = torch.empty(m, B.shape[0], dtype=dtype, device=A.device)
    eitri.gemm(a, eitri.typed(b.view(torch.uint8), "f4e2m1") if fp4 else b, a_scale=as_e8m0(plain_scale(ScaleA, m, k // 32)),
               b_scale=as_e8m0(plain_scale(ScaleB, B.shape[0], k // 32)), a_quant="per_1x32", b_quant="per_1x32", out=out)
    return out


@peer(A8W8)
def gemm_a8w8_mxfp8(A, B, ScaleA, ScaleB, dtype=dtypes.bf16, a_preshuffle=True, kernelName="", splitk=None):
    """A fp8 [m, k], B fp8 [n, k], E8M0 scales [.., k / 32]; operands and scales plain, or as shuffle_weight and shuffle_scale mark them:
    the marks decide, a_preshuffle is not looked at. CPUs."""
    return _mxfp8(A, B, ScaleA, ScaleB, dtype, False)


@peer(A8W8)
def gemm_a8w4_mxfp8(A, B, ScaleA, ScaleB, dtype=dtypes.bf16, a_preshuffle=True, kernelName="", splitk=None):
    """The same with B fp4x2 [n, k / 2]."""
    return _mxfp8(A, B, ScaleA, ScaleB, dtype, True)


@peer("aiter.ops.gemm_op_a16w16")
def gemm_a16w16_asm(A, B, out, bias=None, splitK=None, kernelName=None, bpreshuffle=False):
    """out [m, n] = A [m, k] B [n, k]^T + bias; B by shuffle_weight with bpreshuffle."""
    weight = plain_weight(B) if bpreshuffle or getattr(B, "is_shuffled", False) else B
    return eitri.gemm(A, weight, bias=_bias(bias, out.dtype), out=out)


def _columns(weight):
    """[k, n] as rows [n, k]: usually it is the transpose of such."""
    return _with_unit_stride(weight.t())


@peer("aiter.ops.gradlib")
def hipb_mm(mat1, mat2, solution_index, bias=None, out_dtype=None, scaleA=None, scaleB=None, scaleOut=None, bpreshuffle=None):
    """mat1 [m, k] mat2 [k, n] + bias; fp8 with scales f32 [1], [m(, 1)] and [(1, )n]. solution_index is not looked at."""
    refuse("hipb_mm", scaleOut=(scaleOut, None), bpreshuffle=(bpreshuffle, False))
    return gemm_a16w16(mat1, _columns(mat2), bias, out_dtype, scaleA, scaleB)


@peer("aiter.ops.gradlib", "rocb_findallsols")
def hipb_findallsols(mat1, mat2, bias=None, out_dtype=None, scaleA=None, scaleB=None, scaleC=None, bpreshuffle=False):
    """Solution indices of a product: [0], since hipb_mm does not look at them."""
    return [0]


@peer("aiter.ops.gradlib")
def rocb_mm(mat1, mat2, solution_index):
    return gemm_a16w16(mat1, _columns(mat2))


@peer("aiter.ops.gradlib", "hipb_destroy_extension", "rocb_create_extension", "rocb_destroy_extension")
def hipb_create_extension():
    """There is nothing to create."""


@peer("aiter.ops.batched_gemm_op_a8w8")
def batched_gemm_a8w8_CK(XQ, WQ, x_scale, w_scale, bias=None, dtype=dtypes.bf16, splitK=None):
    """XQ: i8 [b, m, k]; x_scale f32 [b, m, 1], w_scale f32 [b, 1, n]; bias [b, 1, n]."""
    check_dtype("batched_gemm_a8w8_CK", "dtype", dtype, (torch.bfloat16, torch.float16))
    return _a8w8(XQ, WQ, x_scale, w_scale, _batched_bias(bias, XQ, dtype), dtype)


@peer("aiter.ops.batched_gemm_op_bf16")
def batched_gemm_bf16_CK(XQ, WQ, bias=None, dtype=dtypes.bf16, splitK=None):
    """XQ: bf16 [b, m, k]; bias [b, 1, n]."""
    check_dtype("batched_gemm_bf16_CK", "dtype", dtype, (torch.bfloat16, torch.float16))
    out = torch.empty(*XQ.shape[:-1], WQ.shape[-2], dtype=dtype, device=XQ.device)
    eitri.gemm(XQ, WQ, bias=_batched_bias(bias, XQ, dtype), out=out)
    return out


@peer("aiter.ops.batched_gemm_op_a8w8")
def batched_gemm_a8w8_mxscale(x, wo_a, x_scale, w_scale, out=None, dtype=dtypes.bf16):
    """x: fp8 [m, g, k], wo_a: fp8 [g, n, k], E8M0 scales [m, g, k / 128] and [g, n / 128, k / 128]. Returns [m, g, n]. On CPUs."""
    y = torch.empty(x.shape[1], x.shape[0], wo_a.shape[1], dtype=dtype if out is None else out.dtype, device=x.device)
    rows = x.view(torch.uint8).transpose(0, 1).contiguous().view(x.dtype)
    eitri.gemm(rows, wo_a, a_scale=_e8m0_as_f32(x_scale).transpose(0, 1).contiguous(), b_scale=_e8m0_as_f32(w_scale), a_quant="per_1x128",
               b_quant="per_128x128", out=y)
    return y.transpose(0, 1) if out is None else out.copy_(y.transpose(0, 1))


def _e8m0_as_f32(scale):
    """Powers of two as f32; 2^-127, below its normal numbers, too."""
    return torch.ldexp(torch.ones((), device=scale.device), scale.view(torch.uint8).float() - 127).float()


CUSTOM = "aiter.ops.custom"


@peer(CUSTOM, "wv_splitk_small_fp16_bf16")
def wvSpltK(in_a, in_b, out_c, N_in, CuCount):
    """out_c [n, m] = in_b [n, k] in_a [m, k]^T: few rows times weights."""
    eitri.gemm(in_b.view(-1, in_a.shape[1]), in_a, out=out_c.view(-1, in_a.shape[0]))


@peer(CUSTOM)
def LLMM1(in_a, in_b, out_c, rows_per_block):
    """wvSpltK of one row."""
    wvSpltK(in_a, in_b, out_c, 1, 0)


@peer(CUSTOM)
def wvSplitKQ(in_a, in_b, out_c, scale_a, scale_b, CuCount):
    """wvSpltK of fp8, scales f32 [1]."""
    eitri.gemm(in_b.view(-1, in_a.shape[1]), in_a, a_scale=scale_b.reshape(-1), b_scale=scale_a.reshape(-1), out=out_c.view(-1, in_a.shape[0]))


@peer("aiter.ops.opus")
def gemm_a16w16_opus(A, B, bias=None, dtype=dtypes.bf16, *, kernelId=None, splitK=None, out=None):
    """A: [m, k] or [batch, m, k], B: [n, k] or [batch, n, k]; bias [n] or [batch, n]; out of bf16 or f32."""
    if out is None:
        out = torch.empty(*A.shape[:-1], B.shape[-2], dtype=dtype, device=A.device)
    weight = B.expand(A.shape[0], *B.shape[-2:]) if A.dim() == 3 and B.dim() == 2 else B[0] if A.dim() == 2 and B.dim() == 3 else B
    if bias is not None:
        bias = bias if bias.dtype in (torch.float32, out.dtype) else bias.float()
        if A.dim() == 3:
            bias = bias.expand(A.shape[0], bias.shape[-1]).contiguous()
        elif bias.dim() == 2:
            bias = bias[0]
    return eitri.gemm(A, weight, bias=bias, out=out)


def _batched_bias(bias, x, dtype):
    flat = _bias(bias, dtype)
    return None if flat is None else flat.view(x.shape[0], -1)
