"""Finds what failing cells have in common: a condition on one axis that no passing cell meets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.report.model.marks import Mark

FAILING = (Mark.FAIL, Mark.KNOWN_FAIL)
PASSING = (Mark.PASS, Mark.UNEXPECTED_PASS)
_DECIDED = frozenset(FAILING + PASSING)
MIN_FAILING = 2
MIN_PASSING = 1
MAX_ALSO = 3


@dataclass(frozen=True, kw_only=True)
class FailurePattern:
    """`check` fails on exactly those cells that meet `condition`; cells that did not run it do not count.

    `also` names conditions on other axes that split the cells in the same way.
    """

    check: str
    condition: str
    failing: int
    passing: int
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        also = f" (the same cells: {', '.join(self.also)})" if self.also else ""
        return (
            f"{self.check} fails on all {self.failing} cells with {self.condition} that ran it{also}, "
            f"and passes on the other {self.passing}."
        )


def find_patterns(rows: Sequence[tuple[Mapping[str, str], Mapping[str, Mark]]]) -> tuple[FailurePattern, ...]:
    """For each check a condition on one axis that holds for all failing cells and for no passing cell.

    A condition is one value, all versions from a version on, or all versions up to a version. `rows` are
    (axes, marks by check). At least two cells must fail and one must pass, or any condition would do.
    """
    found = []
    for check in dict.fromkeys(name for _, marks in rows for name in marks):
        axes = _separating(check, rows)
        if not axes:
            continue
        ran = [(axes, marks[check]) for axes, marks in rows if marks.get(check) in _DECIDED]
        failing = sum(mark in FAILING for _, mark in ran)
        if failing < MIN_FAILING or len(ran) - failing < MIN_PASSING:
            continue
        conditions = [text for axis in axes if (text := _condition(axis, ran))]
        if conditions:
            first, *rest = sorted(conditions, key=lambda text: ">" in text or "<" in text)
            found.append(
                FailurePattern(
                    check=check,
                    condition=first,
                    failing=failing,
                    passing=len(ran) - failing,
                    also=tuple(rest[:MAX_ALSO]),
                )
            )
    return tuple(found)


def _separating(check: str, rows: Iterable[tuple[Mapping[str, str], Mapping[str, Mark]]]) -> tuple[str, ...]:
    """The axes of which every value either always fails or always passes."""
    fails: dict[str, dict[str, bool]] | None = None
    for axes, marks in rows:
        mark = marks.get(check)
        if mark not in _DECIDED:
            continue
        if fails is None:
            fails = {axis: {} for axis in axes}
        failing = mark in FAILING
        mixed = [
            axis
            for axis, known in fails.items()
            if axis not in axes or known.setdefault(axes[axis], failing) is not failing
        ]
        for axis in mixed:
            del fails[axis]
        # Most axes separate nothing, which shows within a few cells.
        if not fails:
            break
    return tuple(fails or ())


def _condition(axis: str, ran: Sequence[tuple[Mapping[str, str], Mark]]) -> str:
    """The condition on a separating axis that holds for exactly the failing cells, or ""."""
    fails = {axes[axis]: mark in FAILING for axes, mark in ran}
    if "" in fails:
        return ""
    ordered = sorted(fails, key=natural)
    verdicts = [fails[value] for value in ordered]
    bad = sum(verdicts)
    if bad == 1:
        return f"{axis} {ordered[verdicts.index(True)]}"
    if all(verdicts[-bad:]):
        return f"{axis} >= {ordered[-bad]}"
    return f"{axis} <= {ordered[bad - 1]}" if all(verdicts[:bad]) else ""


def natural(version: str) -> list[tuple[int, int, str]]:
    """A sort key: 0.9 before 0.10, 1.0rc1 before 1.0, and 1.0 before 1.0+local before 1.0.post1.

    The script of the page has a function of the same name with the same order.
    """
    public, _, local = version.partition("+")
    parts = re.findall(r"[0-9]+|[A-Za-z]+", public)
    ranks = [
        (2, int(part), "") if part.isdigit() else (1 if part.lower() == "post" else -1, 0, part.lower())
        for part in parts
    ]
    return [*ranks, *([(1, -1, local)] if local else []), (0, 0, "")]
