"""eitri on torch tensors of a GPU: results, streams, capture, compile. Skipped without one."""

import pytest
import torch
from eitri_calls import CALLS, X, as_tuple, randn

import eitri

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")


def on_gpu(tensors):
    return tuple(t.cuda() for t in tensors)


def assert_agrees(got, expected):
    """Floats within a few roundings of bf16 of the CPU's; codes may be one apart where a tie falls differently; lists exactly."""
    for g, e in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert g.is_cuda and g.dtype == e.dtype and g.shape == e.shape
        g, wide = g.cpu(), e.dtype.is_floating_point
        if wide:
            torch.testing.assert_close(g.double(), e.double(), rtol=2.0**-6, atol=2.0**-6)
        elif e.dtype == torch.int8:
            assert int((g.int() - e.int()).abs().max()) <= 1
        else:
            assert torch.equal(g, e)


@pytest.mark.parametrize("name", CALLS)
def test_results(name):
    function, tensors = CALLS[name]
    if name == "grouped_gemm":  # its output is made by the call
        function = with_zeros_on_gpu
    assert_agrees(function(*on_gpu(tensors)), CALLS[name][0](*tensors))


def with_zeros_on_gpu(a, b, s, e, n):
    return eitri.grouped_gemm(a, b, s, e, n, tokens=7, block=4, gather="position",
                              out=torch.zeros(s.shape[0], b.shape[1], dtype=a.dtype, device=a.device))


def test_opcheck():
    a, b = X.cuda(), randn(33, 64).cuda()
    torch.library.opcheck(torch.ops.eitri.gemm.default, (a, b, torch.empty(7, 33, dtype=a.dtype, device="cuda")))


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


@pytest.mark.parametrize("name", ["gemm", "rmsnorm", "activation", "topk_gating", "fused_moe"])
def test_graph_capture(name):
    function, tensors = CALLS[name]
    tensors = on_gpu(tensors)
    eager = [t.clone() for t in as_tuple(function(*tensors))]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = as_tuple(function(*tensors))
    for out in captured:
        out.view(torch.uint8).zero_()
    graph.replay()
    torch.cuda.synchronize()
    for out, e in zip(captured, eager):
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


def test_a_fresh_thread():
    import threading

    a, b = X.cuda(), randn(33, 64).cuda()
    expected, got = eitri.gemm(a, b), []
    thread = threading.Thread(target=lambda: got.append(eitri.gemm(a, b)))
    thread.start()
    thread.join()
    assert torch.equal(got[0], expected)
