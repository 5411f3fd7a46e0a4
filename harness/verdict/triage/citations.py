"""Decides whether a place in a log only cites an error: in a prompt, an answer of a model, or a warning."""

from __future__ import annotations

import re
from bisect import bisect_left

from harness.verdict.triage.log_line import parse_line

#: verl prints `[prompt]`, `[response]`, `[ground_truth]` and `[score]`; other programs print chat templates.
BEGINNINGS = (
    b"[prompt]",
    b"[response]",
    b"<|im_start|>",
    b"<|user|>",
    b"<|assistant|>",
    b"<|start_header_id|>",
)
ENDS = (
    b"[score]",
    b"<|im_end|>",
    b"<|endoftext|>",
    b"<|eot_id|>",
    b"</s>",
    b" - actor/",
    b"training/global_step",
)
#: A citation is at most this many bytes long.
LONGEST = 1 << 14
MOST_CANDIDATES = 20
_FIELD = re.compile(
    r"[\"'](?:prompts?|responses?|inputs?|outputs?|content|text|question|answer|completion|messages|solution)[\"']\s*:"
)
WARNING = b"Warning: "
IGNORED = b"Exception ignored "


def follows_warning(data: bytes, start: int) -> bool:
    """Whether the line before `start` is the first line of a warning, as Python prints it."""
    if start < 1:
        return False
    return WARNING in data[data.rfind(b"\n", 0, start - 1) + 1 : start]


def follows_ignored(data: bytes, start: int) -> bool:
    """Whether the line before `start` says that Python ignores the exception that follows."""
    return start > 0 and IGNORED in data[data.rfind(b"\n", 0, start - 1) + 1 : start]


def in_quoted_field(text: str, pattern: re.Pattern[str]) -> bool:
    """Whether the match of a pattern is in a field of a sample, such as `{"prompt": "..."}`."""
    found = pattern.search(text)
    return bool(found and _FIELD.search(text[: found.start()]))


def may_cite(text: bytes) -> bool:
    """Whether a citation begins somewhere in a text."""
    return any(mark in text for mark in BEGINNINGS)


class Citations:
    """The citations in a part of a log. The marks are searched once, however many errors the part has.

    before, ahead: what precedes and follows the part.
    """

    def __init__(self, before: bytes, part: bytes, ahead: bytes) -> None:
        context = before[-LONGEST:]
        self._text = context + part + ahead[:LONGEST]
        self._shift = len(context)
        self._beginnings = _places(self._text, BEGINNINGS)
        self._ends = _places(self._text, ENDS)
        self._processes: dict[int, str] = {}

    def contain(self, position: int, end: int, process: str) -> bool:
        """Whether a citation of a process began before `position` and ends after `end`, both in the part.

        Without an end the text is not a citation, because a process that fails while it prints an answer
        prints no end.
        """
        start = self._last_beginning(position + self._shift, process)
        if start is None:
            return False
        line_end = self._text.find(b"\n", start, position + self._shift)
        between = self._ends_in(start, position + self._shift)
        if any(at < line_end or line_end < 0 or self._process_at(at) in {process, ""} for at in between):
            return False
        last = end + self._shift
        return any(self._process_at(at) in {process, ""} for at in self._ends_in(last, last + LONGEST))

    def _last_beginning(self, position: int, process: str) -> int | None:
        """The last beginning of a citation by this process before a position, or None."""
        last = bisect_left(self._beginnings, position)
        first = bisect_left(self._beginnings, position - LONGEST)
        candidates = reversed(self._beginnings[max(first, last - MOST_CANDIDATES) : last])
        return next((at for at in candidates if self._process_at(at) == process), None)

    def _ends_in(self, start: int, stop: int) -> list[int]:
        return self._ends[bisect_left(self._ends, start) : bisect_left(self._ends, stop)]

    def _process_at(self, at: int) -> str:
        start = self._text.rfind(b"\n", 0, at) + 1
        if start not in self._processes:
            end = self._text.find(b"\n", start, start + 400)
            self._processes[start] = parse_line(self._text[start : end if end >= 0 else start + 400]).process
        return self._processes[start]


def _places(text: bytes, marks: tuple[bytes, ...]) -> list[int]:
    """Where any of `marks` stands, in order."""
    places = []
    for mark in marks:
        at = text.find(mark)
        while at >= 0:
            places.append(at)
            at = text.find(mark, at + 1)
    return sorted(places)
