"""The requirements that a source tree declares. Its files are parsed as text; none of its code is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import tomllib

from harness.errors import InputError, Location
from harness.sources.tree import Tree, path_problem

SETUP, PROJECT = "setup.py", "pyproject.toml"
_ARGUMENT = "install_requires"
FILE = "requirements.txt"
TARGET = "VLLM_TARGET_DEVICE"
# The name at the start of a requirement, with extras, as setup.py of transformers parses it.
NAME = re.compile(r"[^!=<>~ ]+")
INCLUDES = ("-r ", "--requirement ", "-r=", "--requirement=")
COMMENT = re.compile(r"(^|\s)#.*$")


def declared_requirements(tree: Tree) -> tuple[str, ...]:
    """The requirements of the package in `tree`, without those of extras.

    They come from `project.dependencies` in pyproject.toml or, if these are dynamic, from the literal list
    that setup.py assigns to `install_requires`. InputError if neither exists.
    """
    requirements = _of_project(tree)
    if requirements is None:
        requirements = _of_setup(tree)
    if requirements is None:
        raise InputError(
            "the requirements of this source tree cannot be determined",
            where=Location(tree.label),
            why=f"no project.dependencies in {PROJECT}, no list {_ARGUMENT} in {SETUP}",
        )
    return requirements


def _of_project(tree: Tree) -> tuple[str, ...] | None:
    text = _text(tree, PROJECT)
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            "this file is not valid TOML", where=Location(f"{tree.label}:{PROJECT}"), why=str(error)
        ) from error
    dependencies = project.get("dependencies")
    return tuple(map(str, dependencies)) if isinstance(dependencies, list) else None


def _of_setup(tree: Tree) -> tuple[str, ...] | None:
    """The literal list that setup.py assigns to `install_requires`; None for a computed one."""
    try:
        module = ast.parse(_text(tree, SETUP))
    # Before Python 3.11.4, null bytes raise ValueError.
    except (SyntaxError, ValueError) as error:
        raise InputError(
            "this file is not valid Python", where=Location(f"{tree.label}:{SETUP}"), why=str(error)
        ) from error
    node = next((value for name, value in _assignments(ast.walk(module)) if name == _ARGUMENT), None)
    try:
        value = ast.literal_eval(node) if node else None
    except ValueError:
        return None
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else None


def _text(tree: Tree, path: str) -> str:
    return tree.read(path).decode("utf-8", "replace") if tree.mode(path) else ""


def source_requirements(tree: Tree, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The requirements of the package in `tree` if it is built with the environment variables `env`.

    They come from its metadata, from the `requirements.txt` that setup.py names, from the table `_deps` in
    setup.py from which `install_requires` selects (transformers), or, with VLLM_TARGET_DEVICE=empty, from the
    file that setup.py reads for builds without a device (vLLM). Options in requirements files are ignored,
    included files are read. InputError if none of these exists.
    """
    try:
        return declared_requirements(tree)
    except InputError:
        setup = _text(tree, SETUP)
        module = _parsed(setup)
        if (selected := _from_table(module)) is not None:
            return selected
        name = FILE if f'"{FILE}"' in setup.replace("'", '"') else ""
        if (env or {}).get(TARGET) == "empty":
            name = _without_device(module) or name
        if not name or not tree.mode(name):
            raise
    return tuple(_lines(tree, name, ()))


def _parsed(setup: str) -> ast.Module:
    """The parsed file; empty if it is not Python, which `declared_requirements` reports."""
    try:
        return ast.parse(setup)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _from_table(module: ast.Module) -> tuple[str, ...] | None:
    """The requirements in `install_requires = [deps["a"], ...]`, where `_deps` lists all requirements."""
    values = dict(_assignments(module.body))
    table, required = values.get("_deps"), values.get(_ARGUMENT)
    if not isinstance(table, ast.List) or not isinstance(required, ast.List):
        return None
    names = [
        one.slice.value
        for one in required.elts
        if isinstance(one, ast.Subscript)
        and isinstance(one.value, ast.Name)
        and one.value.id == "deps"
        and isinstance(one.slice, ast.Constant)
        and isinstance(one.slice.value, str)
    ]
    texts = [one.value for one in table.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    by_name = {match[0]: text for text in texts if (match := NAME.match(text))}
    if len(names) != len(required.elts) or not by_name.keys() >= set(names):
        return None
    return tuple(by_name[name] for name in names)


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """The names that these statements assign, and their values."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))


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
        raise InputError("this requirements file cannot be read", where=Location(f"{tree.label}:{name}"))
    for line in tree.read(name).decode("utf-8", "replace").splitlines():
        text = COMMENT.sub("", line).strip()
        if text.startswith(INCLUDES):
            other = text.replace("=", " ", 1).split(maxsplit=1)[1]
            yield from _lines(tree, str(PurePosixPath(name).parent / other), (*above, name))
        elif text and not text.startswith("-"):
            yield text
