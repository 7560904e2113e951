"""One call of every operator on torch tensors, small and with ragged extents: what compile, export and opcheck are tried on."""

import torch

import eitri


def randn(*shape, dtype=torch.bfloat16, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


TOKENS, HIDDEN, INTER, EXPERTS, TOP_K = 7, 64, 48, 6, 2
LOGITS = randn(TOKENS, EXPERTS, dtype=torch.float32, seed=3)
WEIGHTS, IDS = eitri.topk_gating(LOGITS, TOP_K, renormalize=True)
SORTED = eitri.moe_sort(IDS, WEIGHTS, EXPERTS, block=4)
W1, W2 = randn(EXPERTS, 2 * INTER, HIDDEN) / 8, randn(EXPERTS, HIDDEN, INTER) / 7
X = randn(TOKENS, HIDDEN)

# name -> (function, tensors)
CALLS = {
    "gemm": (lambda a, b, bias: eitri.gemm(a, b, bias=bias, activation="silu"), (X, randn(33, HIDDEN), randn(33, dtype=torch.float32))),
    "grouped_gemm": (lambda a, b, s, e, n: eitri.grouped_gemm(a, b, s, e, n, tokens=TOKENS, block=4, gather="position",
                                                              out=torch.zeros(s.shape[0], b.shape[1], dtype=a.dtype)),
                     (randn(SORTED.sorted_ids.shape[0], HIDDEN), W1, SORTED.sorted_ids, SORTED.sorted_expert_ids, SORTED.num_valid)),
    "quantize": (eitri.quantize, (X,)),
    "activation": (lambda x: eitri.activation(x, out_dtype="i8"), (randn(TOKENS, 2 * INTER),)),
    "rmsnorm": (lambda x, w, r: eitri.rmsnorm(x, w, residual=r, quant="per_1x128", out_dtype=torch.int8),
                (X, randn(HIDDEN), randn(TOKENS, HIDDEN, seed=5))),
    "topk_gating": (lambda x: eitri.topk_gating(x, TOP_K, score="sigmoid", groups=3, topk_groups=2), (LOGITS,)),
    "moe_sort": (lambda ids, w: tuple(eitri.moe_sort(ids, w, EXPERTS, block=4)), (IDS, WEIGHTS)),
    "moe_combine": (lambda y, r, w: eitri.moe_combine(y, r, w), (randn(SORTED.sorted_ids.shape[0], HIDDEN), SORTED.reverse, WEIGHTS)),
    "fused_moe": (eitri.fused_moe, (X, W1, W2, WEIGHTS, IDS)),
}


def as_tuple(result):
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def assert_same(got, expected):
    for g, e in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert g.dtype == e.dtype and g.shape == e.shape
        torch.testing.assert_close(g.view(torch.uint8) if g.dtype.itemsize == 1 else g, e.view(torch.uint8) if e.dtype.itemsize == 1 else e,
                                   rtol=0, atol=0, equal_nan=True)
