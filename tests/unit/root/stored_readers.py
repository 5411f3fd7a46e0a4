"""Finds every function of the harness that parses stored data: JSON, TOML, YAML, arrays or a database."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from harness.package import PACKAGE_ROOT

#: What parses, as it is called.
PARSERS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "json": ("load", "loads"),
        "tomllib": ("load", "loads"),
        "yaml": ("load", "safe_load"),
        "pickle": ("load", "loads"),
        "np": ("load", "loadtxt", "fromfile"),
        "sqlite3": ("connect",),
        "configparser": ("ConfigParser",),
    }.items()
    for name in names
)
#: Methods of pydantic and functions of this project that parse.
PARSING_NAMES = frozenset({"validate_json", "model_validate_json", "read_shape"})


def find_readers(root: Path = PACKAGE_ROOT) -> set[str]:
    """`path/of/module.py:function` of each function with a call that parses."""
    return {
        f"{file.relative_to(root).as_posix()}:{function}"
        for file in root.rglob("*.py")
        for function in _readers(ast.parse(file.read_text("utf-8")))
    }


def _readers(tree: ast.Module) -> Iterator[str]:
    has_load = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "harness.serialisation"
        and any(alias.name == "load" for alias in node.names)
        for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            _parses(call, has_load) for call in ast.walk(node) if isinstance(call, ast.Call)
        ):
            yield node.name


def _parses(call: ast.Call, has_load: bool) -> bool:
    function = ast.unparse(call.func)
    if function == "read_shape" and len(call.args) > 1:
        # Facets, measurements and parts of a file that was parsed before are in memory.
        return not isinstance(call.args[1], ast.Subscript | ast.Dict | ast.Attribute)
    return (
        function in PARSERS
        or function.rpartition(".")[2] in PARSING_NAMES
        or (has_load and function == "load")
    )
