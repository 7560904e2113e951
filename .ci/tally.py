"""Adds up the result files of all tiers: `tally.py NAME=FILE ...` prints `N passed, M failed, K skipped` as its last line.

A file is a GoogleTest JSON, a pytest JUnit XML, the JSON of tools/checks/run.py, or the lines of the fuzz replay. A tier
whose file is missing or that ran no test makes the exit status non-zero, as any failed test does; with --no-skips as the
first argument a skipped test does too.
"""
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def googletest(data):
    cases = [case for suite in data.get("testsuites", []) for case in suite.get("testsuite", [])]
    skipped = sum(case.get("result") in ("SKIPPED", "SUPPRESSED") or case.get("status") == "NOTRUN" for case in cases)
    failed = sum(bool(case.get("failures")) for case in cases)
    return len(cases) - skipped - failed, failed, skipped


def junit(path):
    suites = ElementTree.parse(path).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def counts(path):
    """(passed, failed, skipped) of one result file."""
    if path.suffix == ".xml":
        return junit(path)
    if path.suffix == ".txt":  # one line per fuzz target that got through; a crash stops the tier before its line
        lines = path.read_text().splitlines()
        passed = sum(": replayed " in line for line in lines)
        return passed, len(lines) - passed, 0
    data = json.loads(path.read_text())
    return googletest(data) if "testsuites" in data else (data["passed"], data["failed"], data["skipped"])


def main():
    total, wrong = [0, 0, 0], []
    arguments = sys.argv[1:]
    no_skips = arguments[:1] == ["--no-skips"]
    for argument in arguments[1:] if no_skips else arguments:
        name, _, file = argument.partition("=")
        try:
            tier = counts(Path(file))
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
            wrong.append(f"{name}: no usable result file: {error}")
            continue
        print(f"{name}: {tier[0]} passed, {tier[1]} failed, {tier[2]} skipped")
        total = [a + b for a, b in zip(total, tier)]
        if tier[0] + tier[1] == 0:
            wrong.append(f"{name}: ran no test")
        if no_skips and tier[2]:
            wrong.append(f"{name}: {tier[2]} skipped; expected none")
    for line in wrong:
        print(line)
    print(f"{total[0]} passed, {total[1] + len(wrong)} failed, {total[2]} skipped")
    return 1 if wrong or total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
