"""Eitri inside a process that runs PyTorch: right results beside its busy thread pool, and no collapse of speed."""

import ctypes
import os
import pathlib
import statistics
import sys
import time

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import c_abi  # noqa: E402


class Activation(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32)] + [(name, ctypes.c_float) for name in ("limit", "alpha", "beta", "linear_beta")]


class GemmArgs(ctypes.Structure):
    _fields_ = ([("size", ctypes.c_size_t)] + [(name, ctypes.POINTER(c_abi.Tensor)) for name in ("a", "b", "c", "bias", "a_scale", "b_scale")]
                + [("activation", Activation), ("gate", ctypes.c_int32)])


@pytest.fixture(scope="module")
def library():
    path = pathlib.Path(os.environ.get("EITRI_LIB", ROOT / "build/lib/libeitri.so"))
    assert path.is_file(), f"{path} is not there: run `make build`, or set EITRI_LIB"
    lib = ctypes.CDLL(str(path))
    lib.eitri_last_error.restype = ctypes.c_char_p
    return lib


def view(tensor):
    name = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[tensor.dtype]
    return c_abi.tensor(tensor.data_ptr(), tensor.shape, tensor.stride(), name)


def gemm(lib, a, b, c):
    views = [view(t) for t in (a, b, c)]
    args = GemmArgs(size=ctypes.sizeof(GemmArgs), a=ctypes.pointer(views[0]), b=ctypes.pointer(views[1]), c=ctypes.pointer(views[2]))
    assert lib.eitri_gemm(ctypes.byref(args), None) == 0, lib.eitri_last_error().decode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_beside_torch(library, dtype):
    torch.manual_seed(1)
    a, b = torch.randn(67, 129).to(dtype), torch.randn(95, 129).to(dtype)
    c = torch.full((67, 95), float("nan"), dtype=dtype)
    busy = torch.randn(256, 256)
    for _ in range(20):
        busy = torch.tanh(busy @ busy)
        gemm(library, a, b, c)
    exact, bound = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    half_ulp = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    allowed = half_ulp * exact.abs() + 129 * 2.0**-24 * bound + 1e-30
    assert bool(((c.double() - exact).abs() <= allowed).all())


def test_alternating_with_torch_does_not_collapse(library):
    """Each call of ours right after one of torch's, against ours alone. Idle threads of the other pool spin for a moment; the
    bound says that this may cost a factor, not the hundredfold that waiting for a descheduled thread costs each time."""
    a, b = torch.randn(64, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    c = torch.empty(64, 1024, dtype=torch.bfloat16)
    other = torch.randn(256, 256)

    def median(alternate):
        times = []
        for _ in range(60):
            if alternate:
                torch.matmul(other, other)
            start = time.perf_counter()
            gemm(library, a, b, c)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    median(False)
    alone, beside = median(False), median(True)
    print(f"alone {alone * 1e6:.0f} us, right after torch {beside * 1e6:.0f} us")
    assert beside < 50 * alone + 0.05
