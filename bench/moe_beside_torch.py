#!/usr/bin/env python3
"""fused_moe against a loop over the experts that multiplies with PyTorch's oneDNN, in one process and in turns.

    make build test-frameworks
    PYTHONPATH=build/python build/venv-frameworks/bin/python bench/moe_beside_torch.py --threads 2 --json FILE

The peer is what one would write around torch: gather an expert's rows, a product with weights that oneDNN has reordered (as torch.compile does
it for linear layers), SiLU and product, the second product, a weighted addition. Its oneDNN is the one that the wheel brings, newer than that of
our own library rows. bf16, the shapes of Qwen3-30B-A3B, other routing in each of five calls. Both sides' memory is asked to be on huge pages: the script starts itself
again with THP_MEM_ALLOC_ENABLE=1 and GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HUGE = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
HIDDEN, INTER, TOP_K = 2048, 768, 8


def routing(torch, tokens, experts, seed):
    """Distinct experts, drawn evenly, and their weights; and for the loop the tokens, slots and weights by expert."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, experts, generator=generator).topk(TOP_K).indices.int()
    weights = torch.full((tokens, TOP_K), 1 / TOP_K)
    lists = []
    for expert in range(experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        if token.numel() > 0:
            lists.append((expert, token, weights[token, slot].bfloat16().unsqueeze(1)))
    return ids, weights, lists


def measure(options):
    import torch

    import eitri

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    ops = torch.ops.mkldnn

    def weights_of(n, k):
        return [(torch.randn(n, k) * k**-0.5).bfloat16() for _ in range(options.experts)]

    def reordered(weights, rows):
        return [ops._reorder_linear_weight(w, rows) for w in weights]

    w1, w2 = weights_of(2 * INTER, HIDDEN), weights_of(HIDDEN, INTER)
    packed1 = eitri.pack_weights(torch.stack(w1), gate="separated")
    packed2 = eitri.pack_weights(torch.stack(w2))
    cases = []
    for tokens in options.tokens:
        rows = max(1, tokens * TOP_K // options.experts)
        theirs1, theirs2 = reordered(w1, rows), reordered(w2, rows)
        x = torch.randn(tokens, HIDDEN).bfloat16()
        ours, theirs = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16), torch.empty(tokens, HIDDEN, dtype=torch.bfloat16)
        routings = [routing(torch, tokens, options.experts, seed) for seed in range(5)]

        def eitri_call(i):
            ids, weights, _ = routings[i % len(routings)]
            eitri.fused_moe(x, packed1, packed2, weights, ids, out=ours)

        def torch_call(i):
            theirs.zero_()
            for expert, token, weight in routings[i % len(routings)][2]:
                both = ops._linear_pointwise(x[token], theirs1[expert], None, "none", [], "")
                h = torch.nn.functional.silu(both[:, :INTER]) * both[:, INTER:]
                theirs.index_add_(0, token, ops._linear_pointwise(h, theirs2[expert], None, "none", [], "") * weight)

        times = {eitri_call: [], torch_call: []}
        with torch.no_grad():
            for call in times:
                call(0)
            off = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
            assert off < 0.05, f"results differ by {off} of the largest"
            for i in range(options.rounds):
                for call, us in times.items():
                    call(i)  # wakes the pool, and pushes the other's lines out
                    start = time.perf_counter()
                    call(i + 1)
                    us.append((time.perf_counter() - start) * 1e6)
        us, vs = (statistics.median(t) for t in times.values())
        case = f"model=qwen3-30b-a3b,experts={options.experts},tokens={tokens},quant=none"
        cases.append({"op": "fused_moe", "case": case, "kernel": "fused_moe", "us": round(us, 1), "vs": "a loop of torch's oneDNN matmuls",
                      "vs_us": round(vs, 1), "ratio": round(vs / us, 4), "largest_difference": round(float(off), 5)})
        print(f"{case}: {us:.0f} us, torch {vs:.0f} us, ratio {vs / us:.2f}", flush=True)
        write(options, torch, cases)


def write(options, torch, cases):
    """After every case: a run that is cut short leaves what it has measured."""
    if options.json is None:
        return
    config = torch.__config__.show()
    onednn = next((line.strip(" -") for line in config.splitlines() if "MKL-DNN" in line or "oneDNN" in line), "")
    model = next((line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    git = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    report = {"date": datetime.date.today().isoformat(), "commit": options.commit or git.stdout.strip(), "processor": f"{model}, {options.threads} threads",
              "torch": f"{torch.__version__} with {onednn}", "load_average": [round(x, 2) for x in os.getloadavg()],
              "runs": [{"command": f"bench/moe_beside_torch.py --threads {options.threads} --experts {options.experts} --tokens "
                        f"{','.join(map(str, options.tokens))} --rounds {options.rounds}", "cases": cases}]}
    pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tokens", type=lambda text: [int(part) for part in text.split(",")], default=[256, 1024, 4096])
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", help="where there is no git folder: the commit of the sources")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    wanted = {**HUGE, "OMP_NUM_THREADS": str(options.threads)}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    measure(options)


if __name__ == "__main__":
    main()
