"""Headers have at most 300 lines, other files 600. file_budgets_allow.txt lists exceptions with a reason, never over 1000."""
import sys

import repo

HEADERS = (".h", ".hpp", ".cuh")
COUNTED = HEADERS + (".cpp", ".py", ".md", ".cmake", ".sh", "CMakeLists.txt", "Makefile", ".ci/run")
ALLOW = "tools/checks/file_budgets_allow.txt"
HARD_STOP = 1000


def allowed(root):
    """path -> reason, and findings about the list itself."""
    entries, findings = {}, []
    if (root / ALLOW).exists():
        for number, line in enumerate((root / ALLOW).read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            path, _, reason = line.partition(" ")
            if len(reason.strip()) < 10:
                findings.append(f"{ALLOW}:{number}: no reason given for {path}")
            if not (root / path).exists():
                findings.append(f"{ALLOW}:{number}: {path} does not exist; remove the line")
            entries[path] = reason.strip()
    return entries, findings


def check(root):
    exceptions, findings = allowed(root)
    for path in repo.files(root, suffixes=COUNTED):
        if path.startswith("docs/generated/"):
            continue
        lines = (root / path).read_bytes().count(b"\n")
        budget = 300 if path.endswith(HEADERS) else 600
        if lines > HARD_STOP:
            findings.append(f"{path}: {lines} lines; no file may pass {HARD_STOP}")
        elif lines > budget and path not in exceptions:
            findings.append(f"{path}: {lines} lines; budget {budget}. Split it, or give a reason in {ALLOW}")
        elif lines <= budget and path in exceptions:
            findings.append(f"{ALLOW}: {path} is within its budget again ({lines}); remove the line")
    return findings


CASES = [
    ("within", {"src/a.h": "x\n" * 300, "src/a.cpp": "x\n" * 600}, None),
    ("header over", {"src/a.h": "x\n" * 301}, "budget 300"),
    ("source over", {"src/a.cpp": "x\n" * 601}, "budget 600"),
    ("with a reason", {"src/a.cpp": "x\n" * 700, ALLOW: "src/a.cpp one table of facts, no logic\n"}, None),
    ("without a reason", {"src/a.cpp": "x\n" * 700, ALLOW: "src/a.cpp\n"}, "no reason"),
    ("stale line", {"src/a.cpp": "x\n", ALLOW: "src/a.cpp one table of facts, no logic\n"}, "within its budget"),
    ("hard stop", {"src/a.cpp": "x\n" * 1001, ALLOW: "src/a.cpp one table of facts, no logic\n"}, "may pass 1000"),
    ("generated", {"docs/generated/ops.md": "x\n" * 2000}, None),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
