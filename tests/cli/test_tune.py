"""`eitri tune`: from shapes to rows that calls use; what it takes, what it refuses."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from test_cli import COMMAND, ENVIRONMENT

pytestmark = pytest.mark.skipif(not COMMAND.is_file(), reason=f"{COMMAND} is not built")

PROBLEM_KEYS = ["op", "problem", "status", "why", "kernel", "config", "us", "spread_us", "default_kernel", "default_config", "default_us", "gain",
                "noise", "noisy", "confirmed", "default_is_wrong", "candidates", "slow", "rejected", "rounds", "discarded_rounds", "workers", "samples",
                "phases_s", "seconds"]


def tune(folder, *arguments, **environment):
    done = subprocess.run([str(COMMAND), "tune", *map(str, arguments)], env={**ENVIRONMENT, "EITRI_CACHE_DIR": str(folder / "cache"), **environment},
                          cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def explain(folder, op, problem):
    done = subprocess.run([str(COMMAND), "explain", op, problem, "--json"], env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_tuned_problem_is_used_by_calls_from_the_same_folder(tmp_path):
    code, out, err = tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["folder"] == ".eitri/tuned"
    (problem,) = answer["problems"]
    assert list(problem) == PROBLEM_KEYS
    assert problem["status"] in ("tuned", "default is best")
    assert problem["us"] > 0 and problem["default_us"] > 0 and problem["rejected"] == []
    found = explain(tmp_path, "gemm", "m=3,n=64,k=64")
    assert found["origin"] == "tuned" and found["chosen"] == problem["kernel"] and found["tuned"] == ""

    # Again: the journal knows it.
    code, out, _ = tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--json")
    assert code == 0
    assert json.loads(out)["problems"][0]["status"] == "known"
    # Rows of this build are not stale.
    assert json.loads(tune(tmp_path, "--all-stale", "--dry-run", "--json")[1]) == []
    (file,) = (tmp_path / ".eitri/tuned").glob("gemm.*.csv")
    header, row, *_ = file.read_text().splitlines()
    revision = dict(zip(header.split(","), row.split(","), strict=True))["revision"]
    file.write_text(file.read_text().replace(revision, "000000000000"))
    (stale,) = json.loads(tune(tmp_path, "--all-stale", "--dry-run", "--json")[1])
    assert stale["op"] == "gemm" and "m=3,n=64,k=64" in stale["problem"]
    assert "stale: made with revision 000000000000" in explain(tmp_path, "gemm", "m=3,n=64,k=64")["why"]

    # Merged into another folder, the same rows.
    code, out, err = tune(tmp_path, "merge", ".eitri/tuned", "--out", "merged", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["files"] == 1
    assert (tmp_path / "merged" / file.name).read_text() == file.read_text()


def test_merging_a_folder_passes_over_what_is_no_tuned_file(tmp_path):
    tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--out", "rows")
    (tmp_path / "rows" / "misses").mkdir()
    (tmp_path / "rows" / "misses" / "misses.csv").write_text("op,arch,units,kernel,calls,us,problem\n")
    code, out, err = tune(tmp_path, "merge", "rows", "--out", "merged", "--json")
    assert (code, json.loads(out)[0]["rows"] > 0, "misses.csv is no tuned file" in err) == (0, True, True), (out, err)
    assert tune(tmp_path, "merge", "rows/misses/misses.csv", "--out", "merged")[0] == 2


def test_a_journal_does_not_hide_that_rows_are_gone(tmp_path):
    tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--out", "rows")
    [file] = (tmp_path / "rows").glob("gemm.*.csv")
    assert json.loads(tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--out", "rows", "--json")[1])["problems"][0]["status"] == "known"
    file.unlink()
    assert json.loads(tune(tmp_path, "gemm", "--problem", "m=3,n=64,k=64", "--out", "rows", "--json")[1])["problems"][0]["status"] != "known"
    assert file.exists()


def test_shapes_of_the_peer_are_understood_and_shards_part_them(tmp_path):
    shapes = tmp_path / "untuned.csv"
    shapes.write_text("\ufeffM,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\r\n1,64,128,False,torch.bfloat16,torch.float32,False,False\r\n"
                      "2,64,128,True,torch.bfloat16,torch.bfloat16,False,False\r\n2,64,128,True,torch.bfloat16,torch.bfloat16,False,False\r\n")
    problems = json.loads(tune(tmp_path, "gemm", "--shapes", shapes, "--dry-run", "--json")[1])
    assert [p["problem"].split(",b_format")[0] for p in problems] == ["batch=1,m=1,n=64,k=128,a=bf16,c=f32", "batch=1,m=2,n=64,k=128,a=bf16,c=bf16"]
    assert "bias=none" in problems[0]["problem"] and "bias=bf16" in problems[1]["problem"]
    assert all(p["candidates"] > 1 for p in problems)
    parts = [json.loads(tune(tmp_path, "gemm", "--shapes", shapes, "--shard", f"{i}/2", "--dry-run", "--json")[1]) for i in (1, 2)]
    assert parts == [[problems[0]], [problems[1]]]

    codes = tmp_path / "codes.csv"  # batches, and codes whose scales the file does not name
    codes.write_text("B,M,N,K,q_dtype_w\n3,2,64,128,torch.float8_e4m3fn\n1,1,64,128,torch.float8_e4m3fn\n")
    found = json.loads(tune(tmp_path, "gemm", "--shapes", codes, "--budget", "20s", "--out", "codes", "--json")[1])["problems"]
    assert [p["problem"].split(",n=")[0] for p in found] == ["batch=3,m=2", "batch=1,m=1"]
    assert [p["problem"].split("a_quant=")[1] for p in found] == ["per_token,b_quant=per_token,b=none", "per_tensor,b_quant=per_token,b=none"]
    assert all(p["status"] in ("tuned", "default is best") for p in found), found

    half = tmp_path / "half.csv"
    half.write_text("M,N,K,bias,dtype,outdtype\n4,64,64,True,torch.float16,torch.float16\n")
    assert "bias=f16" in json.loads(tune(tmp_path, "gemm", "--shapes", half, "--dry-run", "--json")[1])[0]["problem"]
    half.write_text("m,n,k\n4,,64\n")
    code, _, err = tune(tmp_path, "gemm", "--shapes", half, "--dry-run")
    assert code == 2 and "half.csv:2: n is empty; expected a number" in err
    block = tmp_path / "block.csv"
    block.write_text("hidden,inter,experts,top_k\n128,64,8,2\n")
    [found] = json.loads(tune(tmp_path, "fused_moe", "--shapes", block, "--m", "4", "--budget", "30s", "--json")[1])["problems"]
    assert "local_experts=8,experts=8," in found["problem"] and found["status"] in ("tuned", "default is best"), found

    ladder = tmp_path / "ladder.csv"
    ladder.write_text("n,k\n64,128\n")
    problems = json.loads(tune(tmp_path, "gemm", "--shapes", ladder, "--m", "1,5", "--dry-run", "--json")[1])
    assert [p["problem"].split(",")[1] for p in problems] == ["m=1", "m=5"]
    assert len(json.loads(tune(tmp_path, "gemm", "--shapes", ladder, "--dry-run", "--json")[1])) == 21


def test_a_model_gives_its_block_and_the_calls_of_its_recipes(tmp_path):
    code, out, err = tune(tmp_path, "moe", "--model", "olmoe-1b-7b", "--tokens", "1,64", "--dry-run", "--json")
    assert (code, err) == (0, "")
    ops = [p["op"] for p in json.loads(out)]
    assert ops[-2:] == ["fused_moe", "fused_moe"]
    assert {"grouped_gemm", "moe_sort", "moe_combine"} & set(ops[:-2])
    assert len({(p["op"], p["problem"]) for p in json.loads(out)}) == len(ops)
    # The sort's block is a knob of the recipe: its calls are tuned under each of them.
    for op in ("grouped_gemm", "moe_sort"):
        assert {block for p in json.loads(out) if p["op"] == op for block in (16, 32, 64) if f"block={block}," in p["problem"]} == {16, 32, 64}


def test_the_kernels_of_a_moe_block_are_told_by_tokens(tmp_path):
    blocks = [f"tokens={t},hidden=64,inter=48,local_experts=4,experts=4,top_k=2" for t in (1, 3)]
    code, out, err = tune(tmp_path, "fused_moe", "--problem", blocks[0], "--problem", blocks[1], "--json")
    assert code == 0, err
    answer = json.loads(out)
    (ladder,) = answer["kernel_by_rows"]
    assert ladder["op"] == "fused_moe" and ladder["problem"].startswith("hidden=64,inter=48,")
    assert ladder["kernels"] == {str(t): p["kernel"] for t, p in zip((1, 3), answer["problems"], strict=True)}
    # Against every candidate, and nothing is written.
    files = {path: path.read_bytes() for path in (tmp_path / ".eitri/tuned").iterdir() if path.suffix in (".csv", ".jsonl")}
    code, out, err = tune(tmp_path, "fused_moe", "--problem", blocks[0], "--score", "5", "--json")
    assert code == 0, err
    (scored,) = json.loads(out)["problems"]
    assert scored["status"] == "scored" and scored["kernel"] == answer["problems"][0]["kernel"]
    assert 0 < scored["score"]["best_us"] <= min(scored["score"]["row_us"], scored["score"]["default_us"])
    assert len(scored["score"]["every"]) > 1 and files == {path: path.read_bytes() for path in files}


def test_calls_tune_when_they_may_wait(tmp_path):
    def bench(setting):
        return subprocess.run([str(COMMAND), "gemm", "bench", "--m", "2", "--n", "64", "--k", "64", "--budget-ms", "1"],
                              env={**ENVIRONMENT, "EITRI_TUNE": setting, "EITRI_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path,
                              capture_output=True, text=True, timeout=300, check=False)

    assert bench("off").returncode == 0
    assert not (tmp_path / ".eitri").exists()
    done = bench("block:3")
    assert (done.returncode, done.stderr) == (0, "")
    assert explain(tmp_path, "gemm", "m=2,n=64,k=64")["origin"] == "tuned"
    refused = bench("sometimes")
    assert refused.returncode == 2 and 'EITRI_TUNE is "sometimes"' in refused.stderr


def test_beside_a_program_one_process_follows_and_ends_with_it(tmp_path):
    def start():
        return subprocess.Popen([str(COMMAND), "tune", "--from-record", str(tmp_path / "record"), "--follow", "--beside", "--out", str(tmp_path / "rows")],
                                env={**ENVIRONMENT, "EITRI_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path, stdin=subprocess.PIPE,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    first = start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "rows").glob("online.*.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start()
    assert os.getpriority(os.PRIO_PROCESS, first.pid) == 19
    time.sleep(1)
    assert first.poll() is None and second.poll() is None
    for process in (second, first):  # the one that waits, too
        process.stdin.close()
        assert process.wait(timeout=60) == 0, process.stderr.read()


def processes_in(folder):
    """Those that work in the folder."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # gone, or not ours
            continue
    return found


def wait_until(what, seconds):
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.05)
    return what()


LONG = "m=3000,n=4096,k=4096"  # no tuner is done with it in a few seconds


def test_a_tuner_beside_a_program_ends_with_it_whatever_it_is_at(tmp_path):
    device = explain(tmp_path, "gemm", "m=1")["device"]
    (tmp_path / "record").mkdir()
    units = json.loads(subprocess.run([str(COMMAND), "doctor", "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout)["units"]
    (tmp_path / "record/misses.csv").write_text(f'op,arch,units,kernel,calls,us,problem\ngemm,{device},{units},k,3,7,"{LONG}"\n')
    process = subprocess.Popen([str(COMMAND), "tune", "--from-record", "record", "--follow", "--beside", "--out", "rows"], env=ENVIRONMENT, cwd=tmp_path,
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert wait_until(lambda: any("tune worker" in line for line in processes_in(tmp_path)), 60), process.stderr.read()
    start = time.monotonic()
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    assert time.monotonic() - start < 10
    assert wait_until(lambda: not processes_in(tmp_path), 10), processes_in(tmp_path)


def test_an_interrupted_program_leaves_no_blocking_tuner(tmp_path):
    process = subprocess.Popen([str(COMMAND), "gemm", "bench", "--m", "3000", "--n", "4096", "--k", "4096"],
                               env={**ENVIRONMENT, "EITRI_TUNE": "block:60", "EITRI_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               # A job in a shell's background ignores it, and so would what it starts.
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert wait_until(lambda: any("tune worker" in line for line in processes_in(tmp_path)), 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    assert wait_until(lambda: not processes_in(tmp_path), 10), processes_in(tmp_path)


def test_what_was_recorded_can_be_tuned(tmp_path):
    record = tmp_path / "record"
    done = subprocess.run([str(COMMAND), "gemm", "bench", "--m", "5", "--n", "96", "--k", "64", "--budget-ms", "1"],
                          env={**ENVIRONMENT, "EITRI_RECORD": str(record), "EITRI_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = (record / "misses.csv").read_text().splitlines()
    assert lines[0] == "op,arch,units,kernel,calls,us,problem"
    (record / "misses.csv").open("a").write('gemm,sm_90a,132,k,1,1,"m=1"\ntorn')
    code, out, err = tune(tmp_path, "--from-record", record, "--dry-run", "--json")
    assert code == 0
    assert "1 recorded problems are of other machines" in err and "the line is cut off" in err
    (problem,) = json.loads(out)
    assert problem["op"] == "gemm" and "m=5,n=96,k=64" in problem["problem"]


def test_follow_tunes_what_is_recorded_while_it_runs(tmp_path):
    arch = explain(tmp_path, "gemm", "m=1")["device"]
    environment = {**ENVIRONMENT, "EITRI_CACHE_DIR": str(tmp_path / "cache")}
    units = json.loads(subprocess.run([str(COMMAND), "doctor", "--json"], env=environment, capture_output=True, text=True, check=True).stdout)
    record = tmp_path / "record"
    process = subprocess.Popen([str(COMMAND), "tune", "--from-record", str(record), "--follow", "--budget", "12s", "--json"], env=environment,
                               cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    record.mkdir()
    number = units["units"] if "units" in units else len(os.sched_getaffinity(0))
    (record / "misses.csv").write_text(f'gemm,{arch},{number},k,3,7,"m=2,n=64,k=64"\n')
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (problem,) = json.loads(out)["problems"]
    assert "m=2,n=64,k=64" in problem["problem"] and problem["status"] in ("tuned", "default is best")
    assert explain(tmp_path, "gemm", "m=2,n=64,k=64")["origin"] == "tuned"


@pytest.mark.parametrize(("arguments", "text"), [
    (["--follow"], "--follow needs --from-record"),
    (["--all-stale", "--follow"], "--follow needs --from-record"),
    (["--all-stale", "--beside"], "--beside needs --follow"),
    ([], "no problems are named"),
    (["gemm"], "no problems are named"),
    (["gemm", "--problem", "m=1,nn=2"], "field is \"nn\""),
    (["gemm", "--problem", "m=1", "--shard", "3/2"], "--shard is '3/2'"),
    (["gemm", "--problem", "m=1", "--budget", "soon"], "--budget is 'soon'"),
    (["gemm", "--problem", ""], "--problem is ''"),
    (["gemm", "--problem", "m=1", "--min-gain", "nan"], "expected 0 to 90; got nan"),
    (["gemm", "--problem", "m=1", "--time-limit", "nan"], "expected 0.1 to 3600; got nan"),
    (["gemm", "--problem", "m=1", "--device", "tpu"], "--device is 'tpu'"),
    (["merge", "nothing.csv", "--out", "x"], "expected <op>.<arch>.csv"),
    (["regret"], "tuned neighbours on both sides"),
])
def test_refusals(tmp_path, arguments, text):
    code, out, err = tune(tmp_path, *arguments)
    assert code == 2, (code, out, err)
    assert out == "" and text in err


def test_shapes_that_cannot_be_are_named_by_line(tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n1,64,64\n1,x,64\n")
    code, _, err = tune(tmp_path, "gemm", "--shapes", shapes)
    assert code == 2 and "shapes.csv:3" in err
    shapes.write_text("rows,columns\n1,2\n")
    code, _, err = tune(tmp_path, "gemm", "--shapes", shapes)
    assert code == 2 and "expected a header with some of batch, m, n, k" in err


def test_what_cannot_be_written_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = tune(tmp_path, "gemm", "--problem", "m=1,n=64,k=64", "--problem", "m=2,n=64,k=64", "--out", "file", "--json")
    assert code == 1 and json.loads(out)["problems"] == []
    assert err.count("file") == 1 and "worker" not in err

    # Rows cannot be added to a file of another version: no problem is tuned in vain.
    arch = json.loads(subprocess.run([str(COMMAND), "doctor", "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout)["isa"]
    other = tmp_path / "old" / f"gemm.{arch}.csv"
    other.parent.mkdir()
    other.write_text("a,b,c\n1,2,3\n")
    code, out, _ = tune(tmp_path, "gemm", "--problem", "m=1,n=64,k=64", "--out", "old", "--json")
    (problem,) = json.loads(out)["problems"]
    assert code == 1 and problem["status"] == "failed" and "has other columns" in problem["why"]
    assert problem["workers"] == 0 and problem["samples"] == 0
    assert other.read_text() == "a,b,c\n1,2,3\n"

    code, out, err = tune(tmp_path, "merge", "old", "--out", "merged")
    assert code == 1 and "the header differs" in err
    assert not (tmp_path / "merged").exists()


def test_what_nobody_can_tune_is_refused_by_reason(tmp_path):
    code, out, _ = tune(tmp_path, "gemm", "--problem", "m=0,n=64,k=64", "--problem", "m=1,n=4294967296,k=4294967296", "--json")
    empty, huge = json.loads(out)["problems"]
    assert code == 1
    assert empty["status"] == "unsupported" and "an extent is 0" in empty["why"]
    assert huge["status"] == "failed" and "MiB are available" in huge["why"]


def test_a_file_of_another_kind_does_not_steer_the_terminal(tmp_path):
    (tmp_path / "shapes.csv").write_bytes(b"\x1b[2J\x07" + bytes(range(256)) * 8)
    code, _, err = tune(tmp_path, "gemm", "--shapes", "shapes.csv", "--dry-run")
    assert code == 2 and "the first line is '?[2J?" in err
    assert len(err) < 400 and all(c == "\n" or c.isprintable() for c in err)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_goes_on_where_it_was(tmp_path, how):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n" + "".join(f"{m},96,96\n" for m in range(1, 7)))
    process = subprocess.Popen([str(COMMAND), "tune", "gemm", "--shapes", str(shapes)], env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    journal = tmp_path / ".eitri/tuned/journal.jsonl"
    assert wait_until(lambda: journal.exists() and journal.read_text().count('"candidates"') >= 2, 120)
    process.send_signal(how)
    assert process.wait(timeout=30) == -how
    assert wait_until(lambda: not processes_in(tmp_path), 10), processes_in(tmp_path)
    code, out, err = tune(tmp_path, "gemm", "--shapes", shapes, "--json")
    assert (code, err) == (0, "")
    statuses = [p["status"] for p in json.loads(out)["problems"]]
    assert statuses.count("known") >= 2 and set(statuses) <= {"known", "tuned", "default is best"}
