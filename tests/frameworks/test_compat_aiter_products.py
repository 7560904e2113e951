"""AITER's products of few bits, small ones, those under aiter.ops.triton, and norms that quantise: against float64."""

import pytest
import torch
from eitri_calls import randn
from test_compat_aiter_quant import values

import eitri
import eitri.compat.aiter as compat
from eitri.compat.aiter.shuffle import unshuffle_weight

compat.install()

import aiter  # noqa: E402
from aiter import QuantType, dtypes  # noqa: E402
from aiter.ops.shuffle import shuffle_scale, shuffle_weight, shuffle_weight_a16w4  # noqa: E402

cpu_only = pytest.mark.parametrize("device", ["cpu"], indirect=True)
pytestmark = pytest.mark.usefixtures("device")


def close(got, exact, bound):
    """A store in bf16 and an f32 sum of `bound`."""
    assert bool(((got.double() - exact).abs() <= exact.abs() * 2.0**-8 + bound * 2.0**-16 + 1e-6).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_rows(dtype):
    x, w = randn(3, 64, dtype=dtype), randn(48, 64, seed=2, dtype=dtype)
    exact, bound = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
    out = torch.empty(3, 48, dtype=dtype)
    for function in (aiter.wvSpltK, aiter.wv_splitk_small_fp16_bf16):
        function(w, x, out.zero_(), 3, 80)
        close(out, exact, bound)
    aiter.LLMM1(w, x[:1], out[:1], 4)
    close(out[:1], exact[:1], bound[:1])
    q, r = (x * 9).to(dtypes.fp8), (w * 9).to(dtypes.fp8)
    aiter.wvSplitKQ(r, q, out, torch.tensor([0.5]), torch.tensor([0.25]), 80)
    close(out, q.double() @ r.double().T / 8, q.double().abs() @ r.double().abs().T)


def test_opus_and_solutions():
    a, b, bias = randn(2, 3, 64), randn(48, 64, seed=2), randn(48, seed=3)
    exact = a.double() @ b.double().T
    bound = a.double().abs() @ b.double().abs().T
    close(aiter.gemm_a16w16_opus(a, b, bias), exact + bias.double(), bound + 4)
    close(aiter.gemm_a16w16_opus(a[0], b[None], bias.float()[None]), exact[0] + bias.double(), bound[0] + 4)
    out = torch.empty(3, 48, dtype=torch.float32)
    assert aiter.gemm_a16w16_opus(a[1], b, out=out) is out
    close(out, exact[1], bound[1])
    assert aiter.hipb_findallsols(a[0], b.t()) == [0]


@cpu_only
@pytest.mark.parametrize("m", [5, 256])
def test_gemm_a4w4(m):
    a, b = randn(m, 256), randn(256, 256, seed=2)
    (qa, sa), (qb, sb) = aiter.per_1x32_f4_quant(a), aiter.per_1x32_f4_quant(b)
    real_a, real_b, bias = values(qa, sa, 32), values(qb, sb, 32), torch.randn(1, 256)
    exact, bound = real_a @ real_b.T, real_a.abs() @ real_b.abs().T
    mixed_a, mixed_b, weight = shuffle_scale(sa), shuffle_scale(sb), shuffle_weight(qb)
    close(aiter.gemm_a4w4(qa, weight, mixed_a, mixed_b), exact, bound)
    # Views have lost the marks: the padded shape says what they are, as in AITER.
    bare = [t.view(torch.uint8).view(t.dtype) for t in (weight, mixed_a, mixed_b)]
    assert not hasattr(bare[1], "is_shuffled")
    close(aiter.gemm_a4w4(qa, *bare, bias=bias), exact + bias.double(), bound + 4)
    close(aiter.gemm_a4w4(qa, qb, sa, sb, bpreshuffle=False), exact, bound)
    out = torch.empty(m, 256, dtype=torch.bfloat16)
    assert aiter.gemm_a4w4_blockscale(qa, qb, sa, sb, out) is out
    close(out, exact, bound)
    close(aiter.gemm_a4w4_asm(qa, weight, mixed_a, mixed_b, out.zero_(), "", bias), exact + bias.double(), bound + 4)
    with pytest.raises(eitri.Unsupported, match="alpha is 2"):
        aiter.gemm_a4w4(qa, weight, mixed_a, mixed_b, alpha=2.0)


def test_every_fp4_value_is_the_same_in_fp8():
    from eitri.compat.aiter.gemm_a4w4 import as_fp8

    codes = torch.arange(256, dtype=torch.uint8)
    table = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    wide = as_fp8(codes.view(16, 16)).float().view(256, 2)
    assert torch.equal(wide[:, 0], table[(codes & 15).long()]) and torch.equal(wide[:, 1], table[(codes >> 4).long()])


@cpu_only
def test_batched_mxscale():
    x, w = (randn(5, 2, 256) * 20).to(dtypes.fp8), (randn(2, 128, 256, seed=2) * 20).to(dtypes.fp8)
    xs = torch.randint(120, 130, (5, 2, 2), dtype=torch.uint8)
    ws = torch.randint(120, 130, (2, 1, 2), dtype=torch.uint8)
    real_x = x.double() * torch.exp2(xs.double() - 127).repeat_interleave(128, -1)
    real_w = w.double() * torch.exp2(ws.double() - 127).repeat_interleave(128, -2).repeat_interleave(128, -1)
    exact, bound = torch.einsum("mgk,gnk->mgn", real_x, real_w), torch.einsum("mgk,gnk->mgn", real_x.abs(), real_w.abs())
    close(aiter.batched_gemm_a8w8_mxscale(x, w, xs, ws), exact, bound * 2.0**8)  # AMX rounds scaled operands to bf16
    out = torch.empty(5, 2, 128, dtype=torch.float32)
    assert aiter.batched_gemm_a8w8_mxscale(x, w, xs, ws, out=out) is out
    close(out, exact, bound * 2.0**8)


def triton(module, name=None):
    import importlib

    return getattr(importlib.import_module(f"aiter.ops.triton.{module}"), name or module.rpartition(".")[2])


def test_triton_products_of_16_and_8_bits():
    x, w, bias, y = randn(5, 64), randn(48, 64, seed=2), randn(48, seed=3), torch.empty(5, 48, dtype=torch.bfloat16)
    exact, bound = x.double() @ w.double().T, x.double().abs() @ w.double().abs().T
    assert triton("gemm.basic.gemm_a16w16")(x, w, y=y) is y
    close(y, exact, bound)
    close(triton("gemm_a16w16")(x, w, bias, activation="relu"), (exact + bias.double()).relu(), bound + 4)
    for dtype in (torch.int8, dtypes.fp8):
        q, r = (x * 20).to(dtype), (w * 20).to(dtype)
        xs, ws = torch.rand(5, 1), torch.rand(1, 48)
        real = q.double() @ r.double().T * xs.double() * ws.double()
        size = q.double().abs() @ r.double().abs().T * xs.double() * ws.double()
        close(triton("gemm.basic.gemm_a8w8")(q, r, xs, ws, bias), real + bias.double(), size + 4)
        close(triton("gemm.basic.gemm_a8w8_per_token_scale")(q, r, xs, ws.T), real, size)
    xb, wb = torch.stack([x, x * 2]), torch.stack([w, w * 3])
    close(triton("gemm.batched.batched_gemm_bf16")(xb, wb), xb.double() @ wb.double().mT, xb.double().abs() @ wb.double().abs().mT)
    qb, rb = (xb * 9).to(torch.int8), (wb * 9).to(torch.int8)
    got = triton("gemm.batched.batched_gemm_a8w8")(qb, rb, torch.ones(2, 5, 1), torch.ones(2, 1, 48))
    close(got, qb.double() @ rb.double().mT, qb.double().abs() @ rb.double().abs().mT)


@cpu_only
def test_triton_products_with_block_scales():
    x, w = randn(5, 256), randn(128, 256, seed=2)
    codes, scale = aiter.per_group_quant_hip(x, quant_dtype=dtypes.fp8)
    w_scale = torch.rand(1, 2) / 100 + 0.005
    wide = w_scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    w8 = (w.double() / wide).clamp(-448, 448).float().to(dtypes.fp8)
    real_w, real_x = w8.double() * wide, codes.double() * scale.double().repeat_interleave(128, 1)
    bound = 2.0**8 * (real_x.abs() @ real_w.abs().T)  # AMX rounds scaled operands to bf16
    close(triton("gemm.basic.gemm_a8w8_blockscale")(codes, w8, scale, w_scale), real_x @ real_w.T, bound)
    close(triton("gemm.basic.gemm_a16w8_blockscale")(x, w8, w_scale, prequant=True), real_x @ real_w.T, bound)
    close(triton("gemm.basic.gemm_a16w8_blockscale")(x, w8, w_scale), x.double() @ real_w.T, bound)
    tiled = shuffle_weight(w8).view(torch.uint8).view(8, -1).view(dtypes.fp8)
    close(triton("gemm.basic.gemm_a16w8_blockscale", "gemm_a16w8_blockscale_preshuffle")(x, tiled, w_scale), x.double() @ real_w.T, bound)


@cpu_only
def test_triton_product_of_mxfp8_and_blocks():
    codes, scale = aiter.per_1x32_mx_quant_hip(randn(5, 256), quant_dtype=dtypes.fp8, scale_type=dtypes.fp8_e8m0)
    w, w_scale = randn(160, 256, seed=2).to(dtypes.fp8), torch.tensor([[125, 128], [127, 120]], dtype=torch.uint8)
    real_x = values(codes, scale, 32)
    real_w = w.double() * torch.exp2(w_scale.double() - 127).repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)
    for got in (triton("gemm.basic.gemm_afp8wfp8")(codes, w, scale, w_scale),
                triton("gemm_afp8wfp8")(codes.view(torch.uint8), w.view(torch.uint8), scale.view(torch.uint8), w_scale)):
        close(got, real_x @ real_w.T, real_x.abs() @ real_w.abs().T)


@cpu_only
@pytest.mark.parametrize("m", [5, 256])
def test_triton_products_of_fp4(m):
    x, w = randn(m, 256), randn(256, 256, seed=2)
    qx, sx = triton("quant", "dynamic_mxfp4_quant")(x)
    qw, sw = triton("quant", "dynamic_mxfp4_quant")(w)
    assert not sx.is_shuffled and qx.dtype == sx.dtype == torch.uint8 and qx.shape == (m, 128) and sx.shape == (m, 8)
    real_x, real_w = values(qx.view(dtypes.fp4x2), sx.view(dtypes.fp8_e8m0), 32), values(qw.view(dtypes.fp4x2), sw.view(dtypes.fp8_e8m0), 32)
    exact, bound = real_x @ real_w.T, real_x.abs() @ real_w.abs().T
    y = torch.empty(m, 256, dtype=torch.bfloat16)
    assert triton("gemm.basic.gemm_afp4wfp4")(qx, qw, sx, sw, y=y) is y
    close(y, exact, bound)
    tiled, mixed = shuffle_weight(qw).view(16, -1), shuffle_scale(sw).view(8, -1)
    mixed_x = sx if m < 32 else shuffle_scale(sx).view(m // 32, -1)
    close(triton("gemm.basic.gemm_afp4wfp4", "gemm_afp4wfp4_preshuffled_scales")(qx, qw, mixed_x, mixed), exact, bound)
    close(triton("gemm.basic.gemm_afp4wfp4", "gemm_afp4wfp4_preshuffle")(qx, tiled, mixed_x, mixed), exact, bound)
    exact, bound = x.double() @ real_w.T, x.double().abs() @ real_w.abs().T
    close(triton("gemm.basic.gemm_a16wfp4")(x, qw, sw), exact, bound)
    close(triton("gemm.basic.gemm_a16wfp4", "gemm_a16wfp4_preshuffle")(x, tiled, mixed), exact, bound)
    close(triton("gemm.batched.batched_gemm_a16wfp4")(x[None], qw[None], sw[None], transpose_bm=True)[:, 0], exact, bound)
    codes, scale = aiter.per_token_quant_hip(x, quant_dtype=dtypes.fp8)
    real_x = codes.double() * scale.double()
    close(triton("gemm.basic.gemm_a8wfp4")(codes, qw, y, scale, sw), real_x @ real_w.T, real_x.abs() @ real_w.abs().T)


def test_triton_quantisation():
    x = randn(5, 64)
    codes, scale = triton("quant", "dynamic_mxfp8_quant")(x)
    assert scale.dtype == torch.uint8 and torch.equal(codes.view(torch.uint8), eitri.quantize(x, quant="per_1x32", out_dtype="f8e4m3")[0].view(torch.uint8))
    given = torch.zeros(5, 2, dtype=torch.uint8)
    assert triton("quant", "dynamic_mxfp8_quant")(x, given)[1] is given and torch.equal(given, scale)
    out, one = torch.empty(5, 64, dtype=torch.int8), torch.empty(5)
    triton("quant", "dynamic_per_token_quant_fp8_i8")(out, x, one)
    assert torch.equal(out, eitri.quantize(x)[0])
    whole = torch.empty(1)
    triton("quant", "dynamic_per_tensor_quant_fp8_i8")(out, x, whole)
    torch.testing.assert_close(whole[0], x.float().abs().max() / 127)
    again = torch.empty_like(out)
    triton("quant", "static_per_tensor_quant_fp8_i8")(again, x, whole)
    assert int((again.int() - out.int()).abs().max()) <= 1
    with pytest.raises(eitri.Unsupported, match="scaling_mode"):
        triton("quant", "dynamic_mxfp4_quant")(x, "floor")


@pytest.mark.parametrize("gate_up", [False, True])
def test_quant_mxfp4_hip(gate_up):
    x = randn(64, 256)
    codes, scale = aiter.quant_mxfp4_hip(x)
    plain, plain_scale = aiter.per_1x32_f4_quant(x)
    assert torch.equal(codes.view(torch.uint8), plain.view(torch.uint8)) and torch.equal(scale.view(torch.uint8), plain_scale.view(torch.uint8))
    even, even_scale = aiter.quant_mxfp4_hip(x, round_mode=2, e8m0_shuffle=True, shuffle_weight=True)
    wanted, wanted_scale = aiter.per_1x32_f4_quant(x, round_mode=2)
    assert torch.equal(even.view(torch.uint8), shuffle_weight(wanted).view(torch.uint8))
    assert torch.equal(even_scale.view(torch.uint8), shuffle_scale(wanted_scale).view(torch.uint8))
    mixed, mixed_scale = aiter.quant_mxfp4_hip(x, a16w4_shuffle=True, gate_up=gate_up, shuffle_weight=True)
    flat, flat_scale = mixed.view(torch.uint8).view(-1), mixed_scale.view(torch.uint8).view(-1)
    raw, raw_scale = plain.view(torch.uint8), plain_scale.view(torch.uint8)
    for row, column in ((0, 0), (17, 5), (40, 100), (63, 127)):  # tiles of 16 rows and 64 bytes in 4 pieces; gate and up tiles in turns
        n0, lane = divmod(row % 32 if gate_up else row, 16)
        half = row // 32
        tile = (n0 * 2 + half) if gate_up else n0
        k0, rest = divmod(column, 64)
        piece, byte = divmod(rest, 16)
        assert flat[(((tile * 2 + k0) * 4 + piece) * 16 + lane) * 16 + byte] == raw[row, column]
    for row, column in ((0, 0), (17, 5), (40, 3), (63, 7)):
        if gate_up:
            pack, n1, lane = row // 32, (row % 32) // 16, row % 16
        else:
            n1, pack, lane = row // 32, (row % 32) // 16, row % 16
        k_pack, k_lane = divmod(column, 4)
        assert flat_scale[(((n1 * 4 + k_lane) * 16 + lane) * 2 + k_pack) * 2 + pack] == raw_scale[row, column]
    from eitri.compat.aiter.shuffle import plain_scale as put_back

    assert torch.equal(unshuffle_weight(mixed).view(torch.uint8), raw)
    assert torch.equal(put_back(mixed_scale, 64, 8).view(torch.uint8), raw_scale)
    with pytest.raises(eitri.Unsupported, match="round_mode is 3"):
        aiter.quant_mxfp4_hip(x, round_mode=3)


def test_other_layouts():
    x = torch.arange(64 * 64, dtype=torch.int32).view(1, 64, 64).to(torch.int8)
    tiles = aiter.shuffle_weight_NK(x, 16, 64).view(4, 1, 4, 16, 16)
    assert torch.equal(tiles[2, 0, 3, 5], x[0, 2 * 16 + 5, 48:64])
    int4 = shuffle_weight(x, use_int4=True).view(4, 2, 1, 16, 32)
    assert torch.equal(int4[1, 1, 0, 7], x[0, 16 + 7, 32:64])
    assert torch.equal(unshuffle_weight(shuffle_weight(x, use_int4=True)), x)
    packed = aiter.pack_int8_to_packed_int4(torch.tensor([0, 1, 2, 3, -1, -2, -3, -8], dtype=torch.int8)).view(torch.uint8)
    assert packed.tolist() == [0xF0, 0xE1, 0xD2, 0x83]
    scale = randn(2, 4, 3)
    assert torch.equal(aiter.shuffle_scale_for_int4(scale)[1, 1, 2], scale[1, 2:4, 2])
    with pytest.raises(eitri.InvalidArgument, match="multiples of 32 rows and 64 bytes"):
        shuffle_weight_a16w4(torch.zeros(1, 24, 64, dtype=torch.uint8), 16, True)


def norm_of(x, weight, eps=1e-5):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def coded_close(out, scale, exact, group):
    wide = scale.double().reshape(exact.shape[0], -1).repeat_interleave(group, 1)
    allowed = 0.501 * wide if out.dtype == torch.int8 else exact.abs() * 2.0**-4 + wide * 2.0**-9
    assert bool(((out.double() * wide - exact).abs() <= allowed + exact.abs() * 2.0**-12).all())


@pytest.mark.parametrize("dtype", [torch.int8, dtypes.fp8])
def test_smooth_norms(dtype):
    x, residual, weight, smooth = randn(5, 64), randn(5, 64, seed=2), randn(64, seed=3), torch.rand(64) + 0.5
    out, scale, kept, plain = torch.empty(5, 64, dtype=dtype), torch.empty(5, 1), torch.empty_like(x), torch.empty_like(x)
    aiter.rmsnorm2d_fwd_with_smoothquant(out, x, smooth, scale, weight, 1e-5)
    coded_close(out, scale, norm_of(x, weight) * smooth.double(), 64)
    aiter.rmsnorm2d_fwd_with_add_smoothquant(out, x, residual, kept, smooth, scale, weight, 1e-5, plain)
    total = (x.float() + residual.float()).bfloat16()
    assert torch.equal(kept, total)
    coded_close(out, scale, norm_of(total, weight) * smooth.double(), 64)
    close(plain, norm_of(total, weight), norm_of(total, weight).abs())


@pytest.mark.parametrize("group", [32, 64, 128])
def test_norms_with_groups(group):
    x, weight = randn(5, 256), randn(256, seed=3)
    out, scale = torch.empty(5, 256, dtype=torch.int8), torch.empty(5, 256 // group)
    aiter.rmsnorm_quant(out, x, scale, weight, 1e-5, group)
    coded_close(out, scale, norm_of(x, weight), group)
    turned = torch.empty_like(scale)
    aiter.rmsnorm2d_fwd_with_dynamicquant(out, x, turned, weight, 1e-5, group_size=group, shuffle_scale=True)
    torch.testing.assert_close(turned.view(256 // group, 5).t(), scale, rtol=2.0**-20, atol=0)
    with pytest.raises(eitri.Unsupported, match="shuffle_scale without group_size"):
        aiter.rmsnorm_quant(out, x, scale, weight, 1e-5, 0, True)


def test_norms_to_fp4():
    x, weight = randn(5, 64), randn(64, seed=3)
    (codes, scale), _, _, kept = triton("quant", "fused_rms_mxfp4_quant")(x, weight, 1e-5, res1=x)
    total = (x.float() * 2).bfloat16()
    assert torch.equal(kept, total)
    got, exact = values(codes.view(dtypes.fp4x2), scale, 32), norm_of(total, weight)
    # Codes are a quarter apart at least, half of a step off at most; scales that round to even may cut a sixth of the largest off.
    assert bool(((got - exact).abs() <= exact.abs() / 4 + exact.abs().amax() / 6).all())
    out, packed = torch.empty(5, 32, dtype=torch.uint8).view(dtypes.fp4x2), torch.empty(5, 2, dtype=torch.uint8).view(dtypes.fp8_e8m0)
    aiter.rmsnorm_quant(out, x, packed, weight, 1e-5, 32)
    wanted = aiter.per_1x32_f4_quant(eitri.rmsnorm(x, weight, eps=1e-5, out_dtype="f32"))
    assert torch.equal(out.view(torch.uint8), wanted[0].view(torch.uint8)) and torch.equal(packed.view(torch.uint8), wanted[1].view(torch.uint8))


@pytest.mark.parametrize("quant", [QuantType.No, QuantType.per_Token, QuantType.per_1x128])
def test_fused_qk_rmsnorm(quant):
    q, k, residual = randn(5, 256), randn(5, 64, seed=2), randn(5, 256, seed=3)
    q_weight, k_weight = randn(256, seed=4), randn(64, seed=5)
    k_out = torch.empty_like(k)
    if quant is QuantType.No:
        q_out = torch.empty_like(q)
        aiter.fused_qk_rmsnorm(q_out, None, q, q_weight, 1e-5, k_out=k_out, k=k, k_weight=k_weight, k_epsilon=1e-5)
        close(q_out, norm_of(q, q_weight), norm_of(q, q_weight).abs())
    else:
        codes, scale = torch.empty(5, 256, dtype=dtypes.fp8), torch.empty(5, 1 if quant is QuantType.per_Token else 2)
        plain, kept = torch.empty_like(q), torch.empty_like(q)
        aiter.fused_qk_rmsnorm(codes, scale, q, q_weight, 1e-5, plain, k_out, kept, k, k_weight, 1e-5, residual, quant_type=quant)
        total = (q.float() + residual.float()).bfloat16()
        assert torch.equal(kept, total)
        coded_close(codes, scale, norm_of(total, q_weight), 256 // scale.shape[1])
        close(plain, norm_of(total, q_weight), norm_of(total, q_weight).abs())
    close(k_out, norm_of(k, k_weight), norm_of(k, k_weight).abs())
    with pytest.raises(eitri.Unsupported, match="per_Tensor"):
        aiter.fused_qk_rmsnorm(q=q, quant_type=QuantType.per_Tensor)


def test_gated_norms():
    x, z, weight = randn(5, 2, 128), randn(5, 2, 128, seed=2), randn(128, seed=3)
    exact = (norm_of(x, weight) * torch.nn.functional.silu(z.double())).view(5, 256)
    out, scale = torch.empty(5, 256, dtype=dtypes.fp8), torch.empty(5, 2)
    aiter.gated_rmsnorm_fp8_group_quant(out, scale, x, z, weight, 1e-5, 128)
    coded_close(out, scale, exact, 128)
    one = torch.empty(5, 1)
    aiter.gated_rmsnorm_fp8_per_token_quant(out, one, x, z, weight, 1e-5)
    coded_close(out, one, exact, 256)


def test_triton_norms():
    x, second, residual, weight = randn(5, 256), randn(5, 64, seed=2), randn(5, 256, seed=4), randn(256, seed=3)
    total = (x.float() + residual.float()).bfloat16()
    (codes, scale), plain, other, kept = triton("fused_fp8_quant", "fused_rms_fp8_group_quant")(
        x, weight, 1e-5, second, weight[:64].contiguous(), 1e-5, res1=residual, output_unquantized_inp1=True)
    assert torch.equal(kept, total)
    coded_close(codes, scale, norm_of(total, weight), 128)
    close(plain, norm_of(total, weight), norm_of(total, weight).abs())
    close(other, norm_of(second, weight[:64]), norm_of(second, weight[:64]).abs())
    codes, _, _, _ = triton("fused_fp8_quant", "fused_rms_fp8_per_tensor_static_quant")(x, weight, 1e-5, torch.tensor([0.25]))
    coded_close(codes, torch.full((5, 1), 0.25), norm_of(x, weight), 256)


@pytest.mark.parametrize("name", ["silu", "gelu", "swiglu"])
def test_activations_with_bias(name):
    x, bias, ids = randn(5, 96), randn(3, 96, seed=2, dtype=torch.float32), torch.tensor([0, 2, 1, -1, 2], dtype=torch.int32)
    out = torch.empty(5, 48, dtype=torch.bfloat16)
    getattr(aiter, f"{name}_and_mul_bias")(out, x, ids, bias)
    gate, up = (x.double() + torch.where((ids >= 0)[:, None], bias[ids.long()], 0).double()).chunk(2, -1)
    if name == "swiglu":
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        exact = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    else:
        exact = getattr(torch.nn.functional, name)(gate) * up
    close(out, exact, exact.abs() + up.abs() * gate.abs())
