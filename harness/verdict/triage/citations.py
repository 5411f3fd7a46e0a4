"""Decides whether a place in a log only cites an error: in a prompt, an answer of a model, or a warning."""

from __future__ import annotations

import re

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


def follows_warning(data: bytes, start: int) -> bool:
    """Whether the line before `start` is the first line of a warning, as Python prints it."""
    if start < 1:
        return False
    return WARNING in data[data.rfind(b"\n", 0, start - 1) + 1 : start]


def in_quoted_field(text: str, pattern: re.Pattern[str]) -> bool:
    """Whether the match of a pattern is in a field of a sample, such as `{"prompt": "..."}`."""
    found = pattern.search(text)
    return bool(found and _FIELD.search(text[: found.start()]))


def may_cite(text: bytes) -> bool:
    """Whether a citation begins somewhere in a text."""
    return any(mark in text for mark in BEGINNINGS)


def is_cited(before: bytes, after: bytes, process: str) -> bool:
    """Whether a citation of this process began in `before` and ends in `after`.

    before: the log up to the line in question. after: the log behind it. Without an end the text is not a
    citation, because a process that fails while it prints an answer prints no end.
    """
    start = _last_beginning(before[-LONGEST:], process)
    if start is None or _has_end(start, process):
        return False
    return _has_end(after[:LONGEST], process)


def _last_beginning(text: bytes, process: str) -> bytes | None:
    """The text from the last beginning of a citation by this process on, or None."""
    end = len(text)
    for _ in range(MOST_CANDIDATES):
        at = max(text.rfind(mark, 0, end) for mark in BEGINNINGS)
        if at < 0:
            return None
        if _process_at(text, at) == process:
            return text[at:]
        end = at
    return None


def _has_end(text: bytes, process: str) -> bool:
    for mark in ENDS:
        at = text.find(mark)
        for _ in range(MOST_CANDIDATES):
            if at < 0:
                break
            if _process_at(text, at) in {process, ""} or text.find(b"\n", 0, at) < 0:
                return True
            at = text.find(mark, at + 1)
    return False


def _process_at(text: bytes, at: int) -> str:
    start = text.rfind(b"\n", 0, at) + 1
    end = text.find(b"\n", at)
    return parse_line(text[start : end if end >= 0 else len(text)][:400]).process
