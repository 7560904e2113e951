"""Activations: aiter.ops.activation. out: [.., inter], input: [.., 2 * inter] with the gate first."""

import torch

import eitri
from eitri.compat.aiter.quant import dynamic_per_group_scaled_quant, static_per_tensor_quant
from eitri.compat.aiter.table import peer

MODULE = "aiter.ops.activation"


def _act(out, input, kind, gate="separated", **parameters):
    eitri.activation(input.reshape(-1, input.shape[-1]), kind, gate=gate, out=out.view(-1, out.shape[-1]), **parameters)


@peer(MODULE)
def silu_and_mul(out, input, limit=0.0):
    _act(out, input, "silu", limit=limit)


@peer(MODULE)
def gelu_and_mul(out, input):
    _act(out, input, "gelu")


@peer(MODULE)
def gelu_tanh_and_mul(out, input):
    _act(out, input, "gelu_tanh")


@peer(MODULE)
def swiglu_and_mul(out, input):
    """gpt-oss: gate at most 7, up within 7, gate * sigmoid(1.702 * gate) * (up + 1)."""
    _act(out, input, "swiglu", limit=7.0)


@peer(MODULE)
def gelu_fast(out, input):
    """The tanh form, without a gate: input has the shape of out."""
    _act(out, input, "gelu_tanh", gate="none")


@peer(MODULE)
def scaled_silu_and_mul(out, input, scale):
    """out fp8 (or i8) = silu(gate) * up / scale, scale f32 [1]."""
    value = torch.empty(out.shape, dtype=torch.float32, device=input.device)
    _act(value, input, "silu")
    static_per_tensor_quant(out, value, scale)


@peer(MODULE)
def silu_and_mul_quant(out, input, scale, group_size=128, limit=0.0, shuffle_scale=False):
    """silu(gate) * up, quantised by groups of the last dimension as dynamic_per_group_scaled_quant does."""
    value = torch.empty(*input.shape[:-1], input.shape[-1] // 2, dtype=torch.float32, device=input.device)
    _act(value, input, "silu", limit=limit)
    dynamic_per_group_scaled_quant(out, value, scale, group_size, shuffle_scale)


def _act_with_bias(out, input, expert_ids, bias, kind, **parameters):
    ids = expert_ids.reshape(-1).long()
    rows = input.reshape(-1, input.shape[-1]).float()
    added = torch.where((ids >= 0)[:, None], bias.float()[ids.clamp(min=0)], 0)
    _act(out, rows + added, kind, **parameters)


@peer(MODULE)
def silu_and_mul_bias(out, input, expert_ids, bias):
    """silu_and_mul of input [m, 2 * inter] + bias[expert_ids]; bias f32 [experts, 2 * inter], expert_ids i32 [m], negative for none."""
    _act_with_bias(out, input, expert_ids, bias, "silu")


@peer(MODULE)
def gelu_and_mul_bias(out, input, expert_ids, bias):
    _act_with_bias(out, input, expert_ids, bias, "gelu")


@peer(MODULE)
def swiglu_and_mul_bias(out, input, expert_ids, bias):
    _act_with_bias(out, input, expert_ids, bias, "swiglu", limit=7.0)
