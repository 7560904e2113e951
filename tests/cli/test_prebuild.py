"""`eitri prebuild`: kernels compiled ahead, for GPUs that need not be there."""

import json
import subprocess

import pytest
from test_cli import COMMAND, ENVIRONMENT, refusal

pytestmark = pytest.mark.skipif(not COMMAND.is_file(), reason=f"{COMMAND} is not built")

ITEM_KEYS = ["kernel", "target", "key", "origin", "compile_s", "get_ms", "error"]
TARGET_KEYS = ["target", "kernels", "compiled", "cached", "failed", "compile_s", "median_s", "max_s"]


def prebuild(cache, *arguments, **environment):
    variables = {**ENVIRONMENT, "EITRI_CACHE_DIR": str(cache), **environment}
    done = subprocess.run([str(COMMAND), "prebuild", *arguments], env=variables, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The first target that a compiler is here for."""
    for name in ("sm_90a", "gfx942"):
        _, _, err = prebuild(tmp_path_factory.mktemp("probe"), "--op", "quantize", "--target", name, EITRI_JIT="cached")
        if "no compiler for" not in err:
            return name
    pytest.skip("there is no compiler for GPUs")


def test_what_is_compiled_once_is_served_from_disk(tmp_path, target):
    code, out, err = prebuild(tmp_path, "--op", "quantize", "--target", target, "--json", "--jobs", "2", "--verify")
    assert (code, err) == (0, "")
    first = json.loads(out)
    assert list(first["targets"][0]) == TARGET_KEYS
    assert first["kernels"] == len(first["items"]) > 0
    for item in first["items"]:
        assert list(item) == ITEM_KEYS
        assert item["kernel"].startswith("quantize.simt.") and item["target"] == target
        assert item["origin"] == "compiled" and item["compile_s"] > 0 and item["error"] == ""
    assert len({item["key"] for item in first["items"]}) == first["kernels"]
    assert first["verify"]["ok"] and first["verify"]["from_disk"] == first["kernels"]

    code, out, _ = prebuild(tmp_path, "--op", "quantize", "--target", target, "--json", EITRI_JIT="cached")
    assert code == 0
    assert {item["origin"] for item in json.loads(out)["items"]} == {"disk"}
    code, out, err = prebuild(tmp_path, "--op", "quantize", "--target", target)
    assert (code, err) == (0, "")
    row = next(line.split() for line in out.splitlines() if line.startswith(target))
    assert row[1:5] == [str(first["kernels"]), "0", str(first["kernels"]), "0"]

    # A kernel that is missing is named, and nothing is compiled in its place.
    victim = first["items"][0]
    folder = tmp_path / "jit" / "entries" / victim["key"]
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    code, out, err = prebuild(tmp_path, "--op", "quantize", "--target", target, "--json", EITRI_JIT="cached")
    assert code == 1
    failed = [item for item in json.loads(out)["items"] if item["origin"] != "disk"]
    assert [item["key"] for item in failed] == [victim["key"]]
    assert "not in the cache" in err and victim["kernel"] in err and not folder.exists()


def test_a_model_needs_more_than_one_kernel(tmp_path, target):
    code, out, _ = prebuild(tmp_path, "--model", "qwen3-30b-a3b", "--target", target, "--json", EITRI_JIT="cached")
    assert code == 1  # nothing is there yet
    kernels = {item["kernel"].split(".")[0] for item in json.loads(out)["items"]}
    assert {"rmsnorm", "activation", "quantize"} <= kernels


def test_no_folder_to_keep_kernels_in_is_a_failure(tmp_path, target):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, out, err = prebuild(blocked, "--op", "quantize", "--target", target)
    assert (code, out) == (1, "")
    assert "nothing that is compiled now would be kept" in err


def test_arguments_that_cannot_be():
    assert "expected --model, --op or --all" in refusal("prebuild", "--target", "sm_90a")
    assert "sm_90a, gfx942, gfx950" in refusal("prebuild", "--all", "--target", "sm_80")
    assert "expected some of" in refusal("prebuild", "--all", "--target", ",")
    assert "expected one of" in refusal("prebuild", "--op", "rmsnrom", "--target", "sm_90a")
    assert "qwen3-30b-a3b" in refusal("prebuild", "--model", "qwen9", "--target", "sm_90a")
    refusal("prebuild", "--all")
    refusal("prebuild", "--all", "--op", "rmsnorm", "--target", "sm_90a")
    refusal("prebuild", "--all", "--target", "sm_90a", "--jobs", "0")
