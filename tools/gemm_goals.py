"""The goals of gemm on CPUs, and what one result file says of them: a section of docs/generated/performance.md."""
import json
import math

RESULT = "cpu-gemm-amx.json"


def fields(case):
    return dict(part.partition("=")[::2] for part in case["case"].split(","))


def cases_of(result):
    """(run, case, fields) of every case; a run is cold or warm, on so many threads."""
    for run in result["runs"]:
        words = run["command"].split()
        where = {"cold": "--cold" in words, "threads": int(words[words.index("--threads") + 1]), "dtype": words[words.index("--dtype") + 1] if "--dtype" in words else "",
                 "weights": words[words.index("--weights") + 1] if "--weights" in words else ""}
        for case in run["cases"]:
            yield where, case, fields(case)


def of_limit(where, case, field):
    return case["limit_fraction"]


def ratio(where, case, field):
    return case["ratio"]


def tera_per_core(where, case, field):
    return 2e-6 * int(field["m"]) * int(field["n"]) * int(field["k"]) / case["us"] / where["threads"]


def plain(dtype, cold, rows):
    return lambda where, field: not where["weights"] and where["dtype"] == dtype and where["cold"] == cold and int(field["m"]) in rows


def coded(cold, rows, weights=None):
    return lambda where, field: where["weights"] and where["cold"] == cold and int(field["m"]) in rows and weights in (None, where["weights"])


MANY, FEW = (256, 512, 1024, 4096), (1, 4, 8, 16)
CODES = ("f8e4m3:per_128x128", "f8e4m3:per_1x32", "i8:per_token", "i4:per_1x32", "i4:per_1x128", "f4e2m1:per_1x32", "f4e2m1:per_1x16")
# What is measured, its goal in words and as a number (for each case), which cases, the measure.
GOALS = [
    *(line for dtype, name, gain, mean, least in (("bf16", "bf16", 1.2, 1.5, 1.25), ("i8", "int8", 1.15, 3.0, 2.6)) for line in (
        (f"{name}, warm, m >= 256, over oneDNN", f">= {gain}", gain, plain(dtype, False, MANY), ratio),
        (f"{name}, warm, m >= 256, T{'FLOP' if dtype == 'bf16' else 'OP'}/s a core", f">= {mean} in the mean, none below {least}", least,
         plain(dtype, False, MANY), tera_per_core),
        (f"{name}, warm, m >= 256, share of the peak from registers", "", 0, plain(dtype, False, MANY), of_limit),
        *((f"{name}, cold, m = {m}, {what}", f">= {goal}", goal, plain(dtype, True, (m,)), measure)
          for m, read in ((32, 0.75), (64, 0.65)) for what, goal, measure in (("over oneDNN", 1.3, ratio), ("share of reading", read, of_limit))),
        (f"{name}, cold, m <= 16, over oneDNN", ">= 1.15", 1.15, plain(dtype, True, FEW), ratio),
        (f"{name}, cold, m <= 16, share of reading", ">= 0.85", 0.85, plain(dtype, True, FEW), of_limit),
        (f"{name}, warm, m <= 16, over oneDNN", ">= 0.97", 0.97, plain(dtype, False, FEW), ratio),
        (f"{name}, warm, m = 32, 64, over oneDNN", "", 0, plain(dtype, False, (32, 64)), ratio))),
    *((f"{weights}, cold, m = {m}, share of reading", ">= 0.8", 0.8, coded(True, (m,), weights), of_limit) for weights in CODES for m in FEW),
    *((f"{weights}, warm, m >= 256, of the rate with bf16 weights", ">= 0.85", 0.85, coded(False, MANY, weights), ratio) for weights in CODES),
]


def section(results):
    """Lines of the section; none without the file."""
    path = results / RESULT
    if not path.is_file():
        return []
    cases = list(cases_of(json.loads(path.read_text())))
    lines = ["## Goals of gemm on CPUs", "",
             f"Geometric mean, least and largest of the cases in `bench/results/{RESULT}`, and how many of them reach the goal. A share of reading or of the peak is "
             "of what was timed in the same rounds. [docs/performance.md](../performance.md) says what stops the others.", "",
             "| what | goal | mean | least | largest | reach it |", "|---|---|---|---|---|---|"]
    for what, words, least, wanted, measure in GOALS:
        values = [measure(where, case, field) for where, case, field in cases if wanted(where, field)]
        if not values:
            continue
        mean = math.exp(sum(map(math.log, values)) / len(values))
        reached = f"{sum(v >= least for v in values)} of {len(values)}" if least else ""
        lines.append(f"| {what} | {words} | {mean:.2f} | {min(values):.2f} | {max(values):.2f} | {reached} |")
    return [*lines, ""]
