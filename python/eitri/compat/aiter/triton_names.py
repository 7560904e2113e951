"""Products that AITER has under aiter.ops.triton: other signatures, and weights of few bits with 16-bit activations. `config`, atomic_add and
skip_reduce steer its kernels; with skip_reduce results are summed here as well."""

import torch

import eitri
from eitri.compat.aiter import dtypes, gemm
from eitri.compat.aiter.gemm_a4w4 import product
from eitri.compat.aiter.quant import per_group_quant_hip
from eitri.compat.aiter.shuffle import as_e8m0, e8m0_unshuffle, unshuffle_weight
from eitri.compat.aiter.table import local_peer, refuse

BASIC, BATCHED = "aiter.ops.triton.gemm.basic", "aiter.ops.triton.gemm.batched"


def _names(module, folder=BASIC):
    """Where AITER has it, and had it before."""
    return f"{folder}.{module}", f"aiter.ops.triton.{module}"


def _out(x, w, dtype, y):
    return torch.empty(*x.shape[:-1], w.shape[-2], dtype=dtype, device=x.device) if y is None else y


@local_peer(*_names("gemm_a16w16"))
def gemm_a16w16(x, w, bias=None, dtype=torch.bfloat16, y=None, config=None, activation=None, skip_reduce=False):
    """y [m, n] = activation(x [m, k] w [n, k]^T + bias); activation: None, "relu", "gelu", "gelu_tanh", "silu"."""
    return eitri.gemm(x, w, bias=gemm._bias(bias, dtype), activation=activation or "none", out=_out(x, w, dtype, y))


@local_peer(*_names("gemm_a8w8"))
def gemm_a8w8(x, w, x_scale, w_scale, bias=None, dtype=torch.bfloat16, y=None, config=None):
    """x, w i8 or fp8; x_scale f32 [m, 1], w_scale f32 [1, n]."""
    return eitri.gemm(x, w, a_scale=x_scale.reshape(-1), b_scale=w_scale.reshape(-1), bias=gemm._bias(bias, dtype), out=_out(x, w, dtype, y))


@local_peer(*_names("gemm_a8w8_per_token_scale"))
def gemm_a8w8_per_token_scale(x, w, x_scale, w_scale, dtype=torch.bfloat16, y=None, config=None):
    """x_scale f32 [m, 1], w_scale f32 [n, 1]."""
    return gemm_a8w8(x, w, x_scale, w_scale, None, dtype, y)


@local_peer(*_names("gemm_a8w8_blockscale"))
def gemm_a8w8_blockscale(x, w, x_scale, w_scale, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False):
    """fp8; x_scale f32 [m, k / 128], w_scale f32 [n / 128, k / 128]. On CPUs."""
    return eitri.gemm(x, w, a_scale=x_scale.contiguous(), b_scale=w_scale, a_quant="per_1x128", b_quant="per_128x128", out=_out(x, w, dtype, y))


def _tiled(w, k):
    """Weights as preshuffled functions here get them: [n / 16, k * 16] of what shuffle_weight makes of [n, k]."""
    return unshuffle_weight(w.reshape(-1, k))


@local_peer(*_names("gemm_a16w8_blockscale"))
def gemm_a16w8_blockscale(x, w, w_scale, dtype=torch.bfloat16, y=None, prequant=False, config=None, skip_reduce=False):
    """x bf16 or fp16, w fp8, w_scale f32 [n / 128, k / 128]; prequant: x is quantised by 1x128 blocks first. On CPUs."""
    if prequant:
        codes, scale = per_group_quant_hip(x, quant_dtype=w.dtype, group_size=128)
        return gemm_a8w8_blockscale(codes, w, scale, w_scale, dtype, y)
    return eitri.gemm(x, w, b_scale=w_scale, b_quant="per_128x128", out=_out(x, w, dtype, y))


@local_peer(*_names("gemm_a16w8_blockscale"))
def gemm_a16w8_blockscale_preshuffle(x, w, w_scale, dtype=torch.bfloat16, y=None, prequant=False, config=None, skip_reduce=False):
    """The same with w [n / 16, k * 16], by shuffle_weight."""
    return gemm_a16w8_blockscale(x, _tiled(w, x.shape[-1]), w_scale, dtype, y, prequant)


@local_peer(*_names("gemm_a16wfp4"))
def gemm_a16wfp4(x, w, w_scales, atomic_add=False, dtype=torch.bfloat16, y=None, config=None):
    """x bf16 or fp16 [m, k], as it is (AITER quantises it to fp4), w fp4 bytes [n, k / 2], w_scales E8M0 [n, k / 32]. On CPUs."""
    return eitri.gemm(x, eitri.typed(w.view(torch.uint8), "f4e2m1"), b_scale=as_e8m0(w_scales), b_quant="per_1x32",
                      out=_out(x, w, dtype, y))


def _tiled_scales(scales):
    """E8M0 [rows / 32, columns * 32] of what e8m0_shuffle makes of [rows, columns], both multiples of its tiles."""
    rows, columns = scales.shape[0] * 32, scales.shape[1] // 32
    return e8m0_unshuffle(scales.reshape(rows, columns), rows, columns)


@local_peer(*_names("gemm_a16wfp4"))
def gemm_a16wfp4_preshuffle(x, w, w_scales, prequant=True, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False):
    """The same with w [n / 16, k / 2 * 16] by shuffle_weight and w_scales [n / 32, k]."""
    return gemm_a16wfp4(x, _tiled(w, x.shape[-1] // 2), _tiled_scales(w_scales), dtype=dtype, y=y)


@local_peer(*_names("gemm_a8wfp4"))
def gemm_a8wfp4(x, w, y, x_scales, w_scales, dtype=torch.bfloat16, config=None):
    """y [m, n] = x w^T: x fp8 with f32 scales [m, 1], w fp4 bytes [n, k / 2] with E8M0 scales [n, k / 32]. On CPUs."""
    sums = eitri.gemm(x.to(torch.bfloat16), eitri.typed(w.view(torch.uint8), "f4e2m1"), b_scale=as_e8m0(w_scales),
                      b_quant="per_1x32", out_dtype="f32")
    return y.copy_(sums.mul_(x_scales.view(-1, 1)))


@local_peer(*_names("gemm_afp4wfp4"))
def gemm_afp4wfp4(x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False):
    """x fp4 bytes [m, k / 2], w fp4 bytes [n, k / 2], E8M0 scales [rows, k / 32]. On CPUs."""
    out = _out(x, w, dtype, y)
    product(x, w, x_scales.contiguous(), w_scales.contiguous(), out)
    return out


@local_peer(*_names("gemm_afp4wfp4"))
def gemm_afp4wfp4_preshuffled_scales(x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None):
    """The same with scales [rows / 32, k]; of fewer than 32 rows of x plain."""
    return gemm_afp4wfp4(x, w, x_scales if x.shape[0] < 32 else _tiled_scales(x_scales)[: x.shape[0]], _tiled_scales(w_scales), dtype, y)


@local_peer(*_names("gemm_afp4wfp4"))
def gemm_afp4wfp4_preshuffle(x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False):
    """The same with w [n / 16, k / 2 * 16], by shuffle_weight."""
    return gemm_afp4wfp4_preshuffled_scales(x, _tiled(w, x.shape[-1]), x_scales, w_scales, dtype, y)


@local_peer(*_names("gemm_afp8wfp8"))
def gemm_afp8wfp8(x, w, x_scales, w_scales, dtype=torch.bfloat16, y=None, config=None, skip_reduce=False):
    """x, w fp8; x_scales E8M0 [m, k / 32], w_scales E8M0 [n / 128, k / 128]. On CPUs."""
    rows = w_scales.view(torch.uint8).repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(4, 1)[:, : x.shape[1] // 32].contiguous()
    return eitri.gemm(x.view(dtypes.fp8), w.view(dtypes.fp8), a_scale=as_e8m0(x_scales), b_scale=as_e8m0(rows),
                      a_quant="per_1x32", b_quant="per_1x32", out=_out(x, w, dtype, y))


@local_peer(*_names("batched_gemm_bf16", BATCHED))
def batched_gemm_bf16(XQ, WQ, bias=None, dtype=torch.bfloat16, splitK=None, YQ=None, config=None):
    """XQ [b, m, k], WQ [b, n, k], bias [b, 1, n]."""
    return eitri.gemm(XQ, WQ, bias=gemm._batched_bias(bias, XQ, dtype), out=_out(XQ, WQ, dtype, YQ))


@local_peer(*_names("batched_gemm_a8w8", BATCHED))
def batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None, YQ=None, config=None):
    """XQ i8 or fp8 [b, m, k]; x_scale f32 [b, m, 1], w_scale f32 [b, 1, n]."""
    batch = XQ.shape[0]
    return eitri.gemm(XQ, WQ, a_scale=x_scale.reshape(batch, -1), b_scale=w_scale.reshape(batch, -1),
                      bias=gemm._batched_bias(bias, XQ, dtype), out=_out(XQ, WQ, dtype, YQ))


@local_peer(*_names("batched_gemm_a16wfp4", BATCHED))
def batched_gemm_a16wfp4(x, w, w_scales, dtype=torch.bfloat16, y=None, config=None, transpose_bm=False, prequant=True, y_scale=None):
    """x [b, m, k] as it is, w fp4 bytes [b, n, k / 2], w_scales E8M0 [b, n, k / 32]; transpose_bm: y is [m, b, n]. On CPUs."""
    refuse("batched_gemm_a16wfp4", y_scale=(y_scale, None))
    out = torch.empty(x.shape[0], x.shape[1], w.shape[1], dtype=dtype, device=x.device)
    eitri.gemm(x, eitri.typed(w.view(torch.uint8), "f4e2m1"), b_scale=as_e8m0(w_scales), b_quant="per_1x32", out=out)
    out = out.transpose(0, 1) if transpose_bm else out
    return out.contiguous() if y is None else y.copy_(out)
