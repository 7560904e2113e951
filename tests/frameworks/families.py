"""Tiny checkpoints of real transformers classes, one per family, and their MoE blocks."""

import dataclasses
import typing

import torch
import transformers

HIDDEN, INTER, EXPERTS, TOP_K = 96, 80, 16, 4
LAYERS, LAYER = 2, 1
COMMON = dict(vocab_size=64, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4, max_position_embeddings=64)


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    model: typing.Callable
    config: typing.Callable
    block: typing.Callable  # layer -> the MoE module
    router: typing.Callable  # block -> its router module
    score: str = "softmax"
    gpt_oss: bool = False


FAMILIES = [
    Family(
        "qwen3_moe",
        transformers.Qwen3MoeForCausalLM,
        lambda: transformers.Qwen3MoeConfig(
            **COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=64, moe_intermediate_size=INTER, num_experts=EXPERTS,
            num_experts_per_tok=TOP_K, norm_topk_prob=True),
        lambda layer: layer.mlp,
        lambda block: block.gate,
    ),
    Family(
        "mixtral",
        transformers.MixtralForCausalLM,
        lambda: transformers.MixtralConfig(
            **COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=INTER, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K),
        lambda layer: getattr(layer, "mlp", None) or layer.block_sparse_moe,
        lambda block: block.gate,
    ),
    Family(
        "deepseek_v3",
        transformers.DeepseekV3ForCausalLM,
        lambda: transformers.DeepseekV3Config(
            **COMMON, num_key_value_heads=4, intermediate_size=64, moe_intermediate_size=INTER, n_routed_experts=EXPERTS, n_shared_experts=2,
            num_experts_per_tok=TOP_K, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
            kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16),
        lambda layer: layer.mlp,
        lambda block: block.gate,
        score="sigmoid",
    ),
    Family(
        "gpt_oss",
        transformers.GptOssForCausalLM,
        lambda: transformers.GptOssConfig(
            **COMMON, num_key_value_heads=2, head_dim=16, intermediate_size=INTER, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K),
        lambda layer: layer.mlp,
        lambda block: block.router,
        gpt_oss=True,
    ),
]


def make_model(family, seed):
    """Random bf16 weights of a trained block's scale, biases and correction biases included."""
    torch.manual_seed(seed)
    model = family.model(family.config()).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if not tensor.is_floating_point() or "rotary" in name:
                continue
            if name.endswith("e_score_correction_bias"):
                tensor.copy_(torch.randn_like(tensor) * 0.05)
            elif name.endswith("bias"):
                tensor.copy_(torch.randn_like(tensor) * 0.2)
            elif tensor.ndim >= 2:
                fan_in = tensor.shape[-2] if family.gpt_oss and "experts" in name else tensor.shape[-1]
                tensor.copy_(torch.randn_like(tensor) / fan_in**0.5)
    return model


def moe_block(family, model, layer=LAYER):
    return family.block(model.model.layers[layer])


@dataclasses.dataclass
class Weights:
    """A block's weights in float64: w1 [E, 2I, H] with all gate rows first, w2 [E, H, I]."""

    w1: torch.Tensor
    w2: torch.Tensor
    bias1: torch.Tensor | None
    bias2: torch.Tensor | None
    router: torch.Tensor
    router_bias: torch.Tensor | None
    correction: torch.Tensor | None
    shared: tuple | None  # (w1, w2)


def weights_of(family, block):
    experts = block.experts
    w1, w2 = experts.gate_up_proj.detach().double(), experts.down_proj.detach().double()
    bias1 = bias2 = None
    if family.gpt_oss:
        w1 = w1.transpose(1, 2)
        w1 = torch.cat([w1[:, ::2], w1[:, 1::2]], 1).contiguous()
        w2 = w2.transpose(1, 2).contiguous()
        bias1 = experts.gate_up_proj_bias.detach().double()
        bias1 = torch.cat([bias1[:, ::2], bias1[:, 1::2]], 1)
        bias2 = experts.down_proj_bias.detach().double()
    router = family.router(block)
    correction = getattr(router, "e_score_correction_bias", None)
    shared = None
    if hasattr(block, "shared_experts"):
        s = block.shared_experts
        shared = (torch.cat([s.gate_proj.weight, s.up_proj.weight]).detach().double(), s.down_proj.weight.detach().double())
    return Weights(w1, w2, bias1, bias2, router.weight.detach().double(), router.bias.detach().double() if family.gpt_oss else None,
                   None if correction is None else correction.detach().double(), shared)


def block_output(block, x):
    """What transformers computes: hidden states only."""
    with torch.no_grad():
        out = block(x.unsqueeze(0))
    return (out[0] if isinstance(out, tuple) else out).reshape(x.shape)
