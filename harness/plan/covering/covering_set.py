"""Covering sets: few cells that together hold every feasible t-tuple of axis values.

Cells are enumerated and valid already, so a tuple is feasible exactly when some cell holds it, and no
chosen cell can be invalid. The choice is greedy by tuples gained for the cost, repeated with other
tie-breaks, and thinned of cells the others make redundant; the cheapest set found is taken. Ties are broken
by a digest of the cell's content: the order of cells or axes, the process and its hash seed change nothing.

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
#: Tie-breaks tried, and the number of (cell, tuple) pairs after which no further one is started.
MAX_ATTEMPTS = 64
MAX_WORK = 20_000_000
#: A cell that costs nothing must still be comparable by what it covers.
MIN_COST = 1e-9


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A chosen cell: its index, how many tuples it was the first to hold, and why it was seeded, or ""."""

    index: int
    gained: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Chosen cells in the order to run them. `tuples`: how many are feasible, all of which are held."""

    strength: int
    tuples: int
    picks: tuple[Pick, ...]

    @property
    def indexes(self) -> tuple[int, ...]:
        """Indexes of the chosen cells, in order."""
        return tuple(pick.index for pick in self.picks)


class Universe:
    """Every feasible tuple of `strength` axes over `cells`, and which cells hold which.

    cells: axis -> value; a cell may lack axes, and then holds no tuple of them. ValueError when `strength` is
    not between 1 and MAX_STRENGTH.
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
        #: (combination of axes) x (cell) -> number of the tuple, -1 where the cell lacks one of the axes.
        self.columns: NDArray[np.int32] = (
            np.stack(columns) if columns else np.zeros((0, len(cells)), dtype=np.int32)
        )
        self.marks: NDArray[np.uint64] = np.array(
            [int(digest_bytes(canonical_json(dict(cell)).encode())[:16], 16) for cell in cells],
            dtype=np.uint64,
        )

    def count_covered(self, indexes: Collection[int]) -> int:
        """How many tuples these cells hold together."""
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
    """A set of cells that holds every feasible tuple.

    must: index -> why; taken in this order, whatever they add. keep: taken before others while they add
    something, so that an earlier set stays (few rows change when the matrix is edited). costs: of each cell,
    all equal by default; a cell of cost 0 is taken before any other. prefer: wins ties (cells not run yet).
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
        """(index, tuples gained) until every tuple is held."""
        columns = self.universe.columns
        open_tuples = np.ones(self.universe.size + 1, dtype=bool)
        open_tuples[-1] = False  # what -1 points at: no tuple
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
                kept = np.where(self.keep, gain, 0)
                score = kept if kept.any() else score
            candidates = np.flatnonzero(score == score.max())
            favoured = candidates[self.preferred[candidates]]
            candidates = favoured if favoured.size else candidates
            take(int(candidates[np.argmin(ties[candidates])]))
        return picks

    def _thin(self, picks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Without cells the others make redundant; what must or shall stay, stays. Gains are new."""
        columns = self.universe.columns
        holders = np.zeros(self.universe.size + 1, dtype=np.int64)
        for index, _ in picks:
            holders[columns[:, index]] += 1
        holders[-1] = len(picks) + 1
        left = [index for index, _ in picks]
        for index, _ in reversed(picks):
            if index in self.must or self.keep[index]:
                continue
            if (holders[columns[:, index]] > 1).all():
                holders[columns[:, index]] -= 1
                left.remove(index)
        seen = np.zeros(self.universe.size + 1, dtype=bool)
        seen[-1] = True
        counted = []
        for index in left:
            mine = columns[:, index]
            counted.append((index, int((~seen[mine]).sum())))
            seen[mine] = True
        return counted


def _codes(cells: Sequence[Mapping[str, str]], axis: str) -> tuple[Any, int]:
    """The values of an axis as numbers, -1 for none, and how many there are."""
    values = sorted({cell[axis] for cell in cells if axis in cell})
    number = {value: index for index, value in enumerate(values)}
    codes = np.fromiter(
        (number[cell[axis]] if axis in cell else -1 for cell in cells), np.int64, count=len(cells)
    )
    return codes, len(values)


def _number(chosen: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
    """Tuples of the chosen axes numbered without holes, -1 where one is missing, and how many there are."""
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
    """Marks shuffled anew for each attempt: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = marks + np.uint64(attempt) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
