"""Every header compiles alone, so that the order of includes never matters."""
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import repo

X86_FLAGS = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16"
FLAGS = ["-std=c++20", "-fsyntax-only", "-x", "c++", "-w", "-fopenmp", "-DEITRI_X86=1"]


def compile_alone(root, compiler, path):
    """None, or the first line of the compiler's complaint."""
    flags = FLAGS + [f"-I{root / folder}" for folder in ("include", "src", "tests", "tools")]
    if "/x86/" in path or os.path.basename(path).startswith("x86_"):
        flags += X86_FLAGS.split()
    result = subprocess.run([compiler, *flags, str(root / path)], capture_output=True, text=True)
    if result.returncode == 0:
        return None
    error = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
    return f"{path}: does not compile alone: {error.replace(str(root) + '/', '')}"


def check(root):
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise repo.Skip("no g++")
    headers = [p for p in repo.files(root, "include", "src", "tests", "tools", suffixes=(".h", ".hpp"))
               if platform.machine() == "x86_64" or "x86" not in p]
    findings = [f"{p}: has no #pragma once" for p in headers if not re.search(r"^#pragma once", repo.text(root, p), re.M)]
    # One stamp for all headers: when none has changed since the last success, there is nothing to compile.
    digest = hashlib.sha256()
    for path in sorted(repo.files(root, "include", "src", "tests", "tools", suffixes=(".h", ".hpp"))):
        digest.update(path.encode() + (root / path).read_bytes())
    stamp = root / "build/checks/headers"
    if not findings and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return []
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        findings += filter(None, pool.map(lambda p: compile_alone(root, compiler, p), headers))
    if not findings:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest.hexdigest())
    return findings


CASES = [
    ("alone", {"src/a.h": "#pragma once\n#include <string>\nstd::string f();\n"}, None),
    ("needs another", {"src/a.h": "#pragma once\nstd::string f();\n"}, "does not compile alone"),
    ("no guard", {"src/a.h": "int f();\n"}, "#pragma once"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
