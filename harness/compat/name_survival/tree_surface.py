"""The API surface of a package whose files change from version to version.

Every lookup records what it has read: names of modules, whether modules exist, and words that the text of
the package was searched for. After a change, only the lookups are repeated for which something of it is
different: a function whose body has changed is the same to its callers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from harness.compat.surface.api_surface import ApiSurface, NameLookup, module_of_file
from harness.compat.surface.call_signature import CallArguments
from harness.compat.surface.dynamic_attributes import openness
from harness.compat.surface.module_names import ModuleNames, class_attributes, flat_statements
from harness.compat.surface.package_text import PackageText

#: So many results of one kind are kept before they are dropped.
KEPT = 20_000
#: Lines before and after a word that decide what the text says about it.
LINES_BEFORE, LINES_AFTER = 3, 1
T = TypeVar("T")


class Reading(NamedTuple):
    """Something that a lookup has read.

    kind: `text`, `rules` (star imports and names made at run time), `exists` of a module, `name` of a module
    as MODULE:NAME, `word` of the package, or `calls` of a method.
    """

    kind: str
    name: str


class TreeSurface(ApiSurface):
    """The importable packages of the present version. `update` turns it into the next version."""

    def __init__(self, read: Callable[[str], bytes], packages: Iterable[str]) -> None:
        """An empty surface. read: the content with an id. packages: the top-level names of its modules."""
        self.file = Path("a version of the provider")
        self._blob = read
        self._tops = frozenset(packages)
        self._ids: dict[str, str] = {}
        self._prefixes: dict[str, int] = {}
        self._texts: dict[str, bytes] = {}
        self._parsed: dict[str, ModuleNames | None] = {}
        self._searched: dict[str, PackageText] = {}
        self._asked: dict[str, set[str]] = {}
        self._with_word: dict[bytes, set[str]] = {}
        self._recorded: set[Reading] = set()
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
        if self._openness.cache_info().currsize > KEPT:
            self._openness, self._class_attributes = cache(openness), cache(class_attributes)
        return changed

    def _replace(self, module: str, path: str, new: str | None) -> set[Reading]:
        changed = {Reading("text", module)}
        old_text = self._read(module) if self._with_word else b""
        was_parsed = module in self._asked
        old_names = self._digests(module) if was_parsed else {}
        existed = module in self._members
        self._texts.pop(module, None)
        self._parsed.pop(module, None)
        self._searched.pop(module, None)
        if new is None:
            self._members.pop(module, None)
            self._ids.pop(module, None)
        else:
            self._members[module], self._ids[module] = path, new
        if existed != (new is not None):
            changed |= self._exists(module, -1 if existed else 1)
        if was_parsed:
            new_names = self._digests(module)
            changed |= {
                Reading("name", f"{module}:{name}") if name else Reading("rules", module)
                for name, digest in new_names.items()
                if old_names[name] != digest
            }
        return changed | self._changed_words(module, old_text)

    def _digests(self, module: str) -> dict[str, str]:
        """Each name that was asked for -> what the module says about it; "" -> its rules."""
        names = self._own_names(module)
        found = {name: _digest_of(names, name, self._class_digest) for name in self._asked.get(module, ())}
        found[""] = repr((names.stars, names.dynamic)) if names else "none"
        return found

    def _class_digest(self, node: ast.ClassDef) -> str:
        return repr((sorted(self._class_attributes(node)), self._openness(node)))

    def _changed_words(self, module: str, old_text: bytes) -> set[Reading]:
        """The searched words about which the module now says something else."""
        if not self._with_word:
            return set()
        text = self._read(module)
        changed = set()
        for word, modules in self._with_word.items():
            before, after = module in modules, word in text
            if not before and not after:
                continue
            changed.add(Reading("calls", word.decode()))
            if before != after or _around(old_text, word) != _around(text, word):
                changed.add(Reading("word", word.decode()))
            if after:
                modules.add(module)
            else:
                modules.discard(module)
        return changed

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

    def modules_with(self, word: str) -> list[str]:
        """The modules whose text contains the word."""
        encoded = word.encode()
        if encoded not in self._with_word:
            self._with_word[encoded] = {name for name in self._members if encoded in self._read(name)}
        return sorted(self._with_word[encoded])

    def _record(self, kind: str, name: str) -> None:
        self._recorded.add(Reading(kind, name))

    def source(self, module: str) -> bytes:
        """The text of a module; empty when the module does not exist."""
        self._record("text", module)
        return self._read(module)

    def _read(self, module: str) -> bytes:
        if module not in self._texts:
            self._texts[module] = self._blob(self._ids[module]) if module in self._ids else b""
        return self._texts[module]

    def has_module(self, module: str) -> bool:
        """Whether the module exists, as a source file or a folder."""
        self._record("exists", module)
        return module in self._prefixes

    def names(self, module: str) -> ModuleNames | None:
        """The names that a module binds; None when it has no sources or they cannot be parsed."""
        self._record("exists", module)
        self._record("rules", module)
        return self._own_names(module)

    def _own_names(self, module: str) -> ModuleNames | None:
        if module not in self._members:
            return ModuleNames() if module in self._prefixes else None
        if module not in self._parsed:
            recorded, self._recorded = self._recorded, set()
            self._parsed[module] = self._parse_names(module)
            self._recorded = recorded
        return self._parsed[module]

    def _ask(self, module: str, name: str) -> None:
        self._record("name", f"{module}:{name}")
        self._asked.setdefault(module, set()).add(name)

    def _lookup(self, module: str, name: str, depth: int, seen: set[str]) -> NameLookup:
        self._ask(module, name)
        return super()._lookup(module, name, depth, seen)

    def _standard(self, module: str, written: str) -> frozenset[str] | None:
        self._ask(module, written.partition(".")[0])
        return super()._standard(module, written)

    def _may_be_set(self, module: str, name: str) -> bool:
        self._record("word", name)
        recorded = self._recorded
        self._recorded = set()
        found = bool(self.modules_with(name)) and super()._may_be_set(module, name)
        self._recorded = recorded
        return found

    def mentions(self, module: str) -> PackageText:
        """The text of the top-level package that contains a module."""
        return WordText(self, module.partition(".")[0])

    def texts_with(self, top: str, word: str) -> Iterator[PackageText]:
        """The text of each module of a package that contains the word."""
        self._record("word", word)
        whole = re.compile(rf"{re.escape(top)}(\.|$)")
        for name in self.modules_with(word):
            if whole.match(name):
                if name not in self._searched:
                    self._searched[name] = PackageText(partial(_only, self._read(name)))
                yield self._searched[name]

    def calls_of(self, method: str) -> tuple[tuple[str, CallArguments], ...]:
        """Every call `x.method(...)` in the package."""
        self._record("calls", method)
        recorded, self._recorded = self._recorded, set()
        files = [(name, self._members[name]) for name in self.modules_with(method)]
        found = self._find_calls_in(method, files)
        self._recorded = recorded
        return found


class WordText(PackageText):
    """The text of a package. Each question reads only the modules that contain its word."""

    def __init__(self, surface: TreeSurface, top: str) -> None:
        super().__init__(lambda: ())
        self._surface, self._top = surface, top

    def is_set(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_set(word) for text in self._with(word))

    def is_assigned(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_assigned(word) for text in self._with(word))

    def is_bound(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_bound(word) for text in self._with(word))

    def is_read(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_read(word) for text in self._with(word))

    def is_called(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_called(word) for text in self._with(word))

    def is_mentioned(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_mentioned(word) for text in self._with(word))

    def is_derived_from(self, word: str) -> bool:
        """See `PackageText`."""
        return any(text.is_derived_from(word) for text in self._with(word))

    def definitions(self, word: str) -> int:
        """See `PackageText`."""
        return sum(text.definitions(word) for text in self._with(word))

    def _with(self, word: str) -> Iterator[PackageText]:
        return self._surface.texts_with(self._top, word)


def _only(text: bytes) -> tuple[bytes, ...]:
    return (text,)


def _digest_of(names: ModuleNames | None, name: str, of_class: Callable[[ast.ClassDef], str]) -> str:
    """What a module says about a name, without the bodies of functions."""
    if names is None:
        return "none"
    exported = names.exported is None or name in names.exported
    definitions = [_interface(node, of_class) for node in names.defined.get(name, ())]
    return repr((definitions, names.imported.get(name), name in names.other, exported))


def _interface(node: ast.stmt, of_class: Callable[[ast.ClassDef], str]) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return repr((node.name, ast.dump(node.args), [ast.dump(one) for one in node.decorator_list]))
    if not isinstance(node, ast.ClassDef):
        return ""
    header = [ast.dump(one) for one in (*node.bases, *node.keywords, *node.decorator_list)]
    members = [_interface(one, of_class) for one in flat_statements(node.body)]
    return repr((node.name, header, [one for one in members if one], of_class(node)))


def _around(text: bytes, word: bytes) -> list[bytes]:
    """The lines around each occurrence of a word."""
    found = []
    at = text.find(word)
    while at >= 0:
        start, end = at, at
        for _ in range(LINES_BEFORE + 1):
            start = text.rfind(b"\n", 0, max(0, start))
            if start < 0:
                break
        for _ in range(LINES_AFTER + 1):
            end = text.find(b"\n", end + 1)
            if end < 0:
                end = len(text)
                break
        found.append(text[start + 1 : end])
        at = text.find(word, at + len(word))
    return found
