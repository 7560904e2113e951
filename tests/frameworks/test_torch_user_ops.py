"""Operators of the user's own on torch tensors: eager, torch.ops, compile, opcheck."""

import pytest
import torch
from eitri_calls import DEVICES, randn

import eitri

BODY = "for (int64_t i = 0; i < m; ++i)\n  for (int64_t j = 0; j < n; ++j) y(i, j) = float(x(i, j)) * scale(j) + shift;"


@eitri.user_op(body=BODY, gpu_body="y[element] = float(x[element]) * scale[element % n] + shift;")
def affine(x: "bf16[m, n]", scale: "f32[n]", y: "out bf16[m, n]", shift: "f32" = 0.0): ...


@eitri.user_op(body="for (int64_t i = 0; i < n; ++i) x(i) += step;", gpu_body="x[element] += step;")
def advance(x: "inout i32[n]", step: "i32"): ...


def expected(x, scale, shift=0.0):
    return (x.float() * scale + shift).bfloat16()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def operands(device):
    return randn(5, 7).to(device), randn(7, dtype=torch.float32).to(device)


def test_eager_and_through_torch(device):
    x, scale = operands(device)
    assert torch.equal(affine(x, scale), expected(x, scale))
    assert torch.equal(affine(x, scale, shift=1.5), expected(x, scale, 1.5))
    out = torch.empty_like(x)
    torch.ops.eitri_user.affine(x, scale, out, 2.0)
    assert torch.equal(out, expected(x, scale, 2.0))
    torch.library.opcheck(torch.ops.eitri_user.affine.default, (x, scale, out, 2.0))
    counts = torch.arange(4, dtype=torch.int32, device=device)
    assert advance(counts, 3) is counts and counts.tolist() == [3, 4, 5, 6]


def test_compile_and_export(device):
    x, scale = operands(device)

    class Model(torch.nn.Module):
        def forward(self, x, scale):
            return affine(x * 2, scale, shift=1.0) + 1

    wanted = expected(x * 2, scale, 1.0) + 1
    torch._dynamo.reset()
    assert torch.equal(torch.compile(Model(), fullgraph=True, backend="aot_eager")(x, scale), wanted)
    assert torch.equal(torch.export.export(Model(), (x, scale)).module()(x, scale), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")
def test_graph_capture():
    x, scale = operands("cuda")
    affine(x, scale)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = affine(x, scale, shift=1.0)
    x.copy_(randn(5, 7, seed=2))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected(x, scale, 1.0))


def test_refusals():
    x, scale = randn(5, 7), randn(7, dtype=torch.float32)
    with pytest.raises(eitri.InvalidArgument, match=r"affine: scale is f32\[6\]"):
        affine(x, scale[:6])
    with pytest.raises(eitri.InvalidArgument, match="requires grad"):
        affine(x, scale.requires_grad_())


@eitri.user_op(gpu_body="y[element] = 2 * x[element];")
def doubled_on_a_gpu(x: "f32[n]", y: "out f32[n]"): ...


def test_tensors_without_memory_are_checked():
    x, scale = randn(5, 7).to("meta"), randn(7, dtype=torch.float32).to("meta")
    assert affine(x, scale).device.type == "meta"
    assert doubled_on_a_gpu(scale).shape == (7,)
    with pytest.raises(eitri.InvalidArgument, match=r"affine: scale is f32\[6\]"):
        affine(x, scale[:6])
    with pytest.raises(eitri.InvalidArgument, match=r"affine: x is f32\[5, 7\]; expected bf16\[m, n\]"):
        affine(x.float(), scale, x)
    with pytest.raises(eitri.InvalidArgument, match="affine: y overlaps x"):
        affine(x, scale, x)
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(eitri.InvalidArgument, match=r"affine: scale is f32\[6\]"):
        affine(mode.from_tensor(randn(5, 7)), mode.from_tensor(torch.randn(6)))


def test_graphs_keep_the_source_that_they_were_made_of():
    def declare(value):
        @eitri.user_op(body=f"y(0) = {value};")
        def same_name(x: "f32[n]", y: "out f32[n]"): ...

        return same_name

    x = torch.zeros(1)
    first = declare(1)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: first(x), fullgraph=True, backend="aot_eager")

    class Model(torch.nn.Module):
        def forward(self, x):
            return first(x)

    exported = torch.export.export(Model(), (x,))
    assert compiled(x).item() == 1
    second = declare(2)
    assert [f(x).item() for f in (first, second, compiled, exported.module())] == [1, 2, 1, 1]
    torch._dynamo.reset()
    assert [torch.compile(lambda x: f(x), fullgraph=True, backend="aot_eager")(x).item() for f in (first, second)] == [1, 2]
    again = declare(1)  # the same source is the same operator
    assert again(x).item() == 1 and compiled(x).item() == 1


def test_a_second_one_of_the_name_takes_its_place():
    @eitri.user_op(body="y(0) = 1;")
    def twice(y: "inout f32[n]"): ...

    @eitri.user_op(body="y(0) = 2;")
    def twice(y: "inout f32[n]"): ...  # noqa: F811

    y = torch.zeros(1)
    torch.ops.eitri_user.twice.default(y)
    assert y.item() == 2
