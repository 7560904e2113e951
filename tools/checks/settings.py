"""EITRI_* environment names live in one table, src/base/settings.cpp: at most 12, and nobody else asks the environment."""
import re
import sys

import repo

TABLE = "src/base/settings.cpp"
MOST = 12
NAME = re.compile(r'"(EITRI_[A-Z][A-Z0-9_]*)"')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")


def check(root):
    findings, table = [], set()
    if (root / TABLE).exists():
        table = set(NAME.findall(repo.strip_comments(repo.text(root, TABLE))))
    if len(table) > MOST:
        findings.append(f"{TABLE}: {len(table)} settings; at most {MOST}")
    for path in repo.files(root, "src", "tools/cli", suffixes=repo.CODE):
        if path == TABLE:
            continue
        for number, line in enumerate(repo.strip_comments(repo.text(root, path)).splitlines(), 1):
            for name in NAME.findall(line):
                if name not in table:
                    findings.append(f"{path}:{number}: {name} is not in the table of {TABLE}")
            if GETENV.search(line) and (path.startswith("src/ops/") or "EITRI_" in line):
                findings.append(f"{path}:{number}: reads the environment; ask the settings table of base/")
    return findings


CASES = [
    ("good", {TABLE: '{"EITRI_ISA", "…"}', "src/a/b.cpp": 'setting("EITRI_ISA"); // "EITRI_OLD"\n'}, None),
    ("not in the table", {TABLE: "", "src/a/b.cpp": 'setting("EITRI_ISA");'}, "EITRI_ISA is not in the table"),
    ("too many", {TABLE: "".join(f'"EITRI_A{i}",' for i in range(13))}, "13 settings"),
    ("asks directly", {TABLE: '"EITRI_ISA"', "src/ops/b.cpp": 'std::getenv("HOME");'}, "reads the environment"),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
