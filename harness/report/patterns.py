"""What failing cells have in common: a value of one axis that all of them share and no passing cell has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.report.marks import Mark

FAILING = (Mark.FAIL, Mark.KNOWN_FAIL)
PASSING = (Mark.PASS, Mark.UNEXPECTED_PASS)
MIN_FAILING = 2
MIN_PASSING = 1


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """`check` fails on every one of `failing` cells that ran it with `axis` in `values`, and on no other.

    `also` names other axes that split the cells in the same way.
    """

    check: str
    axis: str
    values: tuple[str, ...]
    failing: int
    passing: int
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = " or ".join(self.values)
        also = f" (the same cells: {', '.join(self.also)})" if self.also else ""
        return (
            f"{self.check} fails on all {self.failing} cells with {self.axis} {values} that ran it{also}, "
            f"and passes on the other {self.passing}."
        )


def find_patterns(rows: Sequence[tuple[Mapping[str, str], Mapping[str, Mark]]]) -> tuple[Pattern, ...]:
    """For each check the axis whose values split failing from passing cells without a remainder.

    `rows` are (axes, marks by check). Two cells must fail and one pass, otherwise everything is a pattern.
    """
    found = []
    for check in dict.fromkeys(name for _, marks in rows for name in marks):
        ran = [(axes, marks[check]) for axes, marks in rows if marks.get(check) in FAILING + PASSING]
        failing = sum(mark in FAILING for _, mark in ran)
        if failing < MIN_FAILING or len(ran) - failing < MIN_PASSING:
            continue
        splits: list[Pattern] = []
        for axis in dict.fromkeys(name for axes, _ in ran for name in axes):
            values: dict[str, set[bool]] = defaultdict(set)
            for axes, mark in ran:
                values[axes.get(axis, "")].add(mark in FAILING)
            if any(len(seen) > 1 for seen in values.values()):
                continue
            bad = tuple(sorted(value for value, seen in values.items() if True in seen))
            # One value per failing cell says nothing more than the list of failing cells.
            if "" not in bad and len(bad) < failing:
                splits.append(
                    Pattern(check=check, axis=axis, values=bad, failing=failing, passing=len(ran) - failing)
                )
        if splits:
            first, *rest = sorted(splits, key=lambda split: len(split.values))
            also = tuple(f"{split.axis} {' or '.join(split.values)}" for split in rest)
            found.append(replace(first, also=also))
    return tuple(found)
