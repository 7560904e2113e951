"""Shared by the framework tests: where the command is, and how it is run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The package of the build folder, or the one that EITRI_PYTHON names.
sys.path.insert(0, os.path.abspath(os.environ.get("EITRI_PYTHON", ROOT / "build/python")))


# User ops are compiled into a cache of this run's own.
_cache = tempfile.TemporaryDirectory()
os.environ["EITRI_CACHE_DIR"] = _cache.name


@pytest.fixture(scope="session")
def eitri():
    """Runs the command and returns (exit code, stdout, stderr)."""
    command = pathlib.Path(os.environ.get("EITRI_BIN", ROOT / "build/bin/eitri"))
    assert command.is_file(), f"{command} is not there: run `make build`, or set EITRI_BIN"

    environment = {name: value for name, value in os.environ.items() if not name.startswith("EITRI_")}

    def run(*arguments):
        done = subprocess.run([str(command), *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def eitri_json(eitri):
    """Runs the command with --json and returns the object; anything but exit code 0 fails."""

    def run(*arguments):
        code, out, err = eitri(*arguments, "--json")
        assert code == 0, f"eitri {' '.join(map(str, arguments))}: exit code {code}\n{err}\n{out}"
        return json.loads(out)

    return run


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Where tensors are made that name no device."""
    import torch

    if request.param == "cpu":
        yield request.param
        return
    torch.set_default_device(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_device(None)


def pytest_collection_modifyitems(config, items):
    """Without a GPU that torch sees, tests that are there for CPUs as well are left out of it."""
    on_gpu = [item for item in items if getattr(item, "callspec", None) is not None and item.callspec.params.get("device") == "cuda"]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in set(on_gpu)]
