"""torch modules over eitri's operators, for inference, and `patch`, which puts them into a Hugging Face model.

Weights are buffers: on CPUs packed for the kernels, on GPUs as they are. There are no gradients.
"""

import torch

import eitri
from eitri import _weight_codes
from eitri._weight_codes import QUANTS, Quant  # noqa: F401  part of this module
from eitri.errors import InvalidArgument, Unsupported


class _Coded(torch.nn.Module):
    """A module whose codes, scales and biases keep their dtypes when the module is moved: `.to(torch.bfloat16)` means activations."""

    def _apply(self, fn, recurse=True):
        kept = {name: buffer.dtype for name, buffer in self._buffers.items()
                if buffer is not None and (name.endswith(("scale", "bias")) or name.startswith("bias") or buffer.dtype.itemsize == 1)}
        for name, dtype in kept.items():
            self._buffers[name] = self._buffers[name].view(torch.int32 if dtype.itemsize == 4 else torch.uint8)
        try:
            return super()._apply(fn, recurse)
        finally:
            for name, dtype in kept.items():
                self._buffers[name] = self._buffers[name].view(dtype)


class Linear(_Coded):
    """y = x @ weight.T + bias over the last dimension of x, of any rank.

    weight: [out_features, in_features] of f32, bf16 or f16; bias: [out_features] or None. It is quantised here.
    quant: a name of `QUANTS`, or a `Quant`. "none"; "i8" and "f8e4m3" (a scale for each row of weights and activations); on CPUs
    "f8e4m3_blocks" (DeepSeek's 128 x 128 and 1 x 128), "mxfp8", "mxfp4_mxfp8" and "i4_i8", where activations are quantised on each call, and "i4",
    "mxfp4", "nvfp4", "i8_weights" and "f8e4m3_weights", where they stay as they are.
    """

    def __init__(self, weight, bias=None, *, quant="none"):
        super().__init__()
        self.quant = _weight_codes.find(quant)
        if weight.dim() != 2:
            raise InvalidArgument(f"Linear: weight has shape {list(weight.shape)}; expected [out_features, in_features]")
        self.out_features, self.in_features = weight.shape
        coded = _weight_codes.code(weight, self.quant)
        self.register_buffer("weight", coded.codes)
        self.register_buffer("weight_scale", coded.scale)
        self.register_buffer("weight_global_scale", coded.global_scale)
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @classmethod
    def from_torch(cls, linear, *, quant="none"):
        """Of a torch.nn.Linear."""
        return cls(linear.weight, linear.bias, quant=quant)

    def forward(self, x):
        if x.shape[-1] != self.in_features:
            raise InvalidArgument(f"Linear: x has shape {list(x.shape)}; expected {self.in_features} columns (in_features)")
        rows, scale = _weight_codes.code_rows(x.reshape(-1, self.in_features), self.quant)
        out = torch.empty(rows.shape[0], self.out_features, dtype=x.dtype, device=x.device)
        eitri.gemm(rows, self.weight, a_scale=scale, b_scale=self.weight_scale, b_global_scale=self.weight_global_scale, bias=self.bias, out=out,
                   a_quant=self.quant.a_quant, b_quant=self.quant.b_quant)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, quant={self.quant}"


class RMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x. With a residual it returns (that of x + residual, x + residual).

    weight: [hidden]; plus_one multiplies by 1 + weight (Gemma).
    """

    def __init__(self, weight, eps=1e-6, *, plus_one=False):
        super().__init__()
        self.register_buffer("weight", weight.detach())
        self.eps = eps
        self.norm_weight = "plus_one" if plus_one else "plain"

    def forward(self, x, residual=None):
        rows = x.reshape(-1, x.shape[-1])
        if residual is None:
            return eitri.rmsnorm(rows, self.weight, eps=self.eps, norm_weight=self.norm_weight).reshape(x.shape)
        out, total = eitri.rmsnorm(rows, self.weight, residual=residual.reshape(rows.shape), eps=self.eps, norm_weight=self.norm_weight)
        return out.reshape(x.shape), total.reshape(x.shape)


class Experts(_Coded):
    """The experts of a mixture: forward(x [tokens, hidden], ids [tokens, top_k], weights [tokens, top_k]) -> [tokens, hidden].

    w1: [experts, 2 * inter or inter, hidden], w2: [experts, hidden, inter] of bf16 or f16; bias1, bias2 of their rows.
    gate: "separated", "interleaved" or "none"; activation and parameters (limit, alpha, …) as in `eitri.activation`.
    quant: as in `Linear`; on GPUs "none" and "i8".
    """

    def __init__(self, w1, w2, *, bias1=None, bias2=None, gate="separated", activation="silu", quant="none", **parameters):
        super().__init__()
        self.quant = _weight_codes.find(quant)
        self.gate, self.activation, self.parameters_of_activation = gate, activation, parameters
        # i8 for both with a scale a row is what fused_moe does by itself, on GPUs too.
        self.quants = ("none", "none") if self.quant == QUANTS["i8"] else (self.quant.activation_scales, self.quant.scales)
        for name, weight, gate_of in (("w1", w1, gate), ("w2", w2, "none")):
            coded = _weight_codes.code(weight, self.quant, gate_of)
            self.register_buffer(name, coded.codes)
            self.register_buffer(name + "_scale", coded.scale)
            self.register_buffer(name + "_global_scale", coded.global_scale)
        self.register_buffer("bias1", None if bias1 is None else bias1.detach().float().contiguous())
        self.register_buffer("bias2", None if bias2 is None else bias2.detach().float().contiguous())

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return eitri.fused_moe(hidden_states, self.w1, self.w2, top_k_weights.float().contiguous(), top_k_index.int().contiguous(),
                               w1_scale=self.w1_scale, w2_scale=self.w2_scale, w1_global_scale=self.w1_global_scale,
                               w2_global_scale=self.w2_global_scale, bias1=self.bias1, bias2=self.bias2, activation=self.activation,
                               gate=self.gate, a_quant=self.quants[0], w_quant=self.quants[1], **self.parameters_of_activation)


class MoE(_Coded):
    """A whole block: router, choice of experts, experts. x: [.., hidden] -> the same shape.

    router: [experts, hidden], router_bias: [experts] or None; top_k, score, renormalize, scale, groups, topk_groups and
    correction_bias as in `eitri.topk_gating`; experts: an `Experts`.
    """

    def __init__(self, router, experts, top_k, *, router_bias=None, correction_bias=None, score="softmax", renormalize=True, scale=1.0,
                 groups=1, topk_groups=1):
        super().__init__()
        self.router = Linear(router, router_bias)
        self.experts = experts
        self.top_k = top_k
        self.register_buffer("correction_bias", None if correction_bias is None else correction_bias.detach().float())
        self.gating = dict(score=score, renormalize=renormalize, scale=scale, groups=groups, topk_groups=topk_groups)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        weights, ids = eitri.topk_gating(self.router(rows), self.top_k, correction_bias=self.correction_bias, **self.gating)
        return self.experts(rows, ids, weights).reshape(x.shape)


def _separated_experts(module):
    """Qwen3-MoE, Mixtral, DeepSeek-V3 and kin: gate_up_proj [E, 2 * inter, hidden] with all gate rows first, silu."""
    name = type(getattr(module, "act_fn", None)).__name__
    if "silu" not in name.lower():
        raise Unsupported(f"patch: activation of {type(module).__name__} is {name}; expected silu")
    return module.gate_up_proj, module.down_proj, {}


def _gpt_oss_experts(module):
    """gate_up_proj [E, hidden, 2 * inter] with gate and up in turns, biases, clamped swiglu."""
    if not module.limit > 0:  # 0 means no limit to the operator
        raise Unsupported(f"patch: limit of {type(module).__name__} is {module.limit}; expected a number above 0")
    return module.gate_up_proj.transpose(1, 2), module.down_proj.transpose(1, 2), dict(
        bias1=module.gate_up_proj_bias, bias2=module.down_proj_bias, gate="interleaved", activation="swiglu", limit=float(module.limit),
        alpha=float(module.alpha))


# Class names of transformers' experts, which all are called as Experts is.
PATCHED = {
    "Qwen3MoeExperts": _separated_experts,
    "MixtralExperts": _separated_experts,
    "DeepseekV3Experts": _separated_experts,
    "GptOssExperts": _gpt_oss_experts,
}


def patch(model, *, quant="none"):
    """Replaces the experts of every MoE block of a Hugging Face Qwen3-MoE, Mixtral, DeepSeek-V3 or gpt-oss model by `Experts`, in place.

    Routers and shared experts stay as they are, so that the same experts are chosen. The old weights are given up as soon as nothing else
    holds them. quant: as in `Linear`. Returns the names of the modules that were replaced; raises InvalidArgument if there is none. Call the model under
    torch.no_grad() or inference_mode().
    """
    quant = _weight_codes.find(quant)
    if type(model).__name__ in PATCHED:
        raise InvalidArgument(f"patch: model is a {type(model).__name__} itself; expected the model that holds it")
    places = {}  # of each module, which may be in several
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module).__name__ in PATCHED:
            places.setdefault(module, []).append(name)
    if not places:
        raise InvalidArgument(f"patch: model is a {type(model).__name__} without a mixture of experts that is known; "
                              f"expected one with {', '.join(PATCHED)}")
    for module, names in places.items():  # all of them are looked at before the first is replaced
        dtype = PATCHED[type(module).__name__](module)[0].dtype
        if dtype not in (torch.bfloat16, torch.float16):
            raise InvalidArgument(f"patch: {names[0]} has weights of {dtype}; expected torch.bfloat16 or torch.float16, as after "
                                  "model.to(torch.bfloat16)")
    replaced = [name for names in places.values() for name in names]
    while places:
        module, names = places.popitem()
        w1, w2, options = PATCHED[type(module).__name__](module)
        experts = Experts(w1, w2, quant=quant, **options)
        for name in names:
            setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], experts)
    return replaced
