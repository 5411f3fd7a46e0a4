"""Facts about versions of files by their content: the outline, and the calls of methods.

A file with an equal content is read once, whatever the number of versions that have it. The facts are kept
between runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from harness.compat.knowledge.module_outline import outline
from harness.compat.surface.call_signature import CallArguments, arguments_of
from harness.compat.surface.module_names import dotted
from harness.compat.surface.syntax_walk import walk
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.digest import digest_json
from harness.sources.python_syntax import parse_source

#: So many texts and trees of files are kept in memory.
KEPT = 4096
#: So many new facts are computed before they are stored.
STORED_AT = 500
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MethodCalls:
    """The calls `x.method(...)` of the methods of interest in a file, each with its line."""

    calls: dict[str, tuple[tuple[int, CallArguments], ...]] = field(default_factory=dict)


class FileIndex:
    """Facts about files by content id."""

    def __init__(
        self, read: Callable[[str], bytes], cache: AnalysisCache, *, methods: Collection[str] = ()
    ) -> None:
        """read: the text with an id. methods: those whose calls are looked for."""
        self.text = lru_cache(maxsize=KEPT)(read)
        self._methods = frozenset(methods)
        self._outlines = _StoredFacts(cache, "outline", str)
        self._calls = _StoredFacts(cache, f"calls {digest_json(sorted(methods))}", MethodCalls)

    def load(self, contents: Iterable[str]) -> None:
        """Read the stored facts about these contents."""
        wanted = list(dict.fromkeys(contents))
        self._outlines.load(wanted)
        self._calls.load(wanted)

    def save(self) -> None:
        """Store the facts that are new."""
        self._outlines.save()
        self._calls.save()

    def outline(self, content: str) -> str:
        """The outline of a file."""
        return self._outlines.get(content, lambda: outline(self.text(content)).decode())

    def calls(self, content: str, method: str) -> tuple[tuple[int, CallArguments], ...]:
        """The line and the arguments of every call `x.method(...)`. Calls on super() are left out."""
        text = self.text(content)
        if f".{method}(".encode() not in text:
            return ()
        return self._calls.get(content, lambda: self._find_calls(text)).calls.get(method, ())

    def _find_calls(self, text: bytes) -> MethodCalls:
        found: dict[str, list[tuple[int, CallArguments]]] = {}
        tree = parse_source(text)
        for node in walk(tree) if tree else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                holder = node.func.value
                by_super = isinstance(holder, ast.Call) and dotted(holder.func) == "super"
                if node.func.attr in self._methods and not by_super:
                    found.setdefault(node.func.attr, []).append((node.lineno, arguments_of(node)))
        return MethodCalls(calls={method: tuple(calls) for method, calls in found.items()})


class _StoredFacts(Generic[T]):
    """Facts of one kind by content id, in memory and in the cache."""

    def __init__(self, cache: AnalysisCache, kind: str, result_type: type[T]) -> None:
        self._cache, self._kind, self._type = cache, kind, result_type
        self._known: dict[str, T] = {}
        self._new: dict[str, T] = {}

    def load(self, contents: Iterable[str]) -> None:
        keys = {self._key(content): content for content in contents}
        stored = self._cache.load(self._type, keys)
        self._known |= {keys[key]: facts for key, facts in stored.items()}

    def get(self, content: str, compute: Callable[[], T]) -> T:
        if content not in self._known:
            self._known[content] = self._new[content] = compute()
            if len(self._new) >= STORED_AT:
                self.save()
        return self._known[content]

    def save(self) -> None:
        self._cache.store(self._type, {self._key(content): facts for content, facts in self._new.items()})
        self._new = {}

    def _key(self, content: str) -> str:
        return digest_json([self._kind, content])
