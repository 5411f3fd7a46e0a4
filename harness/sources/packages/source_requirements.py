"""What a source tree says its package requires. Read as text: none of its code runs."""

from __future__ import annotations

import ast

import tomllib

from harness.errors import InputError, Location
from harness.sources.tree import Tree

SETUP, PROJECT = "setup.py", "pyproject.toml"
_ARGUMENT = "install_requires"


def tree_requirements(tree: Tree) -> tuple[str, ...]:
    """The requirements of the package in `tree`, without those of extras.

    From `project.dependencies` of its pyproject.toml, or, where those are dynamic, from the list that its
    setup.py assigns to `install_requires`. InputError when neither says it in plain words.
    """
    found = _of_project(tree)
    if found is None:
        found = _of_setup(tree)
    if found is None:
        raise InputError(
            "this source tree does not say what it requires",
            where=Location(tree.label),
            why=f"no project.dependencies in {PROJECT}, no list {_ARGUMENT} in {SETUP}",
        )
    return found


def _of_project(tree: Tree) -> tuple[str, ...] | None:
    text = _text(tree, PROJECT)
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            "this file is not TOML", where=Location(f"{tree.label}:{PROJECT}"), why=str(error)
        ) from error
    listed = project.get("dependencies")
    return tuple(str(item) for item in listed) if isinstance(listed, list) else None


def _of_setup(tree: Tree) -> tuple[str, ...] | None:
    try:
        module = ast.parse(_text(tree, SETUP))
    except SyntaxError as error:
        raise InputError(
            "this file is not Python", where=Location(f"{tree.label}:{SETUP}"), why=str(error)
        ) from error
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == _ARGUMENT for target in node.targets
        ):
            return _strings(node.value)
    return None


def _strings(node: ast.expr) -> tuple[str, ...] | None:
    """A list that is written out; None for one that is computed."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else None


def _text(tree: Tree, path: str) -> str:
    return tree.read(path).decode("utf-8", "replace") if tree.mode(path) else ""
