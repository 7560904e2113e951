"""Eitri: the best kernel for every shape, precision and machine, from Python. See `help(eitri.ops)`.

Importing loads no framework, prints nothing and starts no compiler. torch's operators (`torch.ops.eitri.*`) and rules for
torch.compile are registered when both eitri and torch have been imported, in any order.
"""

from eitri._arrays import typed
from eitri._import_hook import when_imported
from eitri.errors import CompileFailed, DeviceError, Error, InternalError, InvalidArgument, IoError, OutOfMemory, Unsupported
from eitri.lib import _native
from eitri.ops import (Sorted, activation, fused_moe, gemm, grouped_gemm, moe_combine, moe_sort, pack_weights, quantize, rmsnorm,
                       topk_gating)
from eitri.user_ops import user_op

__version__ = _native.version()

__all__ = [
    "CompileFailed", "DeviceError", "Error", "InternalError", "InvalidArgument", "IoError", "OutOfMemory", "Sorted", "Unsupported",
    "activation", "counters", "explain", "fused_moe", "gemm", "grouped_gemm", "moe_combine", "moe_sort", "pack_weights", "prebuild",
    "quantize", "rmsnorm", "seal", "topk_gating", "typed", "user_op",
]


def explain(op, problem="", *, device="cpu", json=False):
    """Every kernel of an operator, taken or why not, the chosen one and why: `explain("gemm", "m=1,n=4096,k=4096")`.

    Fields left out take their defaults. device: "cpu", "cuda:0". Returns text, with json=True a JSON text."""
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise InvalidArgument(f"explain: device is {device!r}; expected cpu, cuda:N or hip:N")
    return _native.explain(op, problem, "json" if json else "text", kind, int(index or 0))


def prebuild(op, problem, targets):
    """Compiles into the cache what calls of `problem` need on the target GPUs ("sm_90a,gfx942"), which need not be there.

    Returns (kernels that the problem needs, how many of them were compiled now)."""
    return _native.prebuild(op, problem, targets)


def seal():
    """From now on, for the whole process, a compile is an error (CompileFailed): for servers, after prebuild and a first call."""
    _native.seal()


def counters():
    """Launches by kernel name, route misses and other counts of this process."""
    return _native.counters()


def _register_torch():
    from eitri import torch_ops

    torch_ops.register()


def _register_compile():
    from eitri import torch_ops

    torch_ops.register_with_dynamo()


when_imported("torch", _register_torch)
when_imported("torch._dynamo", _register_compile)
