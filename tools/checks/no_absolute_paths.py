"""No path of somebody's machine stands in a tracked file."""
import re
import sys

import repo

FOLDERS = ("home", "root", "work", "Users")
PATTERN = re.compile(r"(?<![\w.\-/$}])/(?:" + "|".join(FOLDERS) + r")/(?!me\b)\w")  # "me" is the user of examples and tests


def check(root):
    findings = []
    for path in repo.files(root):
        content = repo.text(root, path)
        for number, line in enumerate((content or "").splitlines(), 1):
            match = PATTERN.search(line)
            if match:
                findings.append(f"{path}:{number}: absolute path '{line[match.start():match.start() + 30].split()[0]}…'")
    return findings


CASES = [
    ("relative", {"a.md": "src/work/x, $ROOT/home/x, http://host/home/x, /home/me/.cache"}, None),
    ("absolute", {"a.py": "open('" + "/home" + "/ann/x')"}, "a.py:1"),
    ("at the start", {"a.txt": "\n" + "/root" + "/x"}, "a.txt:2"),
    ("binary", {"a.bin": b"\0/" + b"home/x"}, None),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
