"""src/ is one chain: a folder includes only itself and the folders before it. Kernel files include almost nothing."""
import posixpath
import re
import sys

import repo

CHAIN = ["base", "backend", "jit", "dispatch", "ops", "tune", "api"]
# What a file compiled for one ISA may include: an inline function of any other header would be compiled with that ISA's
# instructions, and the linker may keep that copy for every machine.
C_HEADERS = {"cstdint", "cstddef", "cstring", "cmath", "climits", "cfloat", "type_traits", "immintrin.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def is_isa_file(path):
    name = posixpath.basename(path)
    return name.endswith(".cpp") and bool(name.startswith("x86_") or re.search(r"_(avx2|avx512|amx)", name))


def resolve(root, path, target):
    """The included file relative to the root, or None when it is not ours."""
    for candidate in (f"src/{target}", f"include/{target}", posixpath.normpath(posixpath.join(posixpath.dirname(path), target))):
        if (root / candidate).is_file():
            return candidate
    return None


def heavy(root, path, quoted, target, seen=()):
    """Why a kernel file may not read `target`: the header, or one that it includes, that is neither light nor a C header."""
    if not quoted:
        return None if target in C_HEADERS else f"<{target}>"
    found = resolve(root, path, target)
    if target.startswith("device/") or found is None or found in seen:
        return None
    for match in INCLUDE.finditer(repo.strip_comments(repo.text(root, found))):
        why = heavy(root, found, match[1] == '"', match[2], (*seen, found))
        if why:
            return f"{target} includes {why}" if why.startswith("<") else why
    return None


def may_include_device(root, path):
    """Kernel files, backend/cpu, the portable level, and kernel code in headers: those that read nothing heavy."""
    name = posixpath.basename(path)
    if path.startswith("src/backend/cpu/") or name.endswith(".cuh") or repo.is_kernel_file(path):
        return True
    return (name.endswith(".h") or name.startswith("portable")) and heavy(root, path, True, path.removeprefix("src/")) is None


def problem(root, path, quoted, target):
    """Why `path` may not include `target`; None when it may."""
    folder = path.split("/")[1]
    found = resolve(root, path, target) if quoted else None
    if found and found.startswith("src/"):
        target = found.removeprefix("src/")
    goal = target.split("/")[0]
    if path.startswith("include/"):
        return None if goal == "eitri" or not quoted and "/" not in target and (not target.endswith(".h") or path.endswith(".h")) else \
            "public headers include the standard library and eitri/ only"
    if folder == "device" or is_isa_file(path) or path == "src/base/numeric.h" or path.endswith("_kernels.h"):
        why = heavy(root, path, quoted, target)
        if why:
            return f"{why}: kernel files read device/, C headers and headers made of these only"
    if not quoted or goal == "eitri" or folder == "device":
        return None if folder != "device" or not quoted or goal in ("device", "eitri") or target == "base/numeric.h" else \
            "device/ includes device/ and base/numeric.h only"
    if goal == "device":
        return None if may_include_device(root, path) else \
            "device/ is for kernel files and for headers that read nothing but C headers and such headers"
    if goal not in CHAIN:
        return "write the path from src/: " + ", ".join(CHAIN)
    if folder not in CHAIN:
        return "this folder is not in the chain"
    return None if CHAIN.index(goal) <= CHAIN.index(folder) else f"{folder}/ comes before {goal}/"


def check(root):
    findings = []
    for path in repo.files(root, "src", "include", suffixes=repo.CODE):
        source = repo.strip_comments(repo.text(root, path))
        for match in INCLUDE.finditer(source):
            why = problem(root, path, match[1] == '"', match[2])
            if why:
                line = source.count("\n", 0, match.start(2)) + 1
                findings.append(f"{path}:{line}: includes {match[2]}: {why}")
    return findings


CASES = [
    ("a chain", {"src/ops/a/a.h": '#include "dispatch/op.h"\n#include <vector>\n', "src/dispatch/op.h": '#include "base/error.h"\n'}, None),
    ("upwards", {"src/base/a.h": '#include "ops/b.h"\n'}, "base/ comes before ops/"),
    ("a neighbour", {"src/ops/a/b.h": "", "src/ops/a/a.cpp": '#include "b.h"\n'}, None),
    ("a comment", {"src/base/a.h": '// #include "ops/b.h"\n/*\n#include "ops/b.h"\n*/\n'}, None),
    ("device from an op", {"src/ops/a/a.cpp": '#include "device/x86/tile.h"\n'}, "device/ is for kernel files"),
    ("device from a kernel", {"src/ops/a/x86_amx.cpp": '#include "device/x86/tile.h"\n#include "ops/a/a_kernels.h"\n'}, None),
    ("device from a kernel header", {"src/ops/a/a_rows.h": '#include "device/x86/vec.h"\n#include <cstdint>\n'}, None),
    ("device from a host header", {"src/ops/a/a.h": '#include "device/x86/vec.h"\n#include <string>\n'}, "device/ is for"),
    ("library code in a kernel", {"src/ops/a/x86_avx2.cpp": "#include <algorithm>\n"}, "kernel files read"),
    ("library code behind a header", {"src/ops/a/x86_avx2.cpp": '#include "ops/a/a.h"\n', "src/ops/a/a.h": "#include <vector>\n"},
     "a.h includes <vector>: kernel files"),
    ("library code in kernel structs", {"src/ops/a/a_kernels.h": "#include <vector>\n"}, "kernel files read"),
    ("library code in device", {"src/device/x86/a.h": '#include "base/error.h"\n'}, "device/ includes"),
    ("inner header in public", {"include/eitri/a.hpp": '#include "base/error.h"\n'}, "public headers"),
    ("third party in public", {"include/eitri/a.hpp": "#include <fmt/core.h>\n"}, "public headers"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
