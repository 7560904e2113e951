"""Runs a function once a module has been imported, without importing it."""

import importlib.abc
import importlib.util
import sys

_waiting: dict = {}  # name -> functions


def when_imported(name, function):
    """Calls `function` now if module `name` has been imported, else right after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        function()
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(function)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the others find, with a loader that reports when it is done. Only for the names that are waited for."""

    def find_spec(self, name, path, target=None):
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, name)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, name):
        self._loader = loader
        self._name = name

    def __getattr__(self, attribute):
        return getattr(self._loader, attribute)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # The module keeps its own loader: pickling, resources and reload ask for it.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in _waiting.pop(self._name, []):
            function()
