"""Quantisation: aiter.ops.quant. Scales are amax / largest code, an all-zero row has scale 0 (AITER: 1); casts saturate."""

import functools

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.enums import QuantType
from eitri.compat.aiter.table import check_dtype, peer, refuse
from eitri.errors import Unsupported

MODULE = "aiter.ops.quant"


@peer(MODULE)
def get_dtype_max(dtype):
    """Largest code: 127 for i8, 448 for fp8."""
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _codes(x, scale, dtype):
    x = x / torch.where(scale == 0, torch.ones_like(scale), scale)
    most = float(get_dtype_max(dtype))
    if not dtype.is_floating_point:
        x = x.round()
    return x.clamp(-most, most).to(dtype)  # a NaN stays one in fp8


@peer(MODULE)
def pertoken_quant(x, scale=None, x_scale=None, scale_dtype=dtypes.fp32, quant_dtype=dtypes.i8, dtypeMax=None):
    """In torch: (codes, scale [.., 1]) per row of the last dimension; x_scale multiplies x before (smooth quantisation)."""
    x = x.float() if x_scale is None else x.float() * x_scale
    if scale is None:
        scale = x.abs().amax(-1, keepdim=True) / (dtypeMax or get_dtype_max(quant_dtype))
    return _codes(x, scale, quant_dtype), scale.to(scale_dtype)


@peer(MODULE)
def per_tensor_quant(x, scale=None, scale_dtype=dtypes.fp32, quant_dtype=dtypes.i8, dtypeMax=None):
    """In torch: (codes, scale [1]) with one scale for the whole tensor."""
    x = x.float()
    if scale is None:
        scale = x.abs().max() / (dtypeMax or get_dtype_max(quant_dtype))
    return _codes(x, scale, quant_dtype), scale.view(1).to(scale_dtype)


@peer(MODULE)
def dynamic_per_token_scaled_quant(out, input, scales, scale_ub=None, shuffle_scale=False, num_rows=None, num_rows_factor=1):
    """out: i8 [.., n] of input's shape, scales: f32 with an element for each row."""
    refuse("dynamic_per_token_scaled_quant", scale_ub=(scale_ub, None), shuffle_scale=(shuffle_scale, False), num_rows=(num_rows, None))
    check_dtype("dynamic_per_token_scaled_quant", "out", out.dtype, (torch.int8,))
    n = input.shape[-1]
    eitri.quantize(input.reshape(-1, n), out=out.view(-1, n), scale=scales.view(-1))


@peer(MODULE)
def per_token_quant_hip(x, scale=None, quant_dtype=dtypes.i8, num_rows=None, num_rows_factor=1):
    """(codes i8 of x's shape, scale f32 [.., 1])."""
    refuse("per_token_quant_hip", scale=(scale, None))
    check_dtype("per_token_quant_hip", "quant_dtype", quant_dtype, (torch.int8,))
    out = torch.empty(x.shape, dtype=quant_dtype, device=x.device)
    scale = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    dynamic_per_token_scaled_quant(out, x, scale, num_rows=num_rows, num_rows_factor=num_rows_factor)
    return out, scale


def _none(x, *args, **kwargs):
    return x, None


def _unsupported(name, quant):
    def call(*args, **kwargs):
        raise Unsupported(f"aiter.{name}: qType is {quant}; eitri has no quantisation of it yet")

    return call


@peer(MODULE)
@functools.lru_cache
def get_torch_quant(qType):
    """The function (x, scale=None, quant_dtype=…) -> (codes, scale) in torch."""
    known = {QuantType.No: _none, QuantType.per_Tensor: per_tensor_quant, QuantType.per_Token: pertoken_quant}
    return known.get(qType) or _unsupported("get_torch_quant", qType)


@peer(MODULE, "get_triton_quant")
@functools.lru_cache
def get_hip_quant(qType):
    """The function (x, scale=None, quant_dtype=…) -> (codes, scale) by eitri's operators."""
    known = {QuantType.No: _none, QuantType.per_Token: per_token_quant_hip}
    return known.get(qType) or _unsupported("get_hip_quant", qType)
