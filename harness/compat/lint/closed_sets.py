"""Closed sets of texts: what verl compares a setting with before it raises an error for anything else.

`if name not in ("a", "b"): raise`, `assert name in NAMES`, and a chain of comparisons or a `match` whose last
branch raises an error. A name stands for a setting if the settings of this name have values of the set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.code_graph.stored_facts import code_digest
from harness.compat.lint.module_files import ModuleSources
from harness.compat.uses.analysis_cache import AnalysisCache

#: What stands in a module that compares something with several texts.
COMPARES = re.compile(r"\bnot in\b|\bassert .* in\b|== [\"']|\bmatch\b")
_CHANGED = ("lower", "upper", "strip")


@dataclass(frozen=True, kw_only=True)
class ClosedSet:
    """The texts that a name can be. place: the line that compares it."""

    texts: frozenset[str]
    place: str


def closed_sets(
    paths: Sequence[str], modules: ModuleSources, cache: Path | None
) -> Mapping[str, Sequence[ClosedSet]]:
    """The closed sets of texts that modules compare names with; stored ones of the same code."""

    def read() -> dict[str, tuple[ClosedSet, ...]]:
        found: dict[str, tuple[ClosedSet, ...]] = {}
        for path in paths:
            module = modules.syntax_tree(path)
            for name, one in _sets_of(module, path) if module is not None else ():
                found[name] = (*found.get(name, ()), one)
        return found

    if cache is None:
        return read()
    store = AnalysisCache(
        folder=cache / "lint", code=code_digest("harness.compat.lint.closed_sets", cache=cache)
    )
    return store.get("closed sets", [modules.digest], dict[str, tuple[ClosedSet, ...]], read)


#: Where nodes have statements, in the order in which they are written.
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def _statements(module: ast.Module) -> Sequence[ast.AST]:
    """A module and its statements, in the order of `ast.walk`, which takes ten times as long."""
    found: list[ast.AST] = [module]
    for node in found:
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if type(block) is list:
                found += block
    return found


def _sets_of(module: ast.Module, path: str) -> Iterator[tuple[str, ClosedSet]]:
    nodes = [
        one for one in _statements(module) if isinstance(one, (ast.Assign, ast.If, ast.Assert, ast.Match))
    ]
    literals = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    followers = {id(node.orelse[0]) for node in nodes if isinstance(node, ast.If) and len(node.orelse) == 1}
    for node in nodes:
        name, texts = "", frozenset[str]()
        if isinstance(node, (ast.If, ast.Assert)) and isinstance(node.test, ast.Compare):
            name = _name_of(node.test.left)
        if isinstance(node, ast.If) and id(node) not in followers:
            texts = _refused(node, name, literals) or _chain(node, name, literals)
        elif isinstance(node, ast.Assert):
            texts = _compared(node.test, name, literals, ast.In)
        elif isinstance(node, ast.Match):
            name, texts = _name_of(node.subject), _cases(node)
        if name and texts:
            yield name, ClosedSet(texts=texts, place=f"{path}:{node.lineno}")


def _refused(node: ast.If, name: str, literals: Mapping[str, ast.expr]) -> frozenset[str]:
    """`if name not in (...): raise`."""
    return _compared(node.test, name, literals, ast.NotIn) if _raises(node.body) else frozenset()


def _chain(node: ast.If, name: str, literals: Mapping[str, ast.expr]) -> frozenset[str]:
    """`if name == "a": ... elif name in (...): ... else: raise`."""
    found: set[str] = set()
    current = node
    while True:
        texts = _compared(current.test, name, literals, ast.Eq, ast.In)
        if not texts:
            return frozenset()
        found |= texts
        match current.orelse:
            case [ast.If() as following]:
                current = following
            case rest:
                return frozenset(found) if _raises(rest) else frozenset()


def _cases(node: ast.Match) -> frozenset[str]:
    *named, last = node.cases
    is_open = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
    if not is_open or not _raises(last.body):
        return frozenset()
    patterns = [
        part
        for case in named
        for part in (case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern])
    ]
    values = [one.value for one in patterns if isinstance(one, ast.MatchValue)]
    texts = [_text(one) for one in values]
    return frozenset(filter(None, texts)) if len(values) == len(patterns) and all(texts) else frozenset()


def _compared(
    test: ast.expr, name: str, literals: Mapping[str, ast.expr], *kinds: type[ast.cmpop]
) -> frozenset[str]:
    """The texts that a test compares a name with; empty if it tests anything else."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], kinds):
        return frozenset()
    other = test.comparators[0]
    if _name_of(test.left) != name:
        return frozenset()
    if isinstance(other, ast.Name):
        other = literals.get(other.id, other)
    nodes = other.elts if isinstance(other, (ast.List, ast.Tuple, ast.Set)) else [other]
    # None among them is no text: the setting is then not set.
    texts = [_text(one) for one in nodes if not (isinstance(one, ast.Constant) and one.value is None)]
    return frozenset(filter(None, texts)) if texts and all(texts) else frozenset()


def _name_of(node: ast.expr) -> str:
    """The last part of what is compared: of `self.name`, `config["name"]`, `config.get("name").lower()`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute(value=ast.Name(id="self")):
            # A class of the configuration checks its own fields when it is made, which is followed.
            return ""
        case ast.Attribute():
            return node.attr
        case ast.Subscript(slice=ast.Constant(value=str(text))):
            return text
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(text)), *_]):
            return text
        case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _CHANGED:
            return _name_of(inner)
    return ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _raises(statements: Sequence[ast.stmt]) -> bool:
    return bool(statements) and isinstance(statements[-1], ast.Raise)
