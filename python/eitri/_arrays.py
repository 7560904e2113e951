"""Arrays of packages other than torch: typed views, new arrays, DLPack export. Slow paths, called by the extension."""

import sys

from eitri.errors import InvalidArgument, OutOfMemory

# eitri's name -> (NumPy's or ml_dtypes' name, torch's name, bytes)
NAMES = {
    "f32": ("float32", "float32", 4),
    "f16": ("float16", "float16", 2),
    "bf16": ("bfloat16", "bfloat16", 2),
    "f8e4m3": ("float8_e4m3fn", "float8_e4m3fn", 1),
    "f8e4m3fnuz": ("float8_e4m3fnuz", "float8_e4m3fnuz", 1),
    "f8e5m2": ("float8_e5m2", "float8_e5m2", 1),
    "f8e8m0": ("float8_e8m0fnu", "float8_e8m0fnu", 1),
    "f4e2m1": ("float4_e2m1fn_x2", "float4_e2m1fn_x2", 1),  # two in a byte
    "i8": ("int8", "int8", 1),
    "u8": ("uint8", "uint8", 1),
    "i32": ("int32", "int32", 4),
    "i64": ("int64", "int64", 8),
}
IN_NUMPY = ("f32", "f16", "i8", "u8", "i32", "i64")


class Typed:
    """A buffer of integers that are to be read as another dtype: what NumPy arrays need for bf16 and fp8.

    `array` has elements of the same width (uint16 for bf16, uint8 for fp8), `dtype` is eitri's or NumPy's name of the real type.
    """

    __slots__ = ("array", "dtype")

    def __init__(self, array, dtype):
        self.array = array
        self.dtype = dtype

    @property
    def shape(self):
        return self.array.shape

    def __repr__(self):
        return f"eitri.typed({self.dtype}, shape={tuple(self.shape)})"


def typed(array, dtype):
    """Reads `array`'s elements as `dtype`: `eitri.typed(x_uint16, "bf16")`.

    The width of an element must be that of the dtype, which every call checks. The memory is shared. For "i4" and "f4e2m1", bytes hold two
    elements each, the first one in the low half: the last extent is then twice that of `array`."""
    return Typed(array, dtype)


_ALIASES = {alias: name for name, (numpy_name, torch_name, _) in NAMES.items() for alias in (name, numpy_name, torch_name)}


def name_of_dtype(dtype):
    """eitri's name of a dtype of torch, NumPy or its own; of another one the text that it is."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    text = text[6:] if text.startswith("torch.") else text
    return _ALIASES.get(text, text)


def check_out_dtype(op, out, out_dtype):
    """out_dtype beside an output that is given: another one than its dtype would be ignored."""
    wanted, got = name_of_dtype(out_dtype), name_of_dtype(getattr(out, "dtype", out_dtype))
    if wanted != got:
        raise InvalidArgument(f"{op}: out_dtype is {wanted}; expected none, or {got} (dtype of out)")


def torch_dtype(name):
    """torch's dtype of eitri's name; InvalidArgument where this torch has none."""
    import torch

    found = getattr(torch, NAMES[name][1], None) if name in NAMES else None
    if found is None:
        raise InvalidArgument(f"dtype is {name}; this torch has no such dtype")
    return found


def has_torch_dtype(name):
    """Of a dtype whose elements fit a byte: an older torch has no f8e8m0 and no f4e2m1, and bytes with that name take their place."""
    return name not in NAMES or NAMES[name][2] > 1 or hasattr(sys.modules["torch"], NAMES[name][1])


def is_torch(array):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def empty(like, shape, dtype):
    """An uninitialised array of `like`'s kind and device. dtype: eitri's name, or None for like's. shape counts elements, of which an
    "f4e2m1" array has two in a byte: its last extent is half of that."""
    try:
        return _empty(like, shape, dtype)
    except MemoryError as error:
        raise OutOfMemory(f"out is not given and {list(shape)} cannot be allocated: {error}") from None
    except ValueError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"out is not given and would be {list(shape)}: {error}") from None


def _empty(like, shape, dtype):
    if dtype == "f4e2m1":
        if shape[-1] % 2:
            raise InvalidArgument(f"out is not given; expected one, or an even number of columns, for f4e2m1 {list(shape)}")
        shape = (*shape[:-1], shape[-1] // 2)
    if is_torch(like):
        if dtype is not None and not has_torch_dtype(dtype):
            return Typed(like.new_empty(tuple(shape), dtype=sys.modules["torch"].uint8, requires_grad=False), dtype)
        return like.new_empty(tuple(shape), dtype=None if dtype is None else torch_dtype(dtype), requires_grad=False)
    module = type(like).__module__.partition(".")[0]
    if module in ("jax", "jaxlib"):
        raise InvalidArgument("out is not given; expected one for JAX arrays, which cannot be written: pass NumPy arrays as out")
    if module == "cupy":
        cupy = sys.modules["cupy"]
        if dtype is not None and dtype not in IN_NUMPY:
            return Typed(cupy.empty(shape, f"uint{8 * NAMES[dtype][2]}"), dtype)
        return cupy.empty(shape, like.dtype if dtype is None else NAMES[dtype][0])
    import numpy

    if isinstance(like, Typed):
        dtype = like.dtype if dtype is None else dtype
        if is_torch(like.array):
            return _empty(like.array, shape, dtype)
    if dtype is None:
        if not isinstance(like, numpy.ndarray):
            raise InvalidArgument(f"out is not given; expected one for inputs of type {type(like).__qualname__}")
        return numpy.empty(shape, like.dtype)
    if dtype in IN_NUMPY:
        return numpy.empty(shape, NAMES[dtype][0])
    if dtype not in NAMES:
        raise InvalidArgument(f"dtype is {dtype}; expected one that arrays have: {', '.join(NAMES)}")
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is not None and hasattr(ml_dtypes, NAMES[dtype][0]) and not isinstance(like, Typed):
        return numpy.empty(shape, getattr(ml_dtypes, NAMES[dtype][0]))
    return Typed(numpy.empty(shape, f"uint{8 * NAMES[dtype][2]}"), dtype)


def aligned_bytes(like, count):
    """uint8 [count] of `like`'s kind in CPU memory, at a multiple of 64 bytes."""
    block = empty(like.array if isinstance(like, Typed) else like, (count + 64,), "u8")
    address = block.data_ptr() if is_torch(block) else block.__array_interface__["data"][0]
    skip = -address % 64
    return block[skip : skip + count]


def exported(array, access):
    """(DLPack capsule, stream that the call has to use or None) of an array of any package."""
    module = type(array).__module__.partition(".")[0]
    if access == "write" and module in ("jax", "jaxlib"):
        raise InvalidArgument("a JAX array cannot be written; expected a NumPy array as output")
    if not hasattr(array, "__dlpack_device__"):
        raise InvalidArgument(f"a {type(array).__qualname__} has no memory; expected an array (inside JAX programs use eitri.jax)")
    device = array.__dlpack_device__()
    if not isinstance(device, tuple) or len(device) != 2:
        raise InvalidArgument(f"a {type(array).__qualname__} gives {device!r} from __dlpack_device__; expected a pair (type, index)")
    kind = int(device[0])
    if kind in (1, 3):
        return array.__dlpack__(), None
    if module == "cupy":
        return array.__dlpack__(stream=-1), sys.modules["cupy"].cuda.get_current_stream().ptr
    if module == "torch":  # before the C exchange API
        return array.__dlpack__(stream=-1), sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    return array.__dlpack__(stream=1), None  # the producer orders its work before the legacy default stream, on which we run
