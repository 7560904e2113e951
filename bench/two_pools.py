#!/usr/bin/env python3
"""What a call costs in a process that holds a second OpenMP pool, by whose pool that is.

    make build
    python3 bench/two_pools.py [--json FILE]

A neighbour is a shared library with one parallel region of plain arithmetic. It comes with the OpenMP that Eitri uses (one pool for both), with
a copy of libgomp under another name (what wheels that rename their libraries bring), or with LLVM's libomp (Intel's libiomp5, which MKL brings, is
the same code). The call is a gemm of bf16, 64 x 1024 x 1024, on all threads. "after" times the one call that follows the other's at once:
idle threads of the other pool may still spin then. Each pool and setting is a process of its own; numbers are medians of rounds that go through all
ways in turn. A neighbour that cannot be built here is left out, and that is said.
"""
import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import shutil
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
    "KMP_BLOCKTIME=0": {"KMP_BLOCKTIME": "0"},  # of libomp alone
    "EITRI_THREADS=1": {"EITRI_THREADS": "1"},
    "LD_PRELOAD": {},  # of the one OpenMP that serves both: filled in
}
NEIGHBOUR = r"""
extern "C" double neighbour(int threads, long rounds) {
  double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    double x = 1;
    for (long i = 0; i < rounds; ++i) x = x * 0.999 + 1;
    sum += x;
  }
  return sum;
}
"""
M, N, K = 64, 1024, 1024
NEIGHBOUR_US = 100  # about what the gemm takes on few cores


def copy_of_libgomp(folder):
    """libgomp under another name of the same length, so that the loader takes it for another library."""
    found = subprocess.run(["g++", "-print-file-name=libgomp.so.1"], capture_output=True, text=True, check=True).stdout.strip()
    renamed = pathlib.Path(found).read_bytes().replace(b"libgomp.so.1\0", b"libgomq.so.1\0")
    target = pathlib.Path(folder, "libgomq.so.1")
    target.write_bytes(renamed)
    return target


def build(folder):
    """The neighbours that can be built here, into `folder`."""
    source = pathlib.Path(folder, "neighbour.cpp")
    source.write_text(NEIGHBOUR)
    shared = ["-O2", "-shared", "-fPIC", str(source), "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["g++", "-fopenmp", *shared, "-o", f"{folder}/same.so"], check=True)
    # -fopenmp would link the library by its own name: compile with it, link without.
    subprocess.run(["g++", "-fopenmp", "-O2", "-fPIC", "-c", str(source), "-o", f"{folder}/neighbour.o"], check=True)
    copy = copy_of_libgomp(folder)
    subprocess.run(["g++", "-shared", f"{folder}/neighbour.o", str(copy), "-Wl,-rpath,$ORIGIN", "-o", f"{folder}/copy.so"], check=True)
    clang = next((found for name in ("clang++-16", "clang++") if (found := shutil.which(name))), None)
    if clang is None:
        return
    if subprocess.run([clang, "-fopenmp=libomp", *shared, "-o", f"{folder}/llvm.so"], check=False).returncode == 0:
        library = subprocess.run([clang, "-print-file-name=libomp.so.5"], capture_output=True, text=True, check=True).stdout.strip()
        if pathlib.Path(library).is_file():
            shutil.copy(library, f"{folder}/libomp.so.5")


def preloaded(library, folder, file):
    """The OpenMP to preload so that Eitri and a neighbour have one pool: libomp serves programs of gcc as well, libgomp only those."""
    if file == "llvm.so":
        return str(folder / "libomp.so.5")
    lines = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split("=>")[1].split()[0] for line in lines if "libgomp.so.1" in line)


POOLS = {"same.so": "one pool", "copy.so": "a copy of libgomp", "llvm.so": "LLVM's libomp"}


class Activation(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32)] + [(name, ctypes.c_float) for name in ("limit", "alpha", "beta", "linear_beta")]


class GemmArgs(ctypes.Structure):
    """The first fields; `size` tells the library that there are no more."""
    _fields_ = ([("size", ctypes.c_size_t)] + [(name, ctypes.POINTER(c_abi.Tensor)) for name in ("a", "b", "c", "bias", "a_scale", "b_scale")]
                + [("activation", Activation), ("gate", ctypes.c_int32)])


def gemm_of(library):
    """A function that makes the call, with its own operands."""
    lib = ctypes.CDLL(library)
    lib.eitri_last_error.restype = ctypes.c_char_p

    def tensor(rows, cols):
        # Values near 1 of either sign; which ones does not matter.
        data = (ctypes.c_uint16 * (rows * cols))(*([0x3F80, 0xBF60, 0x3F20, 0xBF99] * (rows * cols // 4)))
        view = c_abi.tensor(ctypes.addressof(data), (rows, cols), (cols, 1), "bf16")
        return data, view

    kept = [tensor(M, K), tensor(N, K), tensor(M, N)]
    args = GemmArgs(ctypes.sizeof(GemmArgs), *(ctypes.pointer(view) for _, view in kept))

    def call():
        if lib.eitri_gemm(ctypes.byref(args), None) != 0:
            raise RuntimeError(lib.eitri_last_error().decode())

    call.kept = kept  # lives as long as the function
    return call


def pools_loaded():
    """OpenMP libraries that this process holds."""
    names = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return sorted(pathlib.Path(name).name for name in names if any(part in name for part in ("libgom", "libomp", "libiomp")))


def child(options):
    ours = gemm_of(options.library)
    neighbour = ctypes.CDLL(options.child).neighbour
    neighbour.argtypes, neighbour.restype = [ctypes.c_int, ctypes.c_long], ctypes.c_double
    threads = len(os.sched_getaffinity(0))
    rounds = 1000

    def theirs():
        neighbour(threads, rounds)

    def timed(function):
        start = time.perf_counter_ns()
        function()
        return (time.perf_counter_ns() - start) / 1e3

    theirs()
    rounds = max(1000, int(rounds * NEIGHBOUR_US / max(1e-3, min(timed(theirs) for _ in range(50)))))
    samples = {"eitri, alone": [], "eitri, after it": [], "it, alone": [], "it, after eitri": []}
    for _ in range(options.rounds):
        time.sleep(0.25)  # every pool sleeps: libomp's threads spin for 0.2 s
        ours()
        samples["eitri, alone"].append(timed(ours))
        theirs()
        samples["eitri, after it"].append(timed(ours))
        time.sleep(0.25)
        theirs()
        samples["it, alone"].append(timed(theirs))
        ours()
        samples["it, after eitri"].append(timed(theirs))
    print(json.dumps({"pools": pools_loaded(), "threads": len(os.listdir("/proc/self/task")), "us": {name: round(statistics.median(values), 1) for name, values in samples.items()}}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--library", default=str(ROOT / "build/lib/libeitri.so"))
    parser.add_argument("--neighbours", metavar="FOLDER", help="where they are, or are built to (default: a temporary folder)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    load, us, held = os.getloadavg(), {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.neighbours or temporary)
        if not (folder / "same.so").is_file():
            build(folder)
        for file, pool in POOLS.items():
            if not (folder / file).is_file():
                print(f"{pool}: left out, it could not be built here", flush=True)
                continue
            for setting, extra in SETTINGS.items():
                if (setting.startswith("KMP") and file != "llvm.so") or (setting == "LD_PRELOAD" and file == "same.so"):
                    continue
                if setting == "LD_PRELOAD":
                    extra = {"LD_PRELOAD": preloaded(options.library, folder, file)}
                command = [sys.executable, __file__, "--rounds", str(options.rounds), "--library", options.library, "--child", str(folder / file)]
                done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise SystemExit(done.stderr)
                answer = json.loads(done.stdout.splitlines()[-1])
                held[f"{pool}: {setting}"] = f"{', '.join(answer['pools'])}; {answer['threads']} threads"
                for way, value in answer["us"].items():
                    us[f"{pool}: {setting}: {way}"] = value
                    print(f"{value:9.1f} us  {pool}: {setting}: {way}", flush=True)
    model = next((line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    report = {"date": datetime.date.today().isoformat(), "processor": f"{model}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
              "load_average": [round(x, 2) for x in load], "command": f"bench/two_pools.py --rounds {options.rounds}", "pools": held,
              "unit": f"us a call, medians of the rounds; load average before: {load[0]:.1f}", "us": us}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
