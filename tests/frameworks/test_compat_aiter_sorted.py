"""AITER's names that go by groups of rows and by sorted positions: against plain loops in float64."""

import pytest
import torch
from eitri_calls import randn
from test_compat_aiter_quant import coded, layer, values

import eitri
import eitri.compat.aiter as compat

compat.install()

import aiter  # noqa: E402
from aiter import ActivationType, QuantType, dtypes  # noqa: E402
from aiter.fused_moe import fused_moe, moe_sorting  # noqa: E402
from aiter.ops.shuffle import shuffle_scale_a16w4, shuffle_weight, shuffle_weight_a16w4  # noqa: E402

cpu_only = pytest.mark.parametrize("device", ["cpu"], indirect=True)
pytestmark = pytest.mark.usefixtures("device")
EXPERTS, TOP_K, DIM, INTER = 8, 2, 256, 128


def error_of(got, exact):
    return ((got.double() - exact).square().mean() / exact.square().mean()).sqrt().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, dtypes.fp8])
@pytest.mark.parametrize("m", [6, 32])
def test_deepgemm(m, dtype, device):
    if dtype == dtypes.fp8 and device == "cuda":
        pytest.skip("groups of fp8 are for CPUs")
    x, w = randn(3, m, 64), randn(3, 32, 64, seed=2)
    counts = torch.tensor([m, 0, 5], dtype=torch.int32)
    scales, real_x, real_w = (), x.double(), w.double()
    if dtype != torch.bfloat16:
        (x, x_scale), (w, w_scale) = aiter.per_token_quant_hip(x, quant_dtype=dtype), aiter.per_token_quant_hip(w, quant_dtype=dtype)
        scales, real_x, real_w = (x_scale, w_scale), x.double() * x_scale.double(), w.double() * w_scale.double()
    for weight in (w, shuffle_weight(w)):
        y = torch.full((3, m, 32), 7.0, dtype=torch.bfloat16)
        assert aiter.deepgemm(x, weight, y, counts, *scales) is y
        exact, bound = real_x @ real_w.mT, real_x.abs() @ real_w.abs().mT
        there = torch.arange(m) < counts[:, None]
        assert bool((y[~there] == 7).all())
        assert bool(((y.double() - exact).abs() <= exact.abs() * 2.0**-8 + bound * 2.0**-16)[there].all())


def test_gmm():
    from aiter.ops.triton.gmm import gmm

    lhs, rhs, sizes = randn(11, 64), randn(4, 64, 32, seed=2), torch.tensor([3, 0, 6, 1], dtype=torch.int32)
    bias = randn(4, 32, seed=3)
    group = [0] * 3 + [2] * 6 + [3]
    exact = torch.stack([lhs[i].double() @ rhs[g].double() + bias[g].double() for i, g in enumerate(group)])
    for out in (gmm(lhs, rhs, sizes, bias=bias), gmm(lhs, rhs, sizes, existing_out=torch.empty(11, 32, dtype=torch.float32), bias=bias)):
        assert not out[10].any()  # beyond the last group
        torch.testing.assert_close(out[:10].double(), exact, rtol=2.0**-7, atol=1e-4)


def sorted_layer(block=32):
    x, w1, w2, weights, ids = layer()
    return (x, w1, w2, weights, ids), moe_sorting(ids, weights, EXPERTS, x.shape[1], torch.bfloat16, block)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("dtype", [dtypes.fp4x2, dtypes.fp8])
def test_quantised_scales_by_position(stage, dtype):
    (x, _, _, _, ids), (sorted_ids, _, _, valid, _) = sorted_layer()
    tokens = x.shape[0]
    rows = randn(tokens if stage == 1 else tokens * TOP_K, 320, seed=7)
    function = aiter.fused_dynamic_mxfp4_quant_moe_sort if dtype == dtypes.fp4x2 else aiter.fused_dynamic_mxfp8_quant_moe_sort
    codes, scale = function(rows, sorted_ids, valid, tokens, TOP_K, 32)
    plain_codes, plain = aiter.per_1x32_mx_quant_hip(rows, quant_dtype=dtype, scale_type=dtypes.fp8_e8m0)
    assert torch.equal(codes.view(torch.uint8), plain_codes.view(torch.uint8))
    assert scale.shape == (-(-sorted_ids.shape[0] // 32) * 32, 16) and scale.dtype == dtypes.fp8_e8m0
    flat, plain = scale.view(torch.uint8).reshape(-1), plain.view(torch.uint8)
    for position in range(int(valid[0])):
        token, slot = int(sorted_ids[position]) & 0xFFFFFF, int(sorted_ids[position]) >> 24
        for column in (0, 3, 4, 7, 8, 9):
            a, rest = divmod(position, 32)
            b, c = divmod(rest, 16)
            d, tail = divmod(column, 8)
            e, f = divmod(tail, 4)
            at = ((((a * 2 + d) * 4 + f) * 16 + c) * 2 + e) * 2 + b
            assert flat[at] == (0 if token == tokens else plain[token if stage == 1 else token * TOP_K + slot, column])
    from aiter.utility.fp4_utils import moe_mxfp4_sort

    again = moe_mxfp4_sort(plain.view(dtypes.fp8_e8m0) if stage == 1 else plain.view(tokens, TOP_K, -1).view(dtypes.fp8_e8m0), sorted_ids, valid,
                           tokens)
    assert torch.equal(again.view(torch.uint8), scale.view(torch.uint8))


def test_a_buffer_of_scales_is_what_was_written_last():
    _, (sorted_ids, _, _, valid, _) = sorted_layer()
    rows = randn(9, 256, seed=7)
    codes, scale = aiter.per_1x32_mx_quant_hip(rows, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    buffer = torch.empty(-(-sorted_ids.shape[0] // 32) * 32 * 8, dtype=torch.uint8)
    aiter.mxfp4_moe_sort_hip(buffer, scale, sorted_ids, valid, 9, 256)
    assert buffer.is_sorted and buffer.is_shuffled
    buffer.set_(torch.empty(9 * 8, dtype=torch.uint8))
    aiter.dynamic_per_group_scaled_quant(codes, rows, buffer, 32, shuffle_scale=False)
    assert not buffer.is_sorted and not buffer.is_shuffled and torch.equal(buffer, scale.view(torch.uint8).view(-1))


@cpu_only
@pytest.mark.parametrize("weights_in", ["fp4", QuantType.per_1x32])
def test_stages_with_scales_by_position(weights_in):
    """fp4 or fp8 activations whose scales moe_sort put into order; fused_moe takes fp4 activations as well."""
    (x, w1, w2, weights, ids), (sorted_ids, sorted_weights, experts, valid, out) = sorted_layer()
    tokens, kind = x.shape[0], dtypes.fp4x2 if weights_in == "fp4" else dtypes.fp8
    (q1, s1, r1), (q2, s2, r2) = coded(w1, weights_in), coded(w2, weights_in)
    lists = sorted_ids, experts, valid
    codes, scale = aiter.fused_dynamic_mx_quant_moe_sort(x, sorted_ids, valid, tokens, TOP_K, 32, kind)
    h = torch.empty(tokens, TOP_K, w2.shape[2], dtype=torch.bfloat16)
    aiter.ck_moe_stage1_fwd(codes, q1, q2, *lists, h, TOP_K, "", s1, scale, 32, None, QuantType.per_1x32)
    plain_codes, plain_scale = aiter.per_1x32_mx_quant_hip(x, quant_dtype=kind, scale_type=dtypes.fp8_e8m0)
    again = torch.empty_like(h)
    aiter.ck_moe_stage1_fwd(plain_codes, q1, q2, *lists, again, TOP_K, "", s1, plain_scale, 32, None, QuantType.per_1x32)
    assert torch.equal(again, h)
    h_codes, h_scale = aiter.fused_dynamic_mx_quant_moe_sort(h.view(-1, h.shape[-1]), sorted_ids, valid, tokens, TOP_K, 32, kind)
    aiter.ck_moe_stage2_fwd(h_codes.view(tokens, TOP_K, -1), q1, q2, *lists, out, TOP_K, "", s2, h_scale, 32, sorted_weights, QuantType.per_1x32)
    # What the codes mean, with h as stage 1 stored it: only sums are rounded after that.
    real_x, real_h = values(plain_codes, plain_scale, 32), torch.empty(tokens, TOP_K, w2.shape[2], dtype=torch.float64)
    exact = torch.zeros(tokens, w2.shape[1], dtype=torch.float64)
    own_codes, own_scale = aiter.per_1x32_mx_quant_hip(h.view(-1, h.shape[-1]), quant_dtype=kind, scale_type=dtypes.fp8_e8m0)
    coded_h = values(own_codes, own_scale, 32).view(tokens, TOP_K, -1)
    for t in range(tokens):
        for slot, e in enumerate(ids[t].tolist()):
            gate, up = (r1[e] @ real_x[t]).chunk(2)
            real_h[t, slot] = torch.nn.functional.silu(gate) * up
            exact[t] += r2[e] @ coded_h[t, slot] * weights[t, slot].double()
    assert error_of(h, real_h) < 2.0**-8 and error_of(out, exact) < 2.0**-8
    if kind == dtypes.fp4x2:
        whole = fused_moe(plain_codes, q1, q2, weights, ids, quant_type=QuantType.per_1x32, w1_scale=s1, w2_scale=s2, a1_scale=plain_scale)
        assert error_of(whole, exact) < 0.2  # h is quantised to fp8 there, to fp4 here: 2^-2 of a value at most, 0.12 of it at random


@cpu_only
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("activation", [ActivationType.Silu, ActivationType.Swiglu])
def test_cktile_stages(shuffle, activation):
    """16-bit activations and fp4 weights with expert biases (gpt-oss)."""
    x, w1, w2 = randn(9, DIM, seed=5), randn(EXPERTS, 2 * INTER, DIM) / DIM**0.5, randn(EXPERTS, DIM, INTER, seed=2) / INTER**0.5
    weights, ids = aiter.fused_topk(x, randn(9, EXPERTS, seed=4), TOP_K, True)
    (q1, s1, r1), (q2, s2, r2) = coded(w1, "fp4"), coded(w2, "fp4")
    bias1, bias2 = torch.randn(EXPERTS, 2 * INTER), torch.randn(EXPERTS, DIM)
    if shuffle:
        q1, q2 = shuffle_weight_a16w4(q1, 16, True), shuffle_weight(q2, layout=(16, 16))
        s1 = shuffle_scale_a16w4(s1.view(EXPERTS * 2 * INTER, -1), EXPERTS, True)
    sorted_ids, sorted_weights, experts, valid, out = moe_sorting(ids, weights, EXPERTS, DIM, torch.bfloat16, 32)
    lists = sorted_ids, experts, valid
    h = torch.empty(9, TOP_K, INTER, dtype=torch.bfloat16)
    aiter.moe_cktile2stages_gemm1(x, q1, h, *lists, TOP_K, w_scale=s1, exp_bias=bias1, activation=activation.value)
    aiter.moe_cktile2stages_gemm2(h, q2, out, *lists, TOP_K, topk_weight=sorted_weights, w_scale=s2, exp_bias=bias2)
    sums = torch.empty(9, TOP_K, 2 * INTER, dtype=torch.bfloat16)
    aiter.moe_cktile2stages_gemm1(x, q1, sums, *lists, TOP_K, w_scale=s1, exp_bias=bias1, activation=activation.value, split_k=2)
    exact = torch.zeros(9, DIM, dtype=torch.float64)
    for t in range(9):
        for slot, e in enumerate(ids[t].tolist()):
            raw = r1[e] @ x[t].double() + bias1[e].double()
            assert error_of(sums[t, slot], raw) < 2.0**-8
            gate, up = raw.chunk(2)
            if activation is ActivationType.Swiglu:
                gate, up = gate.clamp(max=7), up.clamp(-7, 7)
                wanted = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                wanted = torch.nn.functional.silu(gate) * up
            assert error_of(h[t, slot], wanted) < 2.0**-7
            exact[t] += (r2[e] @ h[t, slot].double() + bias2[e].double()) * weights[t, slot].double()
    assert error_of(out, exact) < 2.0**-7
    swiglu = activation is ActivationType.Swiglu
    whole = fused_moe(x, q1, q2, weights, ids, activation=activation, quant_type=QuantType.per_1x32, w1_scale=s1, w2_scale=s2, bias1=bias1,
                      bias2=bias2, gate_mode="interleave" if shuffle else "separated", hidden_pad=32)
    assert error_of(whole, exact) < (0.02 if swiglu else 0.01)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int8, dtypes.fp8])
def test_smooth_quantisation_of_experts(stage, dtype, transpose):
    (x, _, _, _, ids), (sorted_ids, _, experts, valid, _) = sorted_layer()
    m, n = 9, 64
    smooth = torch.rand(EXPERTS, n) + 0.5
    rows = randn(m, n) if stage == 1 else randn(m, TOP_K, n)
    out, scales = torch.zeros(TOP_K * m, n, dtype=torch.int8).view(dtype), torch.zeros(TOP_K * m)
    aiter.moe_smooth_per_token_scaled_quant(out, rows, scales, smooth, ids, sorted_ids, experts, valid, 32, transpose_out=transpose)
    wide = rows.double().view(m, -1, n).expand(m, TOP_K, n) * smooth.double()[ids.long()]
    wide = (wide.transpose(0, 1) if transpose else wide).reshape(-1, n)
    allowed = 0.501 * scales.double()[:, None] if dtype == torch.int8 else wide.abs() * 2.0**-4 + scales.double()[:, None] * 2.0**-9
    assert bool(((out.double() * scales.double()[:, None] - wide).abs() <= allowed + wide.abs() * 2.0**-20).all())
    if stage == 1:
        again, same = torch.empty_like(out), torch.empty_like(scales)
        aiter.moe_smooth_per_token_scaled_quant_v1(again, rows, same, smooth, ids, transpose_out=transpose)
        assert torch.equal(again.view(torch.uint8), out.view(torch.uint8)) and torch.equal(same, scales)


def test_partial_transpose():
    x, out = randn(5, 6), torch.zeros(5, 6, dtype=torch.bfloat16)
    aiter.partial_transpose(out, x, torch.tensor([3], dtype=torch.int32))
    assert torch.equal(out.view(-1)[:18].view(6, 3), x[:3].t()) and not out.view(-1)[18:].any()


def test_shared_experts_of_the_router():
    gating = randn(9, 10, dtype=torch.float32)
    weights, ids, pairs = torch.zeros(9, 6), torch.zeros(9, 4, dtype=torch.int32), torch.zeros(9, 4, dtype=torch.int32)
    aiter.topk_softmax(weights, ids, pairs, gating, False, 2, "sigmoid")
    top = torch.softmax(gating[:, :8], -1).topk(4)
    assert torch.equal(ids.long(), top.indices)
    torch.testing.assert_close(weights[:, :4], top.values)
    torch.testing.assert_close(weights[:, 4:], torch.sigmoid(gating[:, 8:]))
    with pytest.raises(eitri.Unsupported, match="shared_expert_scoring_func is ''"):
        aiter.topk_softmax(weights, ids, pairs, gating, False, 2)
    routed = gating[:, :8].contiguous()
    for got in (aiter.grouped_topk_torch(routed, 4, True, 2, 2), aiter.biased_grouped_topk_torch(routed, torch.zeros(8), 4, True, 2, 2)):
        assert got[0].shape == (9, 4) and got[1].dtype == torch.int32
        torch.testing.assert_close(got[0].sum(-1), torch.ones(9))
    torch.testing.assert_close(aiter.grouped_topk_torch(routed, 4, False, 2, 2)[0], top.values)


def test_moe_of_a_rank_that_reduces_itself():
    (_, _, _, weights, ids), _ = sorted_layer()
    assert moe_sorting(ids, weights, EXPERTS, 16, torch.bfloat16, accumulate=False)[4].shape == (0, 0)
    with pytest.raises(eitri.Unsupported, match="output_aux"):
        moe_sorting(ids, weights, EXPERTS, 16, torch.bfloat16, output_aux=True)
