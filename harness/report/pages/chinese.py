"""Chinese of the texts that checks and the matrix say, for files that no script translates.

It says what `assets/language.js` says on the pages; a browser test compares the two.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache

from harness.report.pages.page_templates import resource

#: The files with the Chinese of reasons and remedies, and of the texts of the shipped matrix.yaml.
REASON_FILES = ("reasons.json", "matrix.json")
_PART = re.compile(r"(\{(?:#|s|was|ID|name)?\})")
_PARTS = {
    "{#}": "([0-9][0-9,]*)",
    "{ID}": "([A-Z][A-Z0-9-]+)",
    "{name}": r"(\S+)",
    "{}": "(.+?)",
    "{s}": "s?",
    "{was}": "(?:was|were)",
}
_PLACE = re.compile(r"\{(\d)\}")
_PAIR = re.compile(r"\([^()]*\)")
_SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z0-9])")
_CUT = re.compile(r"(.*)… \(([0-9,]+) more characters\)", re.DOTALL)


def reason_words() -> dict[str, str]:
    """English -> Chinese, of everything in `REASON_FILES`."""
    return {
        english: chinese
        for name in REASON_FILES
        for english, chinese in json.loads(resource("words", name)).items()
    }


def in_chinese(text: str) -> str:
    """`text` in Chinese, as far as its words are known; otherwise as it is."""
    bare = " ".join(text.split())
    words = _words()
    return words.said(bare) or words.said(bare.removesuffix(".")) or text


@dataclass(frozen=True)
class _Form:
    """A text with parts that differ. start: the text before the first of them."""

    start: str
    english: re.Pattern[str]
    chinese: str

    @classmethod
    def of(cls, english: str, chinese: str) -> _Form:
        expression = "".join(_PARTS.get(part, re.escape(part)) for part in _PART.split(english))
        return cls(english.partition("{")[0], re.compile(expression, re.DOTALL), chinese)


@dataclass(frozen=True)
class _Words:
    texts: dict[str, str]
    forms: tuple[_Form, ...]
    known: dict[str, str | None] = field(default_factory=dict)

    def said(self, text: str) -> str | None:
        """The Chinese of a text, or None."""
        if text not in self.known:
            self.known[text] = self._said(text)
        return self.known[text]

    def _said(self, text: str) -> str | None:
        if text in self.texts:
            return self.texts[text]
        if cut := _CUT.fullmatch(text):
            return f"{self.said(cut[1]) or cut[1]}…（还有 {cut[2]} 个字符）"  # noqa: RUF001 - Chinese
        return self._by_form(text) or self._by_sentences(text) or self._by_parts(text)

    def _by_form(self, text: str) -> str | None:
        for form in self.forms:
            found = form.english.fullmatch(text) if text.startswith(form.start) else None
            if found is None:
                continue
            given = found.groups()
            said = [self.said(part) or self.said(part.removesuffix(".")) or part for part in given]
            if all(a != b or _is_part(a) for a, b in zip(given, said, strict=True)):
                pieces = _PLACE.split(form.chinese)
                pieces[1::2] = [said[int(place) - 1] for place in pieces[1::2]]
                return "".join(pieces)
        return None

    def _by_sentences(self, text: str) -> str | None:
        sentences = _SENTENCE.split(text)
        said = [self._sentence(sentence) for sentence in sentences] if len(sentences) > 1 else []
        if not any(said):
            return None
        whole = " ".join(part or sentence for part, sentence in zip(said, sentences, strict=True))
        return whole.replace("。 ", "。")

    def _sentence(self, text: str) -> str | None:
        bare = self.said(text[:-1]) if text.endswith(".") else None
        return self.said(text) or (f"{bare}。" if bare else None)

    def _by_parts(self, text: str) -> str | None:
        parts = text.split(", ")
        said = [self.said(part) for part in parts] if len(parts) > 1 else [None]
        return None if None in said else "，".join(part or "" for part in said)  # noqa: RUF001


def _is_part(text: str) -> bool:
    """False for a text that goes on into another sentence, or that splits a pair of brackets."""
    rest, pairs = text, 1
    while pairs:
        rest, pairs = _PAIR.subn("", rest)
    return not _SENTENCE.search(text) and "(" not in rest and ")" not in rest


@cache
def _words() -> _Words:
    pages = json.loads(resource("words", "chinese.json"))
    reasons = reason_words()
    texts = {english: chinese for english, chinese in reasons.items() if "{" not in english}
    # The form with the most words of its own comes first.
    forms = [(english, chinese) for english, chinese in reasons.items() if "{" in english]
    forms.sort(key=lambda form: -len(_PART.sub("", form[0])))
    return _Words(
        texts={**pages["words"], **texts},
        forms=tuple(_Form.of(english, chinese) for english, chinese in [*pages["patterns"], *forms]),
    )
