"""The table of functions: a decorated function is a row."""

import functools

from eitri.errors import InvalidArgument, Unsupported

FUNCTIONS = {}  # name -> (AITER's module, function)
LOCAL = {}  # (module, name) -> function: names that AITER has in that module alone, often with another function of the name in `aiter`


def peer(module, *aliases):
    """Makes the function AITER's of the same name (and of `aliases`) in `module`; all of them are also names of `aiter` itself."""

    def add(function):
        for name in (function.__name__, *aliases):
            FUNCTIONS[name] = (module, function)
        return function

    return add


def local_peer(*modules):
    """Makes the function AITER's of the same name in each of `modules`, but not in `aiter` itself."""

    def add(function):
        for module in modules:
            LOCAL[module, function.__name__] = function
        return function

    return add


def missing(name):
    """What stands for a function of AITER that eitri has not: calling it says so."""

    @functools.wraps(missing)
    def stub(*args, **kwargs):
        raise Unsupported(f"aiter.{name} is not there: eitri has no operator for it yet (eitri.compat.aiter)")

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = f"Not there yet: raises eitri.Unsupported that names {name}."
    return stub


def refuse(function, **arguments):
    """Arguments whose effect we do not have must have the value that asks for nothing: name=(value, that value)."""
    for name, (value, neutral) in arguments.items():
        if value is None and neutral in (0, False, ""):
            continue
        if value is not neutral and (hasattr(value, "shape") or value != neutral):
            shown = f"a tensor {list(value.shape)}" if hasattr(value, "shape") else repr(value)
            raise Unsupported(f"aiter.{function}: {name} is {shown}; eitri knows only {neutral!r}")


def check_dtype(function, name, dtype, known):
    if dtype not in known:
        raise InvalidArgument(f"aiter.{function}: {name} is {dtype}; expected one of {', '.join(map(str, known))}")
