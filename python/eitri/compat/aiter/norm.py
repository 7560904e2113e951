"""RMS norms: aiter.ops.rmsnorm."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.enums import QuantType
from eitri.compat.aiter.quant import dynamic_per_group_scaled_quant, per_1x32_f4_quant, static_per_tensor_quant
from eitri.compat.aiter.table import local_peer, peer, refuse
from eitri.errors import InvalidArgument, Unsupported

MODULE, QK = "aiter.ops.rmsnorm", "aiter.ops.fused_qk_norm_group_quant"


def _rows(x):
    return x.reshape(-1, x.shape[-1])


def _view(x):
    """[.., hidden] as [rows, hidden] over the same memory: for what is written."""
    return x.view(-1, x.shape[-1])


def _norm(out, input, weight, epsilon, *, residual_in=None, residual_out=None, scale=None, group_size=0, shuffle_scale=False, gemma_norm=False):
    options = {"residual": None if residual_in is None else _rows(residual_in), "eps": epsilon,
               "norm_weight": "plus_one" if gemma_norm else "plain",
               "residual_out": None if residual_out is None else _view(residual_out)}
    if scale is None:
        eitri.rmsnorm(_rows(input), weight, out=_view(out), **options)
    elif group_size in (0, 128) and not shuffle_scale and scale.dtype == torch.float32:
        blocks = (input.shape[-1] + 127) // 128
        eitri.rmsnorm(_rows(input), weight, quant="per_1x128" if group_size else "per_token", out=_view(out),
                      scale=scale.view(-1, blocks) if group_size else scale.view(-1), **options)
    elif group_size == 0:
        raise Unsupported("aiter: shuffle_scale without group_size; eitri has plain scales per token")
    else:  # other groups are a quantisation of their own
        value = torch.empty(_rows(input).shape, dtype=torch.float32, device=input.device)
        eitri.rmsnorm(_rows(input), weight, out=value, **options)
        dynamic_per_group_scaled_quant(out, value, scale, group_size, shuffle_scale)


@peer(MODULE)
def rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm=0):
    refuse("rms_norm", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _norm(out, input, weight, epsilon)
    return out


@peer(MODULE)
def rmsnorm2d_fwd(input, weight, epsilon, use_model_sensitive_rmsnorm=0):
    return rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm)


@peer(MODULE)
def rmsnorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False, use_model_sensitive_rmsnorm=0):
    refuse("rmsnorm2d_fwd_with_add", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, gemma_norm=gemma_norm)


@peer(MODULE)
def rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0, group_size=0, shuffle_scale=False):
    refuse("rmsnorm2d_fwd_with_dynamicquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _norm(out, input, weight, epsilon, scale=yscale, group_size=group_size, shuffle_scale=shuffle_scale)


@peer(MODULE)
def rmsnorm2d_fwd_with_add_dynamicquant(out, input, residual_in, residual_out, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0,
                                        group_size=0, shuffle_scale=False):
    refuse("rmsnorm2d_fwd_with_add_dynamicquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, scale=yscale, group_size=group_size,
          shuffle_scale=shuffle_scale)


@peer(MODULE)
def rmsnorm(out, input, weight, epsilon, gemma_norm=False):
    _norm(out, input, weight, epsilon, gemma_norm=gemma_norm)


@peer(MODULE)
def add_rmsnorm(out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False):
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, gemma_norm=gemma_norm)


@peer(MODULE)
def rmsnorm_quant(out, input, scale, weight, epsilon, group_size=0, shuffle_scale=False, gemma_norm=False):
    """group_size: 0 (a row, scale f32), 128 (f32), or 32 or 64 with f32 or E8M0 scales; out i8, fp8, or fp4x2 with groups of 32."""
    _norm(out, input, weight, epsilon, scale=scale, group_size=group_size, shuffle_scale=shuffle_scale, gemma_norm=gemma_norm)


@peer(MODULE)
def add_rmsnorm_quant(out, input, residual_in, residual_out, scale, weight, epsilon, group_size=0, shuffle_scale=False, gemma_norm=False):
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, scale=scale, group_size=group_size,
          shuffle_scale=shuffle_scale, gemma_norm=gemma_norm)


@peer(MODULE)
def rms_norm_cu(out, input, weight, epsilon):
    _norm(out, input, weight, epsilon)


@peer(MODULE)
def fused_add_rms_norm_cu(input, residual_in, weight, epsilon):
    """In place: residual_in += input; input = its norm."""
    _norm(input, input, weight, epsilon, residual_in=residual_in, residual_out=residual_in)


@peer(MODULE)
def rmsnorm2d_fwd_with_smoothquant(out, input, xscale, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0):
    """out i8 or fp8 = norm(input) * weight * xscale [n], quantised per row; yscale f32 [m, 1]."""
    refuse("rmsnorm2d_fwd_with_smoothquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _norm(out, input, weight.float() * xscale.float().reshape(-1), epsilon, scale=yscale)


@peer(MODULE)
def rmsnorm2d_fwd_with_add_smoothquant(out, input, residual_in, residual_out, xscale, yscale, weight, epsilon, out_before_quant=None,
                                       use_model_sensitive_rmsnorm=0):
    """The same of input + residual_in, which goes to residual_out. out_before_quant: norm * weight, without xscale."""
    refuse("rmsnorm2d_fwd_with_add_smoothquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _norm(out, input, weight.float() * xscale.float().reshape(-1), epsilon, residual_in=residual_in, residual_out=residual_out, scale=yscale)
    if out_before_quant is not None:
        _norm(out_before_quant, residual_out, weight, epsilon)


def _qk(q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight, k_epsilon, q_residual,
        group_size, transpose_scale, gemma_norm):
    total = q
    if q_residual is not None:
        total = torch.empty_like(q) if q_res_out is None else q_res_out
    first = {"residual_in": q_residual, "residual_out": total} if q_residual is not None else {}
    if q_out_scale is not None:
        _norm(q_out_quantized, q, q_weight, q_epsilon, scale=q_out_scale, group_size=group_size, shuffle_scale=transpose_scale,
              gemma_norm=gemma_norm, **first)
        first = {}
    if q_out_unquantized is not None:
        _norm(q_out_unquantized, q if first else total, q_weight, q_epsilon, gemma_norm=gemma_norm, **first)
    if k is not None:
        _norm(k_out, k, k_weight, q_epsilon if k_epsilon is None else k_epsilon, gemma_norm=gemma_norm)


@peer(QK)
def fused_qk_rmsnorm_group_quant(q_out_quantized=None, q_out_scale=None, q=None, q_weight=None, q_epsilon=1e-6, q_out_unquantized=None,
                                 k_out=None, q_res_out=None, k=None, k_weight=None, k_epsilon=None, q_residual=None, group_size=128,
                                 transpose_scale=False, gemma_norm=False):
    """q [m, n1] (+ q_residual, kept in q_res_out): norm, quantised by groups into q_out_quantized (fp8, fp4x2) with q_out_scale, and as it is
    into q_out_unquantized; k [m, n2]: norm into k_out."""
    if q_out_scale is None and q_out_unquantized is None:
        raise InvalidArgument("aiter.fused_qk_rmsnorm_group_quant: q_out_unquantized is None; expected it, or q_out_quantized and q_out_scale")
    _qk(q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight, k_epsilon, q_residual,
        group_size, transpose_scale, gemma_norm)


@peer(QK)
def fused_qk_rmsnorm_per_token_quant(q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized=None, k_out=None, q_res_out=None,
                                     k=None, k_weight=None, k_epsilon=None, q_residual=None, gemma_norm=False):
    """The same with a scale for each row: q_out_scale f32 [m, 1]."""
    _qk(q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight, k_epsilon, q_residual, 0,
        False, gemma_norm)


@peer(QK)
def fused_qk_rmsnorm(q_out_quantized=None, q_out_scale=None, q=None, q_weight=None, q_epsilon=1e-6, q_out_unquantized=None, k_out=None,
                     q_res_out=None, k=None, k_weight=None, k_epsilon=None, q_residual=None, gemma_norm=False, quant_type=QuantType.No,
                     group_size=None, transpose_scale=False):
    """By quant_type: No writes the norm of q into q_out_quantized; per_Token, per_1x128 and kin, per_1x32 as the functions above."""
    quant_type = QuantType(quant_type)
    if quant_type is QuantType.No:
        _qk(None, None, q, q_weight, q_epsilon, q_out_quantized, k_out, None, k, k_weight, k_epsilon, None, 0, False, False)
        return
    if quant_type is QuantType.per_Tensor:
        raise Unsupported("aiter.fused_qk_rmsnorm: quant_type is per_Tensor, which AITER has not either")
    if quant_type is not QuantType.per_Token and group_size is None:
        group_size = 32 if quant_type is QuantType.per_1x32 else 128
    _qk(q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight, k_epsilon, q_residual,
        0 if quant_type is QuantType.per_Token else group_size, transpose_scale, gemma_norm)


def _gated(x, z, weight, epsilon):
    """f32 [tokens, heads * dim]: norm of each head * silu(z)."""
    shape = x.reshape(-1, x.shape[-1]).shape
    norm, gate = torch.empty(shape, dtype=torch.float32, device=x.device), torch.empty(shape, dtype=torch.float32, device=x.device)
    eitri.rmsnorm(x.reshape(shape), weight, eps=epsilon, out=norm)
    eitri.activation(z.reshape(shape), "silu", gate="none", out=gate)
    return norm.mul_(gate).view(x.shape[0], -1)


@peer("aiter.ops.gated_rmsnorm_fp8_group_quant")
def gated_rmsnorm_fp8_group_quant(out, scale, x, z, weight, epsilon, group_size, transpose_scale=False):
    """x, z [tokens, heads, dim], weight [dim]: norm(x) * silu(z), flattened to [tokens, heads * dim] and quantised by groups."""
    dynamic_per_group_scaled_quant(out.view(x.shape[0], -1), _gated(x, z, weight, epsilon), scale, group_size, transpose_scale)


@peer("aiter.ops.gated_rmsnorm_fp8_group_quant")
def gated_rmsnorm_fp8_per_token_quant(out, scale, x, z, weight, epsilon):
    eitri.quantize(_gated(x, z, weight, epsilon), out=out.view(x.shape[0], -1), scale=scale.view(-1))


FP8, FP4 = "aiter.ops.triton.quant.fused_fp8_quant", "aiter.ops.triton.quant.fused_mxfp4_quant"


def _two_norms(inp1, inp1_weight, inp1_epsilon, inp2, inp2_weight, inp2_epsilon, res1):
    """(norm of inp1 + res1 in f32, norm of inp2, inp1 + res1), None for what there is not."""
    value, kept = torch.empty(inp1.shape, dtype=torch.float32, device=inp1.device), None if res1 is None else torch.empty_like(inp1)
    eitri.rmsnorm(inp1, inp1_weight, residual=res1, eps=inp1_epsilon, out=value, residual_out=kept)
    second = None if inp2 is None else eitri.rmsnorm(inp2, inp2_weight, eps=inp2_epsilon)
    return value, second, kept


@local_peer(FP8, "aiter.ops.triton.fused_fp8_quant", "aiter.ops.triton.quant")
def fused_rms_fp8_group_quant(inp1, inp1_weight, inp1_epsilon, inp2=None, inp2_weight=None, inp2_epsilon=None, group_size=128,
                              dtype_quant=dtypes.fp8, res1=None, output_unquantized_inp1=False, transpose_scale=False):
    """((codes, scales f32 [m, n / group_size]), norm of inp1 or None, norm of inp2 or None, inp1 + res1 or None). transpose_scale: scales lie
    in memory as their transpose."""
    value, second, kept = _two_norms(inp1, inp1_weight, inp1_epsilon, inp2, inp2_weight, inp2_epsilon, res1)
    codes = torch.empty(inp1.shape, dtype=dtype_quant, device=inp1.device)
    scales = torch.empty(inp1.shape[0], inp1.shape[1] // group_size, dtype=torch.float32, device=inp1.device)
    dynamic_per_group_scaled_quant(codes, value, scales, group_size, transpose_scale)
    return (codes, scales), value.to(inp1.dtype) if output_unquantized_inp1 else None, second, kept


@local_peer(FP8, "aiter.ops.triton.fused_fp8_quant", "aiter.ops.triton.quant")
def fused_rms_fp8_per_tensor_static_quant(inp1, inp1_weight, inp1_epsilon, inp1_scale, inp2=None, inp2_weight=None, inp2_epsilon=None,
                                          dtype_quant=dtypes.fp8, res1=None, output_unquantized_inp1=False,
                                          rmsnorm_convert_to_inp1_type=False):
    """(codes by inp1_scale, norm of inp1 or None, norm of inp2 or None, inp1 + res1 or None)."""
    value, second, kept = _two_norms(inp1, inp1_weight, inp1_epsilon, inp2, inp2_weight, inp2_epsilon, res1)
    codes = torch.empty(inp1.shape, dtype=dtype_quant, device=inp1.device)
    static_per_tensor_quant(codes, value.to(inp1.dtype) if rmsnorm_convert_to_inp1_type else value, inp1_scale)
    return codes, value.to(inp1.dtype) if output_unquantized_inp1 else None, second, kept


@local_peer(FP4, "aiter.ops.triton.fused_mxfp4_quant", "aiter.ops.triton.quant")
def fused_rms_mxfp4_quant(x1, x1_weight, x1_epsilon, x2=None, x2_weight=None, x2_epsilon=0.0, res1=None, shuffle=False,
                          scale_shuffle_padding=False, output_unquantized_inp1=False):
    """((fp4 bytes [m, n / 2], E8M0 bytes [m, n / 32], rounded to even), norm of x1 or None, norm of x2 or None, x1 + res1 or None)."""
    value, second, kept = _two_norms(x1, x1_weight, x1_epsilon, x2, x2_weight, x2_epsilon, res1)
    codes, scales = per_1x32_f4_quant(value, shuffle=bool(shuffle), round_mode=2)
    return ((codes.view(torch.uint8), scales), value.to(x1.dtype) if output_unquantized_inp1 else None, second, kept)
