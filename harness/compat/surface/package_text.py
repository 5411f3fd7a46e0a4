"""Search the text of a package for words, to find where a name might be defined dynamically."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

SETATTR = re.compile(rb"setattr\(([^)]{0,200})")
QUOTED = re.compile(rb"""["'](\w+)["']""")
# The text after a word that is assigned, and after one that is bound in any way.
ASSIGNED = re.compile(rb"\s*(?::[^=\n]+)?=[^=]")
BOUND = re.compile(rb"\s*(?::(?!:)|=[^=])")
DEFINED = re.compile(rb"\b(?:def|class|as)\s+$")
# How many bytes around a word are examined.
AROUND = 120


#: (name of a test, word, text of a module) -> its result. Several releases of a package share most modules.
KnownTests = dict[tuple[str, str, bytes], bool]


class PackageText:
    """The text of all modules of a package. The result of each search is cached."""

    def __init__(
        self,
        sources: Callable[[], Iterable[bytes]],
        containing: Callable[[bytes], Iterable[bytes]] | None = None,
        known_tests: KnownTests | None = None,
    ) -> None:
        """`sources` returns the texts of the modules; it is called at the first search.

        containing: returns the texts of those modules that contain a word, if there is a faster way.
        known_tests: those of other releases, to which new ones are added.
        """
        self._sources = sources
        self._containing = containing
        self._known_tests = {} if known_tests is None else known_tests
        self._results: dict[tuple[str, str], bool] = {}

    def is_set(self, word: str) -> bool:
        """Whether the text has `something.word = ...` or a setattr of the word, other than on `self`."""
        return self._any("set", word, _is_set) or word.encode() in self._by_setattr

    def is_assigned(self, word: str) -> bool:
        """As `is_set`, but `self.word = ...` counts, too."""
        return self.is_set(word) or self._any("assigned", word, _is_assigned)

    def is_bound(self, word: str) -> bool:
        """Whether the word is bound: a definition, an assignment, a field, a keyword or a string."""
        return self._any("bound", word, _is_bound)

    def is_read(self, word: str) -> bool:
        """Whether the text reads `something.word`, or has the word as a string."""
        return self._any("read", word, _is_read)

    def is_called(self, word: str) -> bool:
        """Whether the text calls `word(...)`."""
        return self._any("called", word, _is_called)

    def is_mentioned(self, word: str) -> bool:
        """Whether the text has the word at all."""
        return self._any("mentioned", word, lambda _before, _after: True)

    def is_derived_from(self, word: str) -> bool:
        """Whether a class has a base class of this name, or the name is imported under another one."""
        if ("derived", word) not in self._results:
            name = re.escape(word).encode()
            made = rb"\bclass\s+\w+\s*\([^)]*\b%s\b" % name
            renamed = rb"\b%s\s+as\s+\w+[ \t]*[,)#\n]" % name
            found = re.search(made + b"|" + renamed, self._text)
            self._results["derived", word] = found is not None
        return self._results["derived", word]

    def definitions(self, word: str) -> int:
        """How many functions of this name the text defines."""
        return sum(before.endswith(b"def ") for before, _after in self._occurrences(word.encode()))

    @cached_property
    def _text(self) -> bytes:
        return b"\n".join(self._sources())

    @cached_property
    def _by_setattr(self) -> frozenset[bytes]:
        texts = self._containing(b"setattr(") if self._containing else (self._text,)
        return frozenset(
            word
            for text in texts
            for found in SETATTR.finditer(text)
            for word in QUOTED.findall(found[1] + b'"')
        )

    def _any(self, name: str, word: str, test: Callable[[bytes, bytes], bool]) -> bool:
        """Whether `test`, called `name`, is true for the text before and after any occurrence of the word."""
        known = self._results.get((name, word))
        if known is None:
            known = any(self._in_text(name, word, test, text) for text in self._texts_with(word.encode()))
            self._results[name, word] = known
        return known

    def _in_text(self, name: str, word: str, test: Callable[[bytes, bytes], bool], text: bytes) -> bool:
        key = (name, word, text)
        if key not in self._known_tests:
            found = _occurrences_in(text, word.encode())
            self._known_tests[key] = any(test(before, after) for before, after in found)
        return self._known_tests[key]

    def _texts_with(self, word: bytes) -> Iterable[bytes]:
        return self._containing(word) if self._containing else (self._text,)

    def _occurrences(self, word: bytes) -> Iterable[tuple[bytes, bytes]]:
        for text in self._texts_with(word):
            yield from _occurrences_in(text, word)


def _occurrences_in(text: bytes, word: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What is before and after each place of a word in a text."""
    # Searching plain text is fast; whether it is a whole word is checked for each occurrence.
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND]
        if not (_is_letter(before[-1:]) or _is_letter(after[:1])):
            yield before, after
        start = text.find(word, end)


def _is_letter(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


def _is_set(before: bytes, after: bytes) -> bool:
    return before.endswith(b".") and not before.endswith(b"self.") and ASSIGNED.match(after) is not None


def _is_assigned(before: bytes, after: bytes) -> bool:
    return before.endswith(b".") and ASSIGNED.match(after) is not None


def _quoted(before: bytes, after: bytes) -> bool:
    return before[-1:] in (b'"', b"'") and after[:1] == before[-1:]


def _is_bound(before: bytes, after: bytes) -> bool:
    return (
        BOUND.match(after) is not None or _quoted(before, after) or DEFINED.search(before[-12:]) is not None
    )


def _is_read(before: bytes, after: bytes) -> bool:
    if before.endswith(b".") and ASSIGNED.match(after) is None:
        return True
    return after[:1] in (b'"', b"'") and before[-1:] in (b'"', b"'", b".")


def _is_called(before: bytes, after: bytes) -> bool:
    return after.startswith(b"(") and DEFINED.search(before[-12:]) is None
