"""Tensors of the C ABI for ctypes: DLPack's DLTensor, as include/eitri/eitri.h takes it."""

import ctypes


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


DTYPES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}  # (DLPack's code, bits)


def tensor(address, shape, strides, dtype):
    """In CPU memory; strides in elements. ctypes keeps the two arrays of extents, not the memory."""
    n = len(shape)
    return Tensor(address, Device(1, 0), n, DataType(*DTYPES[dtype], 1), (ctypes.c_int64 * n)(*shape), (ctypes.c_int64 * n)(*strides), 0)
