"""The suites tune_cpu and tune_gpu of record.py: is what the tuner chooses the best there is, and what does it cost to find it?

For each problem of tune_problems.csv `eitri tune` tunes it, then `eitri tune --score` checks and times every config of every kernel that the cost
model does not expect to be 8 times slower, and at the end the best of them, the tuner's row and the default side by side. Regret is the time
of a choice over that of the best, less 1. Seconds of the loop over every candidate count the same process starts, tensors, references and checks
as those of the tuner, but not that last comparison.
"""
import csv
import json
import pathlib
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 101  # of --score. A sample on a CPU has one call, on a GPU a graph of them.
DEVICE = {"tune_cpu": "cpu", "tune_gpu": "cuda:0"}
CHUNK = 5  # problems of one command


def load(suite, subset):
    """Problems of the suite by operator, in the file's order; `subset`: at most so many of each operator, or None."""
    out = {}
    with open(HERE / "tune_problems.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["suite"] == suite and (subset is None or len(out.get(row["op"], [])) < subset):
                out.setdefault(row["op"], []).append(row)
    return out


def summary(cases):
    """Regret in the mean and at worst, seconds of both ways."""
    scored = [c for c in cases if "regret_tuned" in c]
    if not scored:
        return {"problems": len(cases), "scored": 0}

    def mean(name):
        return sum(c[name] for c in scored) / len(scored)

    def total(name):
        return sum(c[name] for c in scored)

    seconds = total("tuner_s")
    ways = ("exhaustive_s", "exhaustive_101_calls_s", "listed_101_calls_s")
    return {"problems": len(cases), "scored": len(scored), "gained": sum(c["status"] == "tuned" for c in scored),
            "regret_tuned_mean": round(mean("regret_tuned"), 5), "regret_tuned_max": max(c["regret_tuned"] for c in scored),
            "regret_guess_mean": round(mean("regret_guess"), 5), "regret_guess_max": max(c["regret_guess"] for c in scored),
            "candidates_mean": round(mean("every_candidate"), 1), "configs_mean": round(mean("every_config"), 1), "loops_run_in_full": total("complete"),
            "tuner_s": round(seconds, 1)} | {way: round(total(way), 1) for way in ways} | {f"times_{way[:-2]}": round(total(way) / seconds, 2) for way in ways}


def case_of(row, tuned, scored):
    """One line of the result: `tuned` and `scored` are what `eitri tune --json` says of the problem."""
    case = {"shape": row["shape"], "problem": row["problem"], "status": tuned["status"], "noisy": tuned["noisy"], "noise": tuned["noise"],
            "rejected": len(tuned["rejected"]) + len(scored["rejected"]), "tuned": f"{tuned['kernel']} {tuned['config']}".strip(),
            "guess": f"{tuned['default_kernel']} {tuned['default_config']}".strip(), "why": tuned["why"] or scored["why"]}
    if tuned["status"] not in ("tuned", "default is best") or "score" not in scored:
        return case
    score = scored["score"]
    case |= {"best": f"{score['best_kernel']} {score['best_config']}".strip(), "best_us": score["best_us"], "tuned_us": score["row_us"],
             "guess_us": score["default_us"], "regret_tuned": round(score["row_us"] / score["best_us"] - 1, 5),
             "regret_guess": round(score["default_us"] / score["best_us"] - 1, 5), "candidates": tuned["candidates"], "every_candidate": score["timed"],
             "every_config": score["configs"], "tuner_s": tuned["seconds"], "tuner_phases_s": tuned["phases_s"], "confirmed": tuned["confirmed"]}
    phases = scored["phases_s"]
    setup = phases["start"] + phases["inputs"] + phases["check"] + phases["ring"]
    # 101 samples of each as it ran, or what that would take; 101 calls; 101 calls of each config that knobs list, also of those that do the same.
    calls = setup + ROUNDS * 1e-6 * score["every_us"]
    return case | {"complete": score["complete"], "exhaustive_s": round(setup + phases["race"] if score["complete"] else calls, 3),
                   "exhaustive_101_calls_s": round(calls, 3), "listed_101_calls_s": round(setup + ROUNDS * 1e-6 * score["every_config_us"], 3)}


def run(suite, eitri, threads, budget_s, subset):
    """The result of the suite. A budget in seconds ends it between chunks; what is left out is counted."""
    start = time.monotonic()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        problems = load(suite, subset)
        total = sum(map(len, problems.values()))
        for op, rows in problems.items():
            # Operators share the time by how many problems they have.
            until = start + budget_s * sum(len(r) for o, r in problems.items() if o in [*[x["op"] for x in runs], op]) / total
            cases, command = [], ""
            for at in range(0, len(rows), CHUNK):
                if time.monotonic() > until:
                    break
                chunk = rows[at:at + CHUNK]
                answers = []
                for mode in ([], ["--score", str(ROUNDS)]):
                    arguments = ["--threads", str(threads), "tune", op, "--device", DEVICE[suite], "--out", "tuned", *mode]
                    command = command or "eitri " + " ".join(arguments) + " --problem ... --json"
                    for row in chunk:
                        arguments += ["--problem", row["problem"]]
                    # 1: a problem could not be tuned; the answer says why.
                    done = subprocess.run([eitri, *arguments, "--json"], cwd=folder, capture_output=True, text=True, check=False)
                    if done.returncode not in (0, 1) or not done.stdout:
                        raise SystemExit(f"eitri {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
                    answers.append(json.loads(done.stdout)["problems"])
                cases += [case_of(*three) for three in zip(chunk, *answers, strict=True)]
                print(f"{suite}: {op}: {len(cases)} of {len(rows)}, {time.monotonic() - start:.0f} s", flush=True)
            runs.append({"op": op, "command": command, "then": f"the same with --score {ROUNDS}", "left_out": len(rows) - len(cases),
                         "summary": summary(cases), "cases": cases})
    return runs


def table(runs):
    """The summary as lines of Markdown."""
    lines = ["| operator | problems | regret of tuned, mean | max | regret of guess, mean | max | tuner s | every candidate s | 101 calls s | 101 calls of every config s |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in runs:
        s = r["summary"]
        if s["scored"] == 0:
            lines.append(f"| {r['op']} | 0 of {s['problems']} | | | | | | | | |")
            continue
        percent = " | ".join(f"{100 * s[name]:.2f} %" for name in ("regret_tuned_mean", "regret_tuned_max", "regret_guess_mean", "regret_guess_max"))
        lines.append(f"| {r['op']} | {s['scored']} of {s['problems'] + r['left_out']} | {percent} | {s['tuner_s']} | {s['exhaustive_s']} | "
                     f"{s['exhaustive_101_calls_s']} | {s['listed_101_calls_s']} |")
    return "\n".join(lines)
