"""Computes which definitions can be reached from a starting point, and a digest of them.

A definition reaches what it refers to. Its module is imported first, so the code that runs when this module
and the modules it imports are imported is reached too. Other definitions of these modules are reached only if
something refers to them. Code also counts as reached if only a run would show whether it is used: a module
that a text names, all names of a module object that is passed on, and functions that a call on import may
call.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.code_graph.module_facts import (
    ASSIGNMENT,
    CLASS,
    FUNCTION,
    PACKAGE,
    Definition,
    ModuleFacts,
    mentions,
    read_module,
)
from harness.package import PACKAGE_ROOT

#: Files that cannot change what the code does: compiled copies and prose.
IGNORED_SUFFIXES = frozenset({".pyc", ".pyo", ".md"})
ON_IMPORT, AS_PROGRAM, WHOLE, DEFINITION, DATA, MISSING = (
    "import",
    "program",
    "whole",
    "name",
    "data",
    "missing",
)
#: (one of the kinds above, module or data file, name of the definition)
Node = tuple[str, str, str]
MODULE_DIGITS = 12


class FactsStore(Protocol):
    """Stores the facts of files by the digest of their content."""

    def get(self, digest: str) -> ModuleFacts | None:
        """The stored facts of a file with this content, or None."""

    def put(self, digest: str, facts: ModuleFacts) -> None:
        """Store the facts of a file."""


@dataclass(frozen=True, kw_only=True)
class ReachedCode:
    """The code that can be reached from a starting point.

    digest: digest of all of this code. modules: module or data file -> digest of the part that is reached.
    """

    digest: str
    modules: Mapping[str, str]


def is_code(file: Path) -> bool:
    """Whether a file can change what the code does; compiled copies and prose cannot."""
    return file.suffix not in IGNORED_SUFFIXES and "__pycache__" not in file.parts


class CodeGraph:
    """The definitions of a package `harness` and their references. Files are read when they are reached."""

    def __init__(self, root: Path = PACKAGE_ROOT, store: FactsStore | None = None) -> None:
        self.root = root
        self._store = store
        self._facts: dict[str, ModuleFacts | None] = {}
        self._files: dict[str, Path | None] = {}
        self._edges: dict[Node, tuple[Node, ...]] = {}
        self._later: dict[Node, tuple[Node, ...]] = {}
        self._digests: dict[str, str] = {}
        self._modules: list[str] | None = None

    def modules(self) -> list[str]:
        """Every module of the package; folders of package data are not modules."""
        if self._modules is None:
            self._modules = sorted(_modules_in(self.root, PACKAGE))
        return self._modules

    def facts(self, module: str) -> ModuleFacts | None:
        """The facts of a module; None if it does not exist."""
        if module not in self._facts:
            file = self.file(module)
            self._facts[module] = self._read(file, module) if file else None
        return self._facts[module]

    def file(self, module: str) -> Path | None:
        """The file of a module, None if it does not exist."""
        if module not in self._files:
            self._files[module] = self._find_file(module)
        return self._files[module]

    def _find_file(self, module: str) -> Path | None:
        first, *rest = module.split(".")
        if first != PACKAGE:
            return None
        path = self.root.joinpath(*rest)
        for file in (path / "__init__.py", *([path.with_suffix(".py")] if rest else [])):
            if file.is_file():
                return file
        return None

    def _read(self, file: Path, module: str) -> ModuleFacts:
        content = file.read_bytes()
        # The facts contain the module's name where code refers to its own module.
        digest = hashlib.sha256(module.encode() + b"\0" + content).hexdigest()
        known = self._store.get(digest) if self._store else None
        if known is not None:
            return known
        try:
            facts = read_module(content, module)
        except (SyntaxError, ValueError):
            # It cannot be imported either. All of its content counts.
            broken = Definition(kind=ASSIGNMENT, digest=digest)
            facts = ModuleFacts(on_import=broken, problems=["it is not valid for this version of Python"])
        if self._store:
            self._store.put(digest, facts)
        return facts

    def reach(self, roots: Iterable[str], *, stop: Collection[str] = (), checks: bool = True) -> set[Node]:
        """Every piece of code that can be reached from the roots.

        roots: `harness.a.b:name` (a definition), `harness.a.b` (all of a module, also run as a program), or a
            pattern of module names (`harness.a.*`).
        stop: modules that are not followed.
        checks: whether to follow the functions that a declared check runs after planning.
        """
        waiting = [node for root in roots for node in self._root(root)]
        found: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in found or node[1] in stop:
                continue
            found.add(node)
            if node not in self._edges:
                self._follow(node)
            waiting.extend(self._edges[node])
            if checks:
                waiting.extend(self._later[node])
        return found

    def digest(self, nodes: Iterable[Node]) -> ReachedCode:
        """The digest of pieces of code."""
        pieces: dict[str, list[str]] = {}
        for kind, location, name in nodes:
            if kind == WHOLE:
                continue
            content = self._content(kind, location, name)
            if content:
                pieces.setdefault(location, []).append(f"{kind} {name} {content}")
        modules = {
            location: hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]
            for location, lines in sorted(pieces.items())
        }
        whole = hashlib.sha256(json.dumps(modules).encode()).hexdigest()
        return ReachedCode(
            digest=whole, modules={location: digest[:MODULE_DIGITS] for location, digest in modules.items()}
        )

    def data_files(self, location: str) -> list[Path]:
        """The files of package data. location: a folder or file, relative to the folder of the package."""
        path = self.root / location
        if path.is_file():
            return [path]
        return sorted(file for file in path.rglob("*") if file.is_file() and is_code(file))

    def _content(self, kind: str, location: str, name: str) -> str:
        if kind == MISSING:
            return "missing"
        if kind == DATA:
            if location not in self._digests:
                self._digests[location] = hashlib.sha256((self.root / location).read_bytes()).hexdigest()
            return self._digests[location]
        facts = self.facts(location)
        if facts is None:
            return "missing"
        if kind == ON_IMPORT:
            # A module that does nothing on import has no digest here and is left out.
            return facts.on_import.digest
        return facts.as_program.digest if kind == AS_PROGRAM else facts.definitions[name].digest

    def _root(self, root: str) -> Iterator[Node]:
        module, _, name = root.partition(":")
        if "*" in module:
            for found in fnmatch.filter(self.modules(), module):
                yield from self._resolve(found, [name] if name else [])
            return
        yield from self._resolve(module, name.split(".") if name else [])

    def _follow(self, node: Node) -> None:
        now: dict[Node, None] = {}
        later: dict[Node, None] = {}
        for is_run_later, reached in self.neighbours(node):
            (later if is_run_later else now)[reached] = None
        self._edges[node] = tuple(now)
        self._later[node] = tuple(reached for reached in later if reached not in now)

    def neighbours(self, node: Node) -> Iterator[tuple[bool, Node]]:
        """The references of a piece of code, each with a flag: whether it is used only when a check runs."""
        kind, location, name = node
        if kind == MISSING:
            return
        if kind == DATA:
            yield from ((False, reached) for reached in self._mentioned(location))
            return
        facts = self.facts(location)
        if facts is None:
            yield False, (MISSING, location, "")
            return
        if kind == WHOLE:
            yield False, (AS_PROGRAM, location, "")
            yield from ((False, (DEFINITION, location, definition)) for definition in facts.definitions)
        if kind != ON_IMPORT:
            yield False, (ON_IMPORT, location, "")
        if kind == ON_IMPORT:
            yield from ((False, reached) for reached in self._imported(location, facts))
        piece = {ON_IMPORT: facts.on_import, AS_PROGRAM: facts.as_program}.get(kind)
        if kind == DEFINITION:
            piece = facts.definitions[name]
        for reference in piece.references if piece else ():
            is_run_later = reference.startswith("~")
            nodes = self._referred(location, reference.lstrip("~"))
            yield from ((is_run_later, reached) for reached in nodes)

    def _imported(self, module: str, facts: ModuleFacts) -> Iterator[Node]:
        """The other code that an import of a module runs: its parents, its imports, calls in definitions."""
        if "." in module:
            yield ON_IMPORT, module.rpartition(".")[0], ""
        for imported in facts.imports:
            yield from self._import(imported)
        for name, definition in facts.definitions.items():
            for called in definition.called_on_import:
                call, _, chain = called.partition(":")
                for node in self._resolve(module, chain.split(".")):
                    if node[0] == DEFINITION:
                        kind = self._kind(node)
                        if kind == FUNCTION or (call == "c" and kind == ASSIGNMENT):
                            # The arguments of the call are reached, too.
                            yield node
                            yield DEFINITION, module, name
                        elif kind == CLASS:
                            yield node
                    elif node[0] == WHOLE:
                        yield node

    def _kind(self, node: Node) -> str:
        facts = self.facts(node[1])
        return facts.definitions[node[2]].kind if facts else ""

    def _import(self, imported: str) -> Iterator[Node]:
        module, _, name = imported.partition(":")
        if self.facts(module) is None:
            yield MISSING, module, ""
            return
        yield ON_IMPORT, module, ""
        if name:
            if self.file(f"{module}.{name}"):
                yield ON_IMPORT, f"{module}.{name}", ""
            elif not self._defines(module, name):
                yield MISSING, module, name

    def _defines(self, module: str, name: str) -> bool:
        facts = self.facts(module)
        return facts is not None and (
            name in facts.definitions
            or name in facts.bindings
            or name in facts.bound_on_import
            or "__getattr__" in facts.definitions
            or name.startswith("__")
        )

    def _referred(self, module: str, reference: str) -> Iterator[Node]:
        mark, rest = reference[0], reference[1:]
        if reference == ".":
            yield WHOLE, module, ""
        elif mark == "!":
            yield from self._import(rest)
        elif mark == "@":
            yield from self._named(rest)
        elif mark == "/":
            yield from self._data(module, rest)
        elif mark == "=":
            target, _, chain = rest.partition(":")
            yield from self._resolve(target, chain.split(".") if chain else [])
        elif mark == "*":
            pattern, _, name = rest.partition(":")
            for found in fnmatch.filter(self.modules(), pattern.replace("?", "*")):
                yield from self._resolve(found, [name] if name else [])
        else:
            yield from self._resolve(module, reference.split("."))

    def _data(self, module: str, location: str) -> Iterator[Node]:
        files = self.data_files(location)
        if not files:
            yield MISSING, module, location
        for file in files:
            yield DATA, file.relative_to(self.root).as_posix(), ""

    def _mentioned(self, location: str) -> Iterator[Node]:
        """Modules that a data file names, for example as an entry point."""
        text = (self.root / location).read_bytes().decode("utf-8", "replace")
        for name in mentions(text):
            yield from self._named(name)

    def _named(self, dotted: str) -> Iterator[Node]:
        """The module that a dotted name names or lies in; nothing if there is no such module."""
        parts = dotted.split(".")
        while len(parts) > 1:
            if self.file(".".join(parts)):
                yield WHOLE, ".".join(parts), ""
                return
            parts.pop()

    def _resolve(self, module: str, chain: list[str], depth: int = 0) -> Iterator[Node]:
        facts = self.facts(module)
        if facts is None or depth > 20:
            yield MISSING, module, ".".join(chain)
            return
        if not chain:
            # The module object itself is passed on: any of its names may be used.
            yield WHOLE, module, ""
            return
        name, rest = chain[0], chain[1:]
        yield ON_IMPORT, module, ""
        if name in facts.definitions:
            yield DEFINITION, module, name
        if name in facts.bindings:
            target, _, imported = facts.bindings[name].partition(":")
            yield from self._resolve(target, [*([imported] if imported else []), *rest], depth + 1)
        elif name in facts.definitions or name in facts.bound_on_import:
            return
        elif self.file(f"{module}.{name}"):
            yield ON_IMPORT, f"{module}.{name}", ""
            yield from self._resolve(f"{module}.{name}", rest, depth + 1)
        elif name in {"__file__", "__spec__"}:
            yield WHOLE, module, ""
        elif "__getattr__" in facts.definitions:
            yield DEFINITION, module, "__getattr__"
        elif not name.startswith("__"):
            yield MISSING, module, name


def _modules_in(folder: Path, dotted: str) -> Iterator[str]:
    if not (folder / "__init__.py").is_file():
        return
    yield dotted
    for path in folder.iterdir():
        if path.is_dir():
            yield from _modules_in(path, f"{dotted}.{path.name}")
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield f"{dotted}.{path.stem}"
