"""The command as a user meets it: answers on stdout, reasons on stderr, exit codes. Python's standard library and pytest."""

import json
import os
import pathlib
import shutil
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("EITRI_BIN", ROOT / "build/bin/eitri"))
TINY = {
    "name": "tiny", "hidden": 64, "inter": 48, "experts": 8, "top_k": 2, "shared_inter": 32, "activation": {"kind": "silu"},
    "router": {"score": "sigmoid", "renormalize": True, "scale": 2.5, "groups": 4, "topk_groups": 2, "correction_bias": True},
}
RUN_KEYS = ["model", "tokens", "quant", "device", "threads", "steps", "total_us", "limit_fraction", "max_error_ratio", "ok"]
STEP_KEYS = ["op", "kernel", "family", "us", "gb_s", "gflop_s", "limit_fraction"]
BENCH_KEYS = ["op", "case", "kernel", "us", "vs", "vs_us", "ratio", "limit_fraction"]

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("EITRI_")}

pytestmark = pytest.mark.skipif(not COMMAND.is_file(), reason=f"{COMMAND} is not built")


def eitri(*arguments):
    done = subprocess.run([str(COMMAND), *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def answer(*arguments):
    code, out, err = eitri(*arguments)
    assert code == 0, err
    assert err == ""
    return out


def refusal(*arguments):
    """What is wrong with an argument: exit code 2, nothing on stdout."""
    code, out, err = eitri(*arguments)
    assert code == 2, f"exit code {code}: {out} {err}"
    assert out == ""
    return err


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def write_hidden_states(path, rows, columns, dtype="BF16"):
    size = rows * columns * (2 if dtype == "BF16" else 4)
    header = json.dumps({"hidden_states": {"dtype": dtype, "shape": [rows, columns], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    values = b"".join(struct.pack("<H", 0x3F80 + i % 200) for i in range(size // 2))
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_moe_run_json(tiny, quant):
    report = json.loads(answer("moe", "run", "--model", tiny, "--tokens", 5, "--quant", quant, "--threads", 1, "--json"))
    assert list(report) == RUN_KEYS
    assert (report["model"], report["tokens"], report["quant"], report["threads"], report["ok"]) == ("tiny", 5, quant, 1, True)
    assert 0 < report["max_error_ratio"] <= 1
    assert all(list(step) == STEP_KEYS for step in report["steps"])
    assert [step["op"] for step in report["steps"]][:3] == ["gemm", "topk_gating", "fused_moe"]
    assert sum(step["us"] for step in report["steps"]) == pytest.approx(report["total_us"], rel=0.5)


def test_moe_run_table_and_same_seed(tiny, tmp_path):
    out = answer("moe", "run", "--model", tiny, "--tokens", 3, "--threads", 1, "--output", tmp_path / "a.safetensors")
    assert out.splitlines()[0].split()[:4] == ["step", "kernel", "family", "us"]
    assert out.splitlines()[-1].endswith("ok")
    answer("moe", "run", "--model", tiny, "--tokens", 3, "--threads", 1, "--output", tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_moe_run_input(tiny, tmp_path):
    path = tmp_path / "x.safetensors"
    write_hidden_states(path, 4, 64)
    assert json.loads(answer("moe", "run", "--model", tiny, "--input", path, "--json"))["tokens"] == 4
    assert "--tokens is 5" in refusal("moe", "run", "--model", tiny, "--input", path, "--tokens", 5)
    write_hidden_states(path, 4, 63)
    assert "BF16[4, 63]; expected [tokens, 64]" in refusal("moe", "run", "--model", tiny, "--input", path)
    write_hidden_states(path, 4, 64, "F32")
    assert "is F32[4, 64]; expected bf16" in refusal("moe", "run", "--model", tiny, "--input", path)
    path.write_bytes(b"short")
    assert "is 5 bytes long; expected at least 8" in refusal("moe", "run", "--model", tiny, "--input", path)


def test_forced_kernel_is_used(tiny):
    report = json.loads(answer("moe", "run", "--model", tiny, "--tokens", 2, "--force", "gemm=gemm.reference", "--json"))
    assert report["steps"][0]["kernel"] == "gemm.reference"
    assert report["steps"][0]["family"] == "reference"


def test_isa_is_used(tiny):
    report = json.loads(answer("--isa", "portable", "moe", "run", "--model", tiny, "--tokens", 2, "--json"))
    assert "(portable)" in report["device"]
    assert all("x86" not in step["kernel"] for step in report["steps"])


def test_bench_times_no_calls_that_are_compared(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "EITRI_CHECK", "1")
    assert "EITRI_CHECK is set" in refusal("bench", "rmsnorm")


def test_moe_bench(tiny):
    lines = answer("moe", "bench", "--model", tiny, "--tokens", "1,4", "--warm", "--budget-ms", 5, "--json").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [BENCH_KEYS] * 2
    assert [row["case"] for row in rows] == ["model=tiny,tokens=1,quant=none", "model=tiny,tokens=4,quant=none"]
    assert all(row["us"] > 0 and row["vs"] is None for row in rows)


@pytest.mark.parametrize("weights", ["i4:per_1x32", "f4e2m1:per_1x16", "f8e4m3:per_tensor"])
def test_moe_bench_of_codes(tiny, weights):
    line = answer("moe", "bench", "--model", tiny, "--weights", weights, "--tokens", "2", "--warm", "--budget-ms", 5, "--json")
    case = json.loads(line)
    assert f"quant={weights}" in case["case"] and case["us"] > 0


def test_moe_bench_of_rows(tiny):
    arguments = ["moe", "bench", "--model", tiny, "--tokens", "1,4", "--warm", "--budget-ms", 5, "--vs", "rows"]
    for line in answer(*arguments, "--json").splitlines():
        case = json.loads(line)
        assert len(case["raced"]) >= 2 and all(row["us"] > 0 and row["expected_us"] > 0 for row in case["raced"])
        best, guess = (min(case["raced"], key=lambda row: row[key]) for key in ("us", "expected_us"))
        assert (best["kernel"], guess["kernel"]) == (case["best"], case["guess"])
        assert case["guess_regret"] == pytest.approx(guess["us"] / best["us"] - 1)
    assert "in the geometric mean of 2 cases" in answer(*arguments).splitlines()[-1]


def test_gemm_bench(tmp_path):
    arguments = ["gemm", "bench", "--m", "1,3", "--n", "64", "--k", "96", "--budget-ms", 2]
    rows = [json.loads(line) for line in answer(*arguments, "--json", "--vs", "gemm.reference").splitlines()]
    assert [list(row) for row in rows] == [BENCH_KEYS] * 2
    assert rows[0]["case"] == "m=1,n=64,k=96,a=bf16,c=bf16"
    assert rows[0]["vs"] == "gemm.reference" and rows[0]["ratio"] == pytest.approx(rows[0]["vs_us"] / rows[0]["us"])
    # A case can be pasted into explain, and the default output ends with the mean.
    assert rows[0]["kernel"] in answer("explain", "gemm", rows[0]["case"])
    assert answer(*arguments, "--dtype", "i8", "--vs", "gemm.reference").splitlines()[-1].startswith("geometric mean of the ratios over 2 cases")
    shapes = tmp_path / "shapes.csv"
    shapes.write_text('layer,n,k\n"a, b",32,64\n')
    assert json.loads(answer("gemm", "bench", "--shapes", shapes, "--m", "2", "--budget-ms", 2, "--json"))["case"].startswith("m=2,n=32,k=64")
    shapes.write_text("layer,n\nx,32\n")
    assert "expected a header with the columns n and k" in refusal("gemm", "bench", "--shapes", shapes)
    shapes.write_text("n,k\n32,x\n")
    assert "shapes.csv:2" in refusal("gemm", "bench", "--shapes", shapes)


def test_gemm_bench_of_weights_of_few_bits():
    lines = answer("gemm", "bench", "--m", "1,3", "--n", "64", "--k", "128", "--weights", "i4:per_1x32", "--vs", "plain", "--budget-ms", "1",
                   "--json").splitlines()
    cases = [json.loads(line) for line in lines]
    assert [case["case"] for case in cases] == [f"m={m},n=64,k=128,a=bf16,c=bf16,b_quant=per_1x32,b=i4" for m in (1, 3)]
    assert cases[0]["kernel"] in answer("explain", "gemm", cases[0]["case"])
    assert all(case["vs_us"] > 0 for case in cases)
    assert "expected DTYPE:QUANT" in refusal("gemm", "bench", "--weights", "i4")
    assert "does not go with" in refusal("gemm", "bench", "--m", "1", "--n", "64", "--k", "64", "--weights", "f8e4m3:per_1x16")
    assert "expected --weights" in refusal("gemm", "bench", "--vs", "plain")


def read_header(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:], 8 + length


def test_pack(tmp_path):
    source, packed = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    header = json.dumps({"a.weight": {"dtype": "BF16", "shape": [40, 64], "data_offsets": [0, 5120]},
                         "norm": {"dtype": "F32", "shape": [16], "data_offsets": [5120, 5184]}}).encode()
    header += b" " * (-len(header) % 8)
    norm = struct.pack("<16f", *range(16))
    source.write_bytes(struct.pack("<Q", len(header)) + header + b"\x80\x3f" * 2560 + norm)
    out = answer("pack", source, packed, "--weights", "*.weight")
    assert "1 tensors packed" in out and "1 copied" in out
    tensors, data, start = read_header(packed)
    begin, end = tensors["a.weight"]["data_offsets"]
    assert tensors["a.weight"]["dtype"] == "U8" and (start + begin) % 64 == 0
    assert data[begin:begin + 8] == b"EITRIPK\0" and end - begin == 64 + 2 * 4096  # two panels of two steps
    begin, end = tensors["norm"]["data_offsets"]
    assert data[begin:end] == norm
    assert "no tensor matches 'b.*'" in refusal("pack", source, packed, "--weights", "b.*")
    assert "--scale is ''" in refusal("pack", source, packed, "--weights", "*.weight", "--quant", "per_1x32")


def test_explain_and_ops():
    explained = json.loads(answer("explain", "fused_moe", "tokens=1", "--json"))
    assert explained["op"] == "fused_moe" and explained["chosen"]
    assert all(row["supported"] or row["reason"] for row in explained["rows"])
    ops = json.loads(answer("ops", "--json"))
    assert all(op["kernels"][-1]["family"] == "reference" for op in ops)
    page = answer("ops", "--markdown")
    assert all(kernel["kernel"] in page for op in ops for kernel in op["kernels"])
    assert "gemm" in answer("ops")


def processors_of_nodes():
    """NUMA node -> processors, of nodes that have some."""
    found = {}
    for folder in pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"):
        ranges = [part.split("-") for part in (folder / "cpulist").read_text().strip().split(",") if part]
        if ranges:
            found[int(folder.name[4:])] = sum(int(r[-1]) - int(r[0]) + 1 for r in ranges)
    return found


def threads_under(*prefix):
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("OMP_")}
    done = subprocess.run([*prefix, str(COMMAND), "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)["threads"]


@pytest.mark.skipif(shutil.which("taskset") is None, reason="there is no taskset")
def test_a_process_bound_to_one_processor_has_one_thread():
    assert threads_under("taskset", "-c", str(min(os.sched_getaffinity(0)))) == 1


def test_a_process_bound_to_a_node_has_its_threads_and_runs_there():
    nodes = processors_of_nodes()
    if len(nodes) < 2:
        pytest.skip(f"this machine has {len(nodes)} NUMA node with processors")
    if shutil.which("numactl") is None:
        pytest.skip("there is no numactl")
    for node, processors in nodes.items():
        prefix = ("numactl", f"--cpunodebind={node}", f"--membind={node}")
        assert threads_under(*prefix) == processors
        done = subprocess.run([*prefix, str(COMMAND), "gemm", "bench", "--m", "4", "--n", "512", "--k", "512", "--budget-ms", "20", "--json"],
                              env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr


def test_doctor():
    doctor = json.loads(answer("doctor", "--json"))
    assert doctor["threads"] >= 1 and doctor["amx"]["in_use"] == (doctor["amx"]["reason"] == "")
    assert "machine profile" in answer("doctor")
    # Bound threads see one core each; the machine has not shrunk.
    bound = subprocess.run([str(COMMAND), "doctor", "--json"], env={**ENVIRONMENT, "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
                           capture_output=True, text=True, check=True)
    assert json.loads(bound.stdout)["units"] == doctor["units"]
    assert "EITRI_ISA" in answer("doctor", "--settings-markdown")
    assert doctor["tune"] == f"off; {COMMAND}"
    odd = subprocess.run([str(COMMAND), "doctor", "--json"], env={**ENVIRONMENT, "EITRI_TUNED": "/nowhere/rows:/etc/passwd:gem.x86_amx.csv"},
                         capture_output=True, text=True, check=True)
    nowhere, no_table, no_op = json.loads(odd.stdout)["tuned"]["unknown_entries"]
    assert nowhere == "EITRI_TUNED: /nowhere/rows: there is no such file or folder"
    assert "/etc/passwd: it is neither a folder nor a .csv file" in no_table and "gem.x86_amx.csv: there is no such file" in no_op


def test_shipped_models_are_found_by_name():
    err = refusal("moe", "run", "--model", "nonsense")
    for name in ["qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite", "gpt-oss-20b", "gpt-oss-120b", "olmoe-1b-7b", "glm-4.7", "kimi-k2"]:
        assert name in err


@pytest.mark.parametrize("arguments, message", [
    ([], "subcommand"),
    (["nonsense"], "unknown command 'nonsense'; known: moe, gemm, bench, explain, ops, doctor"),
    (["moe", "nonsense"], "unknown command 'nonsense'; known: run, bench"),
    (["moe", "run", "--nonsense"], "--nonsense"),
    (["moe", "run", "--tokens", "0"], "--tokens"),
    (["moe", "run", "--quant", "int3"], "int8"),
    (["moe", "run", "--checkpoint", "/nowhere", "--model", "x"], "--model"),
    (["moe", "run", "--layer", "1"], "--checkpoint"),
    (["moe", "bench", "--tokens", "1,x"], "expected positive integers"),
    (["moe", "bench", "--vs", "nonsense"], "library"),
    (["moe", "bench", "--weights", "i4:nonsense"], "expected DTYPE:QUANT"),
    (["moe", "bench", "--weights", "i4:per_1x32", "--quant", "int8"], "excludes"),
    (["gemm", "bench", "--n", "5"], "--k"),
    (["gemm", "bench", "--dtype", "i4"], "bf16"),
    (["gemm", "bench", "--vs", "nonsense"], "expected one of library, gemm."),
    (["explain", "nonsense"], "expected one of gemm"),
    (["explain", "gemm", "q=1"], "q"),
    (["explain", "gemm", "m=x"], "m"),
    (["--force", "gemm", "ops"], "expected OP=KERNEL"),
    (["--force", "nonsense=x", "ops"], "expected one of gemm"),
    (["--force", "gemm=x", "ops"], "gemm.reference"),
    (["--isa", "x", "ops"], "portable"),
    (["--threads", "0", "ops"], "--threads"),
])
def test_bad_arguments(arguments, message):
    assert message in refusal(*arguments)
