"""Covering sets: few cells that together contain every feasible t-tuple of axis values.

The input is the list of all valid cells, so a tuple is feasible exactly if a cell contains it. Cells are
chosen greedily by tuples gained per cost. This is repeated with different tie-breaks, cells that the others
make redundant are removed, and the cheapest set is taken. Ties are broken by a digest of the cell's content,
so that the result does not depend on the order of cells or axes or on the hash seed.

Greedy covering of n tuples is within 1 + ln(n) of the smallest set (Chvatal 1979, "A greedy heuristic for the
set-covering problem").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.digest import canonical_json, digest_bytes

MAX_STRENGTH = 6
#: How many orders of ties are tried at most. After `MAX_WORK` (cell, tuple) pairs no further one is tried.
MAX_ATTEMPTS = 64
MAX_WORK = 20_000_000
#: Replaces a cost of 0, so that free cells are still ordered by the tuples they gain.
MIN_COST = 1e-9


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A chosen cell: its index, the number of tuples it adds, and why it is always included, or ""."""

    index: int
    gained: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Chosen cells in the order to run them. tuples: the number of feasible tuples, all of them covered."""

    strength: int
    tuples: int
    picks: tuple[Pick, ...]

    @property
    def indexes(self) -> tuple[int, ...]:
        """Indexes of the chosen cells, in order."""
        return tuple(pick.index for pick in self.picks)


class Universe:
    """Every feasible tuple of `strength` axes over `cells`, and the cells that contain each.

    cells: axis -> value; a cell without an axis contains no tuples of it. ValueError if `strength` is not
    between 1 and MAX_STRENGTH.
    """

    def __init__(self, cells: Sequence[Mapping[str, str]], strength: int) -> None:
        if not 1 <= strength <= MAX_STRENGTH:
            raise ValueError(f"a strength of {strength} is not between 1 and {MAX_STRENGTH}")
        self.strength = strength
        self.cells = cells
        self.axes = sorted({axis for cell in cells for axis in cell})
        codes = [_codes(cells, axis) for axis in self.axes]
        columns = []
        self.size = 0
        for chosen in itertools.combinations(codes, min(strength, len(codes))):
            column, count = _number(chosen)
            columns.append(np.where(column < 0, -1, column + self.size).astype(np.int32))
            self.size += count
        #: Shape (combinations of axes, cells): the number of the tuple, -1 if the cell lacks one of the axes.
        self.columns: NDArray[np.int32] = (
            np.stack(columns) if columns else np.zeros((0, len(cells)), dtype=np.int32)
        )
        self.marks: NDArray[np.uint64] = np.array(
            [int(digest_bytes(canonical_json(dict(cell)).encode())[:16], 16) for cell in cells],
            dtype=np.uint64,
        )

    def count_covered(self, indexes: Collection[int]) -> int:
        """How many tuples these cells contain together."""
        found = np.unique(self.columns[:, sorted(indexes)])
        return int((found >= 0).sum())


def cover(
    cells: Sequence[Mapping[str, str]],
    strength: int,
    *,
    must: Mapping[int, str] | None = None,
    keep: Collection[int] = (),
    costs: Sequence[float] | None = None,
    prefer: Collection[int] = (),
    universe: Universe | None = None,
) -> Cover:
    """A set of cells that contains every feasible tuple.

    must: index -> reason; these cells are always included, in this order. keep: cells that are taken before
    others as long as they add tuples, so that an edit of the matrix changes few cells of an earlier set.
    costs: one per cell, equal by default; cells of cost 0 are taken first. prefer: cells that win ties.
    """
    universe = universe or Universe(cells, strength)
    return _Search(universe, dict(must or {}), frozenset(keep), costs, frozenset(prefer)).best()


class _Search:
    def __init__(
        self,
        universe: Universe,
        must: Mapping[int, str],
        keep: frozenset[int],
        costs: Sequence[float] | None,
        prefer: frozenset[int],
    ) -> None:
        count = len(universe.cells)
        self.universe = universe
        self.must = must
        self.costs = np.maximum(
            np.array(costs if costs is not None else [1.0] * count, dtype=float), MIN_COST
        )
        self.keep = np.zeros(count, dtype=bool)
        self.keep[sorted(keep - set(must))] = True
        self.preferred = np.zeros(count, dtype=bool)
        self.preferred[sorted(prefer)] = True

    def best(self) -> Cover:
        attempts = MAX_ATTEMPTS
        work = max(1, self.universe.columns.size)
        chosen: list[tuple[int, int]] = []
        price: tuple[float, int] = (math.inf, 0)
        spent = 0
        for attempt in range(attempts):
            picks = self._thin(self._greedy(attempt))
            total = math.fsum(self.costs[index] for index, _ in picks)
            if (round(total, 6), len(picks)) < price:
                chosen, price = picks, (round(total, 6), len(picks))
            spent += work * len(picks)
            if spent > MAX_WORK:
                break
        return Cover(
            strength=self.universe.strength,
            tuples=self.universe.size,
            picks=tuple(
                Pick(index=index, gained=gained, why=self.must.get(index, "")) for index, gained in chosen
            ),
        )

    def _greedy(self, attempt: int) -> list[tuple[int, int]]:
        """Cells as (index, tuples gained), until every tuple is covered."""
        columns = self.universe.columns
        open_tuples = np.ones(self.universe.size + 1, dtype=bool)
        open_tuples[-1] = False  # -1 stands for no tuple
        gain = (columns >= 0).sum(axis=0).astype(np.int64)
        ties = _mixed(self.universe.marks, attempt)
        picks: list[tuple[int, int]] = []

        def take(index: int) -> None:
            mine = columns[:, index]
            new = open_tuples[mine]
            open_tuples[mine[new]] = False
            gain[:] -= (columns[new] == mine[new, None]).sum(axis=0)
            picks.append((index, int(new.sum())))

        for index in self.must:
            take(index)
        while open_tuples.any():
            score = gain / self.costs
            if self.keep.any():
                kept_gain = np.where(self.keep, gain, 0)
                score = kept_gain if kept_gain.any() else score
            candidates = np.flatnonzero(score == score.max())
            favoured = candidates[self.preferred[candidates]]
            candidates = favoured if favoured.size else candidates
            take(int(candidates[np.argmin(ties[candidates])]))
        return picks

    def _thin(self, picks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Remove cells that the others make redundant, except those of `must` and `keep`; recount the
        gains."""
        columns = self.universe.columns
        holders = np.zeros(self.universe.size + 1, dtype=np.int64)
        for index, _ in picks:
            holders[columns[:, index]] += 1
        holders[-1] = len(picks) + 1
        remaining = [index for index, _ in picks]
        for index, _ in reversed(picks):
            if index in self.must or self.keep[index]:
                continue
            if (holders[columns[:, index]] > 1).all():
                holders[columns[:, index]] -= 1
                remaining.remove(index)
        seen = np.zeros(self.universe.size + 1, dtype=bool)
        seen[-1] = True
        counted = []
        for index in remaining:
            mine = columns[:, index]
            counted.append((index, int((~seen[mine]).sum())))
            seen[mine] = True
        return counted


def _codes(cells: Sequence[Mapping[str, str]], axis: str) -> tuple[Any, int]:
    """The values of an axis as numbers (-1 for none), and the number of distinct values."""
    values = sorted({cell[axis] for cell in cells if axis in cell})
    number = {value: index for index, value in enumerate(values)}
    codes = np.fromiter(
        (number[cell[axis]] if axis in cell else -1 for cell in cells), np.int64, count=len(cells)
    )
    return codes, len(values)


def _number(chosen: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
    """The tuples of the chosen axes, numbered from 0 (-1 if an axis is missing), and their number."""
    mixed = np.zeros(len(chosen[0][0]), dtype=np.int64)
    missing = np.zeros(len(mixed), dtype=bool)
    for codes, count in chosen:
        mixed = mixed * count + codes
        missing |= codes < 0
    distinct, numbers = np.unique(mixed[~missing], return_inverse=True)
    mixed[:] = -1
    mixed[~missing] = numbers
    return mixed, len(distinct)


def _mixed(marks: Any, attempt: int) -> Any:
    """A different pseudo-random order for each attempt: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = marks + np.uint64(attempt) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
