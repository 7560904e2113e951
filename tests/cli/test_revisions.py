"""Revisions of kernels: what makes tuned rows stale, and what does not."""

import pathlib
import re
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "cmake/kernel_revisions.cmake"
pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")

SOURCE = 'int f() {\n  return 1;  // one\n}\nconst char* kUrl = "a//b";\n'


@pytest.mark.parametrize(("source", "same"), [
    (SOURCE, True),
    ("// said before\n\n" + SOURCE.replace("// one", "// another word; and [more]"), True),
    (SOURCE.replace("  return 1;  // one", "    return 1;\n\n"), True),
    (SOURCE.replace("return 1", "return 2"), False),
    (SOURCE.replace("a//b", "a//c"), False),
    (SOURCE.replace("return 1;", "return // 1;"), False),
])
def test_comments_and_indentation_do_not_count(tmp_path, source, same):
    def revision(text):
        folder = tmp_path / "src/ops/probe"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "probe.cpp").write_text(text)
        subprocess.run(["cmake", f"-DROOT={tmp_path}", f"-DOUTPUT={tmp_path}/out.cpp", f"-DSTAMP={tmp_path}/stamp", "-P", str(SCRIPT)], check=True)
        return re.search(r'"probe", "cpu", "([0-9a-f]{12})"', (tmp_path / "out.cpp").read_text())[1]

    assert (revision(source) == revision(SOURCE)) == same
