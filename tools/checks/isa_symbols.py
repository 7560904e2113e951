"""Objects compiled for one ISA export no weak symbol. Looks at the release build in build/.

An inline function or template that such a file does not inline becomes a weak symbol; the linker keeps one copy for the
whole library and may keep the one with AVX-512 instructions, which then kills the process on a smaller machine. Functions
of headers that kernel files include are therefore `static` (or in an unnamed namespace, or always inlined).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import repo

OBJECTS = "build/CMakeFiles/eitri_core.dir"
ISA_OBJECT = re.compile(r"^(x86_.*|.*_(avx2|avx512|amx).*)\.cpp\.o$")
# `nm` letters of symbols that may be merged with those of other files: weak and unique ones, code or data.
WEAK = re.compile(r"^[0-9a-f]* *([WVu]) (.*)$")


def check(root):
    if not (root / OBJECTS).is_dir():
        raise repo.Skip("no release build in build/: objects NOT inspected (make build first)")
    nm = shutil.which("nm")
    if not nm:
        raise repo.Skip("no nm (Debian: binutils)")
    findings = []
    for folder, _, names in os.walk(root / OBJECTS):
        for name in filter(ISA_OBJECT.match, sorted(names)):
            path = os.path.join(folder, name)
            out = subprocess.run([nm, "--defined-only", "-C", path], capture_output=True, text=True, check=True).stdout
            for line in out.splitlines():
                match = WEAK.match(line)
                # References such as "DW.ref.__gxx_personality_v0" are pointers that the compiler shares; no code.
                if match and not match[2].startswith("DW.ref."):
                    short = os.path.relpath(path, root / OBJECTS)
                    findings.append(f"{short}: weak symbol {match[2][:120]}: make it static or always inlined")
    return findings


def compiled(source):
    """An object made here, so that the self-test reads what a real compiler writes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "a.o")
        subprocess.run(["g++", "-std=c++20", "-O0", "-x", "c++", "-c", "-", "-o", str(target)], input=source.encode(), check=True)
        return target.read_bytes()


def cases():
    name = f"{OBJECTS}/src/ops/a/x86_avx2.cpp.o"
    leak = compiled("inline int f(int x) { return x + 1; }\nint g(int x) { return f(x); }\n")
    clean = compiled("static inline int f(int x) { return x + 1; }\nint g(int x) { return f(x); }\n")
    return [("a static function", {name: clean}, None), ("an inline function", {name: leak}, "weak symbol f(int)"),
            ("other files may", {f"{OBJECTS}/src/ops/a/a.cpp.o": leak}, None)]


def __getattr__(attribute):  # the objects are compiled only when the self-test asks for them
    if attribute == "CASES":
        return cases()
    raise AttributeError(attribute)


if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
