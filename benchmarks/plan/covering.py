"""Sizes, gaps and times of covering sets, against covertable and allpairspy on the same random matrices.

    PYTHONPATH=. python benchmarks/plan/covering.py --matrices 24 --stability --out figures.json

Each matrix has random axes and random forbidden pairs and triples. What is feasible is enumerated over the
whole product, not taken from any tool; missing tuples and invalid cells are counted for every tool. Rivals
that are not installed are left out, and said to be. Figures to reach at strength 2: at most covertable's size
on every matrix, 0 missing tuples, under 1 s.

`--stability` adds one value to one axis and counts the cells of the earlier set that are gone, and the new
cells that do not have the new value; the larger of the two is divided by the size of the earlier set.

Ours is measured with the earlier set handed in, and from nothing. `by_growth` is the most stable way from
nothing that was found: the first n values of each axis are covered before any later one is used, and the
added value is the last of its axis. `least`: what two sets of our sizes from nothing cannot do without.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.plan.covering.covering_set import Universe, cover

Cell = dict[str, str]


def random_matrix(seed: int) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    """Axes with their values, and forbidden partial combinations; always with some valid cell left."""
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


TOOLS: dict[str, Callable[..., list[Cell]]] = {
    "ours": ours,
    "covertable": covertable,
    "allpairspy": allpairspy,
}


def compare(matrices: int, strength: int) -> dict[str, Any]:
    """Every tool on every matrix."""
    tables = []
    absent = {}
    for seed in range(matrices):
        axes, forbidden = random_matrix(seed)
        cells = valid_cells(axes, forbidden)
        feasible = tuples_of(cells, strength)
        line: dict[str, Any] = {"seed": seed, "valid": len(cells), "feasible": len(feasible)}
        for name, tool in TOOLS.items():
            start, cpu = time.perf_counter(), time.process_time()
            try:
                rows = tool(axes, forbidden, strength)
            except ImportError as error:
                absent[name] = str(error)
                continue
            took, spent = time.perf_counter() - start, time.process_time() - cpu
            line[name] = {
                "rows": len(rows),
                "missing": len(feasible - tuples_of(rows, strength)),
                "invalid": sum(not allowed(row, forbidden) for row in rows),
                "seconds": round(took, 3),
                "cpu_s": round(spent, 3),
            }
        tables.append(line)
    return {"strength": strength, "matrices": tables, "absent": absent, "summary": summary(tables)}


def summary(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Totals of each tool, and on how many matrices ours is larger than covertable's."""
    totals = {
        name: {
            "rows": sum(line[name]["rows"] for line in tables),
            "missing": sum(line[name]["missing"] for line in tables),
            "invalid": sum(line[name]["invalid"] for line in tables),
            "slowest_s": max(line[name]["seconds"] for line in tables),
            "slowest_cpu_s": max(line[name]["cpu_s"] for line in tables),
        }
        for name in TOOLS
        if all(name in line for line in tables)
    }
    if "covertable" in totals:
        over = [line["seed"] for line in tables if line["ours"]["rows"] > line["covertable"]["rows"]]
        under = sum(line["ours"]["rows"] < line["covertable"]["rows"] for line in tables)
        totals["ours"] |= {"larger_than_covertable": over, "smaller_on": under}
    return totals


def by_growth(axes: dict[str, list[str]], forbidden: Sequence[dict[str, str]], strength: int) -> list[Cell]:
    """Greedy in stages: stage n may use the first n values of each axis; older values win ties."""
    import numpy as np

    cells = valid_cells(axes, forbidden)
    columns = Universe(cells, strength).columns
    ages = np.array([[axes[axis].index(value) for axis, value in cell.items()] for cell in cells])
    newest, age = ages.max(axis=1), ages.sum(axis=1)
    wanted = np.ones(columns.max() + 1, dtype=bool)
    chosen: list[int] = []
    for stage in range(newest.max() + 1):
        while True:
            gains = np.where(newest <= stage, wanted[columns].sum(axis=0), 0)
            if not gains.any():
                break
            best = np.flatnonzero(gains == gains.max())
            chosen.append(int(best[np.argmin(age[best])]))
            wanted[columns[:, chosen[-1]]] = False
    return [cells[number] for number in chosen]


def changed(before: Sequence[Cell], after: Sequence[Cell], axis: str) -> float:
    """The share of the earlier set that an edit of `axis` moved."""
    gone = sum(cell not in after for cell in before)
    come = sum(cell not in before and cell[axis] != "new" for cell in after)
    return max(gone, come) / len(before)


def least(cells: Sequence[Cell], axis: str, before: int, after: int) -> float:
    """The share that pairwise sets of these sizes must change.

    The new value needs a cell with every value of the largest other axis; what the set did not grow by is
    taken from the earlier one.
    """
    new = [cell for cell in cells if cell[axis] == "new"]
    needed = max((len({cell[other] for cell in new}) for other in cells[0] if other != axis), default=0)
    return max(0.0, (needed - (after - before)) / before)


def stability(matrices: int, strength: int) -> dict[str, Any]:
    """Churn after one more value on each axis in turn."""
    shares: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    for seed in range(matrices):
        axes, forbidden = random_matrix(seed)
        before, grew = ours(axes, forbidden, strength), by_growth(axes, forbidden, strength)
        for axis in axes:
            grown = {**axes, axis: [*axes[axis], "new"]}
            cells = valid_cells(grown, forbidden)
            keep = [index for index, cell in enumerate(cells) if cell in before]
            fresh = ours(grown, forbidden, strength)
            sets = {
                "with_earlier_set": (
                    before,
                    [cells[index] for index in cover(cells, strength, keep=keep).indexes],
                ),
                "from_nothing": (before, fresh),
                "by_growth": (grew, by_growth(grown, forbidden, strength)),
            }
            for name, (old, now) in sets.items():
                shares.setdefault(name, []).append(changed(old, now, axis))
                sizes.setdefault(name, []).append(len(now) / len(fresh))
            if strength == 2:
                shares.setdefault("least", []).append(least(cells, axis, len(before), len(fresh)))
    return {
        name: {
            "edits": len(found),
            "median_share_changed": round(statistics.median(found), 3),
            "edits_over_15_percent": round(sum(share > 0.15 for share in found) / len(found), 3),
            "median_size_to_fresh": round(statistics.median(sizes.get(name, [1.0])), 3),
        }
        for name, found in shares.items()
    }


def main() -> int:
    """Run, print and optionally store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--matrices", type=int, default=24)
    parser.add_argument("--strength", type=int, default=2)
    parser.add_argument("--stability", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = compare(options.matrices, options.strength)
    if options.stability:
        figures["stability"] = stability(options.matrices, options.strength)
    for line in figures["matrices"]:
        sizes = "  ".join(
            f"{name} {line[name]['rows']:>3} rows {line[name]['missing']:>3} missing "
            f"{line[name]['seconds']:.3f} s"
            for name in TOOLS
            if name in line
        )
        print(f"{line['seed']:>3}  {line['valid']:>6} valid {line['feasible']:>4} feasible  {sizes}")
    print(
        json.dumps(
            {key: figures[key] for key in ("summary", "absent", "stability") if key in figures}, indent=1
        )
    )
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
