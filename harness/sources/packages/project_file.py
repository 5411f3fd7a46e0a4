"""Tables of a pyproject.toml in a source tree."""

from __future__ import annotations

from collections.abc import Mapping

import tomllib

from harness.errors import InputError, Location
from harness.sources.tree import Tree

PROJECT = "pyproject.toml"


def read_project(tree: Tree) -> Mapping[str, object]:
    """The pyproject.toml of a tree, empty if it has none; InputError if it is not TOML."""
    text = tree.read(PROJECT).decode("utf-8", "replace") if tree.mode(PROJECT) else ""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            "this file is not valid TOML", where=Location(f"{tree.label}:{PROJECT}"), why=str(error)
        ) from error


def table(project: Mapping[str, object], *names: str) -> Mapping[str, object]:
    """The table at this path, empty if there is none."""
    found: object = project
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def strings(value: object) -> tuple[str, ...]:
    """A string or the strings of a list; nothing of another value."""
    if isinstance(value, str):
        return (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
