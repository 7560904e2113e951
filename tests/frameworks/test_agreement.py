"""`eitri moe run` on checkpoints that transformers wrote agrees with transformers' own code, element by element.

Both are compared with the block in float64, whose bound comes from sums of absolute products; the router sees hidden
states whose choice of experts no bf16 rounding can change, so that everybody uses the same experts.
"""

import dataclasses
import functools

import oracle
import pytest
import torch
from families import FAMILIES, HIDDEN, LAYER, LAYERS, TOP_K, block_output, make_model, moe_block, weights_of
from safetensors.torch import load_file, save_file

TOKENS = 48


@functools.cache
def prepared(family):
    model = make_model(family, seed=11)
    block = moe_block(family, model)
    weights = weights_of(family, block)
    torch.manual_seed(7)
    candidates = torch.randn(40 * TOKENS, HIDDEN).to(torch.bfloat16)
    choice = oracle.route(weights, candidates.double(), model.config, family, TOP_K)
    clear = torch.where(choice.clear)[0][:TOKENS]
    assert len(clear) == TOKENS, f"only {len(clear)} of {len(candidates)} random tokens have a clear choice of experts"
    choice = oracle.Choice(*(getattr(choice, field)[clear] for field in ("ids", "weights", "error", "clear")))
    return model, block, weights, candidates[clear], choice


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


@pytest.fixture(params=["one_file", "sharded"])
def checkpoint(request, family, tmp_path):
    model = prepared(family)[0]
    folder = tmp_path / family.name
    if request.param == "sharded":
        model.save_pretrained(folder, max_shard_size="100KB")
        assert (folder / "model.safetensors.index.json").is_file()
        assert len(list(folder.glob("*.safetensors"))) > 1
    else:
        model.save_pretrained(folder)
        assert (folder / "model.safetensors").is_file()
    return folder


def run_block(eitri_json, checkpoint, x, tmp_path, *more):
    save_file({"hidden_states": x.contiguous()}, tmp_path / "x.safetensors")
    report = eitri_json("moe", "run", "--checkpoint", checkpoint, "--layer", LAYER, "--input", tmp_path / "x.safetensors",
                        "--output", tmp_path / "y.safetensors", *more)
    return report, load_file(tmp_path / "y.safetensors")


def assert_within(name, got, expected):
    assert got.isfinite().all(), f"{name}: not finite"
    ratio = (got.double() - expected.value).abs() / expected.error
    worst = ratio.argmax()
    assert ratio.max() <= 1, (f"{name}: {(ratio > 1).sum()} of {ratio.numel()} elements differ; at {divmod(int(worst), HIDDEN)} it is "
                              f"{got.flatten()[worst]}, expected {expected.value.flatten()[worst]} +- {expected.error.flatten()[worst]}")


def assert_close_overall(name, got, expected):
    """Worst-case bounds add what in practice cancels, so they are some ten times the errors that occur: this catches what
    is small enough to hide in them."""
    difference = (got.double() - expected.value).square().mean().sqrt()
    assert difference <= 2.0**-6 * expected.value.square().mean().sqrt(), f"{name}: root mean square error {difference}"


def assert_same_experts(out, choice):
    assert torch.equal(out["topk_ids"].sort(-1).values.long(), choice.ids.sort(-1).values)
    by_id = torch.zeros(len(choice.ids), 1 + int(choice.ids.max()), dtype=torch.float64)
    wanted, allowed = by_id.scatter(1, choice.ids, choice.weights), by_id.scatter(1, choice.ids, choice.error)
    got = by_id.scatter(1, out["topk_ids"].long(), out["topk_weights"].double())
    assert ((got - wanted).abs() <= allowed).all()


def test_bf16(family, checkpoint, eitri_json, tmp_path):
    _, block, weights, x, choice = prepared(family)
    report, out = run_block(eitri_json, checkpoint, x, tmp_path)
    assert report["ok"] and report["max_error_ratio"] <= 1 and report["tokens"] == TOKENS
    assert_same_experts(out, choice)
    expected = oracle.block(weights, x.double(), choice, family.gpt_oss)
    for name, got in (("transformers", block_output(block, x)), ("eitri", out["hidden_states"])):
        assert_within(name, got, expected)
        assert_close_overall(name, got, expected)


def test_int8(family, checkpoint, eitri_json, tmp_path):
    _, _, weights, x, choice = prepared(family)
    report, out = run_block(eitri_json, checkpoint, x, tmp_path, "--quant", "int8")
    assert report["ok"] and report["quant"] == "int8"
    assert_same_experts(out, choice)
    expected = oracle.block(oracle.dequantised(weights), x.double(), choice, family.gpt_oss, int8=True)
    assert_within("eitri", out["hidden_states"], expected)
    assert_close_overall("eitri", out["hidden_states"], expected)


def test_the_bound_sees_faults(family):
    """One wrong expert, gate and up exchanged, a forgotten routing weight: each leaves the bound."""
    _, _, weights, x, choice = prepared(family)
    right = oracle.block(weights, x.double(), choice, family.gpt_oss)

    def outside(weights, choice):
        wrong = oracle.block(weights, x.double(), choice, family.gpt_oss)
        return ((wrong.value - right.value).abs() > right.error).float().mean()

    ids = choice.ids.clone()
    ids[:, -1] = (ids[:, -1] + 1) % weights.w1.shape[0]
    assert outside(weights, oracle.Choice(ids, choice.weights, choice.error, choice.clear)) > 0.2
    swapped = torch.cat(weights.w1.chunk(2, 1)[::-1], 1)
    assert outside(dataclasses.replace(weights, w1=swapped), choice) > 0.2
    ones = torch.ones_like(choice.weights)
    assert outside(weights, oracle.Choice(choice.ids, ones, choice.error, choice.clear)) > 0.2


def test_dense_layer_is_refused(eitri, tmp_path):
    family = next(f for f in FAMILIES if f.name == "deepseek_v3")
    prepared(family)[0].save_pretrained(tmp_path / "m")
    code, out, err = eitri("moe", "run", "--checkpoint", tmp_path / "m", "--layer", 0)
    assert code == 2 and out == ""
    assert "layer 0" in err and "its mixture-of-experts layers: 1" in err
    code, _, err = eitri("moe", "run", "--checkpoint", tmp_path / "m", "--layer", LAYERS)
    assert code == 2 and "layers 0 to 1" in err


def test_fused_expert_tensors(eitri_json, tmp_path):
    """The spelling that keeps all experts in one tensor gives the same bits as the one with a tensor for each."""
    family = next(f for f in FAMILIES if f.name == "qwen3_moe")
    model, block, _, x, _ = prepared(family)
    model.save_pretrained(tmp_path / "separate")
    tensors = load_file(tmp_path / "separate/model.safetensors")
    tensors = {name: t for name, t in tensors.items() if f"layers.{LAYER}.mlp.experts." not in name}
    tensors[f"model.layers.{LAYER}.mlp.experts.gate_up_proj"] = block.experts.gate_up_proj.detach().contiguous()
    tensors[f"model.layers.{LAYER}.mlp.experts.down_proj"] = block.experts.down_proj.detach().contiguous()
    (tmp_path / "fused").mkdir()
    save_file(tensors, tmp_path / "fused/model.safetensors", metadata={"format": "pt"})
    (tmp_path / "fused/config.json").write_text((tmp_path / "separate/config.json").read_text())
    outs = [run_block(eitri_json, tmp_path / name, x, tmp_path)[1]["hidden_states"] for name in ("separate", "fused")]
    assert torch.equal(*outs)
