"""eitri inside JAX on CPUs: the same bits as on NumPy arrays, under jit too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eitri
import eitri.jax


def random(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_same(got, expected):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_gemm(dtype, wrap):
    a, b, bias = random(5, 64, dtype=dtype), random(12, 64, seed=2, dtype=dtype), random(12, seed=3)
    run = wrap(lambda a, b, bias: eitri.jax.gemm(a, b, bias=bias, activation="silu", gate="interleaved", limit=0.5))
    assert_same(run(jnp.asarray(a), b, bias), eitri.gemm(a, b, bias=bias, activation="silu", gate="interleaved", limit=0.5))
    assert eitri.jax.gemm(jnp.zeros((0, 8)), jnp.zeros((3, 8))).shape == (0, 3)


def test_gemm_in_a_program():
    a, b = random(5, 64), random(64, 64, seed=2)
    run = jax.jit(lambda a: jnp.maximum(eitri.jax.gemm(a * 2, b), 0) + 1)
    assert_same(run(a), np.maximum(eitri.gemm(a * 2, b), 0) + 1)


def test_dtypes_by_name():
    a, b = random(3, 8), random(4, 8)
    for name, dtype in (("bf16", jnp.bfloat16), ("float16", jnp.float16), (np.float16, jnp.float16)):
        assert_same(eitri.jax.gemm(a, b, out_dtype=name), np.asarray(eitri.jax.gemm(a, b, out_dtype=dtype)))
    assert eitri.jax.rmsnorm(a, quant="per_token", out_dtype="f8e4m3")[0].dtype == jnp.float8_e4m3fn


def test_donated_buffers():
    x, residual = random(5, 256), random(5, 256, seed=2)
    run = jax.jit(lambda x, residual: eitri.jax.rmsnorm(x, residual=residual), donate_argnums=(0, 1))
    for got, expected in zip(run(jnp.array(x), jnp.array(residual)), eitri.rmsnorm(x, residual=residual), strict=True):
        assert_same(got, expected)


def test_gemm_int8():
    q, w = np.arange(-32, 32, dtype=np.int8).reshape(2, 32), np.arange(96, dtype=np.int8).reshape(3, 32)
    scales = np.full(2, 0.5, np.float32), np.full(3, 0.25, np.float32)
    got = eitri.jax.gemm(q, w, a_scale=scales[0], b_scale=scales[1])
    assert got.dtype == jnp.bfloat16
    assert_same(got, eitri.gemm(q, w, a_scale=scales[0], b_scale=scales[1], out_dtype="bf16"))


def test_rmsnorm():
    x, residual, weight = random(5, 256), random(5, 256, seed=2), random(256, seed=3)
    run = jax.jit(lambda x, r, w: eitri.jax.rmsnorm(x, w, residual=r, eps=1e-5, norm_weight="plus_one"))
    for got, expected in zip(run(x, residual, weight), eitri.rmsnorm(x, weight, residual=residual, eps=1e-5, norm_weight="plus_one"), strict=True):
        assert_same(got, expected)
    codes, scale = eitri.jax.rmsnorm(x, quant="per_1x128", out_dtype=jnp.int8)
    for got, expected in zip((codes, scale), eitri.rmsnorm(x, quant="per_1x128", out_dtype="i8"), strict=True):
        assert_same(got, expected)


def test_fused_moe():
    x, w1, w2 = (random(*s, seed=i, dtype=jnp.bfloat16) for i, s in enumerate(((9, 64), (6, 96, 64), (6, 64, 48))))
    weights, ids = eitri.topk_gating(random(9, 6, seed=4), 2, renormalize=True)
    assert_same(jax.jit(eitri.jax.fused_moe)(x, w1, w2, weights, ids), eitri.fused_moe(x, w1, w2, weights, ids))
    weights, ids = eitri.jax.call("topk_gating", {"weights": jax.ShapeDtypeStruct((9, 2), jnp.float32), "ids": jax.ShapeDtypeStruct((9, 2), jnp.int32)},
                                  logits=random(9, 6, seed=4), score="sigmoid")
    for got, expected in zip((weights, ids), eitri.topk_gating(random(9, 6, seed=4), 2, score="sigmoid"), strict=True):
        assert_same(got, expected)


def test_refusals():
    with pytest.raises(Exception, match=r"gemm: b is f32\[4, 7\]; expected"):
        eitri.jax.gemm(random(3, 8), random(4, 7)).block_until_ready()
    with pytest.raises(Exception, match="activation is .*tanh"):
        eitri.jax.gemm(random(3, 8), random(4, 8), activation="tanh").block_until_ready()
    with pytest.raises(eitri.InvalidArgument, match="packed weights"):
        eitri.jax.gemm(random(3, 8), eitri.pack_weights(random(4, 8)))
    with pytest.raises(eitri.InvalidArgument, match="unknown argument colour"):
        eitri.jax.gemm(random(3, 8), random(4, 8), colour=1)
    pair = {name: jax.ShapeDtypeStruct((3, 2), dtype) for name, dtype in (("weights", jnp.float32), ("ids", jnp.int32))}
    with pytest.raises(eitri.InvalidArgument, match="logits is not given"):
        eitri.jax.call("topk_gating", pair)
    with pytest.raises(eitri.InvalidArgument, match="topk_gating: ids is not among the outputs"):
        eitri.jax.call("topk_gating", {"weights": pair["weights"]}, logits=random(3, 8))
    with pytest.raises(eitri.InvalidArgument, match="topk_gating: unknown argument indices"):
        eitri.jax.call("topk_gating", {**pair, "indices": pair["ids"]}, logits=random(3, 8))
    with pytest.raises(eitri.InvalidArgument, match="rmsnorm: eps is .*; expected a number that is known while tracing"):
        jax.jit(lambda x, eps: eitri.jax.rmsnorm(x, eps=eps))(random(3, 8), 1e-5)
    with pytest.raises(eitri.InvalidArgument, match="inside JAX programs use eitri.jax"):
        jax.jit(lambda x: eitri.gemm(x, random(4, 8), out=np.empty((3, 4), np.float32)))(random(3, 8))
    with pytest.raises(Exception, match="differentiat|JVP"):
        jax.grad(lambda a: eitri.jax.gemm(a, random(4, 8)).sum())(random(3, 8))
