#!/usr/bin/env python3
"""Runs the benchmarks of the `eitri` command and writes everything they print, with what it was measured on, to one JSON file.

Evidence in bench/results/ is made by this script (a file that is not says so in `made_by`). A result holds: the commands, the date, the machine as `eitri doctor`
sees it, the commit, a revision (hash of the sources) of each operator, and every case, the bad ones included.
"""
import argparse
import datetime
import hashlib
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import tempfile
import time

import tune_suite

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The GPU suite: what the README and docs quote of GPUs.
GPU_ROWS = [f"tokens={t},hidden={h}" for t in (1, 16, 64, 256, 4096, 16384) for h in (4096, 7168)]
GPU_QUANTISED = [",residual=bf16", ",residual=bf16,out=f8e4m3,quant=per_1x128", ",residual=bf16,out=i8,quant=per_token"]
GPU_CODES = ["", ",q=f8e4m3,quant=per_1x128", ",q=f8e4m3,quant=per_1x32", ",q=f4e2m1,quant=per_1x32", ",q=f8e4m3,quant=per_tensor"]
GPU_FEW, GPU_MANY = ([f"m={m},n={n},k={k},b_format=strided{t}" for m, n, k in shapes
                      for t in ("", ",a=i8", ",a=f8e4m3,a_quant=per_tensor,b_quant=per_tensor", ",a=f8e4m3,a_quant=per_token,b_quant=per_token")]
                     for shapes in (((1, 4096, 7168), (64, 4096, 7168)), ((4096, 4096, 4096), (4096, 7168, 2048))))
GPU_MOE = [f"tokens={t},hidden=2048,inter=768,local_experts=128,experts=128,top_k=8,w1_format=strided,w2_format=strided" for t in (1, 64, 1024)]


def problems(texts):
    return [part for text in texts for part in ("--problem", text)]


CPU_SUITES = ("coded", "gemm", "levels", "moe", "moe_coded")
CPU_MORE = ("coded_few", "gemm_few", "gemm_goals", "moe_one", "moe_rows")  # parts of those, for decoding and goals; other ways to look at them
CODES = ("f8e4m3:per_128x128", "f8e4m3:per_1x32", "i8:per_token", "i4:per_1x32", "i4:per_1x128", "f4e2m1:per_1x32", "f4e2m1:per_1x16")
SUITES = {
    "gpu": [["bench", "rmsnorm"] + problems([r + q for r in GPU_ROWS for q in [""] + GPU_QUANTISED]),
            ["bench", "quantize"] + problems([r.replace("tokens", "rows").replace("hidden", "cols") + q for r in GPU_ROWS for q in GPU_CODES]),
            ["bench", "activation"] + problems([r.replace("tokens", "rows").replace("hidden", "inter") + f",kind=silu,gate=separated,out={out}"
                                                for r in GPU_ROWS for out in ("bf16", "i8")]),
            ["bench", "gemm", "--all-kernels"] + problems(GPU_FEW), ["bench", "gemm"] + problems(GPU_MANY),
            ["bench", "topk_gating"], ["bench", "moe_sort"], ["bench", "moe_combine"],
            ["bench", "fused_moe"] + problems(GPU_MOE)],
    "jit": [["prebuild", "--all", "--target", "sm_90a"]],
    "jit_all": [["prebuild", "--all", "--target", "sm_90a,gfx942,gfx950"]],
    "gemm": [["gemm", "bench", "--dtype", d, "--vs", "library"] for d in ("bf16", "i8")]
            + [["gemm", "bench", "--dtype", d, "--vs", "library", "--cold", "--m", "1,4,16,32,64"] for d in ("bf16", "i8")],
    "coded": [["gemm", "bench", "--weights", w, "--vs", "plain", "--n", "4096", "--k", "4096", *how]
              for w in CODES for how in (["--cold", "--m", "1,4,16"], ["--m", "256,1024"])],
    "coded_few": [["gemm", "bench", "--weights", w, "--n", "4096", "--k", "4096", "--cold", "--m", "1,4,8,16"] for w in CODES],
    "gemm_few": [["gemm", "bench", "--dtype", d, "--vs", "library", *how, "--m", "1,4,16"] for d in ("bf16", "i8")
                 for how in (["--cold", "--n", "4096,14336", "--k", "4096"], ["--n", "768,2048,4096", "--k", "2048,4096"])],
    "gemm_goals": [["gemm", "bench", "--dtype", d, "--vs", "library", *how] for d in ("bf16", "i8")
                   for how in (["--cold", "--n", "4096,768", "--k", "4096,2048", "--m", "4,16,32,64"], ["--m", "1,16,32,64,256,1024"])]
                  + [["gemm", "bench", "--weights", w, "--n", "4096", "--k", "4096", *how]
                     for w in CODES for how in (["--cold", "--m", "1,4,8,16"], ["--vs", "plain", "--m", "256,1024"])],
    "moe": [["moe", "bench", "--quant", q, "--tokens", "1,16,64,256,1024,4096", "--vs", "library"] for q in ("none", "int8")],
    # Around the crossover of the decode rows and the sorted recipe, and shares of a block as ranks of an expert-parallel group hold them.
    "moe_rows": [["moe", "bench", *how, "--vs", "rows"] for how in
                 [["--quant", q, "--tokens", "1,2,4,8,16,32,64,128,256"] for q in ("none", "int8")]
                 + [["--weights", w, "--tokens", "1,4,16,64"] for w in ("f8e4m3:per_128x128", "f4e2m1:per_1x32", "f4e2m1:per_1x16")]
                 + [["--experts", "8", "--quant", q, "--tokens", "1,4,16,64"] for q in ("none", "int8")]],
    "moe_one": [["moe", "bench", "--quant", q, "--tokens", "1"] for q in ("none", "int8")],
    "moe_coded": [["moe", "bench", "--weights", w, "--tokens", "1,16,256,1024"] for w in CODES],
    "levels": [["--isa", isa, "gemm", "bench", "--dtype", d, "--m", "1,16,256"]
               for isa in ("x86_avx512", "x86_avx2", "portable") for d in ("bf16", "i8", "f32", "f16")],
}


def revisions():
    """Hash of the sources of each operator folder, and of the code that all of them share."""
    def digest(folders):
        h = hashlib.sha256()
        for folder in folders:
            for path in sorted((ROOT / folder).rglob("*")):
                if path.is_file():
                    h.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
        return h.hexdigest()[:16]
    if not (ROOT / "src/ops").is_dir():
        return {}  # binaries alone
    out = {op.name: digest([op.relative_to(ROOT)]) for op in sorted((ROOT / "src/ops").iterdir()) if op.is_dir()}
    out["device"] = digest(["src/device"])
    return out


def without_paths(doctor):
    """What `doctor` says of the machine, less where things lie on it."""
    doctor.get("cache_dir", {}).pop("path", None)
    for compiler in doctor.get("compilers", []):
        compiler["path"] = pathlib.PurePath(compiler["path"]).name
    for name in {"paths", "notes", "unreadable_lines"} & doctor.get("tuned", {}).keys():  # each begins with a file or folder, or names one
        doctor["tuned"][name] = [re.sub(r"\S*/(?=\S)", "", text) for text in doctor["tuned"][name]]
    if "; " in doctor.get("tune", ""):
        mode, command = doctor["tune"].split("; ", 1)
        doctor["tune"] = f"{mode}; {pathlib.PurePath(command).name}"
    return doctor


def commit():
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(git + ["rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return "unknown (no git folder)"
    dirty = subprocess.run(git + ["status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True).stdout
    return head.stdout.strip() + (" with changes" if dirty else "")


def gpu_driver():
    """The version that nvidia-smi says; "" where there is none."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0].strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eitri", default=str(ROOT / "build/bin/eitri"), help="the command (default build/bin/eitri)")
    parser.add_argument("--suite", action="append", choices=sorted([*SUITES, *tune_suite.DEVICE]), help="default: those of the CPU; may be repeated")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--budget-ms", default="200", help="time for each side of a case (default 200)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="tune_*: no problem is begun later; each operator has its part")
    parser.add_argument("--subset", type=int, help="tune_*: so many problems of each operator")
    parser.add_argument("--shard", default="1/1", help="tune_*: part i/n of the problems")
    parser.add_argument("--known", action="append", default=[], help="tune_*: a result of an earlier run or another shard, whose problems are taken over; may be repeated")
    parser.add_argument("--commit", help="where there is no git folder: the commit of the sources")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()

    def run(arguments, environment=None):
        done = subprocess.run([options.eitri] + arguments, capture_output=True, text=True, env={**os.environ, **(environment or {})})
        if done.returncode != 0:
            raise SystemExit(f"eitri {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    start = time.monotonic()
    threads = ["--threads", str(options.threads)]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": options.commit or commit(),
        "revisions": revisions(),
        "system": platform.platform(),
        "load_average": pathlib.Path("/proc/loadavg").read_text().split()[:3],
        "doctor": without_paths(json.loads(run(threads + ["doctor", "--json"] + (["--measure"] if set(options.suite or CPU_SUITES) & {*CPU_SUITES, *CPU_MORE, "tune_cpu"} else [])))),
        "driver": gpu_driver(),
        "runs": [],
    }

    def write():
        """After every command: a run that is cut short leaves what it has measured."""
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")

    for suite in options.suite or CPU_SUITES:
        if suite in tune_suite.DEVICE:
            def save(runs):
                pathlib.Path(options.out).write_text(json.dumps(result | {"runs": result["runs"] + runs}, indent=1) + "\n")

            known = [json.loads(pathlib.Path(path).read_text()) for path in options.known]
            runs = tune_suite.run(suite, str(pathlib.Path(options.eitri).resolve()), options.threads, options.seconds, options.subset,
                                  tuple(map(int, options.shard.split("/"))), known, save)
            for other in known:
                if other["commit"] != result["commit"]:
                    raise SystemExit(f"a known result is of commit {other['commit']}; expected {result['commit']}")
                result |= {key: value for key, value in other.items() if key != "runs" and value}  # where it was measured
            result["runs"] += runs
            write()
            print(tune_suite.table(runs))
            continue
        for arguments in SUITES[suite]:
            full = threads + arguments + (["--budget-ms", options.budget_ms] if suite in CPU_SUITES + CPU_MORE else []) + ["--json"]
            if suite.startswith("jit"):  # with an empty cache: everything is compiled
                with tempfile.TemporaryDirectory() as folder:
                    text = run(full, {"EITRI_CACHE_DIR": folder})
            else:
                text = run(full)
            cases = [json.loads(line) for line in text.splitlines() if line.strip()] if suite in CPU_SUITES + CPU_MORE else [json.loads(text)]
            result["runs"].append({"command": "eitri " + " ".join(full), "cases": cases})
            write()
            print(f"{time.monotonic() - start:6.0f} s  {' '.join(full)}", flush=True)
    print(f"{options.out}: {sum(len(r['cases']) for r in result['runs'])} cases of {len(result['runs'])} commands")


if __name__ == "__main__":
    main()
