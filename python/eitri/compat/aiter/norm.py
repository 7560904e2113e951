"""RMS norms: aiter.ops.rmsnorm."""

import torch

import eitri
from eitri.compat.aiter.table import peer, refuse

MODULE = "aiter.ops.rmsnorm"


def _rows(x):
    return x.reshape(-1, x.shape[-1])


def _view(x):
    """[.., hidden] as [rows, hidden] over the same memory: for what is written."""
    return x.view(-1, x.shape[-1])


def _norm(out, input, weight, epsilon, *, residual_in=None, residual_out=None, scale=None, group_size=0, gemma_norm=False):
    eitri.rmsnorm(_rows(input), weight, residual=None if residual_in is None else _rows(residual_in), eps=epsilon,
                  norm_weight="plus_one" if gemma_norm else "plain",
                  quant="none" if scale is None else "per_1x128" if group_size == 128 else "per_token", out=_view(out),
                  residual_out=None if residual_out is None else _view(residual_out),
                  scale=None if scale is None else scale.view(-1, (input.shape[-1] + 127) // 128) if group_size == 128 else scale.view(-1))


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


def _check_quant(function, group_size, shuffle_scale):
    refuse(function, shuffle_scale=(shuffle_scale, False))
    if group_size != 128:
        refuse(function, group_size=(group_size, 0))


@peer(MODULE)
def rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0, group_size=0, shuffle_scale=False):
    refuse("rmsnorm2d_fwd_with_dynamicquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _check_quant("rmsnorm2d_fwd_with_dynamicquant", group_size, shuffle_scale)
    _norm(out, input, weight, epsilon, scale=yscale, group_size=group_size)


@peer(MODULE)
def rmsnorm2d_fwd_with_add_dynamicquant(out, input, residual_in, residual_out, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0,
                                        group_size=0, shuffle_scale=False):
    refuse("rmsnorm2d_fwd_with_add_dynamicquant", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    _check_quant("rmsnorm2d_fwd_with_add_dynamicquant", group_size, shuffle_scale)
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, scale=yscale, group_size=group_size)


@peer(MODULE)
def rmsnorm(out, input, weight, epsilon, gemma_norm=False):
    _norm(out, input, weight, epsilon, gemma_norm=gemma_norm)


@peer(MODULE)
def add_rmsnorm(out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False):
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, gemma_norm=gemma_norm)


@peer(MODULE)
def rmsnorm_quant(out, input, scale, weight, epsilon, group_size=0, shuffle_scale=False, gemma_norm=False):
    _check_quant("rmsnorm_quant", group_size, shuffle_scale)
    _norm(out, input, weight, epsilon, scale=scale, group_size=group_size, gemma_norm=gemma_norm)


@peer(MODULE)
def add_rmsnorm_quant(out, input, residual_in, residual_out, scale, weight, epsilon, group_size=0, shuffle_scale=False, gemma_norm=False):
    _check_quant("add_rmsnorm_quant", group_size, shuffle_scale)
    _norm(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out, scale=scale, group_size=group_size,
          gemma_norm=gemma_norm)


@peer(MODULE)
def rms_norm_cu(out, input, weight, epsilon):
    _norm(out, input, weight, epsilon)


@peer(MODULE)
def fused_add_rms_norm_cu(input, residual_in, weight, epsilon):
    """In place: residual_in += input; input = its norm."""
    _norm(input, input, weight, epsilon, residual_in=residual_in, residual_out=residual_in)
