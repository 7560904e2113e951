"""File and folder names: snake_case, and no drawer for everything (utils, helpers, …), no version words."""
import re
import sys

import repo

BANNED = {"util", "utils", "helper", "helpers", "common", "misc", "new", "old", "tmp", "v2", "v3"}
SNAKE = re.compile(r"^\.?[a-z0-9_]+(\.[a-z0-9_]+)*$")
# Names that other tools or conventions prescribe, and data named after a model, a machine or a date.
PRESCRIBED = re.compile(r"^(README|ARCHITECTURE|CONTRIBUTING|CHANGELOG)\.md$|^(LICENSE|Makefile|CMakeLists\.txt|CMakePresets\.json)$"
                        r"|^cmake/|^\.(clang-format|clang-tidy|pre-commit-config\.yaml)$"
                        r"|^bench/(models|results)/|^tuned/|^tests/fuzz/corpus/|^tests/data/")


def check(root):
    findings = []
    for path in repo.files(root):
        if PRESCRIBED.search(path):
            continue
        for part in path.split("/"):
            words = set(re.split(r"[_.\-]", part.lower()))
            if words & BANNED:
                findings.append(f"{path}: '{(words & BANNED).pop()}' says nothing about the content")
            elif not SNAKE.match(part):
                findings.append(f"{path}: '{part}' is not snake_case")
    return findings


CASES = [
    ("good", {"src/ops/moe_sort/x86_avx2.cpp": "", "README.md": "", "bench/models/qwen3-30b-a3b.json": "", ".ci/run": ""}, None),
    ("a drawer", {"src/base/utils.h": ""}, "'utils'"),
    ("a drawer folder", {"src/common/a.h": ""}, "'common'"),
    ("part of a word", {"src/base/newton.h": ""}, None),
    ("version", {"src/ops/gemm_v2.cpp": ""}, "'v2'"),
    ("camel", {"src/base/ErrorType.h": ""}, "not snake_case"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
