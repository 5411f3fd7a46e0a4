"""Chinese of the texts that checks and the matrix say: the grammar, and its use in files without a script.

On the pages `assets/language.js` uses the same grammar and expressions (`grammar`, `written_forms`), and a
browser test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from harness.report.pages.page_templates import resource

#: The files with the Chinese of reasons and remedies, of the texts of the shipped matrix.yaml, of the causes
#: and remedies that triage knows.
REASON_FILES = ("reasons.json", "matrix.json", "triage.json")
_PART = re.compile(r"(\{(?:#|s|was|ID|name|text)?\})")
#: {#} is a number, {} any text, which is translated too, {text} a text that may stay in English, such as a
#: citation, {ID} the name of a rule, {name} a text without blanks, {s} and {was} endings of a plural.
_PARTS = {
    "{#}": "([0-9][0-9,]*)",
    "{ID}": "([A-Z][A-Z0-9-]+)",
    "{name}": r"(\S+)",
    "{}": "(.+?)",
    "{text}": "(.+?)",
    "{s}": "s?",
    "{was}": "(?:was|were)",
}
_PLACE = re.compile(r"\{(\d)\}")
_PAIR = re.compile(r"\([^()]*\)")
#: Between two sentences.
_SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z0-9])")
#: A text of which only the beginning is shown.
_CUT = re.compile(r"(.*)… \(([0-9,]+) more characters\)", re.DOTALL)
#: What a program said, or a command.
_QUOTED = re.compile(r"""\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`""")
#: Words that no name, version or command has: a text with one of them is a part of an English sentence.
_PROSE = re.compile(
    "(?<!\\S)(?:a|an|and|are|be|by|does|do|for|has|have|in|is|it|its|must|needs?|no|not|of|on|or|requires?|so|"
    "than|that|the|this|to|was|were|which|with)(?!\\S)"
)
#: What divides an enumeration, and the same in Chinese.
_ENUMERATIONS = ("; ", "；"), (", ", "，")  # noqa: RUF001


def reason_words() -> dict[str, str]:
    """English -> Chinese, of everything in `REASON_FILES`."""
    return {
        english: chinese
        for name in REASON_FILES
        for english, chinese in json.loads(resource("words", name)).items()
    }


def grammar() -> dict[str, object]:
    """The expressions by which a text is taken apart, as JavaScript reads them."""
    return {
        "sentence": _SENTENCE.pattern,
        "cut": f"^{_CUT.pattern}$",
        "quoted": _QUOTED.pattern,
        "prose": _PROSE.pattern,
        "enumerations": _ENUMERATIONS,
    }


def written_forms(forms: Iterable[tuple[str, str]]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Each form as its beginning, its expression (as JavaScript reads it), its Chinese, its free parts."""
    return [(form.start, form.english.pattern, form.chinese, form.free) for form in map(_Form.of, forms)]


def ordered_forms(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """The texts with parts that differ; the form with the most words of its own comes first."""
    forms = [(english, chinese) for english, chinese in words.items() if "{" in english]
    return sorted(forms, key=lambda form: -len(_PART.sub("", form[0])))


def in_chinese(text: str) -> str:
    """`text` in Chinese, as far as its words are known; otherwise as it is."""
    bare = " ".join(text.split())
    words = _words()
    return words.said(bare) or words.said(bare.removesuffix(".")) or words.by_sentences(bare, any) or text


@dataclass(frozen=True)
class _Form:
    """A text with parts that differ. start: the text before the first of them. free: the indices of the parts
    that may stay in English, whatever they are."""

    start: str
    english: re.Pattern[str]
    chinese: str
    free: tuple[int, ...]

    @classmethod
    def of(cls, form: tuple[str, str]) -> _Form:
        english, chinese = form
        pieces = (_PARTS.get(part) or re.escape(part).replace("\\ ", " ") for part in _PART.split(english))
        expression = "".join(pieces)
        parts = [part for part in _PART.findall(english) if "(" in _PARTS[part] and "(?:" not in _PARTS[part]]
        free = tuple(index for index, part in enumerate(parts) if part == "{text}")
        return cls(english.partition("{")[0], re.compile(expression, re.DOTALL), chinese, free)


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
        return self._by_form(text) or self.by_sentences(text, all) or self._by_parts(text)

    def _by_form(self, text: str) -> str | None:
        for form in self.forms:
            found = form.english.fullmatch(text) if text.startswith(form.start) else None
            if found is None:
                continue
            given = found.groups()
            said = [self.said(part) or self.said(part.removesuffix(".")) or part for part in given]
            alike = [index for index, part in enumerate(given) if said[index] == part]
            if all(_is_part(given[index], free=index in form.free) for index in alike):
                pieces = _PLACE.split(form.chinese)
                pieces[1::2] = [said[int(place) - 1] for place in pieces[1::2]]
                return "".join(pieces)
        return None

    def by_sentences(self, text: str, enough: Callable[[list[str | None]], bool]) -> str | None:
        """A paragraph; None unless `all` or `any` of its sentences, several, have their Chinese."""
        sentences = _SENTENCE.split(text)
        said: list[str | None] = [None]
        if len(sentences) > 1:
            said = [self._sentence(sentence) for sentence in sentences]
        if not enough(said):
            return None
        whole = " ".join(part or sentence for part, sentence in zip(said, sentences, strict=True))
        return whole.replace("。 ", "。")

    def _sentence(self, text: str) -> str | None:
        bare = self.said(text[:-1]) if text.endswith(".") else None
        return self.said(text) or (f"{bare}。" if bare else None)

    def _by_parts(self, text: str) -> str | None:
        for mark, chinese in _ENUMERATIONS:
            parts = text.split(mark)
            said = [self.said(part) for part in parts] if len(parts) > 1 else [None]
            if None not in said:
                return chinese.join(part or "" for part in said)
        return None


def _is_part(text: str, *, free: bool) -> bool:
    """Whether a text may stay as it is inside a Chinese sentence.

    It does not split a pair of brackets, is not several sentences, and is a name, a value or a quotation,
    unless it is free.
    """
    rest, pairs = text, 1
    while pairs:
        rest, pairs = _PAIR.subn("", rest)
    whole = not _SENTENCE.search(text) and "(" not in rest and ")" not in rest
    return whole and (free or not _PROSE.search(_QUOTED.sub("", text)))


@cache
def _words() -> _Words:
    pages = json.loads(resource("words", "chinese.json"))
    reasons = reason_words()
    texts = {english: chinese for english, chinese in reasons.items() if "{" not in english}
    forms = [*map(tuple, pages["patterns"]), *ordered_forms(reasons)]
    return _Words(
        texts={**pages["words"], **texts},
        forms=tuple(map(_Form.of, forms)),
    )
