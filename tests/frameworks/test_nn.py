"""eitri.nn against torch, and patched Hugging Face blocks against the original ones."""

import copy
import functools

import oracle
import pytest
import torch
from eitri_calls import randn
from families import FAMILIES, HIDDEN, LAYER, block_output, make_model, moe_block, weights_of

import eitri
import eitri.nn
from eitri.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


@functools.cache
def original(family):
    model = make_model(family, seed=21)
    block = moe_block(family, model)
    x = randn(24, HIDDEN, seed=8)
    router = family.router(block)
    with torch.no_grad():
        _, routing, ids = router(x)
    choice = oracle.Choice(ids, routing.double(), torch.zeros_like(routing, dtype=torch.float64), None)
    return model, weights_of(family, block), x, choice, block_output(block, x)


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


@pytest.mark.parametrize("quant", ["none", "i8"])
def test_patched_blocks_agree_with_the_original(family, quant):
    model, weights, x, choice, before = original(family)
    patched = copy.deepcopy(model)
    names = eitri.nn.patch(patched, quant=quant)
    assert f"model.layers.{LAYER}.mlp.experts" in names
    after = block_output(moe_block(family, patched), x)
    if quant == "i8":  # routed experts only: the shared ones stay as they are
        dequantised = oracle.dequantised(weights)
        dequantised.shared = None
        quantised = oracle.block(dequantised, x.double(), choice, family.gpt_oss, int8=True)
        expected = quantised
        if weights.shared is not None:
            plain = oracle.block(weights, x.double(), choice, family.gpt_oss)
            weights_alone = copy.copy(weights)
            weights_alone.shared = None
            routed = oracle.block(weights_alone, x.double(), choice, family.gpt_oss)
            expected = oracle.Value(quantised.value + plain.value - routed.value, quantised.error + plain.error)
    else:
        expected = oracle.block(weights, x.double(), choice, family.gpt_oss)
        assert bool(((before.double() - expected.value).abs() <= expected.error).all())
    assert bool(((after.double() - expected.value).abs() <= expected.error).all())
    difference = (after.double() - before.double()).square().mean().sqrt()
    assert difference <= (2.0**-6 if quant == "none" else 2.0**-4) * before.double().square().mean().sqrt()


def test_a_patched_model_runs_and_compiles():
    family = FAMILIES[0]
    model = copy.deepcopy(original(family)[0])
    ids = torch.arange(12).reshape(1, 12)
    before = model(ids).logits
    eitri.nn.patch(model)
    after = model(ids).logits
    assert (after - before).double().square().mean().sqrt() <= 2.0**-5 * before.double().square().mean().sqrt()
    block, x = moe_block(family, model).experts, randn(5, HIDDEN)
    routing, chosen = torch.full((5, 2), 0.5, dtype=torch.bfloat16), torch.tensor([[0, 3]] * 5)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, chosen, routing), block(x, chosen, routing))


def test_patch_refuses_what_it_does_not_know():
    with pytest.raises(InvalidArgument, match="Sequential without a mixture"):
        eitri.nn.patch(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(InvalidArgument, match="quant is 'int3'"):
        eitri.nn.patch(torch.nn.Linear(2, 2), quant="int3")
    model = copy.deepcopy(original(FAMILIES[0])[0])
    moe_block(FAMILIES[0], model).experts.act_fn = torch.nn.GELU()
    with pytest.raises(eitri.Unsupported, match="activation of Qwen3MoeExperts is GELU"):
        eitri.nn.patch(model)


@pytest.mark.parametrize("quant", ["none", "i8", "f8e4m3"])
def test_linear(quant):
    torch.manual_seed(3)
    reference = torch.nn.Linear(64, 33).to(torch.bfloat16)
    linear = eitri.nn.Linear.from_torch(reference, quant=quant)
    x = randn(2, 5, 64)
    got, expected = linear(x), reference(x)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    weight = reference.weight.double()
    magnitude = x.double().abs() @ weight.abs().T
    x_max, w_max = x.double().abs().amax(-1, keepdim=True), weight.abs().amax(-1)
    x_sum, w_sum = x.double().abs().sum(-1, keepdim=True), weight.abs().sum(-1)
    rounding = 2.0**-7 * expected.double().abs() + 2.0**-8 * magnitude  # ours and torch's stores in bf16, torch's before the bias
    if quant == "none":
        allowed = rounding
    else:
        # What coding moves a factor by: int8 half of max/127; fp8 a relative 2^-4, or half of a subnormal's step of 2^-9 scales.
        relative, absolute = (0, 1 / 254) if quant == "i8" else (2.0**-4, 2.0**-10 / 448)
        dx, dw = absolute * x_max, absolute * w_max
        allowed = rounding * (1 + relative) ** 2 + (2 * relative + relative**2) * magnitude + (1 + relative) * (dx * w_sum + x_sum * dw) + 64 * dx * dw
    assert bool(((got.double() - expected.double()).abs() <= allowed).all())
    torch._dynamo.reset()
    assert torch.equal(torch.compile(linear, fullgraph=True, backend="aot_eager")(x), got)


def test_rmsnorm():
    x, residual, weight = randn(2, 3, 64), randn(2, 3, 64, seed=2), randn(64, seed=3)
    norm = eitri.nn.RMSNorm(weight, 1e-5)
    exact = torch.nn.functional.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    assert bool(((norm(x).double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all())
    out, total = norm(x, residual)
    assert torch.equal(total, (x.float() + residual.float()).to(torch.bfloat16)) and torch.equal(out, norm(total))
    plus_one = eitri.nn.RMSNorm(weight, 1e-5, plus_one=True)(x)
    exact = torch.nn.functional.rms_norm(x.double(), (64,), 1 + weight.double(), 1e-5)
    assert bool(((plus_one.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all())


def test_moe_layer():
    experts = eitri.nn.Experts(randn(6, 96, 64) / 8, randn(6, 64, 48, seed=2) / 7)
    layer = eitri.nn.MoE(randn(6, 64, seed=3), experts, 2)
    x = randn(2, 5, 64, seed=4)
    rows = x.reshape(-1, 64)
    weights, ids = eitri.topk_gating(layer.router(rows), 2, renormalize=True)
    assert torch.equal(layer(x), experts(rows, ids, weights).reshape(2, 5, 64))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))
