"""The package of the build folder, or the one that EITRI_PYTHON names; NumPy and pytest are all that these tests need."""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.path.abspath(os.environ.get("EITRI_PYTHON", ROOT / "build/python")))
# User ops are compiled into a cache of this run's own.
_cache = tempfile.TemporaryDirectory()
os.environ["EITRI_CACHE_DIR"] = _cache.name
