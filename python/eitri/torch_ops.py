"""torch.ops.eitri.*, and the rules by which torch.compile sees eitri's functions. Everything is derived from the extension's schemas.

Eager calls do not come here: the extension reads plain torch tensors itself. What torch traces (compile, export, fake tensors,
dispatch modes) and subclasses of Tensor go through the operators that are defined here. All of them write into their outputs and
return nothing, so that their fake implementation has nothing to compute.
"""

import functools

import torch

from eitri._arrays import torch_dtype
from eitri.errors import InvalidArgument
from eitri.lib import _native

OPS = tuple(_native.schemas())
_library = None


class _Unknown(Exception):
    """A number that only the run knows: an unbacked symbol."""


def _known(value):
    """An extent as an integer; of a symbol, what it was traced with. That adds no guard: other sizes are checked when they run."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    try:
        hint = value.node.hint if value.node.has_hint() else None
    except Exception as error:  # what torch raises here differs from version to version
        raise _Unknown from error
    if not isinstance(hint, (int, float)):
        raise _Unknown
    return hint


def _described(value, meta_kind, storages):
    """A tensor without memory as the extension's checks take it. Tensors of one storage get addresses in one range."""
    if not isinstance(value, torch.Tensor):
        return _known(value)
    if value.layout is not torch.strided:
        raise _Unknown
    storage = storages.setdefault(value.untyped_storage()._cdata, len(storages) + 1)
    address = (storage << 56) + _known(value.storage_offset()) * value.element_size()
    kind = {"meta": meta_kind, "cuda": "hip" if torch.version.hip else "cuda"}.get(value.device.type, value.device.type)
    return (address, tuple(map(_known, value.shape)), tuple(map(_known, value.stride())), value.dtype, kind, value.device.index or 0)


def _fake_of(op, check, meta_kind="cpu"):
    """Outputs are arguments, so there is nothing to make; what a call would refuse is refused here. meta_kind: where a meta tensor is taken to be."""

    def fake(*args):
        devices = {value.device for value in args if isinstance(value, torch.Tensor)}
        if len(devices) > 1:
            raise InvalidArgument(f"{op}: got tensors on {', '.join(sorted(map(str, devices)))}; expected one device")
        storages: dict = {}
        try:
            check(*[_described(value, meta_kind, storages) for value in args])
        except _Unknown:
            pass  # it is checked when it runs

    return fake


def register():
    """Defines the operators. Called once, when both packages have been imported."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("eitri", "DEF")
    for name, schema in _native.schemas().items():
        _library.define(schema)
        for key in ("CPU", "CUDA"):
            _library.impl(name, getattr(_native, name + "_direct"), key)
        torch.library.register_fake(f"eitri::{name}", _fake_of(name, getattr(_native, name + "_check")), lib=_library)


_user_libraries: dict = {}  # by name
_user_ops: dict = {}  # by number


def register_user_op(index, name, digest, parameters, run, meta_kind):
    """Defines torch.ops.eitri_user.<name> as `run`. parameters: (name, kind), kind r, w, f or i. A second one of a name replaces the first.
    meta_kind: where meta tensors are taken to be, cpu or cuda.

    Graphs call <name>_<digest> (of declaration and source): what was traced, or exported, means that source for ever."""
    aliases = iter("abcdefghijklmnop")
    kinds = {"r": lambda: "Tensor", "w": lambda: f"Tensor({next(aliases)}!)", "f": lambda: "float", "i": lambda: "int"}
    schema = f"({', '.join(f'{kinds[kind]()} {parameter}' for parameter, kind in parameters)}) -> ()"
    known = _user_libraries.pop(name, None)
    if known is not None:
        known._destroy()
    of_source = f"{name}_{digest}"
    fake = _fake_of(name, functools.partial(_native.check_user_op, index), meta_kind)
    for op in (name, of_source):
        if op in _user_libraries:
            continue
        library = _user_libraries[op] = torch.library.Library("eitri_user", "FRAGMENT")
        library.define(op + schema)
        for key in ("CPU", "CUDA"):
            library.impl(op, run, key)
        torch.library.register_fake(f"eitri_user::{op}", fake, lib=library)
    _user_ops[index] = getattr(torch.ops.eitri_user, of_source).default


def _traced_user_op(index, *args):
    op = _user_ops[index]
    refuse_gradients("user op", args)
    op(*args)
    return True


def dispatch_user_op(index, args):
    refuse_gradients("user op", args)
    refuse_tangents("user op", args)
    _user_ops[index](*args)


def dispatch(name, args):
    """The call through torch's dispatcher: from the extension, for tensors that it does not read itself."""
    refuse_gradients(name, args)  # inside torch.func, wrappers that need a gradient have no memory of their own
    refuse_tangents(name, args)
    register()
    return getattr(torch.ops.eitri, name).default(*args)


def _empty(like, shape, dtype):
    if dtype is None:
        dtype = like.dtype
    elif isinstance(dtype, str):
        if dtype == "f4e2m1":  # two in a byte
            shape = (*shape[:-1], shape[-1] // 2)
        dtype = torch_dtype(dtype)
    return torch.empty(shape, dtype=dtype, device=like.device)


def has_tangent(value):
    """Of a tensor inside a level of forward-mode differentiation."""
    try:
        return torch.autograd.forward_ad.unpack_dual(value).tangent is not None
    except RuntimeError:  # no level is open, or a tensor without storage
        return False


def refuse_tangents(name, tensors):
    """Forward-mode differentiation (torch.func.jvp, dual tensors): results would have no tangent, which torch takes for 0."""
    if getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0:
        for value in tensors:
            if isinstance(value, torch.Tensor) and has_tangent(value):
                raise InvalidArgument(f"{name}: got a tensor with a tangent (forward-mode differentiation); expected one without "
                                      "(eitri's operators have no gradient)")


def refuse_gradients(name, tensors):
    if torch.is_grad_enabled():
        for value in tensors:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise InvalidArgument(f"{name}: got a tensor that requires grad; expected none, or torch.no_grad() "
                                      "(eitri's operators have no gradient)")


def _polyfill(name):
    # dynamo's guards look for globals of a function in its module, so that each polyfill is written into this one.
    globals()["_op_" + name] = getattr(torch.ops.eitri, name).default
    exec(f"def _traced_{name}(*args):\n    refuse_gradients({name!r}, args)\n    _op_{name}(*args)\n", globals())
    return globals()["_traced_" + name]


def allow_whole(function):
    """Before torch 2.6, where nothing can stand for a part of it: a graph calls the whole function."""
    if not hasattr(torch.compiler, "substitute_in_graph"):
        torch.compiler.allow_in_graph(function)


def register_with_dynamo():
    """Tells torch.compile what stands for the extension's functions in a graph."""
    register()
    substitute = getattr(torch.compiler, "substitute_in_graph", None)
    if substitute is None:  # before torch 2.6: our functions are put into the graph whole; what it calls of torch is seen below
        from eitri import ops

        for name in (*OPS, "empty"):
            allow_whole(getattr(ops, name, getattr(_native, name)))
        return
    for name in OPS:
        substitute(getattr(_native, name), skip_signature_check=True)(_polyfill(name))
    substitute(_native.call_user_op, skip_signature_check=True)(_traced_user_op)
    substitute(_native.empty, skip_signature_check=True)(_empty)
