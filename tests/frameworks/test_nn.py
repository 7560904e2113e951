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
from eitri import _weight_codes
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


def experts_of(model):
    return [layer.mlp.experts for layer in model.model.layers if hasattr(layer.mlp, "experts")]


def test_patch_is_all_or_nothing():
    qwen, gpt_oss = (copy.deepcopy(original(family)[0]) for family in (FAMILIES[0], FAMILIES[3]))
    before = experts_of(qwen)
    with pytest.raises(InvalidArgument, match=r"model.layers.0.mlp.experts has weights of torch.float32; expected torch.bfloat16"):
        eitri.nn.patch(qwen.float())
    qwen.to(torch.bfloat16)
    before[1].act_fn = torch.nn.GELU()  # of the last layer
    with pytest.raises(eitri.Unsupported, match="is GELU"):
        eitri.nn.patch(qwen)
    assert experts_of(qwen) == before
    with pytest.raises(InvalidArgument, match="model is a Qwen3MoeExperts itself"):
        eitri.nn.patch(before[0])
    # transformers clamps to 0 where the operator's 0 means no limit.
    experts_of(gpt_oss)[0].limit = 0.0
    with pytest.raises(eitri.Unsupported, match="limit of GptOssExperts is 0.0; expected a number above 0"):
        eitri.nn.patch(gpt_oss)


def test_patch_replaces_a_shared_module_everywhere():
    model = copy.deepcopy(original(FAMILIES[0])[0])
    first, second = model.model.layers[0].mlp, model.model.layers[1].mlp
    second.experts = first.experts
    assert eitri.nn.patch(model) == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    assert isinstance(first.experts, eitri.nn.Experts) and second.experts is first.experts


@pytest.mark.parametrize("options", [dict(swiglu_alpha=1.0), dict(swiglu_limit=0.5), dict(num_experts_per_tok=1),
                                     dict(num_local_experts=1, num_experts_per_tok=1), dict(intermediate_size=33)], ids=str)
def test_odd_configs_of_gpt_oss(options):
    import transformers

    odd_experts(transformers.GptOssForCausalLM, transformers.GptOssConfig, dict(num_key_value_heads=2, head_dim=16, intermediate_size=48,
                                                                                num_local_experts=6, num_experts_per_tok=2) | options)


@pytest.mark.parametrize("options", [dict(num_experts_per_tok=1), dict(num_experts=1, num_experts_per_tok=1), dict(moe_intermediate_size=1),
                                     dict(moe_intermediate_size=33, hidden_size=68)], ids=str)
def test_odd_configs_of_qwen3_moe(options):
    import transformers

    odd_experts(transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, dict(num_key_value_heads=2, head_dim=16, intermediate_size=64,
                                                                                    moe_intermediate_size=48, num_experts=6,
                                                                                    num_experts_per_tok=2) | options)


def odd_experts(model_class, config_class, options):
    """Experts of a patched model against the original's in float64; ids beyond the last expert add nothing."""
    torch.manual_seed(5)
    config = config_class(**dict(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=64) | options)
    model = model_class(config).to(torch.bfloat16)
    model.set_experts_implementation("eager")
    (experts,) = experts_of(model)
    for parameter in experts.parameters():
        parameter.copy_(torch.randn_like(parameter) / (8 if parameter.ndim > 2 else 4))
    exact = copy.deepcopy(experts).double()
    eitri.nn.patch(model)
    (ours,) = experts_of(model)
    top_k, count = config.num_experts_per_tok, exact.num_experts
    ids = torch.rand(9, count).argsort(-1)[:, :top_k]
    x, weights = torch.randn(9, config.hidden_size).to(torch.bfloat16), torch.rand(9, top_k)
    expected = exact(x.double(), ids, weights.double())
    got = ours(x, ids, weights)
    assert (got.double() - expected).square().mean().sqrt() <= 2.0**-7 * expected.square().mean().sqrt()


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


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
BLOCKS = {"per_1x16": (1, 16), "per_1x32": (1, 32), "per_1x128": (1, 128), "per_128x128": (128, 128)}


def numbers(codes, dtype):
    """What codes mean without their scale, in float64."""
    if dtype in ("i4", "f4e2m1"):
        halves = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
        return E2M1[halves] if dtype == "f4e2m1" else (halves - 16 * (halves >= 8)).double()
    return codes.double()


def spread(scale, quant, n, k):
    """A factor for each element of [.., n, k]."""
    scale = scale.double() if scale.dtype != torch.float8_e8m0fnu else torch.exp2(scale.view(torch.uint8).double() - 127)
    if quant in BLOCKS:
        rows, columns = BLOCKS[quant]
        return scale.repeat_interleave(rows, -2)[..., :n, :].repeat_interleave(columns, -1)[..., :k]
    return scale.unsqueeze(-1).expand(*scale.shape, k) if quant == "per_token" else scale.view(*scale.shape[:-1], 1, 1).expand(*scale.shape[:-1], n, k)


def dequantised(weight, quant):
    codes, scale, global_scale = _weight_codes.quantize(weight, quant)
    n, k = weight.shape[-2:]
    factor = spread(scale, quant.scales, n, k)
    if global_scale is not None:
        factor = factor * global_scale.double().view(*weight.shape[:-2], 1, 1)
    return numbers(codes, quant.weights) * factor, factor


CODED = {name: quant for name, quant in eitri.nn.QUANTS.items() if quant.weights != "none"}
OTHERS = {"i8 for 128": eitri.nn.Quant("i8", "per_1x128"), "f8e4m3 for the tensor": eitri.nn.Quant("f8e4m3", "per_tensor"),
          "f8e4m3 for 128": eitri.nn.Quant("f8e4m3", "per_1x128"), "i4 for 128": eitri.nn.Quant("i4", "per_1x128"),
          "i8 for 32": eitri.nn.Quant("i8", "per_1x32"), "f8e4m3 for 32": eitri.nn.Quant("f8e4m3", "per_1x32")}


@pytest.mark.parametrize("quant", [*CODED.values(), *OTHERS.values()], ids=[*CODED, *OTHERS])
@pytest.mark.parametrize("shape", [(33, 64), (160, 320), (3, 40, 96)])
def test_codes_of_weights(quant, shape):
    weight = randn(*shape, dtype=torch.float32) * torch.exp2(torch.arange(shape[-1]) % 7 - 3.0)
    weight[..., 2, :] = 0
    real, factor = dequantised(weight, quant)
    step = {"i8": 0.5 * factor, "i4": 0.5 * factor, "f8e4m3": torch.maximum(weight.double().abs() / 16, factor * 2.0**-10),
            "f4e2m1": torch.maximum(weight.double().abs() / 4, factor / 4)}[quant.weights]
    if quant.scales == "per_1x16":  # a block's scale is itself rounded, by 2^-4 at most: the largest value of a block may be cut off
        step = step + weight.double().abs() / 16
    assert bool(((real - weight.double()).abs() <= step * (1 + 2.0**-20)).all())
    assert not real[..., 2, :].any()
    if (quant.weights, quant.scales) in (("i8", "per_token"), ("f8e4m3", "per_1x128"), ("f8e4m3", "per_1x32"), ("f4e2m1", "per_1x32")):
        flat = weight.reshape(-1, shape[-1])  # the operator's own codes
        codes, scale = eitri.quantize(flat, quant=quant.scales, out_dtype=quant.weights)
        ours = _weight_codes.quantize(flat, quant)
        assert torch.equal(ours[0].view(torch.uint8), codes.view(torch.uint8)), (ours[0].view(torch.uint8) != codes.view(torch.uint8)).sum()
        if scale.dtype == torch.float8_e8m0fnu:
            zero = flat.abs().amax(-1) == 0
            assert torch.equal(ours[1].view(torch.uint8)[~zero], scale.view(torch.uint8)[~zero])


@pytest.mark.parametrize("quant", [*CODED.values(), *OTHERS.values()], ids=[*CODED, *OTHERS])
def test_linear_of_codes(quant):
    """Against the product of what the codes mean: only sums and the store round."""
    weight, bias, x = randn(160, 320) / 18, randn(160, seed=2), randn(2, 3, 320, seed=3)
    linear = eitri.nn.Linear(weight, bias, quant=quant)
    got = linear(x)
    real_w, _ = dequantised(weight, quant)
    rows, scale = _weight_codes.code_rows(x.view(6, 320), quant)
    real_x = rows.double() if scale is None else rows.double() * spread(scale, quant.activation_scales, 6, 320)
    exact, bound = real_x @ real_w.T + bias.double(), real_x.abs() @ real_w.abs().T + bias.double().abs()
    assert got.shape == (2, 3, 160) and got.dtype == torch.bfloat16
    # AMX multiplies in bf16: a scaled operand is rounded to its 8 bits there.
    assert bool(((got.view(6, 160).double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-8 * bound).all())
    if quant in (CODED["nvfp4"], CODED["f8e4m3_blocks"]):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(linear, fullgraph=True, backend="aot_eager")(x), got)


@pytest.mark.parametrize("quant", [name for name in CODED if name != "i8"])
def test_experts_of_codes(quant):
    w1, w2 = randn(6, 256, 128) / 11, randn(6, 128, 128, seed=2) / 11
    x = randn(9, 128, seed=3)
    weights, ids = eitri.topk_gating(randn(9, 6, dtype=torch.float32), 2, renormalize=True)
    experts = eitri.nn.Experts(w1, w2, quant=quant)
    got = experts(x, ids, weights)
    (r1, _), (r2, _) = dequantised(w1, CODED[quant]), dequantised(w2, CODED[quant])
    exact = torch.zeros(9, 128, dtype=torch.float64)
    for t in range(9):
        for weight, e in zip(weights[t].double(), ids[t].tolist()):
            gate, up = (r1[e] @ x[t].double()).chunk(2)
            exact[t] += weight * (r2[e] @ (torch.nn.functional.silu(gate) * up))
    error = ((got.double() - exact).square().mean() / exact.square().mean()).sqrt().item()
    # Activations as they are: bf16 roundings of h and the result. Else they are coded twice, by 2 to 4 % of their size at random.
    assert error < (2.0**-7 if CODED[quant].activations == "none" else 0.06), error
    if quant == "mxfp4_mxfp8":
        torch._dynamo.reset()
        assert torch.equal(torch.compile(experts, fullgraph=True, backend="aot_eager")(x, ids, weights), got)


@pytest.mark.parametrize("quant", ["mxfp4", "f8e4m3_blocks"])
def test_patch_with_fewer_bits(quant):
    family = FAMILIES[0]
    model = copy.deepcopy(original(family)[0])
    x, before = original(family)[2], original(family)[4]
    eitri.nn.patch(model, quant=quant)
    difference = (block_output(moe_block(family, model), x).double() - before.double()).square().mean().sqrt()
    assert 0 < difference <= (0.25 if quant == "mxfp4" else 0.08) * before.double().square().mean().sqrt()  # weights of 2 and of 4 bits


@pytest.mark.parametrize("quant", ["none", "i8", "f8e4m3", "nvfp4", "i4_i8"])
def test_modules_change_dtype_and_are_saved(quant, tmp_path):
    linear, x = eitri.nn.Linear(randn(48, 64) / 8, randn(48), quant=quant), randn(3, 64)
    before = linear(x)
    scale = linear.weight_scale
    linear.to(torch.float16).to(torch.bfloat16)  # activations, that means
    assert scale is None or torch.equal(linear.weight_scale, scale)
    torch.testing.assert_close(linear(x), before, rtol=2.0**-7, atol=0.02)
    assert torch.equal(copy.deepcopy(linear)(x), linear(x))
    torch.save(linear.state_dict(), tmp_path / "linear.pt")
    again = eitri.nn.Linear(randn(48, 64, seed=9), randn(48), quant=quant).to(torch.bfloat16)
    again.load_state_dict(torch.load(tmp_path / "linear.pt"))
    assert torch.equal(again(x), linear(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quant", ["none", "i8"])
def test_experts_keep_their_biases(quant, dtype):
    experts = eitri.nn.Experts(randn(4, 96, 64) / 8, randn(4, 64, 48, seed=2) / 7, bias1=randn(4, 96, seed=3), bias2=randn(4, 64, seed=4), quant=quant)
    ids, weights = torch.tensor([[0, 3], [2, 1]]), torch.full((2, 2), 0.5)
    x = randn(2, 64, seed=5)
    before = experts(x, ids, weights)
    experts.to(dtype)
    assert experts.bias1.dtype == experts.bias2.dtype == torch.float32
    if quant != "none":
        torch.testing.assert_close(experts(x.to(dtype), ids, weights).float(), before.float(), rtol=2.0**-5, atol=2.0**-5)
    elif dtype == torch.bfloat16:
        assert torch.equal(experts(x, ids, weights), before)


def test_refusals_of_quants():
    weight = randn(8, 31)
    with pytest.raises(InvalidArgument, match=r"Linear: weight has shape \[31\]; expected \[out_features, in_features\]"):
        eitri.nn.Linear(weight[0])
    with pytest.raises(InvalidArgument, match=r"Linear: x has shape \[2, 62\]; expected 31 columns"):
        eitri.nn.Linear(weight)(randn(2, 62))
    with pytest.raises(InvalidArgument, match="even number of columns"):
        eitri.nn.Linear(weight, quant="mxfp4")
    with pytest.raises(InvalidArgument, match="expected one of none, i8, .*, or a Quant"):
        eitri.nn.Linear(weight, quant="fp7")
    with pytest.raises(InvalidArgument, match="expected weights of"):
        eitri.nn.Linear(weight, quant=eitri.nn.Quant("i5", "per_token"))
    with pytest.raises(eitri.Unsupported, match="quant is .* on meta; eitri has none, i8 and f8e4m3 there"):
        eitri.nn.Linear(weight.to("meta"), quant="mxfp8")


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
    layer = eitri.nn.MoE(randn(6, 64, seed=3), experts, 2, correction_bias=randn(6, dtype=torch.float32), score="sigmoid", groups=3, topk_groups=2)
    before = layer(x)
    layer.to(torch.bfloat16)
    assert layer.correction_bias.dtype == torch.float32 and torch.equal(layer(x), before)
