"""Every path that a page names, in backticks or as a link, exists in the repository."""
import re
import sys
from pathlib import PurePosixPath

import repo

TICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"^\.?[A-Za-z0-9_*{},.\-]+(/[A-Za-z0-9_*{},.\-]+)*/?$")
TOP = {"src", "include", "tools", "tests", "bench", "docs", "tuned", "cmake", "python", ".ci"}


def expand(pattern):
    """a.{h,cpp} -> a.h, a.cpp."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [p for part in match[1].split(",") for p in expand(pattern[:match.start()] + part + pattern[match.end():])]


def exists(root, name):
    return all(any(root.glob(p)) if "*" in p else (root / p).exists() for p in expand(name.rstrip("/")))


def check(root):
    findings = []
    for page in repo.files(root, suffixes=(".md",)):
        fenced = False
        for number, line in enumerate(repo.text(root, page).splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced:
                continue
            for name in TICKS.findall(line):
                if name.startswith("docs/generated/"):  # docs_fresh asks for these
                    continue
                rooted = name.split("/")[0] in TOP and "/" in name or name.endswith(".md")
                if rooted and PATH.match(name) and not exists(root, name):
                    findings.append(f"{page}:{number}: `{name}` does not exist")
            for name in LINK.findall(line):
                target = name.split("#")[0]
                if not target or "://" in target or target.startswith("mailto:"):
                    continue
                if not exists(root, str(PurePosixPath(page).parent / target)):
                    findings.append(f"{page}:{number}: link to {name}, which does not exist")
    return findings


CASES = [
    ("good", {"README.md": "See `src/base/` and [docs](docs/a.md#x) and `src/*/a.{h,cpp}`.", "docs/a.md": "", "src/base/a.h": "", "src/base/a.cpp": ""}, None),
    ("gone", {"README.md": "See `src/gone.h`."}, "`src/gone.h` does not exist"),
    ("bad link", {"docs/a.md": "[x](b.md)"}, "link to b.md"),
    ("no match", {"README.md": "`src/*.cu`", "src/a.cpp": ""}, "does not exist"),
    ("no paths", {"README.md": "`a/b ratio`, `std::vector`, `<op>/<kernel>`, `n/a`\n```\nsrc/gone.h\n```\n"}, None),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
