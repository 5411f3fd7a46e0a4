"""Methods of a package that another one calls on its objects, and that a later release does not have at all.

`api` compares names whose class is certain. Here a word counts that was a method and that no file of the
later release contains, in two cases: nothing else defines it, so it can only be that method; or it is read of
a parameter whose type names a class of the package (`tokenizer: AnyTokenizer`, a union of such classes).
What is read under a condition does not count: peft calls `from_legacy_cache` for prefix tuning only.
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
_READ = re.compile(rb"\.([a-zA-Z]\w+)")
#: A definition, an assignment, or a text, with which `hasattr` and `getattr` ask for a name.
_BOUND = re.compile(rb"\b(?:def|class)\s+(\w+)|[\"'](\w+)[\"']|\b(\w+)\s*(?::[^=\n]+)?=[^=]")
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda)
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class RemovedName:
    """A method that is read in a line of the calling package. is_typed: of a parameter with a type."""

    name: str
    file: str
    line: int
    is_typed: bool

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
    texts, module = _sources(sources), before.package.replace("-", "_")
    imported = re.compile(rb"^\s*(?:from|import) +%s\b" % module.encode(), re.MULTILINE)
    bound = {word.decode() for text in texts.values() for found in _BOUND.findall(text) for word in found}
    told: set[str] = set()
    importing = {file: text for file, text in texts.items() if imported.search(text)}
    for one in _all_reads(importing, module, gone):
        is_elsewhere = one.name in bound or any(other.containing(one.name.encode()) for other in others)
        if one.name not in told and (one.is_typed or not is_elsewhere):
            told.add(one.name)
            yield one


def _all_reads(texts: Mapping[str, bytes], module: str, gone: set[bytes]) -> Iterator[RemovedName]:
    for file, text in sorted(texts.items()):
        names = {word.decode() for word in _READ.findall(text) if word in gone}
        tree = parse_source(text) if names else None
        if tree is not None:
            types = _types(tree, module)
            for node, is_typed in _unconditional(tree, types, frozenset()):
                if node.attr in names:
                    yield RemovedName(name=node.attr, file=file, line=node.lineno, is_typed=is_typed)


def _types(tree: ast.Module, module: str) -> set[str]:
    """The names that a module has for types of a package: imported ones, and unions with these."""
    types = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == module
        for alias in node.names
    }
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _names(statement.value) & types:
            types |= {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return types


def _unconditional(
    node: ast.AST, types: set[str], typed: frozenset[str]
) -> Iterator[tuple[ast.Attribute, bool]]:
    """The attributes that are read wherever their function runs, and whether of a parameter in `typed`."""
    if isinstance(node, _FUNCTIONS):
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        typed = typed - {one.arg for one in arguments}
        typed |= {one.arg for one in arguments if one.annotation and _names(one.annotation) & types}
    if isinstance(node, (*_BRANCHES, *_LOOPS)):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        if of not in {"self", "cls"}:
            yield node, of in typed
    for child in ast.iter_child_nodes(node):
        yield from _unconditional(child, types, typed)


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
