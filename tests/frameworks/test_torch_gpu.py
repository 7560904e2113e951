"""eitri on torch tensors of a GPU: results, streams, capture, compile. Skipped without one. opcheck, compile and export of each operator are
in test_torch_ops.py, for CPUs and GPUs."""

import pytest
import torch
from eitri_calls import CALLS, X, as_tuple, on, randn

import eitri

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")


def assert_agrees(got, expected):
    """Floats within a few roundings of bf16 of the CPU's; codes may be one apart where a tie falls differently; lists exactly."""
    for g, e in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert g.is_cuda and g.dtype == e.dtype and g.shape == e.shape
        g = g.cpu()
        if e.dtype == torch.float8_e4m3fn:  # neighbours of one sign differ by 1 as integers
            assert int((g.view(torch.uint8).int() - e.view(torch.uint8).int()).abs().max()) <= 1
        elif e.dtype.is_floating_point:
            torch.testing.assert_close(g.double(), e.double(), rtol=2.0**-6, atol=2.0**-6)
        elif e.dtype == torch.int8:
            assert int((g.int() - e.int()).abs().max()) <= 1
        else:
            assert torch.equal(g, e)


@pytest.mark.parametrize("call", CALLS)
def test_results(call):
    function, tensors = CALLS[call]
    assert_agrees(function(*on("cuda", tensors)), function(*tensors))


def test_calls_follow_the_current_stream():
    a, b = randn(512, 512).cuda(), randn(512, 512, seed=2).cuda()
    expected = (a.float() * 2) @ b.float().T
    side = torch.cuda.Stream()
    eitri.gemm(a, b)  # compiles what it needs
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        twice = a * 2
        out = eitri.gemm(twice, b)  # wrong if it does not wait for the sleep
    side.synchronize()
    torch.testing.assert_close(out.float(), expected, rtol=2.0**-6, atol=0.5)


@pytest.mark.parametrize("call", CALLS)
def test_graph_capture(call):
    function, tensors = CALLS[call]
    tensors = on("cuda", tensors)
    eager = [t.clone() for t in as_tuple(function(*tensors))]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = as_tuple(function(*tensors))
    for _ in range(2):
        for out in captured:
            out.view(torch.uint8).fill_(0xFF)
        graph.replay()
        torch.cuda.synchronize()
        for out, e in zip(captured, eager, strict=True):
            assert torch.equal(out.view(torch.uint8), e.view(torch.uint8))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    weight, norm = (randn(48, 64) / 8).cuda(), randn(64).cuda()

    def block(x):
        return eitri.gemm(eitri.rmsnorm(x * 2, norm), weight, activation="silu") + 1

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    x = randn(8, 64).cuda()
    for _ in range(4):
        torch.testing.assert_close(compiled(x).clone(), block(x))


def test_refusals():
    a, b = X.cuda(), randn(33, 64)
    with pytest.raises(eitri.InvalidArgument, match="gemm: b is on cpu; expected cuda:0"):
        eitri.gemm(a, b, out=torch.empty(7, 33, dtype=a.dtype, device="cuda"))
    with pytest.raises(eitri.InvalidArgument, match="packed weights are for CPUs|expected CPU memory"):
        eitri.pack_weights(b.cuda())
    with pytest.raises(eitri.InvalidArgument, match="requires grad"):
        eitri.gemm(a, torch.nn.Parameter(b.cuda()))


def test_modules():
    import eitri.nn

    x = randn(9, 64)
    experts = eitri.nn.Experts(randn(6, 96, 64) / 8, randn(6, 64, 48, seed=2) / 7)
    there = eitri.nn.Experts((randn(6, 96, 64) / 8).cuda(), (randn(6, 64, 48, seed=2) / 7).cuda())
    weights, ids = eitri.topk_gating(randn(9, 6, dtype=torch.float32), 2, renormalize=True)
    assert_agrees(there(x.cuda(), ids.cuda(), weights.cuda()), experts(x, ids, weights))


@pytest.mark.parametrize("quant", ["none", "i8", "f8e4m3"])
def test_linear(quant):
    import eitri.nn

    weight, bias, x = randn(48, 64) / 8, randn(48), randn(9, 64, seed=2)
    assert_agrees(eitri.nn.Linear(weight.cuda(), bias.cuda(), quant=quant)(x.cuda()), eitri.nn.Linear(weight, bias, quant=quant)(x))


def test_experts_of_int8():
    import eitri.nn

    w1, w2, x = randn(6, 96, 64) / 8, randn(6, 64, 48, seed=2) / 7, randn(9, 64)
    weights, ids = eitri.topk_gating(randn(9, 6, dtype=torch.float32), 2, renormalize=True)
    there = eitri.nn.Experts(w1.cuda(), w2.cuda(), quant="i8")
    assert_agrees(there(x.cuda(), ids.cuda(), weights.cuda()), eitri.nn.Experts(w1, w2, quant="i8")(x, ids, weights))


def test_a_fresh_thread():
    import threading

    a, b = X.cuda(), randn(33, 64).cuda()
    expected, got = eitri.gemm(a, b), []
    thread = threading.Thread(target=lambda: got.append(eitri.gemm(a, b)))
    thread.start()
    thread.join()
    assert torch.equal(got[0], expected)
