#!/usr/bin/env python3
"""Writes docs/generated/performance.md from bench/results/*.json: every case of every run, the bad ones included.

    tools/performance_page.py [--check]    # make docs; --check: compare, write nothing
"""
import argparse
import json
import math
import pathlib
import sys

import gemm_goals
import moe_goals

ROOT = pathlib.Path(__file__).resolve().parents[1]
INTRODUCTION = """# Measured

Written by `tools/performance_page.py` (`make docs`) from the files in `bench/results/`: every case of every run. How to read and repeat it:
[docs/performance.md](../performance.md).
"""


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def split_case(text):
    return [part.partition("=")[::2] for part in text.split(",")]


def shared_fields(cases):
    """Fields that all cases have with one value: said once."""
    first, *rest = [dict(split_case(case)) for case in cases]
    return {name: value for name, value in first.items() if rest and all(other.get(name) == value for other in rest)}


def short(case, shared):
    left = [f"{name}={value}" if value else name for name, value in split_case(case) if name not in shared]
    return ", ".join(left) or "the same"


def intro(cases):
    shared = shared_fields(cases)
    return shared, f"All cases: {', '.join(f'{n}={v}' for n, v in shared.items())}." if shared else ""


def compared(cases):
    """Cases with a rival, measured in turns."""
    shared, said = intro([case["case"] for case in cases])
    rivals = sorted({case["vs"] for case in cases})
    lines = [f"{said} vs: {', '.join(rivals)}.".strip(), "", "| case | kernel | us | vs us | ratio | of limit |", "|---|---|---|---|---|---|"]
    for case in cases:
        limit = f"{100 * case['limit_fraction']:.0f} %" if "limit_fraction" in case else "-"  # some scripts know no limit
        lines.append(f"| {short(case['case'], shared)} | {case['kernel']} | {number(case['us'])} | {number(case['vs_us'])} | {case['ratio']:.2f} | {limit} |")
    mean = math.exp(sum(math.log(case["ratio"]) for case in cases) / len(cases))
    ratios = [case["ratio"] for case in cases]
    lines.append(f"| **geometric mean** of {len(cases)}; {min(ratios):.2f} to {max(ratios):.2f} | | | | **{mean:.2f}** | |")
    return lines


def alone(cases):
    """Cases without a rival."""
    shared, said = intro([case["case"] for case in cases])
    lines = [said, "", "| case | kernel | us | of limit |", "|---|---|---|---|"]
    for case in cases:
        lines.append(f"| {short(case['case'], shared)} | {case['kernel']} | {number(case['us'])} | {100 * case['limit_fraction']:.0f} % |")
    return lines


def timed_rows(rows):
    """Rows of `eitri bench OP`."""
    shared, said = intro([row["problem"] for row in rows])
    lines = [said, "", "| case | kernel | us | TB/s | TFLOP/s |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {short(row['problem'], shared)} | {row['kernel']} | {number(row['median_us'])} | {row['tb_per_s']:.2f} | {number(row['tflop_per_s'])} |")
    return lines


def prebuilt(case):
    lines = ["| target | kernels | compiled | failed | median s | largest s |", "|---|---|---|---|---|---|"]
    for t in case["targets"]:
        lines.append(f"| {t['target']} | {t['kernels']} | {t['compiled']} | {t['failed']} | {t['median_s']:.2f} | {t['max_s']:.2f} |")
    return lines


def tuned(problems):
    shared, said = intro([p["problem"] for p in problems])
    lines = [said, "", "| problem | found | us | default us | gain |", "|---|---|---|---|---|"]
    for p in problems:
        if p["us"] == 0:
            lines.append(f"| {short(p['problem'], shared)} | {p['status']} | | | |")
            continue
        lines.append(f"| {short(p['problem'], shared)} | {p['status']} | {number(p['us'])} | {number(p['default_us'])} | {100 * p['gain']:.1f} % |")
    return lines


def scored(cases):
    shared, said = intro([c["problem"] for c in cases])
    lines = [said + " Regret: the time of a choice over that of the best candidate, less 1.", "",
             "| problem | best | us | regret of tuned | of guess | tuner s | every candidate s |", "|---|---|---|---|---|---|---|"]
    for c in cases:
        if "regret_tuned" not in c:
            lines.append(f"| {short(c['problem'], shared)} | {c['status']}: {c['why']} | | | | | |")
            continue
        lines.append(f"| {short(c['problem'], shared)} | {c['best']} | {number(c['best_us'])} | {100 * c['regret_tuned']:.1f} % | {100 * c['regret_guess']:.1f} % | "
                     f"{number(c['tuner_s'])} | {number(c['loop_samples_s'])} |")
    return lines


def guessed(cases):
    """Problems without their own row, from `eitri tune regret`."""
    shared, said = intro([c["problem"] for c in cases])
    lines = [said + " Regret: the time of what the rows around the problem choose over that of the best candidate, less 1.", "",
             "| problem | chosen | best | regret | of the default |", "|---|---|---|---|---|"]
    for c in cases:
        lines.append(f"| {short(c['problem'], shared)} | {c['chosen']} | {c['best']} | {100 * c['regret']:.1f} % | {100 * c['default_regret']:.1f} % |")
    return lines


def raced(cases):
    """Rows of a table against each other, and against what the cost models expect."""
    shared, said = intro([c["case"] for c in cases])
    lines = [said + " Regret: the time of the row that is expected to be fastest over that of the fastest, less 1.", "",
             "| case | best | us | guess | regret | each: us, expected us |", "|---|---|---|---|---|---|"]
    for c in cases:
        each = "; ".join(f"{r['kernel']} {number(r['us'])}, {number(r['expected_us'])}" for r in c["raced"])
        lines.append(f"| {short(c['case'], shared)} | {c['best']} | {number(c['best_us'])} | {c['guess']} | {100 * c['guess_regret']:.1f} % | {each} |")
    mean = math.exp(sum(math.log1p(c["guess_regret"]) for c in cases) / len(cases))
    lines.append(f"| **geometric mean** of {len(cases)} | | | | **{100 * (mean - 1):.1f} %** | |")
    return lines


def named(values, unit):
    lines = [f"| way | {unit} |", "|---|---|"]
    lines += [f"| {name} | {number(value)} |" for name, value in sorted(values.items(), key=lambda item: item[1])]
    return lines


def run_lines(run):
    """One run's table; an unknown form is an error, so that no result is dropped in silence."""
    cases = run.get("cases") or run.get("problems")
    if not cases:
        return [f"No case was measured; {run['left_out']} left out."]
    first = cases[0]
    if "vs_us" in first:
        return compared(cases) if first["vs"] else alone(cases)
    if "raced" in first:
        return raced(cases)
    if "rows" in first:
        return timed_rows([row for case in cases for row in case["rows"]])
    if "targets" in first:
        return prebuilt(first)
    if "default_us" in first:
        return tuned(cases)
    if "chosen" in first:
        means = run["summary"]
        return [*guessed(cases), "", f"Means: regret {100 * means['mean']:.2f} % ({100 * means['beyond_noise_mean']:.2f} % beyond noise), "
                f"of the default {100 * means['default_mean']:.2f} %."]
    if "regret_tuned" in first:
        left = f" {run['left_out']} problems were left out for time." if run["left_out"] else ""
        means = run["summary"]
        return [*scored(cases), "", f"Means: regret of tuned {100 * means['regret_tuned_mean']:.2f} %, of guess {100 * means['regret_guess_mean']:.2f} %.{left}"]
    raise ValueError(f"unknown form of a case: {sorted(first)}")


def machine(result):
    doctor = result.get("doctor", {})
    gpus = [gpu["name"] for gpu in doctor.get("cuda", {}).get("devices", [])] if "cuda" in doctor else []
    profile = doctor.get("profile", {})
    parts = [result.get("device") or result.get("processor") or doctor.get("device", "unknown machine")]
    if gpus:
        parts.append(", ".join(gpus))
    if doctor:
        parts.append(f"{doctor['isa']}, {doctor['threads']} threads")
    if profile.get("measured"):
        parts.append(f"{profile['bf16_gflop_s'] / 1e3:.2f} TFLOP/s bf16, {profile['i8_gop_s'] / 1e3:.2f} TOP/s int8, {profile['read_gb_s']:.1f} GB/s read")
    for name in ("torch", "driver"):
        if result.get(name):
            parts.append(f"{name} {result[name]}")
    return "; ".join(parts)


def command_of(run, result):
    command = run.get("command") or f"eitri tune {run['op']} …"
    return command if len(command) < 300 else command[:command.index(" --problem")] + " --problem …  (all of them: in the file)"


def file_lines(path):
    result = json.loads(path.read_text())
    lines = [f"## {path.stem}", "", f"`bench/results/{path.name}`: {machine(result)}. {result['date'][:10]}"
             + (f", commit {result['commit'][:7]}" if "commit" in result else "") + "."]
    if "made_by" in result:
        lines[-1] += f" Made by: {result['made_by']}."
    if "ns" in result:
        return [*lines, "", f"`{result['command']}`, {result['unit']}.", "", *named(result["ns"], "ns"), ""]
    if "us" in result:
        return [*lines, "", f"`{result['command']}`, {result['unit']}.", "", *named(result["us"], "us"), ""]
    for run in result.get("runs") or [{"command": "the cases above", "cases": result["cases"]}]:
        lines += ["", f"### `{command_of(run, result)}`" if "runs" in result else "### Cases", "", *run_lines(run)]
    return [*lines, ""]


def page(root):
    lines = [INTRODUCTION, *gemm_goals.section(root / "bench/results"), *moe_goals.section(root / "bench/results")]
    for path in sorted((root / "bench/results").glob("*.json")):
        lines += file_lines(path)
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text, target = page(ROOT), ROOT / "docs/generated/performance.md"
    if not options.check:
        target.write_text(text)
    elif not target.is_file() or target.read_text() != text:
        sys.exit("docs/generated/performance.md differs from what bench/results/ says; run make docs")


if __name__ == "__main__":
    main()
