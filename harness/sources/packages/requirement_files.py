"""Requirements of a source tree whose setup.py makes them of files or a table: read as text, nothing runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from harness.errors import InputError, Location
from harness.sources.packages.source_requirements import SETUP, tree_requirements
from harness.sources.tree import Tree, path_problem

FILE = "requirements.txt"
TARGET = "VLLM_TARGET_DEVICE"
# The name a requirement begins with, extras and all, as the table of transformers is read.
NAME = re.compile(r"[^!=<>~ ]+")
INCLUDES = ("-r ", "--requirement ", "-r=", "--requirement=")
COMMENT = re.compile(r"(^|\s)#.*$")


def stated_requirements(tree: Tree, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What the package in `tree` requires, built with these variables.

    From its metadata; from the `requirements.txt` its setup.py names; from the table `_deps` of setup.py, of
    which `install_requires` picks some (transformers); or, with VLLM_TARGET_DEVICE=empty, from the file that
    setup.py reads where there is no device (vLLM). Options of such a file are left out, files it includes
    are read. InputError when nothing of these says it.
    """
    try:
        return tree_requirements(tree)
    except InputError:
        setup = tree.read(SETUP).decode("utf-8", "replace") if tree.mode(SETUP) else ""
        module = _parsed(setup)
        if (picked := _picked(module)) is not None:
            return picked
        name = FILE if f'"{FILE}"' in setup.replace("'", '"') else ""
        if (env or {}).get(TARGET) == "empty":
            name = _without_device(module) or name
        if not name or not tree.mode(name):
            raise
    return tuple(_lines(tree, name, ()))


def _parsed(setup: str) -> ast.Module:
    """Nothing for what is not Python: its error is told by who read it first."""
    try:
        return ast.parse(setup)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _picked(module: ast.Module) -> tuple[str, ...] | None:
    """`install_requires = [deps["a"], ...]`, with `_deps` the list of all requirements by name."""
    listed = {target: node.value for target, node in _assignments(module)}
    table, wanted = listed.get("_deps"), listed.get("install_requires")
    if not isinstance(table, ast.List) or not isinstance(wanted, ast.List):
        return None
    names = [
        one.slice.value
        for one in wanted.elts
        if isinstance(one, ast.Subscript)
        and isinstance(one.value, ast.Name)
        and one.value.id == "deps"
        and isinstance(one.slice, ast.Constant)
        and isinstance(one.slice.value, str)
    ]
    stated = [one.value for one in table.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    by_name = {found[0]: text for text in stated if (found := NAME.match(text))}
    if len(names) != len(wanted.elts) or not by_name.keys() >= set(names):
        return None
    return tuple(by_name[name] for name in names)


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.Assign]]:
    for node in module.body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))


def _without_device(module: ast.Module) -> str:
    """The file in `if _no_device(): requirements = _read_requirements("common.txt")`, or ""."""
    for node in ast.walk(module):
        if not isinstance(node, ast.If) or not _calls(node.test, "_no_device") or len(node.body) != 1:
            continue
        [step] = node.body
        if isinstance(step, ast.Assign) and _calls(step.value, "_read_requirements"):
            arguments = step.value.args if isinstance(step.value, ast.Call) else []
            files = [one.value for one in arguments if isinstance(one, ast.Constant)]
            if len(files) == len(arguments) == 1 and isinstance(files[0], str):
                return f"requirements/{files[0]}"
    return ""


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _lines(tree: Tree, name: str, above: tuple[str, ...]) -> Iterator[str]:
    if name in above or path_problem(name) or not tree.mode(name):
        raise InputError("this file of requirements cannot be read", where=Location(f"{tree.label}:{name}"))
    for line in tree.read(name).decode("utf-8", "replace").splitlines():
        text = COMMENT.sub("", line).strip()
        if text.startswith(INCLUDES):
            other = text.replace("=", " ", 1).split(maxsplit=1)[1]
            yield from _lines(tree, str(PurePosixPath(name).parent / other), (*above, name))
        elif text and not text.startswith("-"):
            yield text
