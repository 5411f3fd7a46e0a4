"""Words in the text of a package whose files change: which modules have a word, and what they say about it.

Every question of `PackageText` is answered for each module, and again only for modules that have changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.compat.surface.package_text import PackageText

_WORD = re.compile(rb"\w+")
#: A question to the text of one module about a word.
WordTest = Callable[[PackageText, str], int]


class WordQuestion(NamedTuple):
    """A question about a word. test: a method of `PackageText`. top: the package whose modules are asked."""

    test: str
    word: str
    top: str


@dataclass
class _Answers:
    """The modules for which the answer is not 0, and the sum of all."""

    of_module: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def replace(self, module: str, value: int) -> None:
        self.total += value - self.of_module.pop(module, 0)
        if value:
            self.of_module[module] = value


class WordIndex:
    """The modules of a package, their words, and the answers to questions about words."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}
        self._words: dict[str, frozenset[bytes]] = {}
        self._modules: dict[bytes, set[str]] = {}
        self._answers: dict[WordQuestion, _Answers] = {}
        self._asked: dict[bytes, set[WordQuestion]] = {}

    def modules_with(self, word: str) -> list[str]:
        """The modules whose text has the word, sorted."""
        return sorted(self._modules.get(word.encode(), ()))

    def has(self, module: str, word: str) -> bool:
        """Whether the text of a module has the word."""
        return word.encode() in self._words.get(module, ())

    def answer(self, question: WordQuestion) -> int:
        """The sum of the answers for all modules of the package."""
        known = self._answers.get(question)
        if known is None:
            known = self._answers[question] = _Answers()
            self._asked.setdefault(question.word.encode(), set()).add(question)
            for module in self._modules.get(question.word.encode(), ()):
                self._ask(question, known, module, PackageText(self._source(module)))
        return known.total

    def replace(self, module: str, text: bytes | None) -> Iterator[WordQuestion]:
        """Replace the text of a module, None to remove it. Yields the questions with another answer."""
        words = frozenset(_WORD.findall(text)) if text else frozenset()
        before = self._words.pop(module, frozenset())
        for word in before - words:
            self._modules[word].discard(module)
        for word in words - before:
            self._modules.setdefault(word, set()).add(module)
        self._texts.pop(module, None)
        if text:
            self._texts[module], self._words[module] = text, words
        package_text = PackageText(self._source(module))
        for word in self._asked.keys() & (words | before):
            for question in self._asked[word]:
                known = self._answers[question]
                old = known.total
                self._ask(question, known, module, package_text)
                if known.total != old and (question.test == "definitions" or not known.total or not old):
                    yield question

    def _ask(self, question: WordQuestion, known: _Answers, module: str, text: PackageText) -> None:
        if module.partition(".")[0] == question.top:
            has_word = self.has(module, question.word)
            known.replace(module, _TESTS[question.test](text, question.word) if has_word else 0)

    def _source(self, module: str) -> Callable[[], Iterable[bytes]]:
        return lambda: (self._texts.get(module, b""),)


_TESTS: Mapping[str, WordTest] = {
    "is_set": PackageText.is_set,
    "is_assigned": PackageText.is_assigned,
    "is_bound": PackageText.is_bound,
    "is_read": PackageText.is_read,
    "is_called": PackageText.is_called,
    "is_mentioned": PackageText.is_mentioned,
    "is_derived_from": PackageText.is_derived_from,
    "definitions": PackageText.definitions,
}


class IndexedText(PackageText):
    """The text of a package, whose questions are answered by an index."""

    def __init__(self, ask: Callable[[WordQuestion], int], top: str) -> None:
        super().__init__(lambda: ())
        self._ask, self._top = ask, top

    def is_set(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_set", word) > 0

    def is_assigned(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_assigned", word) > 0

    def is_bound(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_bound", word) > 0

    def is_read(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_read", word) > 0

    def is_called(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_called", word) > 0

    def is_mentioned(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_mentioned", word) > 0

    def is_derived_from(self, word: str) -> bool:
        """See `PackageText`."""
        return self._answer("is_derived_from", word) > 0

    def definitions(self, word: str) -> int:
        """See `PackageText`."""
        return self._answer("definitions", word)

    def _answer(self, test: str, word: str) -> int:
        return self._ask(WordQuestion(test, word, self._top))
