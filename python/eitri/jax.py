"""eitri's operators inside JAX programs, on CPUs: XLA custom calls through its FFI, for jit as well. No gradients, no vmap.

Arguments, dtypes and results are those of the functions of the same name in `eitri`; outputs are always XLA's own.
"""

import operator
import re

import jax
import jax.numpy as jnp
import numpy as np

from eitri._arrays import NAMES, name_of_dtype
from eitri.errors import InvalidArgument
from eitri.lib import _native

_PARAMETER = re.compile(r"(Tensor\(\w!\)\??|Tensor\??|str|float|int|SymInt) (\w+)(?:=(\"[^\"]*\"|[^,)]+))?")


def _parameters(schema):
    """(name, type, default as text) in the order in which the extension walks them."""
    return [(name, kind, default) for kind, name, default in _PARAMETER.findall(schema)]


_SCHEMAS = {name: _parameters(schema) for name, schema in _native.schemas().items()}

for _name, _handler in _native.jax_handlers().items():
    jax.ffi.register_ffi_target(f"eitri_{_name}", _handler, platform="cpu")


def _attribute(op, name, kind, value):
    """What XLA gets for a setting: a text, a float32 or an int64, known while it traces."""
    if kind == "str":
        return value
    try:
        return np.float32(float(value)) if kind == "float" else np.int64(operator.index(value))
    except (TypeError, ValueError):  # a traced value too
        wanted = "number" if kind == "float" else "integer"
        raise InvalidArgument(f"{op}: {name} is {value!r}; expected {'an' if wanted[0] == 'i' else 'a'} {wanted} that is known while tracing") from None


def _default(kind, text):
    return text.strip('"') if kind == "str" else float(text) if kind == "float" else int(text)


def _dtype(dtype):
    """JAX's of a dtype of it, or of eitri's name."""
    name = name_of_dtype(dtype)
    return jnp.dtype(NAMES[name][0]) if name in NAMES else dtype


def call(op, outputs, **arguments):
    """Any operator by name. outputs: {parameter: jax.ShapeDtypeStruct}; arguments: arrays and settings by the names of its schema
    (`eitri.lib._native.schemas()`). Returns the outputs in the order of the schema."""
    if op not in _SCHEMAS:
        raise InvalidArgument(f"jax: op is {op!r}; expected one of {', '.join(_SCHEMAS)}")
    inputs, results, given, attributes, outputs = [], [], "", {}, dict(outputs)
    for name, kind, default in _SCHEMAS[op]:
        value = arguments.pop(name, None)
        if kind.startswith("Tensor"):
            if "!" in kind and name in outputs:
                results.append(outputs.pop(name))
                given += "o"
            elif "!" in kind and not kind.endswith("?"):
                raise InvalidArgument(f"{op}: {name} is not among the outputs; expected its shape and dtype")
            elif "!" not in kind and value is not None:
                inputs.append(jnp.asarray(value))
                given += "i"
            elif kind == "Tensor":
                raise InvalidArgument(f"{op}: {name} is not given; expected an array")
            else:
                given += "-"
        else:
            attributes[name] = _attribute(op, name, kind, _default(kind, default) if value is None else value)
    if arguments or outputs:
        raise InvalidArgument(f"{op}: unknown argument {', '.join([*arguments, *outputs])}")
    return jax.ffi.ffi_call(f"eitri_{op}", tuple(results))(*inputs, given=given, **attributes)


def gemm(a, b, *, bias=None, a_scale=None, b_scale=None, activation="none", gate="none", out_dtype=None, **parameters):
    """See `eitri.gemm`; parameters: limit, alpha, beta, linear_beta."""
    if b.ndim == 1:
        raise InvalidArgument("gemm: b has 1 dimension; expected 2 or 3 (packed weights do not go through XLA, which may move them)")
    dtype = _dtype(out_dtype or (jnp.bfloat16 if a_scale is not None else a.dtype))
    columns = b.shape[-2] if gate == "none" else b.shape[-2] // 2
    return call("gemm", {"out": jax.ShapeDtypeStruct((*a.shape[:-1], columns), dtype)}, a=a, b=b, bias=bias, a_scale=a_scale, b_scale=b_scale,
                activation=activation, gate=gate, **parameters)[0]


def rmsnorm(x, weight=None, *, residual=None, eps=1e-6, norm_weight="plain", quant="none", out_dtype=None):
    """See `eitri.rmsnorm`."""
    outputs = {"out": jax.ShapeDtypeStruct(x.shape, _dtype(out_dtype or x.dtype))}
    if residual is not None:
        outputs["residual_out"] = jax.ShapeDtypeStruct(residual.shape, residual.dtype)
    if quant != "none":
        outputs["scale"] = jax.ShapeDtypeStruct((x.shape[0],) if quant == "per_token" else (x.shape[0], (x.shape[1] + 127) // 128), jnp.float32)
    results = call("rmsnorm", outputs, x=x, weight=weight, residual=residual, eps=eps, norm_weight=norm_weight, quant=quant)
    return results[0] if len(results) == 1 else tuple(results)


def fused_moe(x, w1, w2, topk_weights, topk_ids, *, out_dtype=None, **arguments):
    """See `eitri.fused_moe`, whose other arguments this takes as well."""
    dtype = _dtype(out_dtype or (jnp.bfloat16 if arguments.get("x_scale") is not None else x.dtype))
    defaults = {"activation": "silu", "gate": "separated"}
    return call("fused_moe", {"out": jax.ShapeDtypeStruct(x.shape, dtype)}, x=x, w1=w1, w2=w2, topk_weights=topk_weights, topk_ids=topk_ids,
                **{**defaults, **arguments})[0]
