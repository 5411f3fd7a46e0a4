"""How verdicts and evidence are shown: each has a shape, a word and a colour of its own."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.outcome import Evidence, Status
from harness.verdict.verdict import Standing


class Mark(str, enum.Enum):
    """A verdict as readers see it: its status, and whether an expectation covers it."""

    # The hash of str, because that of enum.Enum is slow, and large reports look up a million marks.
    __hash__ = str.__hash__

    FAIL = "fail"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a verdict, not a credential
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"
    KNOWN_FAIL = "known-fail"
    STALE = "stale"
    CLAIMED = "claimed"
    BLOCKED = "blocked"
    NOT_RUN = "not-run"
    UNSUPPORTED = "unsupported"
    PASS = "pass"  # noqa: S105 - a verdict, not a credential


@dataclass(frozen=True, kw_only=True)
class MarkStyle:
    """How a mark is shown. label: in sentences. word: in a tile. code: in the data of the grid. glyph,
    plain: in terminals that can show symbols, and in others."""

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
        meaning="ran and failed, and no expectation in matrix.yaml covers the failure",
    ),
    Mark.UNEXPECTED_PASS: MarkStyle(
        label="unexpected pass",
        word="fixed?",
        code="u",
        glyph="★",
        plain="XPASS",
        colour="bold blue",
        meaning="expected to fail, but passes now: remove the expectation from matrix.yaml",
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
        meaning="fails as an expectation in matrix.yaml declares, with a reason",
    ),
    Mark.STALE: MarkStyle(
        label="stale",
        word="stale",
        code="s",
        glyph="◔",
        plain="stale",
        colour="cyan",
        meaning="another version stored this outcome, or its inputs have changed, so it proves nothing now",
    ),
    Mark.CLAIMED: MarkStyle(
        label="claimed",
        word="claimed",
        code="c",
        glyph="◌",
        plain="claimed",
        colour="cyan",
        meaning="another machine says that it ran this on hardware, but no runner of matrix.yaml signed it; "
        "proves nothing",
    ),
    Mark.BLOCKED: MarkStyle(
        label="blocked",
        word="blocked",
        code="b",
        glyph="⊟",
        plain="blocked",
        colour="bright_black",
        meaning="not run, because a check that it depends on did not pass",
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
        meaning="the stack declares that it does not support this",
    ),
    Mark.PASS: MarkStyle(
        label="pass",
        word="pass",
        code="p",
        glyph="✓",
        plain="pass",
        colour="green",
        meaning="ran and passed",
    ),
}

SEVERITY: dict[Mark, int] = {mark: rank for rank, mark in enumerate(Mark)}
NEEDS_ATTENTION = (Mark.FAIL, Mark.UNEXPECTED_PASS, Mark.ERROR, Mark.INCONCLUSIVE)
RAN = (Mark.FAIL, Mark.UNEXPECTED_PASS, Mark.INCONCLUSIVE, Mark.KNOWN_FAIL, Mark.PASS)


@dataclass(frozen=True, kw_only=True)
class EvidenceStyle:
    """How a kind of evidence is shown.

    tag: the short text next to a verdict. code: in the data of the grid.
    """

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
        label="static",
        tag="static",
        code="t",
        meaning="derived from files; no code of the stack was executed",
    ),
}


_PLAIN = {status: Mark(status.value) for status in Status}


def mark_of(status: Status, standing: Standing = Standing.AS_EXPECTED) -> Mark:
    """The mark of a verdict.

    Only a failure can be an expected failure, and only a pass an unexpected pass.
    """
    if status is Status.FAIL and standing is Standing.KNOWN:
        return Mark.KNOWN_FAIL
    if status is Status.PASS and standing is Standing.UNEXPECTED_PASS:
        return Mark.UNEXPECTED_PASS
    return _PLAIN[status]


def worst(marks: list[Mark]) -> Mark | None:
    """The most urgent mark; None for an empty list."""
    return min(marks, key=SEVERITY.__getitem__, default=None)
