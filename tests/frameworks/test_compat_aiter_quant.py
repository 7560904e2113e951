"""AITER's quantisation functions, and its expert layers on 8 and 4 bits, over eitri: each against a model in torch."""

import os
import subprocess
import sys

import pytest
import torch
from eitri_calls import randn

import eitri
import eitri.compat.aiter as compat

compat.install()

import aiter  # noqa: E402
from aiter import ActivationType, QuantType, dtypes  # noqa: E402
from aiter.fused_moe import fused_moe, fused_topk, moe_sorting  # noqa: E402
from aiter.fused_moe_bf16_asm import asm_moe, asm_moe_tkw1  # noqa: E402
from aiter.ops.shuffle import shuffle_scale, shuffle_scale_a16w4, shuffle_weight, shuffle_weight_a16w4  # noqa: E402

cpu_only = pytest.mark.parametrize("device", ["cpu"], indirect=True)
pytestmark = pytest.mark.usefixtures("device")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def fp4_values(codes):
    """[.., n / 2] pairs as [.., n] numbers."""
    raw = codes.view(torch.uint8).long()
    return E2M1.to(raw.device)[torch.stack([raw & 15, raw >> 4], -1).flatten(-2)]


def e8m0_values(scale):
    return 2.0 ** (scale.view(torch.uint8).double() - 127)


def values(codes, scale, group):
    """What codes [rows, n] and scales [rows, n / group] mean."""
    numbers = fp4_values(codes) if codes.dtype == dtypes.fp4x2 else codes.double()
    scale = scale.double() if scale.dtype == torch.float32 else e8m0_values(scale)
    return numbers * scale.repeat_interleave(group, -1)


def within_a_code(x, codes, scale, group):
    """Every value is at most half a step of its code away: by the dtype's spacing, in units of its block's scale."""
    real = values(codes, scale, group)
    x = x.double().reshape(real.shape)
    unit = (scale.double() if scale.dtype == torch.float32 else e8m0_values(scale)).repeat_interleave(group, -1)
    if codes.dtype == torch.int8:
        step = unit / 2
    elif codes.dtype == dtypes.fp4x2:
        step = torch.maximum(x.abs() / 4, unit / 4)
    else:
        step = torch.maximum(x.abs() / 16, unit * 2.0**-10)
    return bool(((real - x).abs() <= step * 1.00001).all())


@pytest.mark.parametrize("dtype", [torch.int8, dtypes.fp8])
def test_per_tensor_and_per_token(dtype):
    x = randn(2, 3, 64) * 3
    x[0, 1] = 0
    most = aiter.get_dtype_max(dtype)
    for function in (aiter.per_tensor_quant_hip, aiter.get_hip_quant(QuantType.per_Tensor)):
        codes, scale = function(x, quant_dtype=dtype)
        assert scale.shape == (1,) and scale.item() == pytest.approx(x.abs().max().item() / most)
        assert within_a_code(x.view(6, 64), codes.view(6, 64), scale.expand(6, 1), 64) and not codes.float()[0, 1].any()
    codes, scale = aiter.per_token_quant_hip(x, quant_dtype=dtype)
    torch.testing.assert_close(scale.squeeze(-1), x.float().abs().amax(-1) / most)
    assert within_a_code(x.view(6, 64), codes.view(6, 64), scale.view(6, 1), 64)
    fixed = torch.tensor([0.25])
    codes, scale = aiter.per_tensor_quant_hip(x, scale=fixed, quant_dtype=dtype)
    expected = (x.float() / 0.25).clamp(-most, most)
    assert torch.equal(codes.float(), (expected.round() if dtype == torch.int8 else expected).to(dtype).float()) and scale.equal(fixed)


@pytest.mark.parametrize("dtype", [torch.int8, dtypes.fp8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_with_f32_scales(dtype, group):
    x = randn(5, 256)
    codes, scale = aiter.per_group_quant_hip(x, quant_dtype=dtype, group_size=group)
    assert scale.shape == (5, 256 // group) and within_a_code(x, codes, scale, group)
    torch.testing.assert_close(scale, x.float().view(5, -1, group).abs().amax(-1) / aiter.get_dtype_max(dtype))
    again, turned = aiter.per_group_quant_hip(x, quant_dtype=dtype, group_size=group, transpose_scale=True)
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8)) and torch.equal(turned.view(256 // group, 5), scale.t())
    if group == 128:
        by_type, _ = aiter.get_hip_quant(QuantType.per_1x128)(x, quant_dtype=dtype)
        assert torch.equal(by_type.view(torch.uint8), codes.view(torch.uint8))
        torch_codes, torch_scale = aiter.get_torch_quant(QuantType.per_1x128)(x, quant_dtype=dtype)
        torch.testing.assert_close(torch_scale, scale)
        assert ((torch_codes.float() - codes.float()).abs() > 0).float().mean() < 0.01  # a quotient and a product with the inverse differ at ties
    with pytest.raises(eitri.InvalidArgument, match="group_size is 48"):
        aiter.dynamic_per_group_scaled_quant(codes, x, scale, 48)


def test_mx_codes():
    x = randn(5, 96) * 2.0 ** torch.arange(-7, 8).repeat_interleave(32).view(5, 96)
    for codes, scale in (aiter.per_1x32_f4_quant(x), aiter.per_1x32_f4_quant_hip(x), aiter.get_hip_quant(QuantType.per_1x32)(x)):
        assert codes.dtype == dtypes.fp4x2 and codes.shape == (5, 48) and scale.shape == (5, 3) and scale.dtype == dtypes.fp8_e8m0
        assert within_a_code(x, codes, scale, 32)
        amax = x.double().view(5, 3, 32).abs().amax(-1)
        assert torch.equal(e8m0_values(scale), 2.0 ** torch.ceil(torch.log2(amax / 6)))
    down = aiter.per_1x32_f4_quant(x, round_mode=0)[1]
    assert torch.equal(e8m0_values(down), 2.0 ** (torch.floor(torch.log2(amax)) - 2))
    with pytest.raises(eitri.Unsupported, match="round_mode is 3"):
        aiter.per_1x32_f4_quant(x, round_mode=3)
    right, right_scale = aiter.per_1x32_f4_quant(x.t().contiguous(), pack_dim=0)
    assert right.shape == (48, 5) and right_scale.shape == (3, 5)
    assert torch.equal(right.view(torch.uint8).t(), codes.view(torch.uint8))
    f8, f8_scale = aiter.per_1x32_mx_quant_hip(x, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    assert within_a_code(x, f8, f8_scale, 32) and torch.equal(e8m0_values(f8_scale), 2.0 ** torch.ceil(torch.log2(amax / 448)))
    for function_scale in (aiter.per_1x32_mx_quant_hip(x, quant_dtype=dtypes.fp8)[1], aiter.per_1x32_f8_scale_f8_quant(x)[1]):
        assert function_scale.dtype == torch.float32 and function_scale.shape == (5, 3)
    assert torch.equal(aiter.per_1x32_f8_scale_f8_quant(x, scale_type=dtypes.fp8_e8m0)[0].view(torch.uint8), f8.view(torch.uint8))


def test_shuffled_scales():
    x = randn(40, 320)
    codes, scale = aiter.per_1x32_f4_quant(x)
    again, mixed = aiter.per_1x32_f4_quant_hip(x, shuffle=True)
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8)) and mixed.shape == (256, 16)
    assert torch.equal(shuffle_scale(scale).view(torch.uint8), mixed.view(torch.uint8))
    flat = mixed.view(torch.uint8).reshape(-1)
    # By the definition: (rows / 32, 2, 16, columns / 8, 2, 4) in the order 0, 3, 5, 2, 4, 1.
    for row, column in ((0, 0), (1, 0), (17, 3), (39, 9), (33, 5)):
        a, rest = divmod(row, 32)
        b, c = divmod(rest, 16)
        d, rest = divmod(column, 8)
        e, f = divmod(rest, 4)
        at = ((((a * 2 + d) * 4 + f) * 16 + c) * 2 + e) * 2 + b
        assert flat[at] == scale.view(torch.uint8)[row, column]
    from eitri.compat.aiter.shuffle import plain_scale

    assert torch.equal(plain_scale(shuffle_scale(scale), 40, 10).view(torch.uint8), scale.view(torch.uint8))


@cpu_only
def test_shuffled_scales_are_known_where_they_were_made():
    """256 rows and 8 blocks: nothing is padded, so that a scale that lost its mark would fit as a plain one."""
    x, w = randn(256, 256), randn(256, 256)
    plain_x, x_scale = aiter.per_1x32_mx_quant_hip(x, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    w8, w_scale = aiter.per_1x32_mx_quant_hip(w, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    expected = aiter.gemm_a8w8_mxfp8(plain_x, w8, x_scale, w_scale)
    a, a_scale = aiter.per_1x32_mx_quant_hip(x, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0, shuffle=True)
    b, b_scale = aiter.per_1x32_mx_quant_hip(w, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0, shuffle=True)
    assert a_scale.is_shuffled and not x_scale.is_shuffled
    assert not torch.equal(a_scale.view(torch.uint8), x_scale.view(torch.uint8))
    torch.testing.assert_close(aiter.gemm_a8w8_mxfp8(a, b, a_scale, b_scale), expected, rtol=0, atol=0)
    assert aiter.per_1x32_f4_quant(w, shuffle=True)[1].is_shuffled and not aiter.per_1x32_f4_quant(w)[1].is_shuffled
    with pytest.raises(eitri.InvalidArgument, match="out"):
        aiter.per_group_quant_hip(x, quant_dtype=torch.int8, group_size=32, scale_type=dtypes.fp8_e8m0)
    wide = randn(4, 3 * 256)[:, :256]
    codes, scale = aiter.per_group_quant_hip(wide)
    again, same = aiter.per_group_quant_hip(wide.contiguous())
    assert torch.equal(codes, again) and torch.equal(scale, same)


def test_smooth_and_int4_and_activations():
    x, smooth = randn(4, 64), torch.rand(64) + 0.5
    out, scale = torch.empty(4, 64, dtype=torch.int8), torch.empty(4, 1)
    aiter.smoothquant_fwd(out, x, smooth, scale)
    assert within_a_code(x.double() * smooth.double(), out, scale, 64)
    aiter.smooth_per_token_scaled_quant(out, x, scale, smooth)
    assert within_a_code(x.double() * smooth.double(), out, scale, 64)
    ids, smooths = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1]], dtype=torch.int32), torch.rand(3, 64) + 0.5
    slots, scales = torch.empty(8, 64, dtype=torch.int8), torch.empty(8)
    aiter.moe_smoothquant_fwd(slots, x, smooths, ids, scales)
    wanted = torch.cat([x.double() * smooths.double()[ids[:, slot].long()] for slot in (0, 1)])
    assert within_a_code(wanted, slots, scales.view(8, 1), 64)
    codes, i4_scale = aiter.per_1x32_i4_quant(x)
    assert codes.dtype == torch.int8 and codes.abs().max() == 7 and i4_scale.shape == (2, 4)
    assert bool(((codes.double() * i4_scale.double().t().repeat_interleave(32, 1) - x.double()).abs() <= 0.52 * i4_scale.double().max()).all())
    gate_up = randn(4, 128)
    gate, up = gate_up.double().chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    f8 = torch.empty(4, 64, dtype=dtypes.fp8)
    aiter.scaled_silu_and_mul(f8, gate_up, torch.tensor([0.5]))
    assert bool(((f8.double() * 0.5 - exact).abs() <= exact.abs() * (2.0**-4 + 2.0**-12) + 2.0**-10).all())
    group_scale = torch.empty(4, 2)
    aiter.silu_and_mul_quant(f8, gate_up, group_scale, 32)
    assert bool(((values(f8, group_scale, 32) - exact).abs() <= exact.abs() * (2.0**-4 + 2.0**-12) + group_scale.max().double() * 2.0**-9).all())


@cpu_only
def test_gemm_mxfp8():
    a, b = randn(5, 64), randn(32, 64, seed=2)
    a8, a_scale = aiter.per_1x32_mx_quant_hip(a, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    b8, b_scale = aiter.per_1x32_mx_quant_hip(b, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    b4, b4_scale = aiter.per_1x32_f4_quant(b)
    for function, w, s in ((aiter.gemm_a8w8_mxfp8, b8, b_scale), (aiter.gemm_a8w4_mxfp8, b4, b4_scale)):
        exact = values(a8, a_scale, 32) @ values(w, s, 32).T
        bound = values(a8, a_scale, 32).abs() @ values(w, s, 32).abs().T
        for got in (function(a8, w, a_scale, s), function(a8, shuffle_weight(w), a_scale, shuffle_scale(s))):
            assert bool(((got.double() - exact).abs() <= exact.abs() * 2.0**-8 + bound * 2.0**-16).all())


def test_other_products():
    a, b, bias = randn(3, 64), randn(48, 64, seed=2), randn(48, seed=3)
    exact = a.double() @ b.double().T
    bound = a.double().abs() @ b.double().abs().T * 2.0**-16 + exact.abs() * 2.0**-8 + 0.02
    out = torch.empty(3, 48, dtype=torch.bfloat16)
    for got, plus in ((aiter.gemm_a16w16_asm(a, b, out), 0), (aiter.gemm_a16w16_asm(a, shuffle_weight(b), out, bpreshuffle=True), 0),
                      (aiter.hipb_mm(a, b.t(), 0, bias), bias.double()), (aiter.hipb_mm(a, b.t().contiguous(), -1), 0), (aiter.rocb_mm(a, b.t(), 0), 0)):
        assert bool(((got.double() - exact - plus).abs() <= bound).all())


@cpu_only
def test_flatmm():
    x, w = (randn(3, 128) * 9).to(dtypes.fp8), (randn(128, 128, seed=2) * 9).to(dtypes.fp8)
    out = torch.empty(3, 128, dtype=torch.float16)
    aiter.flatmm_a8w8_blockscale_ASM(x, w, torch.full((3, 1), 0.5), torch.full((1, 1), 0.25), out)
    torch.testing.assert_close(out.double(), x.double() @ w.double().T / 8, rtol=2.0**-8, atol=0.5)


OLD_TORCH = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__, torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
import eitri.nn
import eitri.compat.aiter as compat
compat.install()
import aiter
from aiter import QuantType, dtypes
from aiter.fused_moe import fused_moe
from aiter.ops.shuffle import shuffle_scale, shuffle_weight
from aiter.ops.triton.gemm.basic.gemm_a16wfp4 import gemm_a16wfp4
from aiter.ops.triton.quant import dynamic_mxfp4_quant, dynamic_mxfp8_quant
torch.manual_seed(1)
x, w = torch.randn(4, 256).bfloat16(), (torch.randn(256, 256) / 16).bfloat16()
exact = x.double() @ w.double().T
near = lambda got: bool(((got.double() - exact).square().mean() / exact.square().mean()).sqrt() < 0.2)
for quant in ("mxfp8", "mxfp4", "mxfp4_mxfp8"):
    assert near(eitri.nn.Linear(w, quant=quant)(x)), quant
(qx, sx), (qw, sw) = aiter.per_1x32_f4_quant(x), aiter.per_1x32_mx_quant_hip(w)
assert {t.dtype for t in (qx, sx, qw, sw)} == {torch.uint8}
assert near(aiter.gemm_a4w4(qx, shuffle_weight(qw), sx, shuffle_scale(sw)))
assert near(gemm_a16wfp4(x, *dynamic_mxfp4_quant(w)))
(x8, x8_scale), (w8, w8_scale) = (aiter.per_1x32_mx_quant_hip(t, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0) for t in (x, w))
assert near(aiter.gemm_a8w8_mxfp8(x8, w8, x8_scale, w8_scale))
assert torch.equal(dynamic_mxfp8_quant(x)[1], x8_scale) and torch.equal(aiter.per_1x32_f8_scale_f8_quant(x, scale_type=dtypes.fp8_e8m0)[1], x8_scale)
one = fused_moe(x, qw.view(1, 256, 128), qw.view(1, 256, 128)[:, :, :64].contiguous(), torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int32),
                quant_type=QuantType.per_1x32, w1_scale=sw, w2_scale=sw[:, :4].contiguous())
assert one.shape == (4, 256) and bool(one.isfinite().all()) and bool(one.any())
"""


def test_a_torch_without_e8m0_and_fp4():
    """They are bytes there, for modules and for AITER's functions."""
    done = subprocess.run([sys.executable, "-c", OLD_TORCH], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TOKENS, EXPERTS, DIM, INTER = 9, 8, 256, 128


def layer():
    x, gating = randn(TOKENS, DIM, seed=5), randn(TOKENS, EXPERTS, seed=4)
    w1, w2 = randn(EXPERTS, 2 * INTER, DIM) / DIM**0.5, randn(EXPERTS, DIM, INTER, seed=2) / INTER**0.5
    return x, w1, w2, *fused_topk(x, gating, 2, True)


def moe_of(x, w1, w2, weights, ids, first=False):
    out = torch.zeros(len(x), w2.shape[1], dtype=torch.float64)
    for t in range(len(x)):
        for weight, e in zip(weights[t].double(), ids[t]):
            h = w1[e].double() @ x[t].double() * (weight if first else 1)
            gate, up = h.chunk(2)
            out[t] += w2[e].double() @ (torch.nn.functional.silu(gate) * up) * (1 if first else weight)
    return out


def coded(w, quant):
    """(codes, scales, what they mean) of weights [e, n, k]."""
    e, n, k = w.shape
    if quant == "fp4":
        codes, scale = aiter.per_1x32_f4_quant(w.view(-1, k))
        plain = scale.view(e, n, k // 32)
        plain.is_shuffled = False  # a view does not know
        return codes.view(e, n, k // 2), plain, values(codes, scale, 32).view(e, n, k)
    if quant == QuantType.per_1x32:
        codes, scale = aiter.per_1x32_mx_quant_hip(w.view(-1, k), quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
        return codes.view(e, n, k), scale.view(e, n, k // 32), values(codes, scale, 32).view(e, n, k)
    if quant == QuantType.per_Token:
        codes, scale = aiter.per_token_quant_hip(w, quant_dtype=dtypes.fp8)
        return codes, scale, codes.double() * scale.double()
    tiles = w.float().view(e, n // 128, 128, k // 128, 128) if quant == QuantType.per_128x128 else w.float().view(e, 1, n, 1, k)
    scale = tiles.abs().amax((2, 4), keepdim=True) / 448
    codes = (tiles / scale).to(dtypes.fp8)
    real = (codes.double() * scale.double()).view(e, n, k)
    return codes.view(e, n, k), scale.view(e, n // 128, k // 128) if quant == QuantType.per_128x128 else scale.view(e, 1), real


@cpu_only
@pytest.mark.parametrize("quant", [QuantType.per_Tensor, QuantType.per_Token, QuantType.per_128x128, QuantType.per_1x32, "fp4"])
def test_fused_moe_on_fewer_bits(quant):
    x, w1, w2, weights, ids = layer()
    (q1, s1, r1), (q2, s2, r2) = coded(w1, quant), coded(w2, quant)
    kind = QuantType.per_1x32 if quant == "fp4" else quant
    out = fused_moe(x, q1, q2, weights, ids, quant_type=kind, w1_scale=s1, w2_scale=s2)
    exact = moe_of(x, r1, r2, weights, ids)
    # Activations are rounded to 2^-4 of themselves twice (fp8), at random: the sum of 128 products each is good to a few percent of its size.
    size = exact.square().mean().sqrt()
    error = ((out.double() - exact).square().mean().sqrt() / size).item()
    assert error < (0.01 if quant == "fp4" else 0.06), error
    first = fused_moe(x, q1, q2, weights, ids, quant_type=kind, w1_scale=s1, w2_scale=s2, doweight_stage1=True)
    assert ((first.double() - moe_of(x, r1, r2, weights, ids, True)).square().mean().sqrt() / size).item() < 0.06
    mixed = fused_moe(x, shuffle_weight(q1), shuffle_weight(q2), weights, ids, quant_type=kind, w1_scale=shuffle_scale(s1), w2_scale=shuffle_scale(s2))
    assert torch.equal(mixed, out)
    if quant in (QuantType.per_Token, QuantType.per_128x128):
        codes, scale = aiter.per_token_quant_hip(x, quant_dtype=dtypes.fp8) if quant == QuantType.per_Token else aiter.per_group_quant_hip(
            x, quant_dtype=dtypes.fp8)
        given = fused_moe(codes, q1, q2, weights, ids, quant_type=kind, w1_scale=s1, w2_scale=s2, a1_scale=scale)
        assert torch.equal(given, out)


def without_marks(tensor):
    """What .view, .data = and nn.Parameter leave of it."""
    bare = tensor.view(torch.uint8)
    assert not hasattr(bare, "is_shuffled")
    return bare


@cpu_only
@pytest.mark.parametrize("layout", ["rows", "lanes", "lanes, gate_up"])
def test_scales_of_fp4_experts_without_their_marks(layout):
    """Shapes without padding: nothing but the rule, as AITER has it, says that they are shuffled."""
    x, w1, w2, weights, ids = randn(5, 256), randn(4, 512, 256) / 16, randn(4, 256, 256, seed=2) / 16, *fused_topk(randn(5, 256), randn(5, 4), 2, True)
    (q1, s1, r1), (q2, s2, r2) = coded(w1, "fp4"), coded(w2, "fp4")
    if layout == "rows":
        p1, p2, t1, t2 = shuffle_weight(q1), shuffle_weight(q2), shuffle_scale(s1), shuffle_scale(s2)
    else:
        gate_up = layout == "lanes, gate_up"
        p1, p2 = shuffle_weight_a16w4(q1, 16, gate_up), shuffle_weight_a16w4(q2, 16, False)
        t1, t2 = shuffle_scale_a16w4(s1.view(-1, 8), 4, gate_up), shuffle_scale_a16w4(s2.view(-1, 8), 4, False)
    marked = fused_moe(x, p1, p2, weights, ids, quant_type=QuantType.per_1x32, w1_scale=t1, w2_scale=t2)
    exact = moe_of(x, r1, r2, weights, ids)
    assert ((marked.double() - exact).square().mean() / exact.square().mean()).sqrt().item() < 0.01
    for u1, u2 in ((without_marks(t1), without_marks(t2)), (without_marks(t1).view(4, 512, 8).view(dtypes.fp8_e8m0), without_marks(t2).view(4, 256, 8))):
        assert torch.equal(fused_moe(x, p1, p2, weights, ids, quant_type=QuantType.per_1x32, w1_scale=u1, w2_scale=u2), marked)
    assert torch.equal(fused_moe(x, q1, q2, weights, ids, quant_type=QuantType.per_1x32, w1_scale=s1, w2_scale=s2), marked)


@cpu_only
@pytest.mark.parametrize("quant", [QuantType.per_Token, QuantType.per_128x128, QuantType.per_1x32])
def test_stages_on_fp8(quant):
    x, w1, w2, weights, ids = layer()
    (q1, s1, r1), (q2, s2, r2) = coded(w1, quant), coded(w2, quant)
    sorted_ids, sorted_weights, expert_ids, valid, out = moe_sorting(ids, weights, EXPERTS, DIM, torch.bfloat16, 32)

    def code(rows):
        flat = rows.reshape(-1, rows.shape[-1])
        if quant == QuantType.per_1x32:
            return aiter.per_1x32_mx_quant_hip(flat, quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
        return aiter.per_token_quant_hip(flat, quant_dtype=dtypes.fp8) if quant == QuantType.per_Token else aiter.per_group_quant_hip(
            flat, quant_dtype=dtypes.fp8)

    codes, scale = code(x)
    h = torch.empty(TOKENS, 2, INTER, dtype=torch.bfloat16)
    aiter.ck_moe_stage1_fwd(codes, q1, q2, sorted_ids, expert_ids, valid, h, 2, "", s1, scale, 32, None, quant)
    again, turned = torch.empty_like(h), scale
    if quant == QuantType.per_128x128:  # the assembly kernel of AITER reads the transpose
        turned = aiter.per_group_quant_hip(x, quant_dtype=dtypes.fp8, transpose_scale=True)[1]
        assert not torch.equal(turned, scale)
    aiter.moe_stage1_g1u1(codes, q1, q2, sorted_ids, expert_ids, valid, again, INTER, "", 32, 0, ActivationType.Silu, quant, turned, s1)
    assert torch.equal(again, h)
    with pytest.raises(eitri.Unsupported, match="moe_stage1_g1u1: out is torch.float8_e4m3fn"):
        aiter.moe_stage1_g1u1(codes, q1, q2, sorted_ids, expert_ids, valid, again.to(dtypes.fp8), INTER, quant_type=quant, a1_scale=turned, w1_scale=s1)
    h_codes, h_scale = code(h)
    aiter.ck_moe_stage2_fwd(h_codes.view(TOKENS, 2, INTER), q1, q2, sorted_ids, expert_ids, valid, out, 2, "", s2, h_scale, 32, sorted_weights, quant)
    exact = moe_of(x, r1, r2, weights, ids)
    assert ((out.double() - exact).square().mean() / exact.square().mean()).sqrt().item() < 0.06


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, dtypes.fp8])
def test_one_stage_layers(dtype, device):
    if dtype == dtypes.fp8 and device == "cuda":
        pytest.skip("experts of fp8 are for CPUs")
    x, w1, w2, weights, ids = layer()
    sorted_ids, sorted_weights, expert_ids, valid, out = moe_sorting(ids, weights, EXPERTS, DIM, torch.bfloat16)
    lists = sorted_ids, sorted_weights, expert_ids, valid, 2
    if dtype == torch.bfloat16:
        aiter.fmoe(out, x, w1, w2, *lists)
        exact = moe_of(x, w1, w2, weights, ids)
        torch.testing.assert_close(out.double(), exact, rtol=2.0**-6, atol=2.0**-6)
        torch.testing.assert_close(asm_moe(x, w1, w2, weights, ids), out, rtol=0, atol=0)
        torch.testing.assert_close(asm_moe_tkw1(x, w1, w2, weights, ids).double(), moe_of(x, w1, w2, weights, ids, True), rtol=2.0**-6, atol=2.0**-6)
        return
    (q1, s1), (q2, s2) = aiter.per_token_quant_hip(w1, quant_dtype=dtype), aiter.per_token_quant_hip(w2, quant_dtype=dtype)
    codes, scale = aiter.per_token_quant_hip(x, quant_dtype=dtype)
    exact = moe_of(x, q1.double() * s1, q2.double() * s2, weights, ids)

    def error(got, wanted=exact):
        return ((got.double() - wanted).square().mean() / wanted.square().mean()).sqrt().item()

    # Activations are rounded twice. int8: by amax / 127 / sqrt(12) at random, with amax up to 7 times the size (h is a product) and smooth
    # scales that spread it by 1.5: 2.4 % each, 3.4 % both. fp8: by up to 2^-4 of each value, 2.6 % at random, 3.7 % both, and the same 1.5.
    allowed = 0.035 if dtype == torch.int8 else 0.06
    aiter.fmoe_g1u1(out, codes, q1, q2, *lists, scale, s1, s2)
    assert error(out) < allowed
    older = torch.empty_like(out)
    aiter.fmoe_g1u1(older, codes, q1, q2, *lists, scale, s1, s2, None, ActivationType.Silu)  # without kernelName
    assert torch.equal(older, out) and torch.equal(asm_moe(x, q1, q2, weights, ids, s1, s2), out)
    aiter.fmoe_g1u1_tkw1(out, codes, q1, q2, *lists, scale, s1, s2)
    assert error(out, moe_of(x, q1.double() * s1, q2.double() * s2, weights, ids, True)) < allowed
    # Smooth scales of 1 change nothing; others are taken out of the weights again.
    ones = torch.ones(EXPERTS, 1, DIM)
    aiter.fmoe_g1u1_a16(out, x, q1, q2, *lists, s1, s2, ones, ones)
    assert error(out) < allowed
    smooth1, smooth2 = torch.rand(EXPERTS, 1, DIM) + 0.5, torch.rand(EXPERTS, 1, INTER) + 0.5
    (p1, t1), (p2, t2) = (aiter.per_token_quant_hip(w / s, quant_dtype=dtype) for w, s in ((w1.float(), smooth1), (w2.float(), smooth2)))
    smoothed = moe_of(x, p1.double() * t1 * smooth1, p2.double() * t2 * smooth2, weights, ids)
    assert error(asm_moe(x, p1, p2, weights, ids, t1, t2, smooth1, smooth2), smoothed) < allowed
    if dtype == dtypes.fp8:
        (b1, bs1, r1), (b2, bs2, r2) = coded(w1, QuantType.per_128x128), coded(w2, QuantType.per_128x128)
        block, block_scale = aiter.per_group_quant_hip(x, quant_dtype=dtype, transpose_scale=True)
        aiter.fmoe_fp8_blockscale_g1u1(out, block, b1, b2, *lists, block_scale, bs1, bs2)
        assert error(out, moe_of(x, r1, r2, weights, ids)) < allowed
        columns = torch.empty_like(out)
        aiter.fmoe_fp8_blockscale_g1u1(columns, block, b1, b2, *lists, block_scale.view(-1, TOKENS).t(), bs1, bs2)
        assert torch.equal(columns, out)
        assert torch.equal(asm_moe(x, b1, b2, weights, ids, bs1, bs2, block_shape=(128, 128)), out)


def test_align_block_size():
    ids = torch.tensor([[0, 2], [2, 3], [0, 2]], dtype=torch.int32)
    tokens = torch.empty(64, dtype=torch.int32)
    blocks, counts, total = torch.empty(16, dtype=torch.int32), torch.empty(4, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    aiter.moe_align_block_size(ids, 4, 4, tokens, blocks, counts, total)
    assert total.item() == 12 and counts.tolist() == [2, 0, 3, 1] and blocks[:3].tolist() == [0, 2, 3]
    assert tokens[:12].tolist() == [0, 4, 6, 6, 1, 2, 5, 6, 3, 6, 6, 6]
