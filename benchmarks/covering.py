"""Pairwise covering sets: size, gaps and time, against covertable and allpairspy on the same random matrices.

Each of 12 matrices has random axes and random forbidden pairs and triples. What is feasible is enumerated
over the whole product, not taken from any tool; missing tuples and invalid cells are counted for every tool.
Stability adds one value to one axis and counts the cells of the earlier set that change, once with the
earlier set handed in and once without.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.figures import CannotRunError, Figure, timed
from harness.plan.covering.covering_set import cover

MATRICES = 12
Cell = dict[str, str]


def random_matrix(seed: int) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    """Axes with their values, and forbidden partial combinations; at least one valid cell remains."""
    chance = random.Random(seed)
    axes = {
        f"a{number}": [f"v{value}" for value in range(chance.randint(2, 6))]
        for number in range(chance.randint(4, 7))
    }
    forbidden = []
    for _ in range(chance.randint(2, 12)):
        names = chance.sample(sorted(axes), chance.choice([2, 2, 2, 3]))
        forbidden.append({name: chance.choice(axes[name]) for name in names})
    return axes, forbidden


def allowed(cell: Cell, forbidden: Sequence[dict[str, str]]) -> bool:
    return not any(all(cell.get(axis) == value for axis, value in rule.items()) for rule in forbidden)


def valid_cells(axes: dict[str, list[str]], forbidden: Sequence[dict[str, str]]) -> list[Cell]:
    product = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [cell for cell in product if allowed(cell, forbidden)]


def tuples_of(cells: Sequence[Cell], strength: int) -> set[tuple[tuple[str, str], ...]]:
    return {chosen for cell in cells for chosen in itertools.combinations(sorted(cell.items()), strength)}


def ours(axes: dict[str, list[str]], forbidden: Sequence[dict[str, str]], strength: int) -> list[Cell]:
    cells = valid_cells(axes, forbidden)
    return [cells[index] for index in cover(cells, strength).indexes]


def covertable(axes: dict[str, list[str]], forbidden: Sequence[dict[str, str]], strength: int) -> list[Cell]:
    from covertable import make

    constraints = [
        {
            "operator": "not",
            "condition": {
                "operator": "and",
                "conditions": [
                    {"operator": "eq", "left": axis, "value": value} for axis, value in rule.items()
                ],
            },
        }
        for rule in forbidden
    ]
    return [dict(row) for row in make(axes, strength=strength, constraints=constraints)]


def allpairspy(axes: dict[str, list[str]], forbidden: Sequence[dict[str, str]], strength: int) -> list[Cell]:
    from allpairspy import AllPairs

    names = list(axes)

    def fits(row: list[str]) -> bool:
        return allowed(dict(zip(names, row, strict=False)), forbidden)

    found = AllPairs(list(axes.values()), filter_func=fits, n=strength)
    return [dict(zip(names, row, strict=True)) for row in found]


def changed(before: Sequence[Cell], after: Sequence[Cell], axis: str) -> float:
    """The share of the earlier set that an edit of `axis` changes."""
    gone = sum(cell not in after for cell in before)
    come = sum(cell not in before and cell[axis] != "new" for cell in after)
    return max(gone, come) / len(before)


def sizes(tool: Callable[..., list[Cell]]) -> tuple[list[int], int, float]:
    """Rows of each matrix, tuples missing plus invalid cells, and the slowest matrix in CPU seconds."""
    rows, gaps, slowest = [], 0, 0.0
    for seed in range(MATRICES):
        axes, forbidden = random_matrix(seed)
        with timed() as took:
            found = tool(axes, forbidden, 2)
        rows.append(len(found))
        gaps += len(tuples_of(valid_cells(axes, forbidden), 2) - tuples_of(found, 2))
        gaps += sum(not allowed(row, forbidden) for row in found)
        slowest = max(slowest, took.cpu)
    return rows, gaps, slowest


def stability() -> tuple[float, float]:
    """Median shares of the set that one more value changes: with and without the earlier set as input."""
    kept, fresh = [], []
    for seed in range(MATRICES):
        axes, forbidden = random_matrix(seed)
        before = ours(axes, forbidden, 2)
        for axis in axes:
            grown = {**axes, axis: [*axes[axis], "new"]}
            cells = valid_cells(grown, forbidden)
            keep = [index for index, cell in enumerate(cells) if cell in before]
            after = [cells[index] for index in cover(cells, 2, keep=keep).indexes]
            kept.append(changed(before, after, axis))
            fresh.append(changed(before, ours(grown, forbidden, 2), axis))
    return statistics.median(kept), statistics.median(fresh)


def figures() -> Iterator[Figure]:
    rows, gaps, slowest = sizes(ours)
    yield Figure(claim=f"feasible pairs missing on {MATRICES} random matrices", measured=gaps, limit=0)
    yield Figure(claim="slowest pairwise set", measured=slowest, unit="s of CPU", limit=1)
    with_earlier, without = stability()
    yield Figure(
        claim="cells changed by one more value, median",
        measured=100 * with_earlier,
        unit="%",
        limit=15,
        rival=100 * without,
        rival_name="without the earlier set",
    )
    for name, tool in (("covertable", covertable), ("allpairspy", allpairspy)):
        if importlib.util.find_spec(name) is None:
            raise CannotRunError(f"the rival {name} is not installed", f"pip install {name}")
        theirs, their_gaps, their_slowest = sizes(tool)
        yield Figure(
            claim=f"cells of all sets; {name} is slowest at {their_slowest:.2f} s of CPU",
            measured=sum(rows),
            limit=sum(theirs) if not their_gaps else None,
            rival=sum(theirs),
            rival_name=f"{name}, {their_gaps} pairs missing or invalid",
        )
        if not their_gaps:
            larger = sum(mine > other for mine, other in zip(rows, theirs, strict=True))
            yield Figure(claim=f"matrices with a larger set than {name}'s", measured=larger, limit=0)
