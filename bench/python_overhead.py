"""What a call from Python costs: 4 torch CPU tensors with nothing to compute, and small calls on a GPU where there is one, by several
ways, alternating in one process.

    make build wheel   # or any eitri that can be imported
    PYTHONPATH=build/python build/venv-frameworks/bin/python bench/python_overhead.py [--part cpu|gpu] [--json FILE]

Each number is the smallest of many short rounds, which go through all ways in turn, so that load and clock meet all alike. A part ends after
--rounds rounds or --seconds seconds, whichever comes first. What is going on is printed as it happens, and --json is rewritten every 2
seconds ("-" prints it, one line each time), so that a run that is cut short leaves what it has.

On the CPU the problem is rmsnorm with a residual over 0 tokens: x, residual, residual_out, out; the route is cached, the reference returns at
once. "ctypes" calls the same function of libeitri.so through its C ABI. "pybind" (if pybind11 and g++ are there) calls an empty function,
with a struct a tensor that Python fills: how AITER binds its kernels. On the GPU it is the host's time of a 64 x 64 x 64 call, launch
included; the queue is emptied between rounds.
"""

import argparse
import ctypes
import datetime
import gc
import json
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time

import c_abi

BEGIN = time.monotonic()


def say(*words):
    print(f"[{time.monotonic() - BEGIN:6.1f} s]", *words, file=sys.stderr, flush=True)


say("importing numpy and torch")
import numpy as np  # noqa: E402  (said before, since torch may take 20 s)
import torch  # noqa: E402

say("importing eitri")
import eitri  # noqa: E402
from eitri.lib import _native  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
POD = r"""
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <vector>
struct Pod { size_t data; long size; int rank; std::vector<long> shape, stride; int dtype, device; };
PYBIND11_MODULE(pod, m) {
  pybind11::class_<Pod>(m, "Pod").def(pybind11::init<size_t, long, int, std::vector<long>, std::vector<long>, int, int>());
  m.def("nothing", [](const Pod&, const Pod&, const Pod&, const Pod&, double) {});
}
"""


class RmsNorm(ctypes.Structure):
    _fields_ = ([("size", ctypes.c_size_t)] + [(n, ctypes.POINTER(c_abi.Tensor)) for n in ("x", "weight", "residual", "residual_out", "out", "scale")]
                + [("eps", ctypes.c_float), ("norm_weight", ctypes.c_int32), ("quant", ctypes.c_int32)])


def struct_of(tensor):
    return c_abi.tensor(tensor.data_ptr(), tensor.shape, tensor.stride(), "f32")


def pybind_module(folder):
    try:
        import pybind11
    except ImportError:
        return None
    source, target = pathlib.Path(folder, "pod.cpp"), pathlib.Path(folder, "pod" + sysconfig.get_config_var("EXT_SUFFIX"))
    source.write_text(POD)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-std=c++17", "-I", pybind11.get_include(), "-I", sysconfig.get_path("include"),
                    str(source), "-o", str(target)], check=True)
    sys.path.insert(0, folder)
    import pod

    return pod


def ways(folder):
    x, residual, total, out = (torch.empty(0, 64) for _ in range(4))
    a, b, small = torch.empty(0, 64), torch.empty(64, 64), torch.empty(0, 64)
    nx, nr, nt, no = (t.numpy() for t in (x, residual, total, out))
    direct = (x, out, None, residual, total, None, 1e-6, "plain", "none")
    op = torch.ops.eitri.rmsnorm.default

    def call():
        eitri.rmsnorm(x, residual=residual, out=out, residual_out=total)

    def no_grad_call():
        with torch.no_grad():
            for _ in range(100):
                eitri.rmsnorm(x, residual=residual, out=out, residual_out=total)

    no_grad_call.calls = 100
    found = {
        "eitri.rmsnorm": call,
        "eitri.rmsnorm under no_grad": no_grad_call,
        "eitri.rmsnorm, outputs allocated": lambda: eitri.rmsnorm(x, residual=residual),
        "extension function alone": lambda: _native.rmsnorm(*direct),
        "torch.ops.eitri.rmsnorm": lambda: op(x, out, None, residual, total),
        "eitri.rmsnorm, NumPy arrays": lambda: eitri.rmsnorm(nx, residual=nr, out=no, residual_out=nt),
        "torch.add(out=), nothing to add": lambda: torch.add(x, residual, out=out),
        "torch.mm(out=), nothing to multiply": lambda: torch.mm(a, b, out=small),
        "F.rms_norm, nothing to norm": lambda: torch.nn.functional.rms_norm(x, (64,)),
        "np.add(out=), nothing to add": lambda: np.add(nx, nr, out=no),
    }
    library = ROOT / "build/lib/libeitri.so"
    if library.is_file():
        lib = ctypes.CDLL(str(library))
        views = [struct_of(t) for t in (x, residual, total, out)]
        pointers = [ctypes.pointer(v) for v in views]
        args = RmsNorm(size=ctypes.sizeof(RmsNorm), x=pointers[0], residual=pointers[1], residual_out=pointers[2], out=pointers[3], eps=1e-6)
        reference = ctypes.byref(args)
        assert lib.eitri_rmsnorm(reference, None) == 0

        def built():
            v = [ctypes.pointer(struct_of(t)) for t in (x, residual, total, out)]
            lib.eitri_rmsnorm(ctypes.byref(RmsNorm(size=ctypes.sizeof(RmsNorm), x=v[0], residual=v[1], residual_out=v[2], out=v[3], eps=1e-6)), None)

        found["ctypes, structs made before"] = lambda: lib.eitri_rmsnorm(reference, None)
        found["ctypes, structs made in the call"] = built
    pod = pybind_module(folder)
    if pod is not None:

        def through_pybind():
            pods = [pod.Pod(t.data_ptr(), t.numel(), t.ndim, list(t.shape), list(t.stride()), 0, -1) for t in (x, residual, total, out)]
            pod.nothing(*pods, 1e-6)

        found["pybind, structs made in the call, nothing called"] = through_pybind
    return found


def gpu_ways():
    say("making the GPU's context")
    x, weight, out = (torch.randn(*s, device="cuda").bfloat16() for s in ((64, 64), (64, 64), (64, 64)))
    turned, op = weight.t(), torch.ops.eitri.gemm.default
    return {
        "GPU: eitri.gemm(out=)": lambda: eitri.gemm(x, weight, out=out),
        "GPU: torch.mm(out=)": lambda: torch.mm(x, turned, out=out),
        "GPU: eitri.gemm": lambda: eitri.gemm(x, weight),
        "GPU: torch.mm": lambda: torch.mm(x, turned),
        "GPU: torch.ops.eitri.gemm": lambda: op(x, weight, out),
        "GPU: eitri.rmsnorm(out=)": lambda: eitri.rmsnorm(x, out=out),
        "GPU: F.rms_norm": lambda: torch.nn.functional.rms_norm(x, (64,)),
        "GPU: torch.add(out=)": lambda: torch.add(x, weight, out=out),
    }


def call_once(functions):
    """Calls each way once, so that what is compiled, loaded and routed on a first call is not timed. Returns {way: why it cannot be called}."""
    failed = {}
    for name, function in functions.items():
        start = time.monotonic()
        try:
            function()
            if name.startswith("GPU"):
                torch.cuda.synchronize()
        except Exception as error:  # one way that is broken must not hide the others
            failed[name] = f"{type(error).__name__}: {error}"
            say(f"{name} FAILED: {failed[name]}")
        if time.monotonic() - start > 0.5:
            say(f"{name}: first call took {time.monotonic() - start:.1f} s")
    return failed


def nanoseconds(functions, rounds, seconds, on_gpu, report):
    """Smallest time a call of each way in ns; report(numbers, rounds done) is called about every 2 seconds and at the end."""
    best = {name: float("inf") for name in functions}
    begin = reported = time.monotonic()
    gc.disable()
    for done in range(1, rounds + 1):
        for name, function in functions.items():
            repeats = max(1, 100 // getattr(function, "calls", 1))
            start = time.perf_counter_ns()
            for _ in range(repeats):
                function()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / repeats / getattr(function, "calls", 1))
            if on_gpu:
                torch.cuda.synchronize()
        now = time.monotonic()
        if now - begin > seconds or done == rounds:
            break
        if now - reported > 2:
            reported = now
            report({name: round(value) for name, value in best.items()}, done)
    gc.enable()
    report({name: round(value) for name, value in best.items()}, done)


def import_milliseconds():
    code = "import time; s = time.perf_counter(); import eitri; print((time.perf_counter() - s) * 1e3)"
    path = str(pathlib.Path(eitri.__file__).resolve().parents[1]) if "build" not in eitri.__file__ else str(pathlib.Path(eitri.__file__).parents[1])
    return min(float(subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                                    text=True, check=True).stdout)
               for _ in range(10))


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def write(report, target):
    if target == "-":
        print(json.dumps(report), flush=True)
    elif target:
        pathlib.Path(target).write_text(json.dumps(report, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("cpu", "gpu", "all"), default="all", help="all: the GPU's too, where there is one")
    parser.add_argument("--rounds", type=int, default=4000, help="rounds of 100 calls, at most")
    parser.add_argument("--seconds", type=float, default=8, help="time for each part's rounds, at most")
    parser.add_argument("--json", metavar="FILE", help='"-": standard output')
    options = parser.parse_args()
    report = {"date": datetime.date.today().isoformat(), "processor": processor(), "python": platform.python_version(),
              "torch": torch.__version__, "numpy": np.__version__, "eitri": eitri.__version__,
              "command": f"bench/python_overhead.py --part {options.part} --rounds {options.rounds} --seconds {options.seconds:g}",
              "unit": "ns a call, smallest of the rounds", "rounds": {}, "failed": {}, "ns": {}}

    def measure(part, functions):
        failed = call_once(functions)
        report["failed"].update(failed)

        def keep(numbers, rounds):
            say(f"{part}: {rounds} rounds")
            report["ns"].update(numbers)
            report["rounds"][part] = rounds
            write(report, options.json)

        working = {name: function for name, function in functions.items() if name not in failed}
        nanoseconds(working, options.rounds, options.seconds, part == "gpu", keep)

    gpu = torch.cuda.is_available()
    if options.part == "gpu" and not gpu:
        parser.error("--part gpu: torch finds no GPU")
    if gpu and options.part != "cpu":
        report["gpu"] = torch.cuda.get_device_name(0)
        measure("gpu", gpu_ways())
    if options.part != "gpu":
        with tempfile.TemporaryDirectory() as folder:
            measure("cpu", ways(folder))
        say("importing eitri ten times")
        report["import_ms"] = round(import_milliseconds(), 1)
        write(report, options.json)
    for name, value in sorted(report["ns"].items(), key=lambda item: item[1]):
        print(f"{value:7d}  {name}", file=sys.stderr)
    if "import_ms" in report:
        print(f"import eitri: {report['import_ms']} ms", file=sys.stderr)
    if report["failed"]:
        sys.exit("failed: " + ", ".join(report["failed"]))


if __name__ == "__main__":
    main()
