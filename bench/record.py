#!/usr/bin/env python3
"""Runs the benchmarks of the `eitri` command and writes everything they print, with what it was measured on, to one JSON file.

Evidence in bench/results/ is made by this script alone. A result holds: the commands, the date, the machine as `eitri doctor`
sees it, the commit, a revision (hash of the sources) of each operator, and every case, the bad ones included.
"""
import argparse
import datetime
import hashlib
import json
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITES = {
    "gemm": [["gemm", "bench", "--dtype", d, "--vs", "library"] for d in ("bf16", "i8")]
            + [["gemm", "bench", "--dtype", d, "--vs", "library", "--cold", "--m", "1,4,16,32,64"] for d in ("bf16", "i8")],
    "moe": [["moe", "bench", "--quant", q, "--tokens", "1,16,64,256,1024,4096", "--vs", "library"] for q in ("none", "int8")],
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
    out = {op.name: digest([op.relative_to(ROOT)]) for op in sorted((ROOT / "src/ops").iterdir()) if op.is_dir()}
    out["device"] = digest(["src/device"])
    return out


def commit():
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(git + ["rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return "unknown (no git folder)"
    dirty = subprocess.run(git + ["status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True).stdout
    return head.stdout.strip() + (" with changes" if dirty else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eitri", default=str(ROOT / "build/bin/eitri"), help="the command (default build/bin/eitri)")
    parser.add_argument("--suite", action="append", choices=sorted(SUITES), help="default: all; may be repeated")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--budget-ms", default="200", help="time for each side of a case (default 200)")
    parser.add_argument("--commit", help="where there is no git folder: the commit of the sources")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()

    def run(arguments):
        done = subprocess.run([options.eitri] + arguments, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"eitri {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    threads = ["--threads", str(options.threads)]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": options.commit or commit(),
        "revisions": revisions(),
        "system": platform.platform(),
        "load_average": pathlib.Path("/proc/loadavg").read_text().split()[:3],
        "doctor": json.loads(run(threads + ["doctor", "--measure", "--json"])),
        "runs": [],
    }
    for suite in options.suite or sorted(SUITES):
        for arguments in SUITES[suite]:
            full = threads + arguments + ["--budget-ms", options.budget_ms, "--json"]
            cases = [json.loads(line) for line in run(full).splitlines() if line.strip()]
            result["runs"].append({"command": "eitri " + " ".join(full), "cases": cases})
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{options.out}: {sum(len(r['cases']) for r in result['runs'])} cases of {len(result['runs'])} commands")


if __name__ == "__main__":
    main()
