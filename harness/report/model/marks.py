"""How verdicts and evidence look: a shape, a word and a colour each, so that no two can be confused."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.outcome import Evidence, Status
from harness.verdict.verdict import Standing


class Mark(str, enum.Enum):
    """What a reader sees of a verdict: its status and whether that was expected."""

    # As equal texts have; what enumerations have of their own is slow, and looked up a million times.
    __hash__ = str.__hash__

    FAIL = "fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a verdict, not a credential
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"
    KNOWN_FAIL = "known-fail"
    STALE = "stale"
    BLOCKED = "blocked"
    NOT_RUN = "not-run"
    UNSUPPORTED = "unsupported"
    PASS = "pass"  # noqa: S105 - a verdict, not a credential


@dataclass(frozen=True, kw_only=True)
class MarkStyle:
    """label: in sentences. word: in a tile. code: in the grid's data. glyph, plain: in terminals."""

    label: str
    word: str
    code: str
    glyph: str
    plain: str
    colour: str
    meaning: str


STYLES: dict[Mark, MarkStyle] = {
    Mark.FAIL: MarkStyle(
        label="unexpected failure",
        word="fail",
        code="f",
        glyph="✗",
        plain="FAIL",
        colour="bold red",
        meaning="ran, is wrong, and nobody expected it",
    ),
    Mark.UNEXPECTED_PASS: MarkStyle(
        label="unexpected pass",
        word="fixed?",
        code="u",
        glyph="★",
        plain="XPASS",
        colour="bold blue",
        meaning="listed as a known failure, but it passes now: take it off the list",
    ),
    Mark.ERROR: MarkStyle(
        label="infrastructure error",
        word="error",
        code="e",
        glyph="▲",
        plain="ERROR",
        colour="bold magenta",
        meaning="the machine, network or a service failed; says nothing about the cell",
    ),
    Mark.INCONCLUSIVE: MarkStyle(
        label="inconclusive",
        word="unsure",
        code="i",
        glyph="◆",
        plain="UNSURE",
        colour="yellow",
        meaning="ran, but the evidence does not suffice to decide",
    ),
    Mark.KNOWN_FAIL: MarkStyle(
        label="known failure",
        word="known",
        code="k",
        glyph="⊠",
        plain="known",
        colour="dark_orange",
        meaning="fails as the list of expectations says, with a reason",
    ),
    Mark.STALE: MarkStyle(
        label="stale",
        word="stale",
        code="s",
        glyph="◔",
        plain="stale",
        colour="cyan",
        meaning="an older outcome whose inputs have changed since; not evidence for today",
    ),
    Mark.BLOCKED: MarkStyle(
        label="blocked",
        word="blocked",
        code="b",
        glyph="⊟",
        plain="blocked",
        colour="bright_black",
        meaning="not run, because a check it needs did not pass",
    ),
    Mark.NOT_RUN: MarkStyle(
        label="not run",
        word="not run",
        code="n",
        glyph="○",
        plain="not run",
        colour="bright_black",
        meaning="planned, but nothing was executed; says nothing about the cell",
    ),
    Mark.UNSUPPORTED: MarkStyle(
        label="unsupported",
        word="n/a",
        code="x",
        glyph="⊘",
        plain="n/a",
        colour="bright_black",
        meaning="the stack itself says it does not do this",
    ),
    Mark.PASS: MarkStyle(
        label="pass",
        word="pass",
        code="p",
        glyph="✓",
        plain="pass",
        colour="green",
        meaning="ran, and came out right",
    ),
}

SEVERITY: dict[Mark, int] = {mark: place for place, mark in enumerate(Mark)}
NEEDS_ATTENTION = (Mark.FAIL, Mark.UNEXPECTED_PASS, Mark.ERROR, Mark.INCONCLUSIVE)
RAN = (Mark.FAIL, Mark.UNEXPECTED_PASS, Mark.INCONCLUSIVE, Mark.KNOWN_FAIL, Mark.PASS)


@dataclass(frozen=True, kw_only=True)
class EvidenceStyle:
    """tag: the short text that is always shown next to a verdict."""

    label: str
    tag: str
    code: str
    meaning: str


EVIDENCE: dict[Evidence, EvidenceStyle] = {
    Evidence.HARDWARE: EvidenceStyle(label="hardware", tag="HW", code="h", meaning="ran on a real NPU"),
    Evidence.SIMULATED: EvidenceStyle(
        label="simulated", tag="sim", code="s", meaning="ran with the real packages on a simulated NPU"
    ),
    Evidence.CPU: EvidenceStyle(label="cpu", tag="cpu", code="c", meaning="ran on the CPU"),
    Evidence.STATIC: EvidenceStyle(
        label="static", tag="static", code="t", meaning="concluded from files, nothing of the stack was run"
    ),
}


_PLAIN = {status: Mark(status.value) for status in Status}


def mark_of(status: Status, standing: Standing = Standing.AS_EXPECTED) -> Mark:
    """The mark of a verdict; only a failure can be known and only a pass can be unexpected."""
    if status is Status.FAIL and standing is Standing.KNOWN:
        return Mark.KNOWN_FAIL
    if status is Status.PASS and standing is Standing.UNEXPECTED_PASS:
        return Mark.UNEXPECTED_PASS
    return _PLAIN[status]


def worst(marks: list[Mark]) -> Mark | None:
    """The mark a reader should see first, None of an empty list."""
    return min(marks, key=SEVERITY.__getitem__, default=None)
