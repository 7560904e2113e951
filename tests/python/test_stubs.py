"""The stub of the extension module says what the module has: names, and the operators' parameters."""

import ast
import pathlib
import re

import pytest

import eitri
from eitri.lib import _native

PACKAGE = pathlib.Path(eitri.__file__).resolve().parent


def stub():
    # In a build folder the package's sources are links, and the stub lies beside the module.
    path = pathlib.Path(_native.__file__).parent / "_native.pyi"
    assert path.is_file(), f"{path} is not there: the stub does not ship with the module"
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_stub_and_module_have_the_same_names():
    assert set(stub()) == {name for name in dir(_native) if not name.startswith("__")}


@pytest.mark.parametrize("name", sorted(_native.schemas()))
def test_operators_have_the_parameters_of_their_schema(name):
    schema = _native.schemas()[name]
    wanted = re.findall(r"[\w?)] (\w+)(?=[,=)])", schema[: schema.rindex(") ->") + 1])
    optional = {part.split()[1].partition("=")[0] for part in schema.partition("(")[2].split(", ") if part.split()[0].endswith("?")}
    for function in (name, name + "_direct"):
        arguments = stub()[function].args
        assert [a.arg for a in arguments.posonlyargs] == wanted and not arguments.args and not arguments.kwonlyargs
        for argument in arguments.posonlyargs:
            assert ("None" in ast.unparse(argument.annotation)) == (argument.arg in optional), argument.arg


def test_functions_of_the_package_are_typed():
    assert (PACKAGE / "py.typed").is_file()
    for node in ast.parse((PACKAGE / "ops.py").read_text()).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        arguments = [*node.args.args, *node.args.kwonlyargs]
        assert node.returns is not None and all(a.annotation is not None for a in arguments), node.name
