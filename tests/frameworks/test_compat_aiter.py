"""AITER's names over eitri: the module tree, what each function computes, and how what is missing says so."""

import importlib.util
import inspect
import subprocess
import sys

import pytest
import torch
from eitri_calls import randn

import eitri
import eitri.compat.aiter as compat
from eitri.compat.aiter import table
from eitri.compat.aiter.shuffle import forget, unshuffle_weight

compat.install()

import aiter  # noqa: E402
from aiter import ActivationType, QuantType, dtypes  # noqa: E402
from aiter.fused_moe import fused_moe, fused_topk, moe_sorting  # noqa: E402
from aiter.ops.shuffle import shuffle_scale, shuffle_weight  # noqa: E402
from aiter.test_common import checkAllclose, perftest, run_perftest  # noqa: E402

BF16 = 2.0**-8
cpu_only = pytest.mark.parametrize("device", ["cpu"], indirect=True)
pytestmark = pytest.mark.usefixtures("device")


def close(got, exact, bound=None):
    """One store in bf16, and an f32 sum of `bound`."""
    allowed = BF16 * exact.abs() + (2.0**-16 * (exact.abs() if bound is None else bound)) + 1e-6
    assert bool(((got.double() - exact).abs() <= allowed).all())


def norm_of(x, weight, eps, plus=0):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + plus)


@cpu_only
def test_module_tree():
    import aiter.jit.core
    import aiter.jit.utils.chip_info
    import aiter.ops.enum
    import aiter.tuned_gemm
    import aiter.utility.dtypes

    assert aiter.ops.enum.QuantType is QuantType and aiter.fused_moe.fused_moe is fused_moe
    assert [a.value for a in (ActivationType.No, ActivationType.Silu, ActivationType.Gelu, ActivationType.Swiglu, ActivationType.Situv2)] == [
        -1, 0, 1, 2, 3]
    assert [q.value for q in QuantType] == list(range(8))
    assert ActivationType.Gelu == 1 and int(QuantType.per_1x128) == 4  # integers, as in AITER
    from aiter.utility.mx_types import MxScaleRoundMode

    assert [(m.name, m.value) for m in MxScaleRoundMode] == [("RoundDown", 0), ("RoundUp", 1), ("Even", 2), ("Ceil", 3)]
    for name in [name for name in sys.modules if name.startswith("aiter.")]:
        assert importlib.util.find_spec(name) is not None
    assert aiter.dtypes.fp8 == torch.float8_e4m3fn and aiter.utility.dtypes.d_dtypes["bf16"] == torch.bfloat16
    assert aiter.get_gfx() == "gfx950" and aiter.jit.utils.chip_info.get_cu_num() >= 1
    for name, (module, function) in table.FUNCTIONS.items():
        assert getattr(sys.modules[module], name) is function
        assert inspect.getmodule(function).__name__.startswith("eitri.compat.aiter.")
    for (module, name), function in table.LOCAL.items():
        assert getattr(sys.modules[module], name) is function and table.FUNCTIONS.get(name, (None, None))[1] is not function


@cpu_only
def test_what_is_missing_says_so():
    from aiter import flash_attn_func, gemm_a4w4o4

    with pytest.raises(eitri.Unsupported, match="aiter.flash_attn_func is not there"):
        flash_attn_func(1, 2, 3)
    with pytest.raises(NotImplementedError, match="gemm_a4w4o4"):
        gemm_a4w4o4()
    with pytest.raises(AttributeError, match="aiter.ops.mha.no_such_name"):
        aiter.ops.mha.no_such_name  # noqa: B018
    with pytest.raises(ImportError):
        from aiter import no_such_name  # noqa: F401
    for name in ("pa_persistent_fwd", "PagedAttention", "layernorm2d_fwd_with_add_smoothquant", "GroupNorm", "rope_cached_2c_fwd", "get_rope",
                 "concat_and_cache_mla", "topk_plain", "moe_shuffle_weight", "mhc_pre", "qr_all_reduce", "causal_conv1d_update"):
        with pytest.raises(eitri.Unsupported, match=f"aiter.{name} is not there"):
            getattr(aiter, name)()
    from aiter.ops.triton.attention.unified_attention import unified_attention

    with pytest.raises(eitri.Unsupported, match="unified_attention"):
        unified_attention()
    assert not hasattr(aiter, "unified_attention")
    with pytest.raises(eitri.Unsupported, match="use_model_sensitive_rmsnorm is 1"):
        aiter.rms_norm(randn(2, 8), randn(8), 1e-6, 1)


@cpu_only
def test_install_does_not_replace_another():
    code = ("import sys, types; sys.modules['aiter'] = types.ModuleType('aiter'); import eitri.compat.aiter as c\n"
            "try: c.install()\nexcept Exception as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False)
    assert "imported from elsewhere" in done.stdout, done.stderr


def test_norms():
    x, residual, weight = randn(2, 3, 64), randn(2, 3, 64, seed=2), randn(64, seed=3)
    exact = norm_of(x, weight, 1e-5)
    for got in (aiter.rms_norm(x, weight, 1e-5), aiter.rmsnorm2d_fwd(x, weight, 1e-5)):
        assert got.shape == x.shape
        close(got, exact)
    out, kept = torch.empty_like(x), torch.empty_like(x)
    total = (x.float() + residual.float()).bfloat16()
    for function in (aiter.rmsnorm2d_fwd_with_add, aiter.add_rmsnorm):
        function(out, x, residual, kept, weight, 1e-5, gemma_norm=True)
        assert torch.equal(kept, total)
        close(out, norm_of(total, weight, 1e-5, plus=1))
    for function in (aiter.rmsnorm, aiter.rms_norm_cu):
        function(out, x, weight, 1e-5)
        close(out, exact)
    inplace, into = x.clone(), residual.clone()
    aiter.fused_add_rms_norm_cu(inplace, into, weight, 1e-5)
    assert torch.equal(into, total)
    close(inplace, norm_of(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("group", [0, 128])
def test_norms_with_quantisation(dtype, group):
    x, residual, weight = randn(5, 256), randn(5, 256, seed=2), randn(256, seed=3)
    shape = (5, 1) if group == 0 else (5, 2)
    total = (x.float() + residual.float()).bfloat16()
    for with_add in (False, True):
        out, scale, kept = torch.empty(5, 256, dtype=dtype), torch.empty(shape), torch.empty_like(x)
        if with_add:
            aiter.rmsnorm2d_fwd_with_add_dynamicquant(out, x, residual, kept, scale, weight, 1e-5, group_size=group)
            assert torch.equal(kept, total)
        else:
            aiter.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, 1e-5, group_size=group)
        exact = norm_of(total if with_add else x, weight, 1e-5)
        wide = scale.double().repeat_interleave(256 // shape[1], 1)
        # Half a code for int8; for fp8 a relative 2^-4, or half of the smallest step.
        allowed = 0.5 * wide if dtype == torch.int8 else exact.abs() * 2.0**-4 + wide * 2.0**-10
        assert bool(((out.double() * wide - exact).abs() <= allowed * 1.001 + 2.0**-20 * exact.abs()).all())


def test_activations():
    x = randn(2, 3, 96)
    gate, up = x.double().chunk(2, -1)
    out = torch.empty(2, 3, 48, dtype=torch.bfloat16)
    silu = torch.nn.functional.silu
    for call, exact in (
        (lambda: aiter.silu_and_mul(out, x), silu(gate) * up),
        (lambda: aiter.silu_and_mul(out, x, 0.5), silu(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)),
        (lambda: aiter.gelu_and_mul(out, x), torch.nn.functional.gelu(gate) * up),
        (lambda: aiter.gelu_tanh_and_mul(out, x), torch.nn.functional.gelu(gate, approximate="tanh") * up),
        (lambda: aiter.swiglu_and_mul(out, x), gate.clamp(max=7) * torch.sigmoid(1.702 * gate.clamp(max=7)) * (up.clamp(-7, 7) + 1)),
    ):
        call()
        close(out, exact, exact.abs() + up.abs())
    plain = torch.empty_like(x)
    aiter.gelu_fast(plain, x)
    close(plain, torch.nn.functional.gelu(x.double(), approximate="tanh"), x.double().abs())


def test_quantisation():
    x = randn(2, 3, 64)
    x[0, 1] = 0
    for function in (aiter.per_token_quant_hip, aiter.get_hip_quant(QuantType.per_Token), aiter.get_torch_quant(QuantType.per_Token)):
        codes, scale = function(x, quant_dtype=dtypes.i8)
        assert codes.shape == x.shape and scale.shape == (2, 3, 1) and codes.dtype == torch.int8
        assert bool(((codes.double() * scale - x.double()).abs() <= 0.5001 * scale).all())
        assert not codes[0, 1].any()
    codes, scale = aiter.per_tensor_quant(x, quant_dtype=dtypes.fp8)
    assert scale.shape == (1,) and codes.dtype == torch.float8_e4m3fn
    assert bool(((codes.double() * scale - x.double()).abs() <= x.double().abs() * 2.0**-4 + scale * 2.0**-10).all())
    assert aiter.get_hip_quant(QuantType.No)(x)[1] is None
    with pytest.raises(eitri.Unsupported, match="per_256x128"):
        aiter.get_hip_quant(QuantType.per_256x128)(x)


@pytest.mark.parametrize("dtype, layout", [(torch.bfloat16, (16, 16)), (torch.int8, (16, 16)), (torch.int8, (32, 16)),
                                           (torch.float8_e4m3fn, (16, 16))])
def test_shuffle_weight(dtype, layout):
    x = (randn(3, 64, 128) * 20).to(dtype)
    y = shuffle_weight(x, layout=layout)
    assert y.is_shuffled and y.dtype == dtype
    raw, moved = x.view(torch.uint8), y.view(torch.uint8)
    assert not torch.equal(raw, moved)
    assert torch.equal(unshuffle_weight(y, layout).view(torch.uint8), raw)
    # By the definition: tile (n0, k0), then 16-byte pieces of 2 * layout[1] columns, then rows.
    piece = 16 // x.element_size()
    parts = 2 * layout[1] // piece
    flat = y.reshape(3, -1)
    for e, n, k in ((0, 0, 0), (1, 17, 5), (2, 63, 127), (1, 33, 64)):
        n0, row = divmod(n, layout[0])
        k0, rest = divmod(k, 2 * layout[1])
        part, column = divmod(rest, piece)
        at = (((n0 * (128 // (2 * layout[1])) + k0) * parts + part) * layout[0] + row) * piece + column
        assert flat[e, at].view(torch.uint8).equal(x[e, n, k].view(torch.uint8)) if dtype == torch.int8 else flat[e, at].float() == x[e, n, k].float()
    assert shuffle_scale(torch.ones(2, 2)).equal(torch.ones(2, 2)) and shuffle_scale(None) is None


def test_gemm_a16w16():
    a, b, bias = randn(2, 3, 64), randn(48, 64, seed=2), randn(48, seed=3)
    exact = a.double() @ b.double().T + bias.double()
    bound = a.double().abs() @ b.double().abs().T + bias.double().abs()
    for got in (aiter.tgemm.mm(a, b, bias), aiter.tgemm.mm(a, shuffle_weight(b), bias), aiter.gemm_a16w16(a, b, bias.float())):
        assert got.shape == (2, 3, 48) and got.dtype == torch.bfloat16
        close(got, exact, bound)
    assert aiter.tgemm.mm(a, b, otype=torch.float32).dtype == torch.float32
    a8, b8 = a.to(dtypes.fp8), b.to(dtypes.fp8)
    got = aiter.tgemm.mm(a8, b8, otype=torch.bfloat16, scale_a=torch.tensor([0.5]))
    close(got, a8.double() @ b8.double().T * 0.5, bound)
    with pytest.raises(eitri.Unsupported, match="scale_c"):
        aiter.tgemm.mm(a, b, scale_c=torch.ones(1))
    columns = randn(64, 5, seed=4).t()  # AITER leaves such strides to torch
    close(aiter.tgemm.mm(columns, b), columns.double() @ b.double().T, columns.double().abs() @ b.double().abs().T)
    close(aiter.tgemm.mm(a, randn(64, 48, seed=5).t()), a.double() @ randn(64, 48, seed=5).double(), bound + 64)


@cpu_only
@pytest.mark.parametrize("m,n,k", [(1, 256, 256), (5, 272, 448)])
def test_gemm_a8w8_blockscale(m, n, k):
    x, w = (randn(m, k) * 20).to(dtypes.fp8), (randn(n, k, seed=2) * 20).to(dtypes.fp8)
    x_scale, w_scale = torch.rand(m, -(-k // 128)), torch.rand(-(-n // 128), -(-k // 128))
    real_x = x.double() * x_scale.double().repeat_interleave(128, 1)[:, :k]
    real_w = w.double() * w_scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    # AMX multiplies bf16: a scaled operand is rounded to its 8 bits there.
    exact, bound = real_x @ real_w.T, 2.0**8 * (real_x.abs() @ real_w.abs().T)
    close(aiter.gemm_a8w8_blockscale(x, w, x_scale, w_scale), exact, bound)
    transposed = x_scale.t().contiguous().view(*x_scale.shape)
    close(aiter.gemm_a8w8_blockscale_bpreshuffle(x, shuffle_weight(w), transposed, w_scale), exact, bound)
    columns = x_scale.t().contiguous().t()  # the same memory, with the strides that say so
    close(aiter.gemm_a8w8_blockscale_bpreshuffle(x, shuffle_weight(w), columns, w_scale), exact, bound)
    with pytest.raises(eitri.InvalidArgument, match="a_scale"):
        aiter.gemm_a8w8_blockscale(x, w, x_scale[:, :1], w_scale)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_gemm_a8w8(dtype):
    x, w = (randn(5, 64) * 20).to(dtype), (randn(32, 64, seed=2) * 20).to(dtype)
    x_scale, w_scale, bias = torch.rand(5, 1), torch.rand(1, 32), randn(32, seed=3)
    exact = x.double() @ w.double().T * x_scale.double() * w_scale.double()
    bound = x.double().abs() @ w.double().abs().T * x_scale.double() * w_scale.double()
    close(aiter.gemm_a8w8(x, w, x_scale, w_scale, bias), exact + bias.double(), bound + bias.double().abs())
    close(aiter.gemm_a8w8_CK(x, w, x_scale, w_scale.T, splitK=2), exact, bound)
    close(aiter.gemm_a8w8_bpreshuffle(x, shuffle_weight(w), x_scale, w_scale), exact, bound)
    padded = torch.cat([w.view(torch.uint8), w.view(torch.uint8)], 1).view(dtype)
    close(aiter.gemm_a8w8_bpreshuffle(x, shuffle_weight(padded), x_scale, w_scale), exact, bound)
    if dtype == torch.int8:
        close(aiter.gemm_a8w8_ASM(x, shuffle_weight(w, layout=(32, 16)), x_scale, w_scale, bias.float()), exact + bias.double(), bound + 4)


def test_a_shuffled_weight_that_is_written_again_is_read_again():
    x, w = randn(3, 64), shuffle_weight(randn(16, 64, seed=2))
    first = aiter.tgemm.mm(x, w)
    w.mul_(2)
    close(aiter.tgemm.mm(x, w), 2 * first.double())
    w.data = w.data * 2
    close(aiter.tgemm.mm(x, w), 4 * first.double())
    w.data.copy_(w.data * 2)  # torch counts no write
    forget(w)
    close(aiter.tgemm.mm(x, w), 8 * first.double())
    with torch.inference_mode():
        own = shuffle_weight(randn(16, 64, seed=2))
        close(aiter.tgemm.mm(x, own), first.double())
        own.mul_(2)
        close(aiter.tgemm.mm(x, own), 2 * first.double())


def test_batched_gemm():
    x, w, bias = randn(2, 5, 64), randn(2, 32, 64, seed=2), randn(2, 1, 32, seed=3)
    exact, bound = x.double() @ w.double().mT, x.double().abs() @ w.double().abs().mT
    close(aiter.batched_gemm_bf16_CK(x, w, bias), exact + bias.double(), bound + bias.double().abs())
    xq, wq = (x * 20).to(torch.int8), (w * 20).to(torch.int8)
    xs, ws = torch.rand(2, 5, 1), torch.rand(2, 1, 32)
    exact = xq.double() @ wq.double().mT * xs.double() * ws.double()
    close(aiter.batched_gemm_a8w8_CK(xq, wq, xs, ws), exact, exact.abs())


def experts(dtype=torch.bfloat16):
    w1, w2 = randn(8, 96, 64) / 8, randn(8, 64, 48, seed=2) / 7
    gating = randn(9, 8, seed=4)
    x = randn(9, 64, seed=5)
    weights, ids = fused_topk(x, gating, 2, True)
    return x, w1.to(dtype), w2.to(dtype), weights, ids


def moe_of(x, w1, w2, weights, ids, function, first=False):
    out = torch.zeros(x.shape[0], w2.shape[1], dtype=torch.float64)
    for t in range(len(x)):
        for weight, e in zip(weights[t].double(), ids[t]):
            h = w1[e].double() @ x[t].double() * (weight if first else 1)
            out[t] += w2[e].double() @ function(h) * (1 if first else weight)
    return out


def silu_and_up(h):
    gate, up = h.chunk(2)
    return torch.nn.functional.silu(gate) * up


def test_routers():
    gating, bias = randn(9, 16, seed=4, dtype=torch.float32), randn(16, seed=6, dtype=torch.float32)
    weights, ids, pairs = torch.empty(9, 4), torch.empty(9, 4, dtype=torch.int32), torch.empty(9, 4, dtype=torch.int32)
    aiter.topk_softmax(weights, ids, pairs, gating, True)
    top = gating.topk(4)
    assert torch.equal(ids.long(), top.indices) and torch.equal(pairs[:, 1], torch.arange(9, 18, dtype=torch.int32))
    torch.testing.assert_close(weights, torch.softmax(top.values, -1))
    one, one_id = torch.empty(9, 1), torch.empty(9, 1, dtype=torch.int32)
    aiter.topk_sigmoid(one, one_id, gating)
    assert torch.equal(one_id.long(), top.indices[:, :1])
    torch.testing.assert_close(one, torch.sigmoid(top.values[:, :1]))
    aiter.biased_grouped_topk(gating, bias, weights, ids, 4, 2, True, 2.5)
    scores = torch.sigmoid(gating)
    biased = (scores + bias).view(9, 4, 4)
    groups = biased.topk(2, -1).values.sum(-1).topk(2).indices
    allowed = torch.zeros(9, 4, dtype=torch.bool).scatter(1, groups, True).unsqueeze(-1).expand(9, 4, 4)
    chosen = biased.masked_fill(~allowed, -torch.inf).view(9, 16).topk(4).indices
    assert torch.equal(ids.long().sort().values, chosen.sort().values)
    picked = scores.gather(1, ids.long())
    torch.testing.assert_close(weights, picked / picked.sum(-1, keepdim=True) * 2.5)
    by_name, by_name_ids = torch.empty_like(weights), torch.empty_like(ids)
    aiter.biased_grouped_topk_hip(gating, bias, by_name, by_name_ids, num_expert_group=4, topk_grp=2, need_renorm=True, routed_scaling_factor=2.5)
    assert torch.equal(by_name, weights) and torch.equal(by_name_ids, ids)
    again, again_ids = aiter.moe_fused_gate(gating, bias, torch.empty_like(weights), torch.empty_like(ids), 4, 2, 4, 0, 2.5)
    assert torch.equal(again, weights) and torch.equal(again_ids, ids)
    aiter.grouped_topk(gating, weights, ids, 4, 2, False)
    torch.testing.assert_close(weights, torch.softmax(gating, -1).gather(1, ids.long()))
    aiter.topk_gating(weights, ids, gating, None, True, 1.0, "sqrtsoftplus")
    root = torch.nn.functional.softplus(gating).sqrt().topk(4)
    assert torch.equal(ids.long(), root.indices)
    torch.testing.assert_close(weights, root.values / root.values.sum(-1, keepdim=True))


def test_moe_sorting():
    _, _, _, weights, ids = experts()
    sorted_ids, sorted_weights, expert_ids, valid, buffer = moe_sorting(ids, weights, 8, 64, torch.bfloat16, 4)
    assert buffer.shape == (9, 64) and not buffer.any() and valid.tolist()[1] == 9
    seen = set()
    for position in range(int(valid[0])):
        token, slot = int(sorted_ids[position]) & 0xFFFFFF, int(sorted_ids[position]) >> 24
        if token < 9:
            assert int(expert_ids[position // 4]) == int(ids[token, slot]) and sorted_weights[position] == weights[token, slot]
            seen.add((token, slot))
    assert len(seen) == 18
    x = randn(9, 2, 64)
    out = torch.empty(9, 64, dtype=torch.bfloat16)
    aiter.moe_sum(x, out)
    close(out, x.double().sum(1), x.double().abs().sum(1))


def test_fused_moe():
    x, w1, w2, weights, ids = experts()
    exact = moe_of(x, w1, w2, weights, ids, silu_and_up)
    plain = fused_moe(x, w1, w2, weights, ids)
    torch.testing.assert_close(plain.double(), exact, rtol=2.0**-6, atol=2.0**-6)  # bf16 stores of h, activation, y and out
    assert torch.equal(fused_moe(x, shuffle_weight(w1, (16, 16)), shuffle_weight_48(w2), weights, ids), plain)
    output = torch.empty_like(plain)
    assert fused_moe(x, w1, w2, weights, ids, swiglu_limit=None, beta=None, linear_beta=None, gate_mode=None, output=output) is output
    assert torch.equal(output, plain)
    with pytest.raises(eitri.InvalidArgument, match="fused_moe: output is torch.float32; expected torch.bfloat16"):
        fused_moe(x, w1, w2, weights, ids, output=output.float())
    with pytest.raises(eitri.Unsupported, match=r"fused_moe: shared_w1 is a tensor \[96, 64\]; eitri knows only None"):
        fused_moe(x, w1, w2, weights, ids, shared_w1=w1[0], shared_w2=w2[0])
    swiglu = fused_moe(x, w1, w2, weights, ids, activation=ActivationType.Swiglu, gate_mode="interleave")

    def interleaved(h):
        gate, up = h[::2].clamp(max=7), h[1::2].clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    torch.testing.assert_close(swiglu.double(), moe_of(x, w1, w2, weights, ids, interleaved), rtol=2.0**-6, atol=2.0**-6)
    first = fused_moe(x, w1, w2, weights, ids, doweight_stage1=True)
    torch.testing.assert_close(first.double(), moe_of(x, w1, w2, weights, ids, silu_and_up, first=True), rtol=2.0**-6, atol=2.0**-6)
    ungated = fused_moe(x, w1[:, :48], w2, weights, ids, activation=ActivationType.Gelu)
    torch.testing.assert_close(ungated.double(), moe_of(x, w1[:, :48], w2, weights, ids, torch.nn.functional.gelu), rtol=2.0**-6, atol=2.0**-6)


def shuffle_weight_48(w2):
    """48 columns are no multiple of 32: such a weight stays plain, as it does in AITER."""
    with pytest.raises(eitri.InvalidArgument, match="multiples of 16 rows and 32 columns"):
        shuffle_weight(w2)
    return w2


def test_fused_moe_int8():
    x, w1, w2, weights, ids = experts()
    q1, s1 = aiter.pertoken_quant(w1)
    q2, s2 = aiter.pertoken_quant(w2)
    out = fused_moe(x, q1, q2, weights, ids, quant_type=QuantType.per_Token, w1_scale=s1, w2_scale=s2)
    exact = moe_of(x, q1.double() * s1, q2.double() * s2, weights, ids, silu_and_up)
    # Activations are coded twice: half a code of 1/127 of the row's largest in each of 64 and 48 products.
    torch.testing.assert_close(out.double(), exact, rtol=0.05, atol=0.05)
    codes, scale = aiter.per_token_quant_hip(x)
    given = fused_moe(codes, q1, q2, weights, ids, quant_type=QuantType.per_Token, w1_scale=s1, w2_scale=s2, a1_scale=scale)
    assert torch.equal(given, out)
    with pytest.raises(eitri.Unsupported, match="per_1x128"):
        fused_moe(x, q1, q2, weights, ids, quant_type=QuantType.per_1x128)
    with pytest.raises(eitri.Unsupported, match="fused_moe: quant_type is per_256x128"):
        fused_moe(x, q1, q2, weights, ids, quant_type=QuantType.per_256x128)


@pytest.mark.parametrize("weight_stage", [1, 2])
def test_stages_one_by_one(weight_stage):
    x, w1, w2, weights, ids = experts()
    ids[3, 1] = 99  # no such expert: the pair adds nothing
    lists = moe_sorting(ids, weights, 8, 64, torch.bfloat16, 4)
    sorted_ids, sorted_weights, expert_ids, valid, out = lists
    h = torch.full((9, 2, 48), torch.nan, dtype=torch.bfloat16)
    first, second = (sorted_weights, None) if weight_stage == 1 else (None, sorted_weights)
    aiter.ck_moe_stage1_fwd(x, w1, w2, sorted_ids, expert_ids, valid, h, 2, block_m=4, sorted_weights=first)
    assert not h[3, 1].any()
    got = aiter.ck_moe_stage2_fwd(h, w1, w2, sorted_ids, expert_ids, valid, out, 2, block_m=4, sorted_weights=second)
    whole = fused_moe(x, w1, w2, weights, ids, doweight_stage1=weight_stage == 1)
    torch.testing.assert_close(got, whole, rtol=2.0**-6, atol=2.0**-6)


def test_stages_int8():
    x, w1, w2, weights, ids = experts()
    (q1, s1), (q2, s2) = aiter.pertoken_quant(w1), aiter.pertoken_quant(w2)
    sorted_ids, sorted_weights, expert_ids, valid, out = moe_sorting(ids, weights, 8, 64, torch.bfloat16, 4)
    codes, scale = aiter.per_token_quant_hip(x)
    h = torch.empty(9, 2, 48, dtype=torch.bfloat16)
    per_token = QuantType.per_Token
    aiter.ck_moe_stage1_fwd(codes, q1, q2, sorted_ids, expert_ids, valid, h, 2, "", s1, scale, 4, None, per_token)
    h_codes, h_scale = aiter.per_token_quant_hip(h)
    aiter.ck_moe_stage2_fwd(h_codes, q1, q2, sorted_ids, expert_ids, valid, out, 2, "", s2, h_scale, 4, sorted_weights, per_token)
    whole = fused_moe(x, q1, q2, weights, ids, quant_type=per_token, w1_scale=s1, w2_scale=s2)
    torch.testing.assert_close(out, whole, rtol=2.0**-5, atol=2.0**-5)  # the activation is rounded to bf16 before it is coded here
    with pytest.raises(eitri.Unsupported, match="ck_moe_stage1_fwd: quant_type"):
        aiter.ck_moe_stage1_fwd(codes, q1, q2, sorted_ids, expert_ids, valid, h, 2, quant_type=QuantType.per_1x32)


def test_tools_of_test_common():
    a = torch.ones(100)
    b = a.clone()
    assert checkAllclose(a, b) == 0
    b[:10] = 2
    assert checkAllclose(a, b) == 0.1
    with pytest.raises(AssertionError, match="largest difference is 1.0"):
        checkAllclose(a, b, max_abs_delta=0.5)
    a[0] = torch.nan
    assert checkAllclose(a, b, printLog=False, catastrophic_check=True, tol_err_ratio=0.5) == 1.0
    data, us = run_perftest(torch.add, a, b, num_iters=3)
    assert data.shape == (100,) and us > 0
    assert perftest(num_iters=2)(lambda: 5)()[0] == 5


def test_compile():
    x, weight, w = randn(5, 64), randn(64), randn(32, 64, seed=2)

    def block(x):
        y = aiter.rms_norm(x, weight, 1e-5)
        h = aiter.tgemm.mm(y, w)
        out = torch.empty(5, 16, dtype=h.dtype)
        aiter.silu_and_mul(out, h)
        return out

    torch._dynamo.reset()
    assert torch.equal(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x))
    mixed = shuffle_weight(w)
    shuffled = torch.compile(lambda x: aiter.gemm_a16w16_asm(x, mixed, torch.empty(5, 32, dtype=x.dtype, device=x.device), bpreshuffle=True),
                             fullgraph=True, backend="aot_eager")
    assert torch.equal(shuffled(x), aiter.tgemm.mm(x, w))
