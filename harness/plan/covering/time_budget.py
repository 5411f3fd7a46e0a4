"""Fits a covering set into a time budget, and says what more time would cover."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.plan.cost.task_cost import Estimate
from harness.plan.covering.covering_set import Cover, Universe

_SPAN = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>s|min|m|h|d)\s*")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class CoveringStep:
    """One chosen cell: the tuples and the seconds that it adds to the cells before it."""

    index: int
    gained: int
    seconds: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class FurtherCells:
    """The number of further cells, the tuples they add, and the seconds they take."""

    cells: int = 0
    gained: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BudgetedCover:
    """The cells that fit the budget (without one, all), the other cells, and what the next hour would
    cover."""

    strength: int
    tuples: int
    taken: tuple[CoveringStep, ...]
    left: tuple[CoveringStep, ...]
    next_hour: FurtherCells

    @property
    def covered(self) -> int:
        """The number of tuples that the taken cells contain."""
        return sum(step.gained for step in self.taken)

    @property
    def coverage(self) -> float:
        """The covered share of the feasible tuples, from 0 to 1; 1 if there are none."""
        return self.covered / self.tuples if self.tuples else 1.0


def parse_duration(text: str) -> float:
    """Seconds in `90s`, `45min`, `8h`, `1.5d`; ValueError for anything else."""
    match = _SPAN.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 45min, 8h or 2d")
    return float(match["number"]) * _SECONDS[match["unit"]]


def covering_steps(cover: Cover, work: Sequence[Mapping[str, Estimate]]) -> tuple[CoveringStep, ...]:
    """The picks of a cover with the time that each adds to those before it.

    work: for each cell of the universe, key -> estimate of each task that still has to run. A task that
    several cells share is counted once.
    """
    paid: set[str] = set()
    found = []
    for pick in cover.picks:
        due = {task: estimate for task, estimate in work[pick.index].items() if task not in paid}
        paid |= due.keys()
        found.append(
            CoveringStep(
                index=pick.index,
                gained=pick.gained,
                seconds=sum(estimate.seconds for estimate in due.values()),
                why=pick.why,
            )
        )
    return tuple(found)


def fit_into_budget(
    cover: Cover, priced: Sequence[CoveringStep], universe: Universe, budget: float | None
) -> BudgetedCover:
    """Take the steps that fit the budget, in order; after one that does not fit, cheaper ones may still
    fit."""
    taken: list[CoveringStep] = []
    left: list[CoveringStep] = []
    spent = 0.0
    for step in priced:
        fits = budget is None or spent + step.seconds <= budget
        (taken if fits else left).append(step)
        spent += step.seconds if fits else 0.0
    recounted = _recount(universe, taken)
    return BudgetedCover(
        strength=cover.strength,
        tuples=cover.tuples,
        taken=recounted,
        left=tuple(left),
        next_hour=_offer(universe, recounted, left, 3600.0),
    )


def _recount(universe: Universe, chosen: Sequence[CoveringStep]) -> tuple[CoveringStep, ...]:
    seen: set[int] = {-1}
    counted = []
    for step in chosen:
        mine = set(universe.columns[:, step.index].tolist())
        counted.append(
            CoveringStep(index=step.index, gained=len(mine - seen), seconds=step.seconds, why=step.why)
        )
        seen |= mine
    return tuple(counted)


def _offer(
    universe: Universe, taken: Sequence[CoveringStep], left: Sequence[CoveringStep], seconds: float
) -> FurtherCells:
    """What the next cells within `seconds` would cover; at least one cell, even if it takes longer."""
    chosen: list[CoveringStep] = []
    spent = 0.0
    for step in left:
        if spent + step.seconds <= seconds or not chosen:
            chosen.append(step)
            spent += step.seconds
    before = {step.index for step in taken}
    after = before | {step.index for step in chosen}
    return FurtherCells(
        cells=len(chosen),
        gained=universe.count_covered(after) - universe.count_covered(before) if chosen else 0,
        seconds=spent,
    )
