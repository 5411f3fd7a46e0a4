"""The requirements that a source tree declares. Its files are parsed as text; none of its code is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from harness.errors import InputError, Location
from harness.sources.packages.project_file import PROJECT, read_project, strings, table
from harness.sources.packages.setup_config import listed, read_setup_config
from harness.sources.packages.setup_script import (
    SETUP,
    ComputedError,
    SetupScript,
    name_of,
    read_setup_script,
)
from harness.sources.tree import Tree, path_problem

_ARGUMENT = "install_requires"
FILE = "requirements.txt"
TARGET = "VLLM_TARGET_DEVICE"
# The name at the start of a requirement, with extras, as setup.py of transformers parses it.
NAME = re.compile(r"[^!=<>~ ]+")
INCLUDES = ("-r ", "--requirement ", "-r=", "--requirement=")
COMMENT = re.compile(r"(^|\s)#.*$")


def source_requirements(tree: Tree, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The requirements of the package in `tree`, without extras, if it is built with the variables `env`.

    They come from pyproject.toml, or, if it says that they are dynamic or has no project, from what setup.py
    passes as `install_requires`, from the table `_deps` from which it selects (transformers), from setup.cfg,
    or from the file that these name, with VLLM_TARGET_DEVICE=empty the one that setup.py reads for builds
    without a device (vLLM). Options in requirements files are ignored, included files are read. InputError if
    none of these exists.
    """
    project = read_project(tree)
    metadata = table(project, "project")
    if metadata and "dependencies" not in strings(metadata.get("dynamic")):
        return strings(metadata.get("dependencies"))
    script = read_setup_script(tree)
    for found in (_of_setup(script), _from_table(script), _of_config(tree)):
        if found is not None:
            return found
    files = _files(script, project, env or {})
    if not files:
        raise InputError(
            "the requirements of this source tree cannot be determined",
            where=Location(tree.label),
            why=f"no project.dependencies in {PROJECT}, no list {_ARGUMENT} in {SETUP}",
        )
    return tuple(line for name in files for line in _lines(tree, name, ()))


def _of_setup(script: SetupScript) -> tuple[str, ...] | None:
    """The list that setup.py assigns or passes as `install_requires`; None for a computed one."""
    try:
        passed = script.argument(_ARGUMENT)
        assigned = script.assigned(_ARGUMENT)
        value = script.value(passed or (assigned[0] if assigned else None))
    except ComputedError:
        return None
    # setup.py may read them from a file.
    return tuple(_requirements(script.tree, map(str, value), ())) if isinstance(value, list) else None


def _from_table(script: SetupScript) -> tuple[str, ...] | None:
    """The requirements in `install_requires = [deps["a"], ...]`, where `_deps` lists all requirements."""
    tables, lists = script.assigned("_deps"), script.assigned(_ARGUMENT)
    if not tables or not lists or not isinstance(tables[0], ast.List) or not isinstance(lists[0], ast.List):
        return None
    elements = lists[0].elts
    names = [
        one.slice.value
        for one in elements
        if isinstance(one, ast.Subscript)
        and name_of(one.value) == "deps"
        and isinstance(one.slice, ast.Constant)
        and isinstance(one.slice.value, str)
    ]
    texts = [one.value for one in tables[0].elts if isinstance(one, ast.Constant)]
    by_name = {match[0]: text for text in texts if isinstance(text, str) and (match := NAME.match(text))}
    if len(names) != len(elements) or not by_name.keys() >= set(names):
        return None
    return tuple(by_name[name] for name in names)


def _of_config(tree: Tree) -> tuple[str, ...] | None:
    text = read_setup_config(tree).get("options", _ARGUMENT, fallback="")
    return listed(text) if text and not text.startswith("file:") else None


def _files(script: SetupScript, project: Mapping[str, object], env: Mapping[str, str]) -> tuple[str, ...]:
    """The files that have the requirements."""
    text = read_setup_config(script.tree).get("options", _ARGUMENT, fallback="")
    named = strings(table(project, "tool", "setuptools", "dynamic", "dependencies").get("file"))
    if named or text.startswith("file:"):
        return named or listed(text.removeprefix("file:"))
    if env.get(TARGET) == "empty" and (name := _without_device(script.module)):
        return (name,)
    texts = (one.value for one in ast.walk(script.module) if isinstance(one, ast.Constant))
    return (FILE,) if FILE in texts and script.tree.mode(FILE) else ()


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
    return isinstance(node, ast.Call) and name_of(node.func) == name


def _lines(tree: Tree, name: str, above: tuple[str, ...]) -> Iterator[str]:
    if name in above or path_problem(name) or not tree.mode(name):
        raise InputError("this requirements file cannot be read", where=Location(f"{tree.label}:{name}"))
    lines = tree.read(name).decode("utf-8", "replace").splitlines()
    yield from _requirements(tree, lines, (*above, name))


def _requirements(tree: Tree, lines: Iterable[str], above: tuple[str, ...]) -> Iterator[str]:
    """The requirements in lines of the last of the files `above`, and in those that it includes."""
    for line in lines:
        text = COMMENT.sub("", line).strip()
        if text.startswith(INCLUDES):
            other = text.replace("=", " ", 1).split(maxsplit=1)[1]
            yield from _lines(tree, str(PurePosixPath(*above[-1:]).parent / other), above)
        elif text and not text.startswith("-"):
            yield text
