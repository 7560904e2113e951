"""docs/generated/ equals what the command prints now, and its performance.md what bench/results/ says. Needs build/bin/eitri; `make docs`
rewrites the pages."""
import os
import subprocess
import sys

import repo

PAGES = {"docs/generated/ops.md": ["ops", "--markdown"], "docs/generated/settings.md": ["doctor", "--settings-markdown"]}

WRITER, TABLES = "tools/performance_page.py", "docs/generated/performance.md"


def check(root):
    command = root / "build/bin/eitri"
    if not os.access(command, os.X_OK):
        raise repo.Skip("build/bin/eitri is not built: generated pages NOT compared (make build first)")
    findings = []
    for page, arguments in PAGES.items():
        shown = f"eitri {' '.join(arguments)}"
        result = subprocess.run([str(command), *arguments], capture_output=True, timeout=120)
        if result.returncode != 0:
            findings.append(f"{page}: {shown} failed: {result.stderr.decode(errors='replace').strip()[:200]}")
        elif not (root / page).exists():
            findings.append(f"{page}: missing; make docs writes it")
        elif (root / page).read_bytes() != result.stdout:
            findings.append(f"{page}: differs from what {shown} prints; run make docs")
    if (root / WRITER).exists():
        result = subprocess.run([sys.executable, str(root / WRITER), "--check"], capture_output=True, text=True, timeout=120)
        if result.returncode != 0:
            findings.append(f"{TABLES}: {result.stderr.strip()[-200:]}")
    for path in repo.files(root, "docs/generated"):
        if path not in PAGES and not (path == TABLES and (root / WRITER).exists()):
            findings.append(f"{path}: nothing generates this page; remove it")
    return findings


COMMAND = "#!/bin/sh\n"
GOOD = {page: f"{' '.join(arguments)}\n" for page, arguments in PAGES.items()}
CASES = [
    ("fresh", {"build/bin/eitri": COMMAND + 'echo "$@"\n', **GOOD}, None),
    ("stale", {"build/bin/eitri": COMMAND + 'echo "$@" more\n', **GOOD}, "run make docs"),
    ("missing", {"build/bin/eitri": COMMAND + 'echo "$@"\n'}, "missing"),
    ("broken", {"build/bin/eitri": COMMAND + "exit 3\n", **GOOD}, "failed"),
    ("stale results", {"build/bin/eitri": COMMAND + 'echo "$@"\n', **GOOD, WRITER: "import sys\nsys.exit('the page differs')\n"}, "the page differs"),
    ("left over", {"build/bin/eitri": COMMAND + 'echo "$@"\n', **GOOD, "docs/generated/old.md": ""}, "remove it"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
