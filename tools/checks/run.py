"""Runs all checks and the self-test of each. One line per check, findings below it, a count at the end.

--fast            leave out what compiles or needs a build
--require-built   a check that is skipped counts as failed (for CI, where everything is built)
--json FILE       counts for machines
"""
import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import repo

FAST = ["include_chain", "file_budgets", "vendor_words", "docs_paths", "no_absolute_paths", "names", "settings", "unfinished"]
SLOW = ["header_self_containment", "isa_symbols", "docs_fresh"]


def run_one(name, require_built):
    """("passed" | "failed" | "skipped", lines to show)."""
    module = importlib.import_module(name)
    wrong = repo.self_test(module)
    if wrong:
        return "failed", wrong
    try:
        findings = module.check(repo.ROOT)
    except repo.Skip as reason:
        return ("failed" if require_built else "skipped"), [str(reason)]
    return ("failed" if findings else "passed"), findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--require-built", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    names = FAST + ([] if options.fast else SLOW)
    unlisted = {p.stem for p in Path(__file__).parent.glob("*.py")} - {"run", "repo"} - set(FAST + SLOW)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names + sorted(unlisted):
        start = time.monotonic()
        state, lines = run_one(name, options.require_built)
        counts[state] += 1
        print(f"check {name}: {state} ({time.monotonic() - start:.1f} s)", flush=True)
        for line in lines[:40]:
            print(f"  {line}")
        if len(lines) > 40:
            print(f"  … and {len(lines) - 40} more")
    print(f"checks: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps(counts) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
