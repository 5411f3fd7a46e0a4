"""Brace expansion of bash: `a{b,c}d` and `{1..10..2}`, also around quotes and expansions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from harness.compat.lint.shell.values import TooLargeError

MAX_WORDS = 2_000
MAX_NESTING = 50
Part = TypeVar("Part")
#: Characters for private use, which no script has.
_FIRST_MARK = 0xF0000
_NUMBERS = re.compile(r"([+-]?\d{1,18})\.\.([+-]?\d{1,18})(?:\.\.([+-]?\d{1,18}))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.([+-]?\d{1,18}))?")


@dataclass(kw_only=True)
class _Group:
    """An opening brace. commas: those between it and `end`, its closing brace; -1 if there is none."""

    commas: list[int] = field(default_factory=list)
    end: int = -1
    is_parameter: bool = False


def expand_braces(parts: Sequence[str | Part]) -> list[list[str | Part]]:
    """The words that one word becomes, in bash's order; TooLargeError if they are too many.

    parts: texts that are not quoted, and others that braces can only stand around.
    """
    # A character that stands for a part: none of those that brace expansion knows.
    others = [part for part in parts if not isinstance(part, str)]
    marks = {chr(_FIRST_MARK + index): part for index, part in enumerate(others)}
    names = iter(marks)
    text = "".join(part if isinstance(part, str) else next(names) for part in parts)
    found: list[list[str | Part]] = []
    for word in _Braces(text).words(0, len(text)):
        pieces = re.split(f"([{''.join(marks)}])", word) if marks else [word]
        found.append([marks.get(piece, piece) for piece in pieces if piece])
    return found


class _Braces:
    def __init__(self, text: str) -> None:
        self._text = text
        self._groups: dict[int, _Group] = {}
        self._depth = 0
        open_groups: list[_Group] = []
        skip = False
        for position, char in enumerate(text):
            if skip or char == "\\":
                skip = not skip
            elif char == "{":
                group = _Group(is_parameter=text[position - 1 : position] == "$")
                self._groups[position] = group
                open_groups.append(group)
            elif char == "," and open_groups:
                open_groups[-1].commas.append(position)
            elif char == "}" and open_groups:
                open_groups.pop().end = position

    def words(self, start: int, end: int) -> list[str]:
        """The words of a part of the text."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise TooLargeError(f"braces are nested more than {MAX_NESTING} times")
        pieces: list[list[str]] = []
        literal = position = start
        count = 1
        while position < end:
            group = self._groups.get(position)
            choices = self._choices(position, group) if group is not None else []
            if group is None or not choices:
                position += 1
                continue
            pieces += [[self._text[literal:position]], choices]
            count *= len(choices)
            if count > MAX_WORDS:
                raise TooLargeError(f"a word becomes more than {MAX_WORDS:,} words")
            literal = position = group.end + 1
        pieces.append([self._text[literal:end]])
        self._depth -= 1
        return ["".join(parts) for parts in product(*pieces)]

    def _choices(self, start: int, group: _Group) -> list[str]:
        """What stands in the place of a group; nothing if bash leaves it as it is."""
        if group.end < 0 or group.is_parameter:
            return []
        if group.commas:
            starts = [start + 1, *(comma + 1 for comma in group.commas)]
            ends = [*group.commas, group.end]
            return [word for one in zip(starts, ends, strict=True) for word in self.words(*one)]
        return _sequence(self._text[start + 1 : group.end])


def _sequence(text: str) -> list[str]:
    numbers, letters = _NUMBERS.fullmatch(text), _LETTERS.fullmatch(text)
    found = numbers or letters
    if found is None:
        return []
    first, last = (int(found[1]), int(found[2])) if numbers else (ord(found[1]), ord(found[2]))
    step = abs(int(found[3] or 1)) or 1
    values = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(values) > MAX_WORDS:
        raise TooLargeError(f"a word becomes more than {MAX_WORDS:,} words")
    if letters:
        return [chr(value) for value in values]
    padded = any(re.match(r"[+-]?0\d", found[index]) for index in (1, 2))
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{value:0{width}d}" for value in values]
