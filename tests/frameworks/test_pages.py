"""The examples of the Python pages run as they stand."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["python.md", "migrating_from_aiter.md"])
def test_examples(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert blocks
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks))
    environment = {"PYTHONPATH": ":".join(sys.path), "EITRI_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # What comments beside print() promise.
    for promised in re.findall(r"print\(.*\)\s+# (\[.*\]|gemm: .*)$", "\n".join(blocks), re.M):
        assert promised in done.stdout
