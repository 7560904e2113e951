"""The suites tune_cpu and tune_gpu of record.py: is what the tuner chooses the best there is, and what does it cost to find it?

For each problem of tune_problems.csv `eitri tune` tunes it, then `eitri tune --score` checks and times every config of every kernel, also of those that
the tuner leaves out since the cost model expects nothing of them (of products on a CPU those that it expects to be up to 8 times slower: the hundred
configs of the others would take minutes a problem). What is 1.5 times slower than the best after 3 rounds, or 1.15 times after 15, has no more rounds. At the
end the best three, the tuner's row and the default run 61 rounds side by side. Regret is the time of a choice over that of the best of those, less 1.

Seconds of a loop over every candidate: the same process start, tensors, reference and checks as the tuner's, and 101 times what one call of each
takes, or one sample of each, by rounds in which all ran. Set-up is what it takes for every candidate to be checked. Kernels of a GPU are compiled
by both, each beginning with an empty cache; compiler and libraries have been read from the disk before.
"""
import csv
import json
import os
import pathlib
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 101  # of --score. A sample on a CPU has one call, on a GPU a graph of them.
DEVICE = {"tune_cpu": "cpu", "tune_gpu": "cuda:0"}
PRUNE = {("tune_cpu", "gemm"): 8}  # of --score; 0 where nothing is said
CHUNK = {"tune_cpu": 4, "tune_gpu": 20}  # problems of one command
WAYS = ("loop_samples_s", "loop_calls_s", "loop_every_config_s")


def load(suite, subset, shard):
    """Problems of the suite by operator, in the file's order; `subset`: at most so many of each operator, or None; `shard`: (i, n) of i = 1 to n."""
    out = {}
    with open(HERE / "tune_problems.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["suite"] == suite and (subset is None or len(out.get(row["op"], [])) < subset):
                out.setdefault(row["op"], []).append(row)
    part, of = shard
    return {op: rows[part - 1::of] for op, rows in out.items()}


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
    out = {"problems": len(cases), "scored": len(scored), "gained": sum(c["status"] == "tuned" for c in scored)}
    for who in ("tuned", "guess"):
        sure = [c[f"regret_{who}"] if c[f"regret_{who}"] > c[f"interval_{who}"] else 0 for c in scored]
        out |= {f"regret_{who}_mean": round(mean(f"regret_{who}"), 5), f"regret_{who}_max": max(c[f"regret_{who}"] for c in scored),
                f"regret_{who}_beyond_noise_mean": round(sum(sure) / len(sure), 5)}
    return out | {"candidates_mean": round(mean("every_candidate"), 1), "configs_mean": round(mean("every_config"), 1), "tuner_s": round(seconds, 1)} \
        | {way: round(total(way), 1) for way in WAYS} | {f"times_{way[:-2]}": round(total(way) / seconds, 2) for way in WAYS}


def case_of(row, tuned, scored):
    """One line of the result: `tuned` and `scored` are what `eitri tune --json` says of the problem."""
    case = {"shape": row["shape"], "problem": row["problem"], "status": tuned["status"], "noisy": tuned["noisy"], "noise": tuned["noise"],
            "rejected": len(tuned["rejected"]) + len(scored["rejected"]), "tuned": f"{tuned['kernel']} {tuned['config']}".strip(),
            "guess": f"{tuned['default_kernel']} {tuned['default_config']}".strip(), "why": tuned["why"] or scored["why"]}
    if tuned["status"] not in ("tuned", "default is best") or "score" not in scored:
        return case
    score = scored["score"]
    best = score["best_us"]
    case |= {"best": f"{score['best_kernel']} {score['best_config']}".strip(), "best_us": best, "tuned_us": score["row_us"],
             "guess_us": score["default_us"], "regret_tuned": round(score["row_us"] / best - 1, 5), "interval_tuned": score["row_interval"],
             "regret_guess": round(score["default_us"] / best - 1, 5), "interval_guess": score["default_interval"],
             # The least of the single races, before the last one beside it.
             "first": f"{score['first_kernel']} {score['first_config']}".strip(), "first_us": score["first_us"],
             "candidates": tuned["candidates"], "slow": tuned["slow"], "every_candidate": len(score["every"]), "every_config": score["configs"],
             "every_us": {f"{t['kernel']} {t['config']}".strip(): t["us"] for t in score["every"]},
             "expected_us": {t["kernel"]: t["guess_us"] for t in score["every"]},  # by the cost model, each kernel with its guessed config
             "tuner_s": tuned["seconds"], "tuner_phases_s": tuned["phases_s"], "confirmed": tuned["confirmed"]}
    phases = scored["phases_s"]
    setup = phases["start"] + phases["inputs"] + phases["check"] + phases["ring"]
    each = {"loop_samples_s": score["round_us"], "loop_calls_s": score["every_us"], "loop_every_config_s": score["every_config_us"]}
    return case | {"loop_setup_s": round(setup, 3)} | {way: round(setup + ROUNDS * 1e-6 * us, 3) for way, us in each.items()}


def ask(eitri, folder, arguments, rows, cache):
    """What `eitri tune --json` says of each problem. `cache`: of compiled kernels; None: the usual one, which has a CPU's measured profile."""
    named = [word for row in rows for word in ("--problem", row["problem"])]
    environment = os.environ | ({} if cache is None else {"EITRI_CACHE_DIR": cache})
    done = subprocess.run([eitri, *arguments, *named, "--json"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    # 1: a problem could not be tuned; the answer says why.
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"eitri {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)["problems"]


def run(suite, eitri, threads, budget_s, subset, shard, known, save):
    """The result of the suite. A budget in seconds ends it between chunks; what is left out is counted. `known`: results of earlier runs, whose
    problems are not run again; `save(runs)` is called after each chunk."""
    start = time.monotonic()
    runs, problems = [], load(suite, subset, shard)
    earlier = {(r["op"], c["problem"]): c for result in known for r in result["runs"] if "op" in r for c in r["cases"] if "regret_tuned" in c}
    missing = {op: [r for r in rows if (op, r["problem"]) not in earlier] for op, rows in problems.items()}
    total = sum(map(len, missing.values()))
    with tempfile.TemporaryDirectory() as folder:
        for op, rows in problems.items():
            # Operators share the time by how many problems they have.
            share = sum(len(missing[o]) for o in [*[x["op"] for x in runs], op])
            until = start + (budget_s * share / total if total else 0)
            score = ["--score", str(ROUNDS), "--prune", str(PRUNE.get((suite, op), 0))]
            commands = [["--threads", str(threads), "tune", op, "--device", DEVICE[suite], "--out", "tuned", *mode] for mode in ([], score)]
            if DEVICE[suite] != "cpu" and missing[op]:
                ask(eitri, folder, [*commands[0][:-1], "warm-up"], [{"problem": "m=8,n=64,k=64"}], f"{folder}/cache-warm-up")
            done = {r["problem"]: earlier[op, r["problem"]] for r in rows if (op, r["problem"]) in earlier}
            runs.append({"op": op, "command": "eitri " + " ".join(commands[0]) + " --problem ... --json", "then": "the same with " + " ".join(score)})

            def close(into, rows=rows, done=done):
                cases = [done[r["problem"]] for r in rows if r["problem"] in done]
                into |= {"left_out": len(rows) - len(cases), "summary": summary(cases), "cases": cases}

            close(runs[-1])
            for at in range(0, len(missing[op]), CHUNK[suite]):
                if time.monotonic() > until:
                    break
                chunk = missing[op][at:at + CHUNK[suite]]
                caches = [None if DEVICE[suite] == "cpu" else f"{folder}/cache-{n}" for n in range(len(commands))]
                answers = [ask(eitri, folder, command, chunk, cache) for command, cache in zip(commands, caches, strict=True)]
                done |= {row["problem"]: case_of(row, tuned, scored) for row, tuned, scored in zip(chunk, *answers, strict=True)}
                close(runs[-1])
                print(f"{suite}: {op}: {len(done)} of {len(rows)}, {time.monotonic() - start:.0f} s", flush=True)
                save(runs)
    return runs


def table(runs):
    """The summary as lines of Markdown."""
    lines = ["| operator | problems | regret of tuned, mean | beyond noise | max | regret of guess, mean | beyond noise | max | tuner s "
             "| 101 samples of every candidate s | 101 calls s | 101 calls of every config s |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in runs:
        s = r["summary"]
        if s["scored"] == 0:
            lines.append(f"| {r['op']} | 0 of {s['problems'] + r['left_out']} | | | | | | | | | | |")
            continue
        percent = " | ".join(f"{100 * s[f'regret_{who}_{what}']:.2f} %" for who in ("tuned", "guess") for what in ("mean", "beyond_noise_mean", "max"))
        lines.append(f"| {r['op']} | {s['scored']} of {s['problems'] + r['left_out']} | {percent} | {s['tuner_s']} | "
                     + " | ".join(str(s[way]) for way in WAYS) + " |")
    return "\n".join(lines)
