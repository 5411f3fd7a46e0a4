"""Registrations of a package that another one refuses, because a later release of it has the key itself.

vllm 0.9.2 calls `AutoConfig.register("aimv2", AIMv2Config)` when it is imported. transformers 4.54 has a
model of this name, and raises ValueError: "'aimv2' is already used by a Transformers config". No name is
missing then, so a comparison of names finds nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.compat.api.stated_consumers import entry_modules
from harness.compat.knowledge.surface_pack import ReleaseSurface
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.package_uses import imported_modules
from harness.sources.python_syntax import parse_source

REGISTER, PERMITS = "register", "exist_ok"
#: A module of a registry refuses a known key unless it is told otherwise.
_REGISTRY = re.compile(rb"def %s\([^\n]*\b%s\b" % (REGISTER.encode(), PERMITS.encode()))
_WORDS = re.compile(rb"[\"']([\w.-]+)[\"']")


@dataclass(frozen=True, kw_only=True)
class TakenKey:
    """A key that a package registers. is_imported: whether the line runs when the package starts."""

    key: str
    registry: str
    file: str
    line: int
    is_imported: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} registers {self.key!r} with {self.registry}"


def new_keys(before: ReleaseSurface, now: ReleaseSurface) -> dict[str, set[bytes]]:
    """Module with registries -> the words in quotes that it has now and did not have before."""
    found = {}
    for path in now.containing(PERMITS.encode()):
        text, earlier = now.read(path), before.read(path)
        if earlier and _REGISTRY.search(text):
            words = set(_WORDS.findall(text)) - set(_WORDS.findall(earlier))
            if words:
                found[path] = words
    return found


def taken_keys(package: Package, before: ReleaseSurface, now: ReleaseSurface) -> Iterator[TakenKey]:
    """The keys that a package registers at import, as literals, with registries that have them by now.

    before: the last release that the package can have been written for.
    """
    added = new_keys(before, now)
    top = before.package.replace("-", "_")
    reached: frozenset[str] | None = None
    for module, file in package.surface.files() if added else ():
        source = package.surface.source(module)
        if f".{REGISTER}(".encode() not in source:
            continue
        for registry, key, line in _registrations(source, top):
            definition = now.api.find(registry).definition
            if definition is None or key.encode() not in added.get(_path(now, definition.module), ()):
                continue
            if reached is None:
                reached = imported_modules(package.surface, entry_modules(package), {})
            yield TakenKey(key=key, registry=registry, file=file, line=line, is_imported=module in reached)


def _path(surface: ReleaseSurface, module: str) -> str:
    return dict(surface.api.files()).get(module, "")


def _registrations(source: bytes, top: str) -> Iterator[tuple[str, str, int]]:
    """The dotted name of a registry of `top`, the key and the line of each registration of a module."""
    tree = parse_source(source)
    if tree is None:
        return
    names = _imported(tree.body, top)
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        of, key = call.func.value, call.args[0] if call.args else None
        permits = any(one.arg in {PERMITS, None} for one in call.keywords)
        if (
            call.func.attr == REGISTER
            and isinstance(of, ast.Name)
            and of.id in names
            and isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and not permits
        ):
            yield names[of.id], key.value, call.lineno


def _imported(body: Sequence[ast.stmt], top: str) -> dict[str, str]:
    """Name in a module -> the dotted name in the package `top` that it was imported from."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in body
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == top
        for alias in node.names
    }
