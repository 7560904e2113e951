"""AITER's one-stage expert layers over sorted lists, and the older front doors: aiter.ops.moe_op.fmoe*, aiter.fused_moe_bf16_asm.

gate [e, inter or 2 * inter, dim] and down [e, dim, inter], shuffled (marked by shuffle_weight) or plain; sorted_* and num_valid_ids are those
of moe_sorting. out [m, dim] is overwritten. Smooth scales multiply activations before they are quantised, by expert."""

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.enums import ACTIVATIONS, ActivationType
from eitri.compat.aiter.moe import OP, _pairs, _weight, _weight_scale
from eitri.compat.aiter.shuffle import rows_of_turned
from eitri.compat.aiter.table import check_dtype, peer, refuse
from eitri.errors import InvalidArgument

BF16_ASM = "aiter.fused_moe_bf16_asm"


def _block(name, sorted_ids, sorted_expert_ids):
    """Positions of a block, from the lengths of the lists."""
    for block in (16, 32, 64, 128, 256):
        if -(-sorted_ids.shape[0] // block) == sorted_expert_ids.shape[0]:
            return block
    raise InvalidArgument(f"aiter.{name}: sorted_ids has {sorted_ids.shape[0]} positions and sorted_expert_ids {sorted_expert_ids.shape[0]} "
                          "blocks; expected blocks of 16, 32, 64, 128 or 256")


class _Layer:
    """One call. quants: what shares a scale of activations and of weights, "none" for floats."""

    def __init__(self, name, lists, tokens, top_k, quants, activation):
        self.ids, self.weights, self.experts, self.valid = lists
        self.block = _block(name, self.ids, self.experts)
        self.tokens, self.top_k = tokens, top_k
        self.a_quant, self.w_quant = quants
        self.activation = ActivationType(activation)

    def expert_of_position(self):
        positions = torch.arange(self.ids.shape[0], device=self.ids.device)
        return self.experts[positions // self.block].long().clamp(min=0)

    def quantised(self, x, dtype, smooth):
        """Codes and scales of rows by position."""
        if smooth is not None:
            x = x * smooth.float().reshape(-1, x.shape[-1])[self.expert_of_position()]
        return eitri.quantize(x, quant=self.a_quant if self.a_quant == "per_1x128" else "per_token", out_dtype="i8" if dtype == torch.int8 else dtype,
                              sorted_ids=self.ids, num_valid=self.valid, tokens=self.tokens)

    def product(self, a, scale, weight, weight_scale, out_dtype, gather, **options):
        i8 = weight.dtype == torch.int8
        rows = weight.shape[1] if options.get("gate", "none") == "none" else weight.shape[1] // 2
        out = torch.empty(self.ids.shape[0], rows, dtype=out_dtype, device=self.ids.device)
        codes = weight.dtype in (torch.int8, dtypes.fp8)
        return eitri.grouped_gemm(a, _weight(weight), self.ids, self.experts, self.valid, tokens=self.tokens, block=self.block, gather=gather,
                                  a_scale=scale, b_scale=_weight_scale(weight_scale, weight, self.w_quant) if codes else None,
                                  a_quant="none" if i8 else self.a_quant, b_quant="none" if i8 else self.w_quant, out=out, **options)

    def run(self, out, x, x_scale, gate, gate_scale, down, down_scale, smooth=(None, None), weight_stage="second"):
        if self.tokens == 0:
            return
        codes = gate.dtype in (torch.int8, dtypes.fp8)
        gather = "token"
        if smooth[0] is not None:
            token = (self.ids & 0xFFFFFF).long().clamp(max=max(self.tokens - 1, 0))
            x, x_scale = self.quantised(x.float()[token], gate.dtype, smooth[0])
            gather = "position"
        gated = gate.shape[1] == 2 * down.shape[2]
        h = self.product(x, x_scale, gate, gate_scale, torch.float32 if codes else out.dtype, gather,
                         activation=ACTIVATIONS[self.activation], limit=7.0 if self.activation is ActivationType.Swiglu else 0.0,
                         gate="separated" if gated else "none", row_weight=self.weights if weight_stage == "first" else None)
        scale = None
        if codes:
            h, scale = self.quantised(h, gate.dtype, smooth[1])
        y = self.product(h, scale, down, down_scale, out.dtype, "position", row_weight=self.weights if weight_stage == "second" else None)
        position = _pairs(self.ids, self.valid, self.tokens, self.top_k)[1]
        eitri.moe_combine(y, position.view(self.tokens, self.top_k), out=out)


def _extras(kernel_name, smooth, activation):
    """(smooth scale, activation). Older versions have no kernelName: what follows it is then one place to the left."""
    if isinstance(kernel_name, torch.Tensor) or not (smooth is None or isinstance(smooth, torch.Tensor)):
        return kernel_name or None if isinstance(kernel_name, str) else kernel_name, activation if smooth is None else smooth
    return smooth, activation


@peer(OP)
def fmoe(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, activation=ActivationType.Silu):
    """Weights of input's dtype."""
    lists = sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids
    _Layer("fmoe", lists, out.shape[0], topk, ("none", "none"), activation).run(out, input, None, gate, None, down, None)


def _fmoe_codes(name, out, input, gate, down, lists, topk, input_scale, fc1_scale, fc2_scale, smooth, activation, weight_stage="second"):
    check_dtype(name, "gate", gate.dtype, (torch.int8, dtypes.fp8))
    _Layer(name, lists, out.shape[0], topk, ("per_token", "per_token"), activation).run(
        out, input, None if input_scale is None else input_scale.reshape(-1), gate, fc1_scale, down, fc2_scale, smooth, weight_stage)


@peer(OP)
def fmoe_g1u1(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, input_scale, fc1_scale,
              fc2_scale, kernelName="", fc2_smooth_scale=None, activation=ActivationType.Silu):
    """input i8 or fp8 [m, dim] with input_scale f32 [m(, 1)]; fc1_scale f32 [e, 2 * inter(, 1)], fc2_scale [e, dim(, 1)]."""
    smooth, activation = _extras(kernelName, fc2_smooth_scale, activation)
    _fmoe_codes("fmoe_g1u1", out, input, gate, down, (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids), topk, input_scale,
                fc1_scale, fc2_scale, (None, smooth), activation)


@peer(OP)
def fmoe_g1u1_tkw1(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, input_scale, fc1_scale,
                   fc2_scale, kernelName="", fc2_smooth_scale=None, activation=ActivationType.Silu):
    """fmoe_g1u1 with the routing weight before the activation (Llama 4)."""
    smooth, activation = _extras(kernelName, fc2_smooth_scale, activation)
    _fmoe_codes("fmoe_g1u1_tkw1", out, input, gate, down, (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids), topk,
                input_scale, fc1_scale, fc2_scale, (None, smooth), activation, "first")


@peer(OP)
def fmoe_int8_g1u0(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, input_scale, fc1_scale,
                   fc2_scale, fc2_smooth_scale, activation=ActivationType.Silu):
    """Without up rows: gate [e, inter, dim]."""
    _fmoe_codes("fmoe_int8_g1u0", out, input, gate, down, (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids), topk,
                input_scale, fc1_scale, fc2_scale, (None, fc2_smooth_scale), activation)


@peer(OP, "fmoe_int8_g1u0_a16")
def fmoe_g1u1_a16(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, fc1_scale, fc2_scale,
                  fc1_smooth_scale, fc2_smooth_scale, activation=ActivationType.Silu):
    """input bf16, multiplied by fc1_smooth_scale [e(, 1), dim] of the expert and quantised here."""
    _fmoe_codes("fmoe_g1u1_a16", out, input, gate, down, (sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids), topk, None,
                fc1_scale, fc2_scale, (fc1_smooth_scale, fc2_smooth_scale), activation)


@peer(OP)
def fmoe_fp8_blockscale_g1u1(out, input, gate, down, sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, input_scale,
                             fc1_scale, fc2_scale, kernelName="", fc_scale_blkn=128, fc_scale_blkk=128, fc2_smooth_scale=None,
                             activation=ActivationType.Silu):
    """input fp8 [m, dim]; the memory of input_scale is f32 [dim / 128, m]; fc scales f32, one for 128 x 128."""
    name = "fmoe_fp8_blockscale_g1u1"
    refuse(name, fc_scale_blkn=(fc_scale_blkn, 128), fc_scale_blkk=(fc_scale_blkk, 128), fc2_smooth_scale=(fc2_smooth_scale, None))
    scale = rows_of_turned(input_scale, input.shape[0], input.shape[1] // 128)
    lists = sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids
    _Layer(name, lists, out.shape[0], topk, ("per_1x128", "per_128x128"), activation).run(out, input, scale, gate, fc1_scale, down, fc2_scale)


@peer(BF16_ASM)
def asm_moe(hidden_states, w1, w2, topk_weight, topk_ids, fc1_scale=None, fc2_scale=None, fc1_smooth_scale=None, fc2_smooth_scale=None,
            a16=False, per_tensor_quant_scale=None, block_shape=None, expert_mask=None, activation=ActivationType.Silu, weight_stage="second"):
    """hidden_states bf16 or fp16 [m, dim]; w1, w2 of its dtype, or i8 or fp8 with fc scales by row, or by 128 x 128 with that block_shape."""
    name = "asm_moe" if weight_stage == "second" else "asm_moe_tkw1"
    refuse(name, per_tensor_quant_scale=(per_tensor_quant_scale, None))
    if block_shape is not None and tuple(block_shape) != (128, 128):
        raise InvalidArgument(f"aiter.{name}: block_shape is {tuple(block_shape)}; expected (128, 128)")
    tokens, top_k = topk_ids.shape
    experts = w1.shape[0] if expert_mask is None else expert_mask.numel()
    s = eitri.moe_sort(topk_ids.to(torch.int32).contiguous(), topk_weight.float().contiguous(), experts, block=32, expert_mask=expert_mask)
    lists = s.sorted_ids, s.sorted_weights, s.sorted_expert_ids, s.num_valid
    out = torch.empty(tokens, w2.shape[1], dtype=hidden_states.dtype, device=hidden_states.device)
    x, x_scale, quants = hidden_states, None, ("none", "none")
    if w1.dtype != hidden_states.dtype:
        check_dtype(name, "w1", w1.dtype, (hidden_states.dtype, torch.int8, dtypes.fp8))
        quants = ("per_token", "per_token") if block_shape is None else ("per_1x128", "per_128x128")
        if fc1_smooth_scale is None:
            x, x_scale = eitri.quantize(hidden_states, quant=quants[0], out_dtype="i8" if w1.dtype == torch.int8 else w1.dtype)
    _Layer(name, lists, tokens, top_k, quants, activation).run(out, x, x_scale, w1, fc1_scale, w2, fc2_scale,
                                                               (fc1_smooth_scale, fc2_smooth_scale), weight_stage)
    return out


@peer(BF16_ASM)
def asm_moe_tkw1(hidden_states, w1, w2, topk_weight, topk_ids, fc1_scale=None, fc2_scale=None, fc1_smooth_scale=None, fc2_smooth_scale=None,
                 a16=False, per_tensor_quant_scale=None, expert_mask=None, activation=ActivationType.Silu):
    """asm_moe with the routing weight before the activation."""
    return asm_moe(hidden_states, w1, w2, topk_weight, topk_ids, fc1_scale, fc2_scale, fc1_smooth_scale, fc2_smooth_scale, a16,
                   per_tensor_quant_scale, None, expert_mask, activation, "first")
