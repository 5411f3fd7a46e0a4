"""Finds the modules of a package that cannot be imported with another release of a dependency, from sources alone.

Nothing is imported: the imports of each module are followed from top to bottom, those of its parent packages first.
The first import that fails ends all modules that were being imported. Imports in functions, under TYPE_CHECKING, and
in a `try` that catches the error are ignored.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True, kw_only=True)
class Site:
    """The import that fails: file and line, and the name that the other release lacks."""

    place: str
    missing: str


@dataclass(kw_only=True)
class Graph:
    """The imports of `package` in the folder `own`, with the dependency `used` in the folder `other`."""

    package: str
    own: Path
    used: str
    other: Path
    _ended: dict[str, Site | None] = field(default_factory=dict)

    def broken(self) -> dict[str, Site]:
        """Module -> the import that fails, if each module is the first import of a process."""
        found = {}
        for path in sorted((self.own / self.package).rglob("*.py")):
            parts = path.relative_to(self.own).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self._ended = {}
            if site := self._end_of(module):
                found[module] = site
        return found

    def _end_of(self, module: str) -> Site | None:
        if module in self._ended:
            return self._ended[module]
        above = module.rpartition(".")[0]
        site = self._end_of(above) if above else None
        if module in self._ended:
            return site or self._ended[module]
        # A module that is being imported is available to the modules that it imports.
        self._ended[module] = site
        path = _source(self.own, module)
        if site is None and path is not None and path.is_file():
            ends = (self._end_at(module, path, node) for node in _imports(_body(path)))
            site = next((end for end in ends if end), None)
        self._ended[module] = site
        return site

    def _end_at(self, module: str, path: Path, node: ast.Import | ast.ImportFrom) -> Site | None:
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        else:
            base = _absolute(module, path, node)
            wanted = [(base, alias.name) for alias in node.names]
        for base, name in wanted:
            top = base.partition(".")[0]
            if top == self.used and (missing := self._lacking(base, name)):
                return Site(place=f"{path.relative_to(self.own)}:{node.lineno}", missing=missing)
            if top == self.package:
                inner = f"{base}.{name}" if name and _source(self.own, f"{base}.{name}") else base
                if site := self._end_of(base) or self._end_of(inner):
                    return site
        return None

    def _lacking(self, base: str, name: str) -> str:
        parts = base.split(".")
        for length in range(1, len(parts) + 1):
            if _source(self.other, ".".join(parts[:length])) is None:
                return ".".join(parts[:length])
        if not name or name == "*" or _source(self.other, f"{base}.{name}"):
            return ""
        path = _source(self.other, base)
        names = _names(_body(path)) if path and path.is_file() else set()
        return "" if {name, "*", "__getattr__"} & names else f"{base}.{name}"


@functools.cache
def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text("utf-8")).body


@functools.cache
def _source(folder: Path, module: str) -> Path | None:
    place = folder.joinpath(*module.split("."))
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), place if place.is_dir() else None)


def _absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run with the module and whose failure ends it, in order."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If):
            yield from () if "TYPE_CHECKING" in ast.unparse(node.test) else _imports(node.body)
            yield from _imports(node.orelse)
        elif isinstance(node, ast.Try):
            caught = {word for handler in node.handlers for word in _words(handler.type)}
            yield from () if caught & CAUGHT else _imports(node.body)
        elif not isinstance(node, FUNCTIONS):
            yield from _imports(getattr(node, "body", []))


def _words(caught: ast.expr | None) -> set[str]:
    if caught is None:
        return {"Exception"}
    return {node.id for node in ast.walk(caught) if isinstance(node, ast.Name)}


def _names(body: list[ast.stmt]) -> set[str]:
    """The names that a module's top level binds; "*" if it imports all names of another module."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
        else:
            for inner in ("body", "orelse", "finalbody"):
                found |= _names(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                found |= _names(handler.body)
    return found
