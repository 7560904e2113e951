"""What every check shares: the files of the tree, and a command line with a self-test.

A check is a module with `check(root) -> list of findings` ("path:line: what is wrong, what to do") and `CASES`, its self-test:
(what is shown, {path: content}, text that a finding must contain or None when the tree is clean).
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = (".h", ".hpp", ".cuh", ".cpp")


class Skip(Exception):
    """A check that cannot run here; the text says why."""


def files(root, *folders, suffixes=None):
    """Paths of the tree relative to root, as text: what git tracks or would track; without git, every file."""
    root = Path(root)
    if (root / ".git").exists():
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             check=True, capture_output=True).stdout
        paths = sorted(set(out.decode().split("\0")) - {""})
    else:
        paths = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    for path in paths:
        if folders and not path.startswith(tuple(f + "/" for f in folders)):
            continue
        if suffixes and not path.endswith(suffixes):
            continue
        if (root / path).is_file():  # tracked files that were just deleted are still listed
            yield path


def text(root, path):
    """The content, or None for a binary file."""
    data = (Path(root) / path).read_bytes()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def strip_comments(source):
    """C++ without comments; line numbers stay, strings stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.S)
    return pattern.sub(lambda m: m.group() if m.group()[0] in "\"'" else re.sub(r"[^\n]", "", m.group()), source)


def is_kernel_file(path):
    """For one machine, ISA or vendor's library: by name, as CMake decides it too."""
    name = os.path.basename(path)
    return bool(re.match(r"(x86|sm\d+a?|cdna)_|cublaslt", name) or re.search(r"_(avx2|avx512|amx)", name))


def self_test(module):
    """Runs the cases in temporary trees; returns what did not behave."""
    wrong = []
    for title, tree, expected in module.CASES:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in tree.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode() if isinstance(content, str) else content)
                target.chmod(0o755 if target.read_bytes().startswith(b"#!") else 0o644)
            findings = module.check(Path(folder))
        if expected is None and findings:
            wrong.append(f"self-test '{title}': expected no finding, got {findings}")
        if expected is not None and not any(expected in f for f in findings):
            wrong.append(f"self-test '{title}': no finding has '{expected}'; got {findings}")
    if not any(expected for _, _, expected in module.CASES):
        wrong.append("self-test: no case shows that this check can fail")
    return wrong


def main(module):
    """`python3 tools/checks/NAME.py [--self-test]`."""
    try:
        findings = self_test(module) if "--self-test" in sys.argv else module.check(ROOT)
    except Skip as reason:
        print(f"skipped: {reason}")
        return 0
    for finding in findings:
        print(finding)
    return 1 if findings else 0
