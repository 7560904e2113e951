"""What an operator does not define is refused with a message that names the argument; nothing is read or written."""

import subprocess
import sys

import numpy as np
import pytest

import eitri

A = np.ones((3, 8), np.float32)
B = np.ones((4, 8), np.float32)


def refused(match, function, *args, **kwargs):
    with pytest.raises(eitri.InvalidArgument, match=match) as info:
        function(*args, **kwargs)
    assert isinstance(info.value, ValueError) and isinstance(info.value, eitri.Error)


def test_dtypes():
    refused(r"gemm: a has buffer format \"d\"", eitri.gemm, A.astype(np.float64), B)
    refused(r"gemm: a has buffer format \"\?\"", eitri.gemm, A.astype(bool), B)
    refused(r"gemm: a has buffer format \"H\"", eitri.gemm, A.astype(np.uint16), B)
    refused(r"gemm: b is f16\[4, 8\]", eitri.gemm, A, B.astype(np.float16))
    refused(r"rmsnorm: weight is i32\[8\]", eitri.rmsnorm, A, np.ones(8, np.int32))
    refused(r"dtype is \"complex64\"", eitri.gemm, A, B, out_dtype=np.complex64)
    refused(r"moe_sort: topk_ids is i64", eitri.moe_sort, np.zeros((2, 1), np.int64), np.zeros((2, 1), np.float32), 4)


def test_big_endian_is_not_read_as_little():
    refused(r"gemm: a has buffer format", eitri.gemm, A.astype(">f4"), B)


def test_shapes_and_strides():
    refused(r"gemm: b is f32\[4, 7\]", eitri.gemm, A, B[:, :7].copy())
    refused(r"gemm: out is f32\[3, 5\]", eitri.gemm, A, B, out=np.empty((3, 5), np.float32))
    refused("dimensions; expected at most 4", eitri.gemm, np.ones((1, 1, 1, 3, 8), np.float32), B, out=A)
    refused("stride", eitri.rmsnorm, np.ones((3, 16), np.float32)[:, ::2])
    records = np.zeros((3, 8), np.dtype([("x", np.float32), ("pad", np.uint8)]))
    refused("stride of 5 bytes", eitri.rmsnorm, records["x"])


ONE, THREE = np.ones(8, np.float32), np.ones((2, 3, 8), np.float32)


@pytest.mark.parametrize("bad", [ONE, THREE, np.float32(1), [[1.0]], None], ids=["1-d", "3-d", "0-d", "list", "None"])
def test_ranks_are_refused_before_anything_is_allocated(bad):
    ids, weights = np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32)
    refused("rmsnorm: x ", eitri.rmsnorm, bad)
    refused("rmsnorm: x ", eitri.rmsnorm, bad, quant="per_token", out_dtype="i8")
    refused("quantize: x ", eitri.quantize, bad)
    refused("activation: x ", eitri.activation, bad)
    refused("topk_gating: logits ", eitri.topk_gating, bad, 2)
    refused("moe_sort: topk_ids ", eitri.moe_sort, bad, weights, 4)
    refused("moe_combine: reverse ", eitri.moe_combine, A, bad)
    refused("moe_combine: y ", eitri.moe_combine, bad, ids)
    refused("fused_moe: x ", eitri.fused_moe, bad, A, A, weights, ids)
    if not isinstance(bad, np.ndarray) or bad.ndim == 1:
        refused("gemm: a ", eitri.gemm, bad, B)
        refused("grouped_gemm: b ", eitri.grouped_gemm, A, bad, ids, ids, ids, tokens=1)
    if bad is not ONE:
        refused("grouped_gemm: sorted_ids ", eitri.grouped_gemm, A, THREE, bad, ids, ids, tokens=1)


def test_counts_that_size_results():
    ids, weights = np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32)
    refused("topk_gating: top_k is -1; expected at least 0", eitri.topk_gating, A, -1)
    refused("topk_gating: top_k is 1.5; expected a number", eitri.topk_gating, A, 1.5)
    refused("moe_sort: experts is -3", eitri.moe_sort, ids, weights, -3)
    refused("moe_sort: block is 0; expected at least 1", eitri.moe_sort, ids, weights, 3, block=0)


def test_masked_arrays():
    masked = np.ma.masked_array(np.ones((2, 4), np.float32), mask=np.eye(2, 4))
    refused("rmsnorm: x is a masked array; expected one without", eitri.rmsnorm, masked)
    assert eitri.rmsnorm(masked.filled(0)).shape == (2, 4)


def test_what_is_no_capsule():
    class Exporter:
        dtype, shape = "float32", (3, 8)

        def __init__(self, capsule, device):
            self.capsule, self.device = capsule, device

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return self.device

    out = np.empty((3, 4), np.float32)
    refused("gemm: a gives a int from __dlpack__; expected a capsule", eitri.gemm, Exporter(5, (1, 0)), B, out=out)
    refused("Exporter gives None from __dlpack_device__; expected a pair", eitri.gemm, Exporter(5, None), B, out=out)
    used = A.__dlpack__()
    np.from_dlpack(Exporter(used, (1, 0)))
    refused("gemm: a gives a PyCapsule from __dlpack__", eitri.gemm, Exporter(used, (1, 0)), B, out=out)


def test_outputs():
    out = np.empty((3, 4), np.float32)
    out.flags.writeable = False
    refused("gemm: out is read-only", eitri.gemm, A, B, out=out)
    refused("gemm: out", eitri.gemm, A, B, out=A)  # overlaps a and has its shape
    refused("scale", eitri.rmsnorm, A, quant="per_token")  # out is f32


def test_objects():
    refused("gemm: a is a list", eitri.gemm, [[1.0]], B, out=np.empty((1, 4), np.float32))
    refused("gemm: a is none", eitri.gemm, None, B, out=np.empty((1, 4), np.float32))
    refused('activation is \'tanh\'; expected one of "none", "relu"', eitri.gemm, A, B, activation="tanh")
    refused("activation is 3; expected", eitri.gemm, A, B, activation=3)
    refused("gemm: alpha is 'much'; expected a number", eitri.gemm, A, B, alpha="much")
    refused("topk_gating: groups is 1.5; expected a 64-bit integer", eitri.topk_gating, A, 2, groups=1.5)
    refused("rmsnorm: eps is None; expected a number", eitri.rmsnorm, A, eps=None)
    with pytest.raises(TypeError):
        eitri.gemm(A, B, colour="red")


def test_numbers():
    refused("eps is -1", eitri.rmsnorm, A, eps=-1.0)
    refused("groups is 3", eitri.topk_gating, A, 2, groups=3)
    refused("32-bit number", eitri.topk_gating, A, 2, groups=2**40)
    refused(f"moe_sort: block is {2**70}; expected a 64-bit integer", eitri.moe_sort, np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32), 4,
            block=2**70, out=[np.zeros(1, np.int32)] * 5)


def test_what_contradicts_an_output_that_is_given():
    ids, weights = np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)
    lists = eitri.moe_sort(ids, weights, 4)
    experts = np.ones((4, 5, 8), np.float32)
    calls = {"gemm": lambda **o: eitri.gemm(A, B, out=np.empty((3, 4), np.float32), **o),
             "grouped_gemm": lambda **o: eitri.grouped_gemm(A, experts, *lists[:1], *lists[2:4], tokens=3, out=np.empty((lists[0].size, 5), np.float32), **o),
             "quantize": lambda **o: eitri.quantize(A, out=np.empty(A.shape, np.int8), **o),
             "activation": lambda **o: eitri.activation(A, out=np.empty((3, 4), np.float32), **o),
             "rmsnorm": lambda **o: eitri.rmsnorm(A, out=np.empty_like(A), **o),
             "moe_combine": lambda **o: eitri.moe_combine(A, ids, out=np.empty((3, 8), np.float32), **o)}
    for op, call in calls.items():
        same = np.int8 if op == "quantize" else "float32"
        call(out_dtype=same)
        refused(f"{op}: out_dtype is bf16; expected none, or {'i8' if op == 'quantize' else 'f32'}", call, out_dtype="bf16")
    x = eitri.typed(np.ones((3, 8), np.uint16), "bf16")
    w = eitri.typed(np.ones((4, 6, 8), np.uint16), "bf16"), eitri.typed(np.ones((4, 8, 3), np.uint16), "bf16")
    refused("fused_moe: out_dtype is f16", eitri.fused_moe, x, *w, weights, ids, out=np.empty((3, 8), np.float32), out_dtype=np.float16)
    refused("topk_gating: top_k is 3; expected 2", eitri.topk_gating, A, 3, out=(weights, ids))
    eitri.topk_gating(A, 2, out=(weights, ids))


def test_results_that_no_memory_holds():
    wide = np.broadcast_to(np.ones((1, 8), np.float32), (2**45, 8))
    with pytest.raises(eitri.OutOfMemory, match="cannot be allocated"):
        eitri.rmsnorm(wide)
    refused("experts is True; expected a number", eitri.moe_sort, np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32), True)
    refused(r"out is not given and would be \[", eitri.topk_gating, A, 2**62)


def test_messages_name_the_arguments_of_python():
    refused("^quantize: out is i8", eitri.quantize, A, out=np.empty((3, 3), np.int8))
    refused('^out_dtype is "float128"; expected a dtype', eitri.gemm, A, B, out_dtype="float128")
    refused("explain: device is 'cuda:x'", eitri.explain, "gemm", "m=1,n=4,k=4", device="cuda:x")
    refused('pack_weights: format is 3; expected "panel32" or "onednn"', eitri.pack_weights, A, format=3)


def test_packed_weights_are_one_run_of_bytes():
    packed = eitri.pack_weights(np.ones((512, 1024), np.float32))
    a = np.ones((2, 1024), np.float32)
    refused("0 apart", eitri.gemm, a, np.lib.stride_tricks.as_strided(packed[:64].copy(), (packed.size,), (0,)))
    header = packed[:64].copy()
    refused("taken as packed weights", eitri.gemm, a, header)


def test_typed_arrays_in_another_byte_order():
    refused("byte order", eitri.rmsnorm, eitri.typed(np.ones((2, 4), ">f4"), "f32"))
    refused("byte order", eitri.rmsnorm, eitri.typed(np.ones((2, 4), ">u2"), "bf16"))


def test_pack_weights_reads_its_numbers_first():
    refused("m_hint is 'x'", eitri.pack_weights, A, m_hint="x", quant="zz")
    refused("m_hint is", eitri.pack_weights, A, m_hint=2**70)


def test_native_functions_count_their_arguments():
    with pytest.raises(eitri.InvalidArgument, match="got 2 arguments; expected 15"):
        eitri.lib._native.gemm(A, B)


def test_import_is_silent_quick_and_loads_no_framework():
    code = ("import time; start = time.process_time(); import eitri, sys; seconds = time.process_time() - start;"
            "loaded = [m for m in ('torch', 'numpy', 'jax') if m in sys.modules];"
            "assert not loaded, loaded; assert seconds < 0.3, seconds")
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_python_m_eitri_is_the_command():
    done = subprocess.run([sys.executable, "-m", "eitri", "ops"], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "fused_moe" in done.stdout
