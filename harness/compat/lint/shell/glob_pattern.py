"""Patterns of bash (`*`, `?`, `[a-z]`), matched in time that grows with text times pattern.

Regular expressions would backtrack: a script could make one match take hours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

#: Steps of one match: characters of the text times parts of the pattern.
MAX_WORK = 4_000_000
_CLASS = re.compile(r"\[(?P<negated>[!^]?)(?P<body>\]?(?:\[:\w+:\]|\\.|[^\]])*)\]", re.DOTALL)
_MEMBER = re.compile(r"\[:(?P<named>\w+):\]|\\?(?P<first>.)(?:-\\?(?P<last>[^\]]))?", re.DOTALL)
_NAMED: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda char: char in " \t",
    "digit": str.isdigit,
    "lower": str.islower,
    "punct": lambda char: char.isprintable() and not char.isalnum() and not char.isspace(),
    "space": str.isspace,
    "upper": str.isupper,
    "xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
#: One character of the text; None stands for `*`.
_Part: TypeAlias = "Callable[[str], bool] | None"


class TooMuchWorkError(Exception):
    """A text and a pattern that are too long to be matched."""


@dataclass(frozen=True, kw_only=True)
class GlobPattern:
    """A pattern. literal: its text if it has no special characters, else None."""

    parts: tuple[_Part, ...]
    literal: str | None = None

    @cached_property
    def matches_all(self) -> bool:
        """Whether it is `*`."""
        return self.parts == (None,)

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text; TooMuchWorkError if that takes too long."""
        if self.literal is not None:
            return text == self.literal
        return self.matches_all or (bool(self._ends(text)) and self._ends(text)[-1] == len(text))

    def without_start(self, text: str, *, longest: bool) -> str:
        """The text without the shortest or longest match at its start."""
        ends = self._ends(text)
        return text[ends[-1 if longest else 0] :] if ends else text

    def without_end(self, text: str, *, longest: bool) -> str:
        """The text without the shortest or longest match at its end."""
        rest = self._backwards.without_start(text[::-1], longest=longest)
        return rest[::-1]

    def replaced(self, text: str, new: str, *, every: bool) -> str:
        """The text with the first longest match, or every one, replaced."""
        if self.literal is not None:
            return text.replace(self.literal, new, -1 if every else 1) if self.literal else text
        if len(text) ** 2 * len(self.parts) > MAX_WORK * 4:
            raise TooMuchWorkError
        if not text:
            return new if self._ends(text) else text
        pieces: list[str] = []
        position = 0
        while position < len(text):
            ends = self._ends(text[position:])
            if not ends or not ends[-1]:
                pieces.append(text[position])
                position += 1
                continue
            pieces.append(new)
            position += ends[-1]
            if not every:
                break
        return "".join(pieces) + text[position:]

    def replaced_start(self, text: str, new: str) -> str:
        """The text with the longest match at its start replaced."""
        ends = self._ends(text)
        return new + text[ends[-1] :] if ends else text

    def replaced_end(self, text: str, new: str) -> str:
        """The text with the longest match at its end replaced."""
        return self._backwards.replaced_start(text[::-1], new[::-1])[::-1]

    @cached_property
    def _backwards(self) -> GlobPattern:
        return GlobPattern(parts=self.parts[::-1])

    def _ends(self, text: str) -> Sequence[int]:
        """The lengths of the text's starts that match, in order."""
        if len(text) * len(self.parts) > MAX_WORK:
            raise TooMuchWorkError
        stars = sum(1 << index for index, part in enumerate(self.parts) if part is None)
        accepting: dict[str, int] = {}
        # Bit n of the state: the first n parts match what was read.
        state = 1 | (1 & stars) << 1
        found = [0] if state >> len(self.parts) else []
        for position, char in enumerate(text):
            if char not in accepting:
                accepting[char] = sum(1 << n for n, part in enumerate(self.parts) if part and part(char))
            state = (state & accepting[char]) << 1 | (state & stars)
            state |= (state & stars) << 1
            if state >> len(self.parts):
                found.append(position + 1)
            if not state:
                break
        return found


def parse_glob(pieces: Sequence[tuple[str, bool]]) -> GlobPattern:
    """The pattern of a word. pieces: its texts, and whether each is quoted."""
    parts: list[_Part] = []
    literal: str | None = ""
    for text, quoted in pieces:
        for part, char in ((partial(str.__eq__, one), one) for one in text) if quoted else _parsed(text):
            if part is None and parts and parts[-1] is None:
                continue
            parts.append(part)
            literal = None if char is None or literal is None else literal + char
    return GlobPattern(parts=tuple(parts), literal=literal)


def _parsed(text: str) -> Iterator[tuple[_Part, str | None]]:
    """The parts of an unquoted text, each with its character if it stands for one."""
    position = 0
    while position < len(text):
        char = text[position]
        group = _CLASS.match(text, position) if char == "[" else None
        if char == "*":
            yield None, None
        elif char == "?":
            yield (lambda _char: True), None
        elif group is not None:
            yield partial(_is_member, group["body"], bool(group["negated"])), None
            position = group.end()
            continue
        else:
            if char == "\\" and position + 1 < len(text):
                position += 1
                char = text[position]
            yield partial(str.__eq__, char), char
        position += 1


def _is_member(body: str, negated: bool, char: str) -> bool:
    for member in _MEMBER.finditer(body):
        if member["named"]:
            is_named = _NAMED.get(member["named"])
            found = is_named is not None and is_named(char)
        else:
            found = member["first"] <= char <= (member["last"] or member["first"])
        if found:
            return not negated
    return negated
