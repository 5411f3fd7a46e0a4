"""Methods of a package that another one calls on its objects, and that a later release does not have at all.

`api` compares names whose class is certain. Here a word counts that was a method and that no file of the
later release contains, in two cases: nothing else defines it, so it can only be that method; or it is read of
a parameter whose type names a class of the package (`tokenizer: AnyTokenizer`, a union of such classes).
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compat.knowledge.surface_pack import ReleaseSurface
from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.python_syntax import parse_source

_METHOD = re.compile(rb"^ +(?:async )?def ([a-zA-Z]\w+)\(", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_READ = re.compile(rb"(?<!\bself)(?<!\bcls)\.([a-zA-Z]\w+)\b(?!\s*=[^=])")
#: A definition, an assignment, or a text, with which `hasattr` and `getattr` ask for a name.
_BOUND = re.compile(rb"\b(?:def|class)\s+(\w+)|[\"'](\w+)[\"']|\b(\w+)\s*(?::[^=\n]+)?=[^=]")


@dataclass(frozen=True, kw_only=True)
class RemovedName:
    """A method that is read in a line of the calling package."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} uses {self.name}"


def removed_names(
    sources: Path, before: ReleaseSurface, now: ReleaseSurface, others: Sequence[ReleaseSurface]
) -> Iterator[RemovedName]:
    """Each removed name once. sources: the caller. before: the last release it can have been written for.

    others: the other packages that are there. Only files that import the package of `before` count.
    """
    gone = {word for text in _texts(before) for word in _METHOD.findall(text)}
    for text in _texts(now):
        gone.difference_update(_WORD.findall(text))
    texts = _sources(sources)
    imported = re.compile(rb"^\s*(?:from|import) +%s\b" % _module(before.package).encode(), re.MULTILINE)
    importing = {file: text for file, text in texts.items() if imported.search(text)}
    found = _only_there(texts, importing, gone, others)
    for file, text in importing.items():
        read = {word.decode() for word in _READ.findall(text) if word in gone}
        tree = parse_source(text) if read - found.keys() else None
        for name, line in _of_typed_parameters(tree, _module(before.package), read) if tree else ():
            found.setdefault(name, (file, line))
    for name, (file, line) in sorted(found.items()):
        yield RemovedName(name=name, file=file, line=line)


def _only_there(
    texts: Mapping[str, bytes],
    importing: Mapping[str, bytes],
    gone: set[bytes],
    others: Sequence[ReleaseSurface],
) -> dict[str, tuple[str, int]]:
    """Name -> file and line, of the methods that neither the caller nor another package defines."""
    bound = {word for text in texts.values() for found in _BOUND.findall(text) for word in found}
    read: dict[bytes, tuple[str, int]] = {}
    for file, text in importing.items():
        for match in _READ.finditer(text):
            if match[1] in gone and match[1] not in bound:
                read.setdefault(match[1], (file, text.count(b"\n", 0, match.start()) + 1))
    return {
        word.decode(): place
        for word, place in read.items()
        if not any(one.containing(word) for one in others)
    }


def _of_typed_parameters(tree: ast.Module, module: str, names: set[str]) -> Iterator[tuple[str, int]]:
    """The attributes in `names` that are read of a parameter whose annotation names a class of `module`."""
    types = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == module
        for alias in node.names
    }
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _names(statement.value) & types:
            types |= {one.id for one in statement.targets if isinstance(one, ast.Name)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        typed = {one.arg for one in arguments if one.annotation and _names(one.annotation) & types}
        for read in ast.walk(function):
            match read:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Load()):
                    if name in typed and attribute in names:
                        yield attribute, read.lineno


def _names(node: ast.expr) -> set[str]:
    """The names in a type, which can be a string."""
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    words = {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}
    return words | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _texts(surface: ReleaseSurface) -> Iterator[bytes]:
    return (surface.read(name) for name in surface.names() if name.endswith(".py"))


def _sources(file: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            return {name: archive.read(name) for name in names}
    except UNREADABLE as error:
        raise InputError("these sources cannot be read", where=Location(file), why=str(error)) from error


def _module(package: str) -> str:
    return package.replace("-", "_")
