"""Operators of your own: a signature in Python, a body in C++ (and one for GPUs), compiled on the first call."""

import inspect
import pathlib
import re

from eitri._import_hook import when_imported
from eitri.errors import InvalidArgument
from eitri.lib import _native

_ANNOTATION = re.compile(r"\s*(?:(in|out|inout)\s+)?(?:strided\s+)?(\w+)\s*(?:\[([^\]]*)\])?\s*$")


class _Parameter:
    def __init__(self, name, annotation, default):
        match = _ANNOTATION.match(annotation)
        if match is None:
            raise InvalidArgument(f"user op: annotation of {name} is {annotation!r}; expected such as 'f32[n]', 'out bf16[m, 2*k]' or 'f32'")
        direction, self.dtype, extents = match.groups()
        self.name, self.default = name, default
        self.extents = None if extents is None else [e.replace(" ", "") for e in extents.split(",")]
        self.is_output = direction == "out"
        self.kind = ("r" if direction in (None, "in") else "w") if extents is not None else "f" if self.dtype.startswith("f") else "i"


def _bound_extents(name, parameters, values):
    sizes = {}
    for parameter in parameters:
        value = values.get(parameter.name)
        if parameter.extents is not None and value is not None:
            shape = getattr(value, "shape", None)
            if shape is None:
                raise InvalidArgument(f"{name}: {parameter.name} is a {type(value).__qualname__}; expected a tensor")
            for extent, size in zip(parameter.extents, shape):
                if extent.isidentifier():
                    sizes.setdefault(extent, size)  # equal names that differ are refused by the call itself
    return sizes


def _extent(text, sizes, name, parameter):
    size = 1
    for factor in text.split("*"):
        if not factor.isdigit() and factor not in sizes:
            raise InvalidArgument(f"{name}: {parameter} is not given and its extent {text} follows from no other argument; expected the tensor")
        size = size * (int(factor) if factor.isdigit() else sizes[factor])
    return size


def user_op(*, body=None, source=None, before=None, flags=(), gpu_body=None, gpu_before=None, gpu_entry=None, gpu_threads=None, gpu_blocks=None,
            gpu_flags=()):
    """A decorator that makes a function without a body an operator, for all kinds of arrays, on CPUs and GPUs, and for torch.compile.

        @eitri.user_op(body="for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);", gpu_body="y[element] = alpha * x[element];")
        def scale(x: "f32[n]", y: "out f32[n]", alpha: "f32" = 1.0): ...

        y = scale(x, alpha=0.5)

    Annotations: [in|out|inout] [strided] type[extent, …] for tensors (f32, f16, bf16, i8, u8, i32, i64; rank 1 to 4), a type (f32, f64, i32,
    i64) for numbers. An extent is a number, a name, or a number times a name (2*k); equal names are equal numbers, which each call checks.
    body: of a C++ function; in it every extent is an int64_t, every number a constant, every tensor has x(i, j), x.data, x.shape[d].
    source: a file with the body instead. before: text in front of the function (includes, functions). flags: of the compiler.
    gpu_body: once per element of the first output, or with gpu_threads and gpu_blocks once per thread; gpu_before and gpu_entry: a kernel in
    full. See include/eitri/jit.hpp for both.

    Outputs may be left out where their extents follow from other arguments; the call returns the outputs (out and inout), one or a tuple.
    The first call compiles (EITRI_CACHE_DIR keeps it); `op.compile()` does it before. torch has it as torch.ops.eitri_user.<name>.
    Raises InvalidArgument for a declaration or an argument that is wrong, CompileFailed with the compiler's message.
    """
    if (body is None) == (source is None) and not (body is None and (gpu_body or gpu_entry)):
        raise InvalidArgument("user op: expected body or source (or only a GPU source)")
    if source is not None:
        body = pathlib.Path(source).read_text(encoding="utf-8")

    def decorate(function):
        import hashlib

        name = function.__name__
        parameters = []
        for p in inspect.signature(function).parameters.values():
            if p.kind is not p.POSITIONAL_OR_KEYWORD:
                raise InvalidArgument(f"{name}: parameter {p.name} is {p.kind.description}; expected one that is given by position or name")
            if not isinstance(p.annotation, str):
                raise InvalidArgument(f"{name}: parameter {p.name} has annotation {p.annotation!r}; expected a text such as 'f32[n]'")
            parameters.append(_Parameter(p.name, p.annotation.strip("'\""), p.default))
        annotations = [p.annotation.strip("'\"") for p in inspect.signature(function).parameters.values()]
        declaration = f"{name}({', '.join(f'{p.name}: {a}' for p, a in zip(parameters, annotations))})"
        kinds = "".join(p.kind for p in parameters)
        sources = {"body": body, "before": before, "flags": list(flags), "gpu_body": gpu_body, "gpu_before": gpu_before, "gpu_entry": gpu_entry,
                   "gpu_threads": gpu_threads, "gpu_blocks": gpu_blocks, "gpu_flags": list(gpu_flags)}
        index = _native.user_op(declaration, name, kinds, [p.name for p in parameters], sources)
        digest = hashlib.sha256(repr((declaration, sources)).encode()).hexdigest()[:12]
        return _callable(function, name, index, declaration, digest, parameters, "cuda" if body is None else "cpu")

    return decorate


def _callable(function, name, index, declaration, digest, parameters, meta_kind):
    count = len(parameters)
    outputs = tuple(i for i, p in enumerate(parameters) if p.kind == "w")
    native = _native.call_user_op

    def complete(args, kwargs):
        if len(args) > count:
            raise TypeError(f"{name}() takes {count} arguments; got {len(args)}")
        values = {p.name: value for p, value in zip(parameters, args)}
        for key, value in kwargs.items():
            if key in values or all(key != p.name for p in parameters):
                raise TypeError(f"{name}() got {'two values for' if key in values else 'an unknown argument'} {key!r}")
            values[key] = value
        for p in parameters:
            if values.get(p.name) is None:
                if p.default is not inspect.Parameter.empty:
                    values[p.name] = p.default
                elif not p.is_output:
                    raise TypeError(f"{name}() lacks argument {p.name!r}")
        like = next((values[p.name] for p in parameters if p.extents is not None and values.get(p.name) is not None), None)
        sizes = _bound_extents(name, parameters, values)
        for p in parameters:
            if values.get(p.name) is None:
                if like is None:
                    raise TypeError(f"{name}() lacks argument {p.name!r}")
                values[p.name] = _native.empty(like, tuple(_extent(e, sizes, name, p.name) for e in p.extents), p.dtype)
        return tuple(values[p.name] for p in parameters)

    def call(*args, **kwargs):
        if kwargs or len(args) != count:
            args = complete(args, kwargs)
        for i in outputs:
            if args[i] is None:
                args = complete(args, {})
        if not native(index, *args):
            from eitri import torch_ops

            torch_ops.dispatch_user_op(index, args)
        if len(outputs) == 1:
            return args[outputs[0]]
        return tuple([args[i] for i in outputs])

    def run_for_torch(*args):
        if not native(index, *args):
            raise InvalidArgument(f"{name}: got a tensor without memory of its own (fake, meta, sparse or a subclass); expected plain tensors")

    def register():
        from eitri import torch_ops

        torch_ops.register_user_op(index, name, digest, [(p.name, p.kind) for p in parameters], run_for_torch, meta_kind)

    def allow():
        from eitri import torch_ops

        torch_ops.allow_whole(call)

    when_imported("torch", register)
    when_imported("torch._dynamo", allow)
    call.__name__, call.__qualname__, call.__doc__, call.__module__ = name, function.__qualname__, function.__doc__, function.__module__
    call.declaration = declaration
    call.compile = lambda: _native.compile_user_op(index)
    return call
