"""Requirements of a source tree whose setup.py reads them from a file, which is read as text here, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from harness.errors import InputError, Location
from harness.sources.requirements import SETUP, tree_requirements
from harness.sources.tree import Tree, path_problem

FILE = "requirements.txt"
INCLUDES = ("-r ", "--requirement ", "-r=", "--requirement=")
COMMENT = re.compile(r"(^|\s)#.*$")


def stated_requirements(tree: Tree) -> tuple[str, ...]:
    """What the package in `tree` requires, in its metadata or in the `requirements.txt` its setup.py names.

    Options of such a file are left out, files it includes are read. InputError when neither says it.
    """
    try:
        return tree_requirements(tree)
    except InputError:
        setup = tree.read(SETUP).decode("utf-8", "replace") if tree.mode(SETUP) else ""
        if f'"{FILE}"' not in setup.replace("'", '"') or not tree.mode(FILE):
            raise
    return tuple(_lines(tree, FILE, ()))


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
