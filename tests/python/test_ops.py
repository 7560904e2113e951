"""Every operator on NumPy arrays against float64, and the kinds of arrays that are read."""

import ctypes
import inspect
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import eitri
from eitri.lib import _native

EPS = {np.float32: 2.0**-24, np.float16: 2.0**-11}


def random(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_sums(got, exact, bound, terms):
    """Within an f32 sum of `terms` products in any order, rounded once to got's dtype."""
    allowed = EPS[got.dtype.type] * np.abs(exact) + (terms + 4) * 2.0**-24 * bound + 1e-30
    assert np.all(np.abs(got.astype(np.float64) - exact) <= allowed)


def bf16(values):
    """uint16 codes of bf16 numbers, and the numbers."""
    codes = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return codes, (codes.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 33), (0, 4, 8), (5, 0, 8), (5, 4, 0)])
def test_gemm(dtype, shape):
    m, n, k = shape
    a, b, bias = random(m, k, dtype=dtype), random(n, k, seed=2, dtype=dtype), random(n, seed=3)
    out = eitri.gemm(a, b, bias=bias)
    assert isinstance(out, np.ndarray) and out.dtype == dtype and out.shape == (m, n)
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert_sums(out, a @ b.T + bias, np.abs(a) @ np.abs(b).T + np.abs(bias), k)


def test_gemm_batched_gated_and_out():
    a, b = random(2, 5, 32), random(2, 12, 32, seed=2)
    out = np.full((2, 5, 6), np.nan, np.float32)
    assert eitri.gemm(a, b, activation="relu".replace("relu", "silu"), gate="interleaved", out=out) is out
    sums = np.einsum("bmk,bnk->bmn", a.astype(np.float64), b.astype(np.float64))
    gate, up = sums[..., ::2], sums[..., 1::2]
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=1e-4, atol=1e-5)


def test_gemm_of_codes_and_scales():
    rng = np.random.default_rng(4)
    a, b = rng.integers(-127, 128, (3, 64), np.int8), rng.integers(-127, 128, (5, 64), np.int8)
    a_scale, b_scale = rng.random(3, np.float32), rng.random(5, np.float32)
    out = eitri.gemm(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype=np.float32)
    exact = (a.astype(np.int64) @ b.astype(np.int64).T) * a_scale[:, None].astype(np.float64) * b_scale
    np.testing.assert_allclose(out, exact, rtol=2**-22)


def test_packed_weights_give_the_same():
    w = random(48, 40)
    packed = eitri.pack_weights(w)
    assert packed.dtype == np.uint8 and packed.ctypes.data % 64 == 0
    x = random(3, 40, seed=2)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert_sums(eitri.gemm(x, packed), exact, np.abs(x) @ np.abs(w).T, 40)
    with pytest.raises(eitri.InvalidArgument, match="b is u8, taken as packed weights"):
        eitri.gemm(x, packed[:100].copy())


@pytest.mark.parametrize("packed", [False, True])
def test_weights_of_four_bits(packed):
    rng = np.random.default_rng(5)
    n, k = 48, 96
    x = random(3, k)

    def product(codes, values, scales, dtype, **more):
        """codes [n, k]: 0 to 15; scales [n, blocks] as numbers, more["b_scale"] as eitri takes them."""
        weights = eitri.typed((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), dtype)
        assert weights.shape == (n, k // 2)
        real = values * np.repeat(scales, k // scales.shape[1], axis=1)
        if packed:
            quant, scale = more.pop("b_quant"), more.pop("b_scale")
            out = eitri.gemm(x, eitri.pack_weights(weights, quant=quant, scale=scale), b_quant=quant, **more)
        else:
            out = eitri.gemm(x, weights, **more)
        exact = x.astype(np.float64) @ real.T
        assert_sums(out, exact, np.abs(x) @ np.abs(real).T, k)

    codes = rng.integers(0, 16, (n, k))
    scales = rng.random((n, 3), np.float32)
    product(codes, (codes ^ 8) - 8, scales, "i4", b_scale=scales, b_quant="per_1x32")
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.where(codes < 8, 1, -1) * halves[codes & 7]
    exponents = rng.integers(120, 134, (n, 3)).astype(np.uint8)
    product(codes, values, 2.0 ** (exponents.astype(int) - 127), "f4e2m1", b_scale=eitri.typed(exponents, "f8e8m0"), b_quant="per_1x32")


def test_bf16_comes_as_typed_integers():
    a_codes, a = bf16(random(4, 32))
    b_codes, b = bf16(random(6, 32, seed=2))
    out = eitri.gemm(eitri.typed(a_codes, "bf16"), eitri.typed(b_codes, "bf16"))
    assert isinstance(out, eitri._arrays.Typed) and out.dtype == "bf16" and out.array.dtype == np.uint16
    got = (out.array.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, a @ b.T, rtol=2**-8, atol=1e-5)
    with pytest.raises(eitri.InvalidArgument, match="elements of 2 bytes; expected 1"):
        eitri.gemm(eitri.typed(a_codes, "f8e4m3"), b)


def test_rmsnorm():
    x, residual, weight = random(7, 100), random(7, 100, seed=2), random(100, seed=3)
    out, kept = eitri.rmsnorm(x, weight, residual=residual, eps=1e-5)
    np.testing.assert_array_equal(kept, x + residual)
    s = kept.astype(np.float64)
    np.testing.assert_allclose(out, s / np.sqrt((s * s).mean(1, keepdims=True) + 1e-5) * weight, rtol=1e-5, atol=1e-6)
    q, scale = eitri.rmsnorm(x, quant="per_token", out_dtype="i8")
    plain = eitri.rmsnorm(x)
    np.testing.assert_allclose(q * scale[:, None], plain, atol=np.abs(plain).max() / 127 * 0.51)
    codes, scales = eitri.rmsnorm(x, quant="per_1x128", out_dtype="f8e4m3")
    assert codes.dtype == "f8e4m3" and scales.shape == (7, 1)


def test_activation_and_quantize():
    x = random(5, 64)
    g, u = x[:, :32].astype(np.float64), x[:, 32:]
    exact = g / (1 + np.exp(-g)) * u
    np.testing.assert_allclose(eitri.activation(x), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(eitri.activation(x, "relu", gate="none"), np.maximum(x, 0))
    for dtype in ("i8", np.int8, np.dtype(np.int8)):
        codes, scale = eitri.activation(x, out_dtype=dtype)
        np.testing.assert_allclose(codes * scale[:, None], exact, atol=np.abs(exact).max() / 127 * 0.51)
    q, scale = eitri.quantize(x)
    np.testing.assert_allclose(scale, np.abs(x).max(1) / 127, rtol=1e-6)
    np.testing.assert_allclose(q * scale[:, None], x, atol=np.abs(x).max() / 127 * 0.51)


E4M3 = np.array([(-1.0 if c & 128 else 1.0) * ((c & 7) * 2.0**-9 if (c >> 3 & 15) == 0 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3 & 15) - 7))
                 for c in range(256)])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nearest(x, values):
    """The nearest of the values; ties to the even code, whose place in the list has that parity."""
    distance = np.abs(x[..., None] - values)
    best = distance.min(-1, keepdims=True)
    return values[np.where(distance == best, np.arange(len(values)) % 2, 2).argmin(-1)]


@pytest.mark.parametrize("quant, shape, block", [("per_tensor", (1,), None), ("per_token", (5,), None), ("per_1x128", (5, 2), 128)])
def test_quantize_to_f8(quant, shape, block):
    x = random(5, 160)
    q, scale = eitri.quantize(x, quant=quant, out_dtype="f8e4m3")
    assert scale.shape == shape and scale.dtype == np.float32
    groups = np.repeat(np.abs(x).reshape(5, -1), 1, axis=0)
    if block is None:
        amax = np.full((5, 160), groups.max()) if quant == "per_tensor" else np.broadcast_to(groups.max(1)[:, None], (5, 160))
    else:
        amax = np.concatenate([np.broadcast_to(g.max(1)[:, None], g.shape) for g in (groups[:, :128], groups[:, 128:])], 1)
    s = (amax / np.float32(448)).astype(np.float32)
    np.testing.assert_array_equal(np.unique(scale), np.unique(s))
    product = (x * (np.float32(1) / s)).astype(np.float64)
    finite = np.sort(E4M3[np.r_[0:127]])
    np.testing.assert_array_equal(E4M3[q.array], np.sign(product) * nearest(np.abs(product), finite))


@pytest.mark.parametrize("dtype, rounding", [("f8e4m3", "up"), ("f4e2m1", "up"), ("f4e2m1", "down"), ("f4e2m1", "even")])
def test_quantize_to_mx(dtype, rounding):
    x = (random(3, 96) * 2.0 ** np.arange(-4, 5).repeat(32).reshape(3, 96)).astype(np.float32)
    q, scale = eitri.quantize(x, quant="per_1x32", out_dtype=dtype, scale_rounding=rounding)
    assert scale.shape == (3, 3) and q.shape == ((3, 96) if dtype == "f8e4m3" else (3, 48))
    amax, most = np.abs(x).reshape(9, 32).max(1).astype(np.float64), 448.0 if dtype == "f8e4m3" else 6.0
    if rounding == "up":
        exponent = np.ceil(np.log2(amax / most))
    else:
        rounded = amax if rounding == "down" else np.round(amax / 2.0 ** (np.floor(np.log2(amax)) - 1)) * 2.0 ** (np.floor(np.log2(amax)) - 1)
        exponent = np.floor(np.log2(rounded)) - (8 if dtype == "f8e4m3" else 2)
    np.testing.assert_array_equal(scale.array.reshape(-1), exponent + 127)
    product = x.astype(np.float64).reshape(9, 32) / 2.0 ** exponent[:, None]
    values = np.sort(E4M3[np.r_[0:127]]) if dtype == "f8e4m3" else E2M1[:8]
    exact = np.sign(product) * nearest(np.minimum(np.abs(product), most), values)
    codes = q.array if dtype == "f8e4m3" else np.stack([q.array & 15, q.array >> 4], -1).reshape(3, 96)
    np.testing.assert_array_equal((E4M3 if dtype == "f8e4m3" else E2M1)[codes].reshape(9, 32), exact)


def moe_inputs(tokens=9, hidden=32, inter=24, experts=6, top_k=2):
    x = random(tokens, hidden, dtype=np.float16)
    w1 = (random(experts, 2 * inter, hidden, seed=2) / hidden**0.5).astype(np.float16)
    w2 = (random(experts, hidden, inter, seed=3) / inter**0.5).astype(np.float16)
    weights, ids = eitri.topk_gating(random(tokens, experts, seed=4), top_k, renormalize=True)
    return x, w1, w2, weights, ids


def test_topk_gating():
    logits = random(9, 6, seed=4)
    weights, ids = eitri.topk_gating(logits, 2, renormalize=True)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :2])
    picked = np.exp(np.take_along_axis(logits, ids, 1).astype(np.float64))
    np.testing.assert_allclose(weights, picked / picked.sum(1, keepdims=True), rtol=1e-6)
    out = np.empty((9, 2), np.float32), np.empty((9, 2), np.int32)
    assert eitri.topk_gating(logits, 2, out=out)[1] is out[1]


def test_fused_moe_and_its_steps_agree():
    x, w1, w2, weights, ids = moe_inputs()
    fused = eitri.fused_moe(x, w1, w2, weights, ids)
    exact = np.zeros(x.shape)
    for t in range(len(x)):
        for weight, e in zip(weights[t].astype(np.float64), ids[t]):
            h = w1[e].astype(np.float64) @ x[t]
            g, u = np.split(h, 2)
            exact[t] += weight * (w2[e].astype(np.float64) @ (g / (1 + np.exp(-g)) * u))
    np.testing.assert_allclose(fused, exact, rtol=4e-3, atol=4e-3)  # f16 stores of h, the activation, y and out
    s = eitri.moe_sort(ids, weights, 6, block=4)
    lists = s.sorted_ids, s.sorted_expert_ids, s.num_valid
    assert s.num_valid[1] == 9 and (s.reverse >= 0).all()
    np.testing.assert_array_equal(s.sorted_ids[s.reverse.ravel()] & 0xFFFFFF, np.repeat(np.arange(9), 2))
    h = eitri.grouped_gemm(x, w1, *lists, tokens=9, block=4, activation="silu", gate="separated")
    y = eitri.grouped_gemm(h, w2, *lists, tokens=9, block=4, gather="position")
    np.testing.assert_allclose(eitri.moe_combine(y, s.reverse, weights), exact, rtol=4e-3, atol=4e-3)


def test_fused_moe_int8_and_packed():
    x, w1, w2, weights, ids = moe_inputs()
    packed = eitri.fused_moe(x, eitri.pack_weights(w1, gate="separated"), eitri.pack_weights(w2), weights, ids)
    np.testing.assert_allclose(packed, eitri.fused_moe(x, w1, w2, weights, ids), rtol=4e-3, atol=4e-3)
    q1, s1 = eitri.quantize(w1.reshape(-1, 32))
    q2, s2 = eitri.quantize(w2.reshape(-1, 24))
    out = eitri.fused_moe(x, q1.reshape(w1.shape), q2.reshape(w2.shape), weights, ids, w1_scale=s1.reshape(6, -1), w2_scale=s2.reshape(6, -1))
    np.testing.assert_allclose(out, packed, atol=0.1)


def test_strided_views_and_other_buffers():
    wide = random(6, 64)
    a, b = wide[::2], random(4, 64, seed=2)
    np.testing.assert_array_equal(eitri.gemm(a, b), eitri.gemm(a.copy(), b))
    raw = (ctypes.c_float * 64)(*range(64))  # anything with the buffer protocol
    out = np.empty((1, 4), np.float32)
    eitri.gemm(memoryview(raw).cast("B").cast("f", (1, 64)), b, out=out)
    np.testing.assert_array_equal(out, eitri.gemm(np.arange(64, dtype=np.float32)[None], b))


class OnlyDlpack:
    """Hides the buffer protocol."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    a, b, out = random(3, 8), random(4, 8, seed=2), np.zeros((3, 4), np.float32)
    eitri.gemm(OnlyDlpack(a), OnlyDlpack(b), out=OnlyDlpack(out))
    np.testing.assert_array_equal(out, eitri.gemm(a, b))
    with pytest.raises(eitri.InvalidArgument, match="out is not given; expected one for inputs of type OnlyDlpack"):
        eitri.gemm(OnlyDlpack(a), b)


def test_signatures_agree_with_the_extension():
    """Defaults are in the C++ structs; the Python functions repeat them for readers, and must not differ."""
    for name, schema in _native.schemas().items():
        defaults = dict(re.findall(r"(\w+)=([^,)]+)", schema))
        for parameter in inspect.signature(getattr(eitri, name)).parameters.values():
            known = defaults.get({"kind": "activation"}.get(parameter.name, parameter.name))
            if known is None or parameter.default in (None, inspect.Parameter.empty):
                continue
            meant = {"renormalize": {"no": False}.get(known.strip('"'))}.get(parameter.name)
            if meant is None:
                meant = known.strip('"') if known.startswith('"') else float(known)
            if (name, parameter.name) not in INTENDED:
                assert parameter.default == meant, f"{name}: {parameter.name}"


# activation is called for its activation: silu with a gate, where the struct has none.
INTENDED = {("activation", "kind"), ("activation", "gate")}


def test_every_tensor_argument_is_there():
    assert _native.unlisted() == []


def test_every_operator_has_a_documented_function():
    for name in _native.schemas():
        assert len(inspect.getdoc(getattr(eitri, name))) > 200
        assert name in eitri.__all__


def test_the_gil_is_free_while_a_cpu_works():
    a, b = random(512, 2048), random(2048, 2048, seed=2)
    out = np.empty((512, 2048), np.float32)
    eitri.gemm(a, b, out=out)
    done, ticks = threading.Event(), []

    def work():
        for _ in range(5):
            eitri.gemm(a, b, out=out)
        done.set()

    thread = threading.Thread(target=work)
    start = time.monotonic()
    thread.start()
    while not done.is_set():
        ticks.append(time.monotonic())
        time.sleep(0.0005)
    thread.join()
    # With the GIL held, the loop would get a turn only between calls.
    assert len(ticks) > 10, f"{len(ticks)} turns in {time.monotonic() - start:.3f} s"


def test_explain_counters_and_version():
    text = eitri.explain("gemm", "m=1,n=64,k=64,a=f32,c=f32")
    assert "gemm.reference" in text
    assert '"gemm.reference"' in eitri.explain("gemm", json=True)
    before = sum(v for k, v in eitri.counters().items() if k.startswith("rmsnorm."))
    eitri.rmsnorm(random(2, 8))
    assert sum(v for k, v in eitri.counters().items() if k.startswith("rmsnorm.")) == before + 1
    assert re.fullmatch(r"\d+\.\d+\.\d+", eitri.__version__)
    with pytest.raises(eitri.InvalidArgument, match="expected one of gemm"):
        eitri.explain("gemmm")


def test_threads_call_at_once():
    a, b = random(16, 64), random(32, 64, seed=2)
    expected, failures = eitri.gemm(a, b), []

    def work(rows):
        for _ in range(200):
            if not np.array_equal(eitri.gemm(a[:rows], b), expected[:rows]):
                failures.append(rows)
            try:
                eitri.gemm(a[:rows], b[:, :5])
            except eitri.InvalidArgument as error:
                if "gemm: b is" not in str(error):
                    failures.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (16, 16, 16, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_nothing_is_left_behind():
    a, b, out = random(3, 8), random(4, 8, seed=2), np.empty((3, 4), np.float32)
    kept = [a, b, out, OnlyDlpack(a)]

    def work():
        eitri.gemm(a, b, out=out)
        eitri.gemm(kept[3], b, out=out)
        with pytest.raises(eitri.InvalidArgument):
            eitri.gemm(a, b, out=a)
        with pytest.raises(eitri.InvalidArgument):
            eitri.gemm(kept[3], out, out=out)

    work()
    before = [sys.getrefcount(k) for k in kept]
    for _ in range(50):
        work()
    assert [sys.getrefcount(k) for k in kept] == before


FORK = """
import os, signal, threading
import numpy as np, eitri
random = np.random.default_rng(1)
a, b = (random.standard_normal((n, 2048), np.float32) for n in (256, 512))
before = eitri.gemm(a, b)
child = os.fork()
if child == 0:
    signal.alarm(60)
    same = [np.array_equal(eitri.gemm(a, b), before)]
    thread = threading.Thread(target=lambda: same.append(np.array_equal(eitri.gemm(a, b), before)))
    thread.start(); thread.join()
    os._exit(0 if same == [True, True] else 1)
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(eitri.gemm(a, b), before)
"""


def test_a_forked_child_calls_on():
    """OpenMP's threads are not in the child, which must not wait for them."""
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "this process was forked from one that had opened an OpenMP team" in done.stderr
