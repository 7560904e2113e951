#!/usr/bin/env python3
"""The GPU tier: every test that runs something on a GPU, or a few small cases of each kernel under compute-sanitizer.

gpu_tier.py FOLDER [--tool memcheck|racecheck] [--per-kernel N] [--processes N]   FOLDER holds eitri and eitri_tests

Exit code 77: there is no GPU, or no compute-sanitizer; the reason is printed. Fails when no test ran.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77


def skip(reason):
    print(f"GPU tier: skipped: {reason}")
    sys.exit(SKIPPED)


def gpu_kernels(folder):
    """Names of the rows that run on a GPU, recipes among them."""
    ops = json.loads(subprocess.run([f"{folder}/eitri", "ops", "--json"], check=True, capture_output=True, text=True).stdout)
    return [k["kernel"] for op in ops for k in op["kernels"] if k["target"] in ("any", "any_gpu", "sm_90a")]


def all_tests(tests):
    listing = subprocess.run([tests, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    suite = ""
    for line in listing.splitlines():
        if line and not line.startswith(" "):
            suite = line.split("#")[0].strip()
        elif line.startswith("  "):
            yield suite + line.split("#")[0].strip()


def size_of(name):
    """Product of the extents in a problem key: small ones first."""
    product = 1
    for value in re.findall(r"=(\d+)", name):
        product *= max(1, int(value))
    return product


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--tool", choices=("memcheck", "racecheck"))
    parser.add_argument("--per-kernel", type=int, default=6)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1), help="that share the tests: most of the time is compiling")
    options = parser.parse_args()
    tests = f"{options.folder}/eitri_tests"
    doctor = json.loads(subprocess.run([f"{options.folder}/eitri", "doctor", "--json"], check=True, capture_output=True, text=True).stdout)
    if not doctor["cuda"]["devices"]:
        skip(doctor["cuda"]["reason"] or "the driver knows no device")

    by_kernel = collections.defaultdict(list)
    kernels = gpu_kernels(options.folder)
    names = []
    for test in all_tests(tests):
        if test.startswith(("Cuda.", "TensorMaps.", "UserOpsOnDevice.")):
            names.append(test)
        for kernel in kernels:
            if f"/{kernel}/" in test and not test.endswith("/refusals"):
                by_kernel[kernel].append(test)
    missing = [kernel for kernel in kernels if not by_kernel[kernel]]
    command = [tests]
    if options.tool:
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not os.access(sanitizer, os.X_OK):
            skip("compute-sanitizer is not installed")
        command = [sanitizer, "--tool", options.tool, "--error-exitcode", "9", tests]
        names = []
    for cases in by_kernel.values():
        cases.sort(key=size_of)
        if options.tool:  # from the small half, evenly, so that dtypes and forms vary
            half = cases[: max(options.per_kernel, len(cases) // 2)]
            cases[:] = half[:: max(1, len(half) // options.per_kernel)][: options.per_kernel]
        names += cases
    # '?' stands for what a filter's grammar takes.
    filters = ":".join(re.sub(r"[-:]", "?", name) for name in names)
    flags = f"{options.folder}/gpu_tier_{options.tool or 'all'}.flags"
    with open(flags, "w", encoding="utf-8") as file:
        file.write(f"--gtest_filter={filters}\n")
    processes, reports = [], []
    for shard in range(options.processes):
        reports.append(f"{options.folder}/gpu_tier_{options.tool or 'all'}-{shard + 1}.json")
        pathlib.Path(reports[-1]).unlink(missing_ok=True)
        processes.append(subprocess.Popen(command + [f"--gtest_flagfile={flags}", f"--gtest_output=json:{reports[-1]}", "--gtest_brief=1"],
                                          env={**os.environ, "GTEST_TOTAL_SHARDS": str(options.processes), "GTEST_SHARD_INDEX": str(shard)}))
    code = next((code for code in [process.wait() for process in processes] if code != 0), 0)
    ran = 0
    for report in filter(os.path.exists, reports):
        with open(report, encoding="utf-8") as file:
            for suite in json.load(file)["testsuites"]:
                ran += sum(1 for test in suite["testsuite"] if test["status"] == "RUN" and test["result"] == "COMPLETED")
    print(f"GPU tier{' under ' + options.tool if options.tool else ''}: {ran} tests of {len(by_kernel)} kernels on {doctor['cuda']['devices'][0]['name']}")
    if missing:
        print("no test case of: " + ", ".join(missing))
    sys.exit(code if code != 0 else 1 if ran == 0 or missing else 0)


if __name__ == "__main__":
    main()
