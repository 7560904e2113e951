"""Every header compiles alone, so that the order of includes never matters."""
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import repo

X86_FLAGS = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -mavx512vbmi -mamx-tile -mamx-int8 -mamx-bf16"
FOLDERS = ("src", "include", "tests", "tools")
GUARD = re.compile(r"^#pragma once|^#ifndef (\w+)\n#define \1\b", re.M)  # the second form: headers that C programs read
FLAGS = ["-std=c++20", "-fsyntax-only", "-x", "c++", "-w", "-fopenmp", "-DEITRI_X86=1"]


def compile_alone(root, compiler, path):
    """None, or the first line of the compiler's complaint."""
    flags = FLAGS + [f"-I{root / folder}" for folder in FOLDERS]
    if "/x86/" in path or os.path.basename(path).startswith("x86_"):
        flags += X86_FLAGS.split()
    result = subprocess.run([compiler, *flags, str(root / path)], capture_output=True, text=True)
    if result.returncode == 0:
        return None
    error = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
    return f"{path}: does not compile alone: {error.replace(str(root) + '/', '')}"


def closure_digest(root, path):
    """A hash of the header and of every header of ours that it reaches: equal digest, equal answer."""
    digest, queue, seen = hashlib.sha256(" ".join(FLAGS).encode()), [path], set()
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        content = (root / current).read_bytes()
        digest.update(current.encode() + content)
        for name in re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', content.decode(errors="replace")):
            candidates = [f"{folder}/{name}" for folder in FOLDERS] + [os.path.normpath(f"{os.path.dirname(current)}/{name}")]
            queue += [c for c in candidates if (root / c).is_file()][:1]
    return digest.hexdigest()


def check(root):
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise repo.Skip("no g++")
    headers = [p for p in repo.files(root, *FOLDERS, suffixes=(".h", ".hpp"))
               if platform.machine() == "x86_64" or "x86" not in p]
    findings = [f"{p}: has no #pragma once" for p in headers if not GUARD.search(repo.text(root, p))]
    stamp = root / "build/checks/headers.json"  # header -> digest of its closure when it last compiled
    good = json.loads(stamp.read_text()) if stamp.exists() else {}
    digests = {path: closure_digest(root, path) for path in headers}
    stale = [path for path in headers if good.get(path) != digests[path]]
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        errors = dict(zip(stale, pool.map(lambda p: compile_alone(root, compiler, p), stale)))
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({p: d for p, d in digests.items() if not errors.get(p)}, indent=0))
    return findings + [e for e in errors.values() if e]


CASES = [
    ("alone", {"src/a.h": "#pragma once\n#include <string>\nstd::string f();\n"}, None),
    ("needs another", {"src/a.h": "#pragma once\nstd::string f();\n"}, "does not compile alone"),
    ("no guard", {"src/a.h": "int f();\n"}, "#pragma once"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
