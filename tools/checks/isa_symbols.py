"""No code compiled for one ISA can be linked into another's. Looks at the release build in build/.

A template or inline function that is not inlined becomes a weak symbol; the linker keeps one copy for the whole program and
may keep the one with AVX-512 instructions, which then kills the process on a smaller machine. A weak symbol in the object
of an ISA is therefore allowed only inside namespace eitri and only when no object of another ISA has it: keep it in the
ISA's own namespace, `static`, or always inlined.
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
LEVEL = re.compile(r"_(amx|avx512bf16|avx512vbmi|avx512|avx2)")
# `nm` letters of symbols that may be merged with those of other files: weak and unique ones, code or data.
WEAK = re.compile(r"^[0-9a-f]* *([WVu]) (.*)$")


def level_of(path):
    """Which instructions an object may hold; "" for every machine."""
    match = LEVEL.search(os.path.basename(path))
    return "" if not match else match[1] + (" emulated" if "amx_emulated" in path else "")


def weak_symbols(nm, path):
    out = subprocess.run([nm, "--defined-only", "-C", path], capture_output=True, text=True, check=True).stdout
    found = {match[2] for match in map(WEAK.match, out.splitlines()) if match}
    # "DW.ref.__gxx_personality_v0" and its like are pointers that the compiler shares; no code.
    return {name for name in found if not name.startswith(("DW.ref.", "typeinfo", "vtable"))}


def check(root):
    if not (root / OBJECTS).is_dir():
        raise repo.Skip("no release build in build/: objects NOT inspected (make build first)")
    nm = shutil.which("nm")
    if not nm:
        raise repo.Skip("no nm (Debian: binutils)")
    objects = sorted((root / OBJECTS).rglob("*.cpp.o"))
    symbols = {str(path.relative_to(root / OBJECTS)): weak_symbols(nm, str(path)) for path in objects}
    levels = {}  # symbol -> the levels that have it
    for path, names in symbols.items():
        for name in names:
            levels.setdefault(name, set()).add(level_of(path))
    findings = []
    for path, names in symbols.items():
        for name in sorted(names) if level_of(path) else ():
            ours = re.search(r"(^|[ &*])eitri::", name.split("(")[0])
            if len(levels[name]) > 1 or not ours:
                where = "also in code of another level" if ours else "a user's program may have it too"
                findings.append(f"{path}: weak symbol {name[:120]}: {where}")
    return findings


def compiled(source):
    """An object made here, so that the self-test reads what a real compiler writes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "a.o")
        subprocess.run(["g++", "-std=c++20", "-O0", "-x", "c++", "-c", "-", "-o", str(target)], input=source.encode(), check=True)
        return target.read_bytes()


def cases():
    avx2, plain, avx512 = (f"{OBJECTS}/src/ops/a/{name}.cpp.o" for name in ("x86_avx2", "a", "x86_avx512"))
    inline = "namespace eitri { %s int f(int x) { return x + 1; } int g(int x) { return f(x); } }\n"
    leak, clean = compiled(inline % "inline"), compiled(inline % "static inline")
    foreign = compiled("inline int f(int x) { return x + 1; }\nint g(int x) { return f(x); }\n")
    return [("static functions", {avx2: clean, plain: clean}, None), ("weak but alone", {avx2: leak, plain: clean}, None),
            ("the same in code for all machines", {avx2: leak, plain: leak}, "weak symbol eitri::f(int): also in code"),
            ("the same at two levels", {avx2: leak, avx512: leak}, "also in code of another level"),
            ("outside our namespace", {avx2: foreign}, "weak symbol f(int): a user's")]


def __getattr__(attribute):  # the objects are compiled only when the self-test asks for them
    if attribute == "CASES":
        return cases()
    raise AttributeError(attribute)


if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
