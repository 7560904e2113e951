"""What a call costs in a process that holds another OpenMP pool: PyTorch's, from PyPI, with a libgomp of its own.

    make build test-frameworks
    PYTHONPATH=build/python build/venv-frameworks/bin/python bench/beside_torch.py [--json FILE]

The call is a gemm of bf16, 64 x 1024 x 1024, on all threads; the neighbour a product of torch of the same size. "after" times the one call
that follows the other's at once: idle threads of the other pool may still spin then. "in a region" calls from every thread of an
OpenMP region of the caller's, where an operator stays on its thread (the time is that of the region). Each setting is a process of its own; numbers are medians of rounds
that go through all ways in turn.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import c_abi

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETTINGS = {
    "as it is": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "EITRI_THREADS=1": {"EITRI_THREADS": "1"},
    "torch.set_num_threads(1)": {"TORCH_THREADS": "1"},
}
REGION = r"""
#include <omp.h>
#include "eitri/eitri.h"
extern "C" int in_a_region(int threads, const eitri_gemm_args* args) {
  int failed = 0;
#pragma omp parallel num_threads(threads) reduction(+ : failed)
  failed += eitri_gemm(args + omp_get_thread_num(), nullptr) != 0;
  return failed;
}
"""
M, N, K = 64, 1024, 1024


def region_call(folder, threads):
    """A function that runs one gemm on each thread of an OpenMP region; None without the library or a compiler."""
    library = ROOT / "build/lib/libeitri.so"
    if not library.is_file():
        return None
    source, target = pathlib.Path(folder, "region.cpp"), pathlib.Path(folder, "region.so")
    source.write_text(REGION)
    built = subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-fopenmp", "-I", str(ROOT / "include"), str(source), "-o", str(target), str(library),
                            f"-Wl,-rpath,{library.parent}"], check=False)
    if built.returncode != 0:
        return None
    import numpy as np

    class Gemm(ctypes.Structure):  # the first fields of eitri_gemm_args, and zeros for the rest
        _fields_ = [("size", ctypes.c_size_t), ("a", ctypes.POINTER(c_abi.Tensor)), ("b", ctypes.POINTER(c_abi.Tensor)), ("c", ctypes.POINTER(c_abi.Tensor)),
                    ("rest", ctypes.c_uint8 * (SIZE - 32))]

    kept = []

    def tensor(array):
        made = c_abi.tensor(array.ctypes.data, array.shape, (array.shape[1], 1), "bf16")
        kept.extend((array, made))
        return ctypes.pointer(made)

    def bits(*shape):
        return (np.random.default_rng(1).standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    args = (Gemm * threads)()
    for one in args:
        one.size, one.a, one.b, one.c = SIZE, tensor(bits(M, K)), tensor(bits(N, K)), tensor(bits(M, N))
    run = ctypes.CDLL(str(target)).in_a_region

    def call():
        if run(threads, args) != 0:
            raise RuntimeError("eitri_gemm failed in the region")

    call()
    call.memory = kept  # lives as long as the function
    return call


def size_of_args():
    """sizeof(eitri_gemm_args), by the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "size.cpp")
        source.write_text('#include <cstdio>\n#include "eitri/eitri.h"\nint main() { std::printf("%zu", sizeof(eitri_gemm_args)); }\n')
        subprocess.run(["g++", "-I", str(ROOT / "include"), str(source), "-o", str(source.with_suffix(""))], check=True)
        return int(subprocess.run([str(source.with_suffix(""))], capture_output=True, text=True, check=True).stdout)


def child(rounds):
    import torch

    import eitri

    if "TORCH_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["TORCH_THREADS"]))
    a, b = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16()
    packed, out, other = eitri.pack_weights(b), torch.empty(M, N, dtype=torch.bfloat16), torch.empty(M, N, dtype=torch.bfloat16)
    turned = b.t()

    def ours():
        eitri.gemm(a, packed, out=out)

    def theirs():
        torch.mm(a, turned, out=other)

    def timed(function):
        start = time.perf_counter_ns()
        function()
        return (time.perf_counter_ns() - start) / 1e3

    with tempfile.TemporaryDirectory() as folder:
        region = region_call(folder, len(os.sched_getaffinity(0)))
        samples = {}

        def add(name, value):
            samples.setdefault(name, []).append(value)

        for _ in range(rounds):
            time.sleep(0.003)  # every pool sleeps
            ours()
            add("eitri, alone", timed(ours))
            time.sleep(0.003)
            theirs()
            add("torch, alone", timed(theirs))
            theirs()
            add("eitri, after torch", timed(ours))
            ours()
            add("torch, after eitri", timed(theirs))
            if region is not None:
                time.sleep(0.003)
                region()
                add("eitri, in a region of all threads", timed(region))
                theirs()
                add("eitri, in a region, after torch", timed(region))
    print(json.dumps({name: round(statistics.median(values), 1) for name, values in samples.items()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.rounds)
    us, load = {}, os.getloadavg()
    for name, extra in SETTINGS.items():
        done = subprocess.run([sys.executable, __file__, "--child", "--rounds", str(options.rounds)], env={**os.environ, **extra},
                              capture_output=True, text=True, check=True)
        for way, value in json.loads(done.stdout.splitlines()[-1]).items():
            us[f"{name}: {way}"] = value
            print(f"{value:9.1f} us  {name}: {way}", flush=True)
    import torch

    model = next((line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    report = {"date": datetime.date.today().isoformat(), "processor": f"{model}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores", "python": platform.python_version(),
              "torch": torch.__version__, "load_average": [round(x, 2) for x in load], "command": f"bench/beside_torch.py --rounds {options.rounds}",
              "unit": f"us a call, medians of the rounds; load average before: {load[0]:.1f}", "us": us}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    SIZE = size_of_args()
    main()
