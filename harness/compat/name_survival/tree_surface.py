"""The API surface of a package whose files change from version to version.

Every lookup records what it has read: names of modules, whether modules exist, and what the text of the
package says about words. After a change, only the lookups are repeated for which something of it is
different: a function whose body has changed is the same to its callers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import NamedTuple, TypeVar

from harness.compat.knowledge.module_outline import UNREADABLE_OUTLINE
from harness.compat.name_survival.file_index import FileIndex
from harness.compat.name_survival.word_index import IndexedText, WordIndex, WordQuestion
from harness.compat.surface.api_surface import ApiSurface, NameLookup, module_of_file, words_of
from harness.compat.surface.call_signature import CallArguments
from harness.compat.surface.dynamic_attributes import openness
from harness.compat.surface.module_names import ModuleNames, class_attributes, read_names
from harness.compat.surface.package_text import PackageText
from harness.sources.python_syntax import parse_source

#: So many results of one kind are kept before they are dropped.
KEPT = 20_000
T = TypeVar("T")
_STARS_AND_DYNAMIC = ""


class Reading(NamedTuple):
    """Something that a lookup has read.

    kind: `text` of a module, `rules` (star imports and names made at run time), `exists` of a module, `name`
    of a module as MODULE:NAME, `quoted` as MODULE:NAME, `calls` of a method, or a question about a `word`.
    """

    kind: str
    name: str | WordQuestion


class TreeSurface(ApiSurface):
    """The importable packages of the present version. `update` turns it into the next version."""

    def __init__(self, files: FileIndex, packages: Iterable[str]) -> None:
        """An empty surface. packages: the top-level names of its modules."""
        self._files = files
        self._tops = frozenset(packages)
        self._ids: dict[str, str] = {}
        self._prefixes: dict[str, int] = {}
        self._parsed: dict[str, _ParsedModule] = {}
        self._asked: dict[str, set[str]] = {}
        self._quoted: dict[str, dict[str, bool]] = {}
        self._words = WordIndex()
        self._methods: set[str] = set()
        self._recorded: set[Reading] = set()
        self._found: dict[str, tuple[NameLookup, frozenset[Reading]]] = {}
        self._finders: dict[Reading, set[str]] = {}
        self._members: dict[str, str] = {}
        self._compiled: set[str] = set()
        self._openness = cache(openness)
        self._class_attributes = cache(class_attributes)

    @cached_property
    def packages(self) -> frozenset[str]:
        """The top-level names that can be imported."""
        return self._tops

    def recorded(self, compute: Callable[[], T]) -> tuple[T, frozenset[Reading]]:
        """The result of a function, and what it has read of this surface."""
        self._recorded = set()
        return compute(), frozenset(self._recorded)

    def update(self, changes: Mapping[str, str | None]) -> set[Reading]:
        """Replace files: path -> content id, None for a removed one. Returns what is different."""
        changed: set[Reading] = set()
        for path, new in changes.items():
            module = module_of_file(path)
            known = self._members.get(module)
            # A module can be a file and a folder: the file that is there counts.
            if module.partition(".")[0] in self._tops and not (new is None and known not in {None, path}):
                changed |= self._replace(module, path, new)
        for reading in changed & self._finders.keys():
            for dotted in self._finders.pop(reading):
                self._found.pop(dotted, None)
        if self._openness.cache_info().currsize > KEPT:
            self._openness, self._class_attributes = cache(openness), cache(class_attributes)
        return changed

    def find(self, dotted: str, depth: int = 0) -> NameLookup:
        """Look up `package.module.Class.attribute`. What several uses look up is looked up once."""
        if depth:
            return self._find(dotted, depth)
        if dotted not in self._found:
            before, self._recorded = self._recorded, set()
            found = self._find(dotted, 0)
            readings, self._recorded = frozenset(self._recorded), before
            self._found[dotted] = found, readings
            for reading in readings:
                self._finders.setdefault(reading, set()).add(dotted)
        found, readings = self._found[dotted]
        self._recorded |= readings
        return found

    def _replace(self, module: str, path: str, new: str | None) -> set[Reading]:
        changed = {Reading("text", module)}
        old = self._ids.get(module)
        asked = self._asked.get(module, set())
        before = self._names_of(module).digests(asked) if asked else {}
        self._parsed.pop(module, None)
        if new is None:
            self._members.pop(module, None)
            self._ids.pop(module, None)
        else:
            self._members[module], self._ids[module] = path, new
        if (old is None) != (new is None):
            changed |= self._exists(module, 1 if old is None else -1)
        if asked:
            after = self._names_of(module).digests(asked)
            changed |= {
                Reading("name", f"{module}:{name}") if name else Reading("rules", module)
                for name, digest in after.items()
                if before[name] != digest
            }
        changed |= self._changed_calls(old, new)
        text = self._files.text(new) if new else None
        changed |= {Reading("word", question) for question in self._words.replace(module, text)}
        return changed | self._changed_quotes(module)

    def _changed_calls(self, old: str | None, new: str | None) -> set[Reading]:
        return {
            Reading("calls", method)
            for method in self._methods
            if (self._files.calls(old, method) if old else ())
            != (self._files.calls(new, method) if new else ())
        }

    def _changed_quotes(self, module: str) -> set[Reading]:
        before = self._quoted.get(module, {})
        after = {name: self._is_quoted(module, name) for name in before}
        self._quoted[module] = after
        return {Reading("quoted", f"{module}:{name}") for name in after if after[name] != before[name]}

    def _exists(self, module: str, step: int) -> set[Reading]:
        changed = set()
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            count = self._prefixes.get(name, 0) + step
            if count == 0 or (count == 1 and step == 1):
                changed.add(Reading("exists", name))
            self._prefixes[name] = count
            if not count:
                del self._prefixes[name]
        return changed

    def _record(self, kind: str, name: str | WordQuestion) -> None:
        self._recorded.add(Reading(kind, name))

    def _may_define(self, module: str, name: str) -> bool:
        return any(word in self.source(module) for word in words_of(name))

    def source(self, module: str) -> bytes:
        """The text of a module; empty when the module does not exist."""
        self._record("text", module)
        return self._read(module)

    def _read(self, module: str) -> bytes:
        return self._files.text(self._ids[module]) if module in self._ids else b""

    def has_module(self, module: str) -> bool:
        """Whether the module exists, as a source file or a folder."""
        self._record("exists", module)
        return module in self._prefixes

    def names(self, module: str) -> ModuleNames | None:
        """The names that a module binds; None when it has no sources or they cannot be parsed."""
        self._record("exists", module)
        self._record("rules", module)
        self._asked.setdefault(module, {_STARS_AND_DYNAMIC})
        return self._names_of(module).names

    def _names_of(self, module: str) -> _ParsedModule:
        if module not in self._members:
            return _ParsedModule(ModuleNames() if module in self._prefixes else None, "")
        if module not in self._parsed:
            outline = self._files.outline(self._ids[module])
            is_readable = outline != UNREADABLE_OUTLINE.decode()
            tree = parse_source(outline.encode()) if is_readable else None
            package = self._members[module].endswith("/__init__.py")
            names = read_names(tree, module, package=package) if tree else None
            self._parsed[module] = _ParsedModule(names, outline)
        return self._parsed[module]

    def _ask(self, module: str, name: str) -> None:
        self._record("name", f"{module}:{name}")
        self._asked.setdefault(module, {_STARS_AND_DYNAMIC}).add(name)

    def _may_bind(self, module: str, name: str) -> bool:
        self._ask(module, name)
        return super()._may_bind(module, name)

    def _lookup(self, module: str, name: str, depth: int, seen: set[str]) -> NameLookup:
        self._ask(module, name)
        return super()._lookup(module, name, depth, seen)

    def _standard(self, module: str, written: str) -> frozenset[str] | None:
        self._ask(module, written.partition(".")[0])
        return super()._standard(module, written)

    def _may_be_set(self, module: str, name: str) -> bool:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            holder = ".".join(parts[:end])
            self._record("quoted", f"{holder}:{name}")
            known = self._quoted.setdefault(holder, {})
            if name not in known:
                known[name] = self._is_quoted(holder, name)
            if known[name]:
                return True
        return self.mentions(module).is_set(name)

    def _is_quoted(self, module: str, name: str) -> bool:
        if not self._words.has(module, name):
            return False
        quoted = rb"""["'](?:[\w.{}]*\.)?%s["']""" % re.escape(name).encode()
        return re.search(quoted, self._read(module)) is not None

    def mentions(self, module: str) -> PackageText:
        """The text of the top-level package that contains a module."""
        return IndexedText(self._ask_word, module.partition(".")[0])

    def _ask_word(self, question: WordQuestion) -> int:
        self._record("word", question)
        return self._words.answer(question)

    def calls_of(self, method: str) -> tuple[tuple[str, CallArguments], ...]:
        """Every call `x.method(...)` in the package."""
        self._record("calls", method)
        self._methods.add(method)
        files = sorted((self._members[name], self._ids[name]) for name in self._words.modules_with(method))
        return tuple(
            (f"{file}:{line}", call)
            for file, content in files
            for line, call in self._files.calls(content, method)
        )


class _ParsedModule:
    """The names of a module, None if it cannot be read, and its outline."""

    def __init__(self, names: ModuleNames | None, outline: str) -> None:
        self.names = names
        self._lines = outline.split("\n")

    def digests(self, asked: Iterable[str]) -> dict[str, object]:
        """What the module says about each name; for `_STARS_AND_DYNAMIC` about its names as a whole."""
        names = self.names
        if names is None:
            return dict.fromkeys(asked)
        return {
            name: (
                [self._text_of(node) for node in names.defined.get(name, ())],
                names.imported.get(name),
                name in names.other,
                names.exported is None or name in names.exported,
            )
            if name
            else (names.stars, names.dynamic)
            for name in asked
        }

    def _text_of(self, node: ast.stmt) -> list[str]:
        """The lines of a definition in the outline, with its decorators."""
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        return self._lines[first - 1 : node.end_lineno]
