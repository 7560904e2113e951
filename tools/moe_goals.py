"""The goals of fused_moe on CPUs, and what two result files say of them: a section of docs/generated/performance.md."""
import json
import math

RESULT, BESIDE_TORCH = "cpu-moe-amx.json", "moe-beside-torch-amx.json"


def fields(case):
    return dict(part.partition("=")[::2] for part in case["case"].split(","))


def cases_of(path):
    if not path.is_file():
        return []
    return [(case, fields(case)) for run in json.loads(path.read_text())["runs"] for case in run["cases"]]


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def section(results):
    """Lines of the section; none without the file."""
    cases, beside = cases_of(results / RESULT), cases_of(results / BESIDE_TORCH)
    if not cases:
        return []
    timed = {(field["quant"], int(field["tokens"]), bool(case.get("vs"))): case for case, field in cases if "limit_fraction" in case}
    lines = ["## Goals of fused_moe on CPUs", "",
             f"Qwen3-30B-A3B, two threads, from `bench/results/{RESULT}` and `{BESIDE_TORCH}`. A share of reading is of plain reads of the same experts' weights in the "
             "same rounds. [docs/performance.md](../performance.md) says what stops what does not reach its goal.", "",
             "| what | goal | measured | reached |", "|---|---|---|---|"]

    def line(what, goal, value, reached):
        lines.append(f"| {what} | {goal} | {value} | {'yes' if reached else 'no'} |")

    plain = min((case["us"] for (quant, tokens, _), case in timed.items() if (quant, tokens) == ("none", 1)), default=None)
    for quant, least in (("none", 0.9), ("int8", 0.9), ("f8e4m3:per_128x128", 0.9), ("f8e4m3:per_1x32", 0.9), ("i8:per_token", 0.9),
                         ("f4e2m1:per_1x32", 0.77), ("f4e2m1:per_1x16", 0.77), ("i4:per_1x32", 0.77), ("i4:per_1x128", 0.77)):
        case = timed.get((quant, 1, False))
        if case is None:
            continue
        line(f"1 token, {'bf16' if quant == 'none' else quant}, share of reading", f">= {least}", f"{case['limit_fraction']:.2f}", case["limit_fraction"] >= least)
        if least == 0.77 and plain is not None:
            gain = plain / case["us"]
            line(f"1 token, {quant}, over our bf16", ">= 3", f"{gain:.2f}", gain >= 3)
    for quant, least in (("none", (1.25, 1.45, 1.45)), ("int8", (1.3, 1.6, 1.8))):
        for tokens, goal in zip((256, 1024, 4096), least):
            case = timed.get((quant, tokens, True))
            if case is not None:
                line(f"{tokens} tokens, {'bf16' if quant == 'none' else quant}, over the loop of our library rows", f">= {goal}", f"{case['ratio']:.2f}", case["ratio"] >= goal)
            newer = next((c for c, field in beside if quant == "none" and int(field["tokens"]) == tokens), None)
            if newer is not None:
                line(f"{tokens} tokens, bf16, over a loop of torch's oneDNN", f">= {goal}", f"{newer['ratio']:.2f}", newer["ratio"] >= goal)
    regrets = [1 + case["guess_regret"] for case, _ in cases if "guess_regret" in case]
    if regrets:
        line(f"the row that the cost models choose over the best, {len(regrets)} cases, geometric mean", "<= 1.05", f"{mean(regrets):.3f}", mean(regrets) <= 1.05)
    return [*lines, ""]
