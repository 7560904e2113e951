"""eitri on torch tensors: results, torch.ops, compile, export, and tensors that are not plain memory."""

import subprocess
import sys

import pytest
import torch
from eitri_calls import CALLS, DEVICES, X, as_tuple, assert_same, on, operator_of, randn
from torch.utils._python_dispatch import TorchDispatchMode

import eitri
from eitri.lib import _native


class Recorder(TorchDispatchMode):
    """Keeps the calls of torch.ops.eitri.* that go by."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "eitri":
            self.calls.append((op, args, kwargs or {}))
        return op(*args, **(kwargs or {}))


def test_every_operator_has_a_call():
    assert {operator_of(call) for call in CALLS} == set(_native.schemas())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_a_dispatch_mode_sees_the_call_and_opcheck_passes(call, device):
    function, tensors = CALLS[call]
    tensors = on(device, tensors)
    eager = function(*tensors)
    with Recorder() as recorder:
        assert_same(function(*tensors), eager)
    ((op, args, kwargs),) = recorder.calls
    assert op is getattr(torch.ops.eitri, operator_of(call)).default
    # torch's comparison of inputs before and after has no fp8 and no fp4; the other checks do.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    uncompared = (torch.float8_e4m3fn, torch.float4_e2m1fn_x2)
    if not any(isinstance(arg, torch.Tensor) and arg.dtype in uncompared for arg in args):
        checks += ("test_schema",)
    torch.library.opcheck(op, args, kwargs, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_compile_without_a_graph_break(call, device):
    function, tensors = CALLS[call]
    tensors = on(device, tensors)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*tensors), function(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_export(call, device):
    function, tensors = CALLS[call]
    tensors = on(device, tensors)

    class Model(torch.nn.Module):
        def forward(self, *arguments):
            return function(*arguments)

    program = torch.export.export(Model(), tensors)
    wanted = getattr(torch.ops.eitri, operator_of(call)).default
    assert [node.target for node in program.graph.nodes].count(wanted) == 1
    assert_same(program.module()(*tensors), function(*tensors))


def test_compile_with_inductor_and_dynamic_shapes():
    weight, norm = randn(48, 64) / 8, randn(64)

    def block(x):
        y = eitri.gemm(eitri.rmsnorm(x * 2, norm), weight, activation="silu")
        return y + 1

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (5, 9):
        x = randn(rows, 64, seed=rows)
        torch.testing.assert_close(compiled(x), block(x))  # inductor may round less often around our operators


def test_compile_writes_in_place():
    x, weight = randn(5, 64), randn(64)

    def norm(x):
        eitri.rmsnorm(x, weight, out=x)
        return x * 1

    torch._dynamo.reset()
    expected = eitri.rmsnorm(x, weight)
    got = torch.compile(norm, fullgraph=True, backend="aot_eager")(x)
    assert_same((got, x), (expected, expected))


def test_export_with_dynamic_shapes():
    class Model(torch.nn.Module):
        def forward(self, x, weight):
            return eitri.gemm(x, weight)

    weight = randn(32, 64)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(Model(), (X, weight), dynamic_shapes={"x": {0: rows}, "weight": None})
    assert any(node.target is torch.ops.eitri.gemm.default for node in program.graph.nodes)
    x = randn(11, 64)
    assert_same(program.module()(x, weight), eitri.gemm(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gemm_agrees_with_torch(dtype):
    a, b = randn(5, 64, dtype=dtype), randn(9, 64, dtype=dtype)
    out = eitri.gemm(a, b)
    assert out.dtype == dtype and out.device == a.device
    exact, bound = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    half_ulp = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    assert bool(((out.double() - exact).abs() <= half_ulp * exact.abs() + 68 * 2.0**-24 * bound).all())


def test_fp8_tensors():
    a, b = randn(3, 32).to(torch.float8_e4m3fn), randn(4, 32, seed=2).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    out = eitri.gemm(a, b, a_scale=one, b_scale=one)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), a.double() @ b.double().T, rtol=2**-8, atol=1e-5)
    q, scale = eitri.rmsnorm(X, quant="per_token", out_dtype=torch.float8_e4m3fn)
    assert q.dtype == torch.float8_e4m3fn and scale.shape == (7,)


def test_bytes_with_the_name_of_a_dtype():
    a, b, one = randn(3, 32).to(torch.float8_e4m3fn), randn(4, 32, seed=2).to(torch.float8_e4m3fn), torch.ones(1)
    as_bytes = [eitri.typed(t.view(torch.uint8), "f8e4m3") for t in (a, b)]
    assert_same(eitri.gemm(*as_bytes, a_scale=one, b_scale=one, out=torch.empty(3, 4)), eitri.gemm(a, b, a_scale=one, b_scale=one, out_dtype="f32"))
    with pytest.raises(eitri.InvalidArgument, match="a has elements of 8 bits; expected 16"):
        eitri.gemm(eitri.typed(a.view(torch.uint8), "bf16"), b, out=torch.empty(3, 4))


def test_views_and_parameters():
    wide, b = randn(8, 128), randn(9, 64)
    a = wide[::2, 32:96]
    assert_same(eitri.gemm(a, b), eitri.gemm(a.contiguous(), b))
    with torch.no_grad():
        assert_same(eitri.gemm(a, torch.nn.Parameter(b)), eitri.gemm(a, b))
    assert eitri.gemm(a[:0], b).shape == (0, 9)
    transposed = randn(64, 9).T
    with pytest.raises(eitri.InvalidArgument, match="b is bf16"):
        eitri.gemm(a, transposed)


def test_tensors_that_require_grad_are_refused():
    a, b = randn(3, 64), torch.nn.Parameter(randn(4, 64))
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    for call in (lambda: eitri.gemm(a, b), lambda: torch.ops.eitri.gemm(a, b, out), lambda: torch.ops.eitri.gemm.default(a, b, out)):
        with pytest.raises(eitri.InvalidArgument, match="b requires grad"):
            call()
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: eitri.gemm(a, b), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="requires grad"):
        compiled(a, b)
    with torch.no_grad():
        assert not eitri.gemm(a, b).requires_grad
        assert not compiled(a, b).requires_grad


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


def test_function_transforms_that_need_gradients_are_refused():
    x, w = randn(3, 8), randn(3, 8, seed=2)
    with pytest.raises(eitri.InvalidArgument, match="requires grad"):
        torch.func.grad(lambda y: (eitri.rmsnorm(y) * w).sum())(x)


def test_forward_mode_differentiation_is_refused():
    x, tangent = randn(3, 8), randn(3, 8, seed=2)
    with pytest.raises(eitri.InvalidArgument, match="tangent"):
        torch.func.jvp(eitri.rmsnorm, (x,), (tangent,))
    forward_ad = torch.autograd.forward_ad
    expected = eitri.rmsnorm(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        for call in (lambda: eitri.rmsnorm(dual), lambda: torch.ops.eitri.rmsnorm(dual, torch.empty_like(x)),
                     lambda: eitri.rmsnorm(x, residual=dual)):
            with pytest.raises(eitri.InvalidArgument, match="rmsnorm: .* tangent"):
                call()
        assert torch.equal(eitri.rmsnorm(x), expected)  # one without a tangent is as anywhere
    assert torch.equal(eitri.rmsnorm(x), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_trace_records_the_call():
    def block(x, w):
        return eitri.gemm(eitri.rmsnorm(x * 2), w) + 1

    traced = torch.jit.trace(block, (randn(3, 8), randn(4, 8)))
    x, w = randn(3, 8, seed=3), randn(4, 8, seed=4)
    assert torch.equal(traced(x, w), block(x, w))


def test_negated_memory_is_read_as_it_is_meant():
    z = torch.randn(6, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    negated = z.conj().imag
    assert negated.is_neg()
    for x in (negated[:, :1], negated[:, 1].unsqueeze(-1), negated.t()[:, 2:3], negated[:3, 2].reshape(3, 1)):
        plain = x.clone()
        b = torch.tensor([[2.0], [3.0]])
        assert torch.equal(eitri.gemm(x, b), eitri.gemm(plain, b))
    for x in (z[:1, :1].conj().imag, z[0, :1].conj().imag.unsqueeze(-1)):  # one element, whose memory looks plain
        assert x.is_neg() and torch.equal(eitri.gemm(x, torch.tensor([[2.0]])), 2 * x.clone())
    out = torch.zeros(6, 4, dtype=torch.complex64).conj().imag[:, :1]
    with pytest.raises(eitri.InvalidArgument, match="out has its negative bit set"):
        eitri.gemm(torch.ones(6, 1), torch.ones(1, 1), out=out)
    with pytest.raises(eitri.InvalidArgument, match="inner stride 1"):
        eitri.gemm(z.imag, torch.ones(3, 4))


def test_typed_tensors_of_integers():
    x = randn(3, 8).bfloat16()
    out = torch.empty_like(x)
    eitri.rmsnorm(eitri.typed(x.view(torch.int16), "bf16"), out=out)
    assert torch.equal(out, eitri.rmsnorm(x))


def test_subclasses_and_tensors_without_memory():
    b = randn(4, 64)
    assert_same(eitri.gemm(X.as_subclass(Plain), b.as_subclass(Plain)).as_subclass(torch.Tensor), eitri.gemm(X, b))
    assert eitri.gemm(X.to("meta"), b.to("meta")).device.type == "meta"
    with torch._subclasses.FakeTensorMode() as mode:
        fake = eitri.gemm(mode.from_tensor(X), mode.from_tensor(b))
        assert isinstance(fake, torch._subclasses.FakeTensor) and fake.shape == (7, 4)
    for bad, error in ((X.to_sparse(), NotImplementedError), (X.to("meta"), eitri.InvalidArgument)):
        with pytest.raises(error):
            eitri.gemm(bad, b, out=torch.empty(7, 4, dtype=torch.bfloat16))
    with pytest.raises(eitri.InvalidArgument, match="^gemm: got tensors on cpu, meta; expected one device"):
        eitri.gemm(X, b.to("meta"))
    with pytest.raises(RuntimeError, match="eitri::gemm"):
        torch.vmap(lambda x: eitri.gemm(x, b))(randn(2, 7, 64))


def spoiled(tensors):
    """Each tensor in turn: one column less, one row less, with a gap between the columns, one dimension more, of other dtypes."""
    for i, tensor in enumerate(tensors):
        variants = [tensor.narrow(d, 0, tensor.shape[d] - 1) for d in range(tensor.dim())]
        variants += [tensor[None], tensor.repeat_interleave(2, -1)[..., ::2], tensor.to(torch.complex64), tensor.to(torch.float64)]
        variants += [tensor.to(dtype) for dtype in (torch.float32, torch.int32, torch.bool) if dtype != tensor.dtype]
        for variant in variants:
            yield (*tensors[:i], variant, *tensors[i + 1 :])


def outcome(function, tensors):
    try:
        return [(tuple(t.shape), t.dtype) for t in as_tuple(function(*tensors))]
    except eitri.InvalidArgument as error:
        return str(error)
    except (RuntimeError, NotImplementedError):
        return None  # torch's own part of the call takes no such tensor


@pytest.mark.parametrize("call", CALLS)
def test_tensors_without_memory_are_refused_as_others_are(call):
    """Nothing may be traced that cannot run: meta and fake tensors get the errors, word for word, and the results of plain ones."""
    function, tensors = CALLS[call]
    refused = 0
    for wrong in (tensors, *spoiled(tensors)):
        expected = outcome(function, wrong)
        if expected is None:
            continue
        assert outcome(function, [t.to("meta") if t.is_contiguous() else t[..., :0].to("meta").new_empty_strided(t.shape, t.stride())
                                  for t in wrong]) == expected
        with torch._subclasses.FakeTensorMode() as mode:
            assert outcome(function, [mode.from_tensor(t) for t in wrong]) == expected
        refused += isinstance(expected, str)
    assert refused >= 3 * len(tensors)


def test_what_cannot_run_is_refused_while_it_is_traced():
    def product(a, b):
        return eitri.gemm(a, b)

    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(product, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        assert_same(compiled(X, randn(4, 64)), product(X, randn(4, 64)))
        with pytest.raises(Exception, match=r"gemm: b is bf16\[4, 32\]; expected"):
            compiled(X, randn(4, 32))
    with pytest.raises(Exception, match=r"gemm: b is bf16\[4, 32\]; expected"):
        torch.export.export(Product(), (X, randn(4, 32)))
    x = torch.randn(4, 8, device="meta")
    with pytest.raises(eitri.InvalidArgument, match="rmsnorm: out is .*, which shares memory with x"):
        eitri.rmsnorm(x[:, :4], out=x[:, 2:6])


class Product(torch.nn.Module):
    def forward(self, a, b):
        return eitri.gemm(a, b)


def test_errors_have_one_line_and_name_the_argument():
    with pytest.raises(eitri.InvalidArgument, match=r"^gemm: b is bf16\[4, 32\]; expected"):
        eitri.gemm(X, randn(4, 32))
    for dtype, name in ((torch.complex64, "complex64"), (torch.float64, "float64"), (torch.bool, "bool8")):
        with pytest.raises(eitri.InvalidArgument, match=f"gemm: a has dtype {name}; expected f32, f16"):
            eitri.gemm(X.to(dtype), X)
    with pytest.raises(eitri.InvalidArgument, match="out is f32"):
        eitri.rmsnorm(X, out=torch.empty(3, 3))


def test_threads_and_numpy_share_memory():
    a = torch.randn(3, 8)
    out = torch.empty(3, 4)
    eitri.gemm(a.numpy(), torch.ones(4, 8), out=out)
    torch.testing.assert_close(out, a.sum(1, keepdim=True).expand(3, 4))


@pytest.mark.parametrize("order", ["import eitri, torch", "import torch, eitri"])
def test_either_may_be_imported_first(order):
    code = f"{order}; assert torch.ops.eitri.gemm.default; assert torch.__spec__.loader.__class__.__module__ != 'eitri._import_hook'"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")


OLD_TORCH = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__, torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
import eitri
x, w = torch.randn(3, 64).bfloat16(), torch.randn(32, 64).bfloat16()
out = eitri.gemm(x, w)
assert type(out) is torch.Tensor and out.dtype == torch.bfloat16
torch.testing.assert_close(out, x @ w.T, rtol=2.0**-7, atol=2.0**-4)
x8, x_scale = eitri.quantize(x, out_dtype=torch.float8_e4m3fn)
w8, w_scale = eitri.quantize(w, out_dtype="f8e4m3")
assert x8.dtype == torch.float8_e4m3fn
torch.testing.assert_close(eitri.gemm(x8, w8, a_scale=x_scale, b_scale=w_scale).float(),
                           (x8.float() * x_scale[:, None]) @ (w8.float() * w_scale[:, None]).T, rtol=2.0**-7, atol=2.0**-7)
mx, mx_scale = eitri.quantize(x, quant="per_1x32", out_dtype="f8e4m3")
w4, w4_scale = eitri.quantize(w, quant="per_1x32", out_dtype="f4e2m1")
assert w4.dtype == "f4e2m1" and w4.array.dtype == torch.uint8 and w4.array.shape == (32, 32) and mx_scale.dtype == "f8e8m0"
eitri.gemm(mx, w4, a_scale=mx_scale, b_scale=w4_scale, a_quant="per_1x32", b_quant="per_1x32", out=out)
eitri.gemm(x, w4, b_scale=eitri.typed(w4_scale.array, "f8e8m0"), b_quant="per_1x32")
try:
    eitri.gemm(x, torch.nn.Parameter(w))
except eitri.InvalidArgument as error:
    assert "b requires grad" in str(error)
else:
    raise AssertionError
assert eitri.gemm(x.to("meta"), w.to("meta")).device.type == "meta"
"""


def test_a_torch_without_the_exchange_api_and_the_newer_dtypes():
    """What torch 2.4 lacks is taken away here; `.view` of bytes and DLPack serve instead."""
    done = subprocess.run([sys.executable, "-c", OLD_TORCH], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
