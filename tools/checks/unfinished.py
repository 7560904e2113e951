"""Nothing is left half done without a trace: a TODO names its issue, e.g. TODO(#12); other such marks are not used."""
import re
import sys

import repo

CODE = repo.CODE + (".py", ".cmake", ".sh", ".yaml", ".yml", "CMakeLists.txt", "Makefile", ".ci/run")
WITHOUT_ISSUE = re.compile(r"\bTO" r"DO\b(?!\(#\d+\))")
MARKS = re.compile(r"\b(?:FIX" r"ME|XX" r"X|HA" r"CK)\b")


def check(root):
    findings = []
    for path in repo.files(root, suffixes=CODE):
        if path == "tools/checks/unfinished.py":
            continue
        for number, line in enumerate(repo.text(root, path).splitlines(), 1):
            if WITHOUT_ISSUE.search(line):
                findings.append(f"{path}:{number}: TODO without an issue number; write TODO(#12) or do it")
            elif MARKS.search(line):
                findings.append(f"{path}:{number}: {MARKS.search(line)[0]}: mend it, or write TODO(#12)")
    return findings


CASES = [
    ("with an issue", {"src/a.cpp": "// TODO(#12): wider tiles\n"}, None),
    ("without", {"src/a.cpp": "\n// TODO wider tiles\n"}, "a.cpp:2: TODO without"),
    ("mend me", {"a.py": "# FIXME\n"}, "mend it"),
    ("pages are free", {"a.md": "TODO"}, None),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
