"""Calls of every operator on torch tensors, small and with ragged extents: what opcheck, compile, export and capture are tried on."""

import torch

import eitri

DEVICES = ["cpu", "cuda"]  # the latter is left out where torch sees no GPU (conftest.py)


def randn(*shape, dtype=torch.bfloat16, seed=1):
    """The same numbers on every device, on torch's default one."""
    numbers = torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return numbers.to(dtype).to(torch.get_default_device())


TOKENS, HIDDEN, INTER, EXPERTS, TOP_K = 7, 64, 48, 6, 2
LOGITS = randn(TOKENS, EXPERTS, dtype=torch.float32, seed=3)
WEIGHTS, IDS = eitri.topk_gating(LOGITS, TOP_K, renormalize=True)
SORTED = eitri.moe_sort(IDS, WEIGHTS, EXPERTS, block=4)
W1, W2 = randn(EXPERTS, 2 * INTER, HIDDEN) / 8, randn(EXPERTS, HIDDEN, INTER) / 7
X = randn(TOKENS, HIDDEN)

X8, X8_SCALE = eitri.quantize(X)
B8, B8_SCALE = eitri.quantize(randn(33, HIDDEN))
XF8, XF8_SCALE = eitri.quantize(X, out_dtype="f8e4m3")
BF8, BF8_SCALE = eitri.quantize(randn(48, HIDDEN), out_dtype="f8e4m3")
W1_8, W1_SCALE = (t.reshape(*W1.shape[: 3 - i]) for i, t in enumerate(eitri.quantize(W1.reshape(-1, HIDDEN))))
W2_8, W2_SCALE = (t.reshape(*W2.shape[: 3 - i]) for i, t in enumerate(eitri.quantize(W2.reshape(-1, INTER))))


def _grouped_gemm(a, b, ids, experts, valid, a_scale=None, b_scale=None):
    # Rows of padding are not written: zeros make the whole result comparable.
    out = torch.zeros(ids.shape[0], b.shape[1], dtype=torch.bfloat16, device=a.device)
    return eitri.grouped_gemm(a, b, ids, experts, valid, tokens=TOKENS, block=4, gather="position", a_scale=a_scale, b_scale=b_scale, out=out)


def _sorted_call(function):
    """A call over positions: rows of padding are not written, so that only the others are returned."""

    def call(x, ids, valid):
        real = (ids & 0xFFFFFF) < TOKENS
        codes, scale = function(x, ids, valid)
        return torch.where(real[:, None], codes, 0), torch.where(real, scale, 0)

    return call


def _bytes_of(function):
    """torch neither copies fp4 nor compares E8M0: as bytes."""
    return lambda *tensors: tuple(t.view(torch.uint8) for t in function(*tensors))


POSITIONS = SORTED.sorted_ids.shape[0]
# "operator" or "operator, what is special" -> (function, tensors). All of them have kernels for CPUs and for GPUs.
CALLS = {
    "gemm": (lambda a, b, bias: eitri.gemm(a, b, bias=bias, activation="silu"), (X, randn(33, HIDDEN), randn(33, dtype=torch.float32))),
    "gemm, f32 batches": (lambda a, b: eitri.gemm(a, b), (randn(2, 5, 24, dtype=torch.float32), randn(2, 9, 24, dtype=torch.float32, seed=2))),
    "gemm, gate": (lambda a, b: eitri.gemm(a, b, activation="silu", gate="separated", out_dtype=torch.float32), (X, randn(66, HIDDEN))),
    "gemm, i8": (lambda a, b, s, t: eitri.gemm(a, b, a_scale=s, b_scale=t), (X8, B8, X8_SCALE, B8_SCALE)),
    "gemm, f8e4m3": (lambda a, b, s, t: eitri.gemm(a, b, a_scale=s, b_scale=t), (XF8, BF8, XF8_SCALE, BF8_SCALE)),
    "grouped_gemm": (_grouped_gemm, (randn(POSITIONS, HIDDEN), W1, SORTED.sorted_ids, SORTED.sorted_expert_ids, SORTED.num_valid)),
    "grouped_gemm, i8": (_grouped_gemm, (*eitri.quantize(randn(POSITIONS, HIDDEN))[:1], W1_8, SORTED.sorted_ids, SORTED.sorted_expert_ids,
                                         SORTED.num_valid, eitri.quantize(randn(POSITIONS, HIDDEN))[1], W1_SCALE)),
    "quantize": (eitri.quantize, (X,)),
    "quantize, f8e4m3": (lambda x: eitri.quantize(x, out_dtype=torch.float8_e4m3fn), (X,)),
    "quantize, per_tensor": (lambda x: eitri.quantize(x, quant="per_tensor"), (X,)),
    "quantize, per_1x128": (lambda x: eitri.quantize(x, quant="per_1x128", out_dtype="f8e4m3"), (X,)),
    "quantize, per_1x32": (_bytes_of(lambda x: eitri.quantize(x, quant="per_1x32", out_dtype="f8e4m3")), (X,)),
    "quantize, f4e2m1": (_bytes_of(lambda x: eitri.quantize(x, quant="per_1x32", out_dtype="f4e2m1")), (X,)),
    "quantize, sorted": (_sorted_call(lambda x, ids, valid: eitri.quantize(x, sorted_ids=ids, num_valid=valid, tokens=TOKENS)),
                         (randn(POSITIONS, HIDDEN), SORTED.sorted_ids, SORTED.num_valid)),
    "activation": (lambda x: eitri.activation(x, "swiglu", limit=7.0, gate="interleaved"), (randn(TOKENS, 2 * INTER),)),
    "activation, i8": (lambda x: eitri.activation(x, out_dtype="i8"), (randn(TOKENS, 2 * INTER),)),
    "rmsnorm": (lambda x, w: eitri.rmsnorm(x, w, norm_weight="plus_one"), (X, randn(HIDDEN))),
    "rmsnorm, i8": (lambda x, w, r: eitri.rmsnorm(x, w, residual=r, quant="per_1x128", out_dtype=torch.int8),
                    (X, randn(HIDDEN), randn(TOKENS, HIDDEN, seed=5))),
    "topk_gating": (lambda x: eitri.topk_gating(x, TOP_K, score="sigmoid", groups=3, topk_groups=2), (LOGITS,)),
    "moe_sort": (lambda ids, w: tuple(eitri.moe_sort(ids, w, EXPERTS, block=4)), (IDS, WEIGHTS)),
    "moe_combine": (lambda y, r, w: eitri.moe_combine(y, r, w), (randn(POSITIONS, HIDDEN), SORTED.reverse, WEIGHTS)),
    "fused_moe": (lambda x, w1, w2, w, ids: eitri.fused_moe(x, w1, w2, w, ids), (X, W1, W2, WEIGHTS, IDS)),
    "fused_moe, i8": (lambda x, w1, w2, w, ids, s1, s2: eitri.fused_moe(x, w1, w2, w, ids, w1_scale=s1, w2_scale=s2),
                      (X, W1_8, W2_8, WEIGHTS, IDS, W1_SCALE, W2_SCALE)),
}


def operator_of(call):
    return call.partition(",")[0]


def on(device, tensors):
    return tuple(t.to(device) for t in tensors)


def as_tuple(result):
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def assert_same(got, expected):
    for g, e in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert g.dtype == e.dtype and g.shape == e.shape
        torch.testing.assert_close(g.view(torch.uint8) if g.dtype.itemsize == 1 else g, e.view(torch.uint8) if e.dtype.itemsize == 1 else e,
                                   rtol=0, atol=0, equal_nan=True)
