"""AITER's names of dtypes. fp8 is the OCP type on every machine that eitri runs on."""

import torch

fp8 = torch.float8_e4m3fn
fp8_e8m0 = getattr(torch, "float8_e8m0fnu", torch.uint8)
fp4x2 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
i4x2 = torch.uint8
fp16, bf16, fp32 = torch.float16, torch.bfloat16, torch.float32
u8, u32, u64 = torch.uint8, torch.uint32, torch.uint64
i8, i16, i32, i64 = torch.int8, torch.int16, torch.int32, torch.int64

d_dtypes = {name: globals()[name] for name in (
    "fp8", "fp8_e8m0", "fp16", "bf16", "fp32", "i4x2", "fp4x2", "u32", "i32", "i16", "i8", "u8", "i64", "u64")}


def get_dtype_fp8():
    return fp8


def str2Dtype(v):
    """ "bf16" -> torch.bfloat16, "none" -> None; with commas a tuple of them."""
    parts = [part.strip() for part in v.strip("()").split(",") if part.strip()]
    found = tuple(None if part.lower() == "none" else d_dtypes[part] for part in parts)
    return found[0] if len(found) == 1 and "," not in v else found
