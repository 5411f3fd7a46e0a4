"""From `npu-matrix plan --json` to a GitHub Actions matrix: cells dealt out by cost.

    npu-matrix plan --json | python .github/scripts/shards.py --most 8 [--impact impact.json] [--npu CARDS]

Prints `matrix=...` and `any=true|false` for $GITHUB_OUTPUT. With --impact (`plan --changed-since REF --json`)
only cells with a changed task are dealt. With --npu, those that need cards, by the runner's label
`linux-aarch64-SOC-CARDS`; without, all of them: a hosted runner does what needs no card.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

#: GitHub refuses a matrix of more jobs.
LIMIT = 256
UNTOUCHED = {"unchanged"}


def costs(plan: dict[str, Any]) -> dict[str, float]:
    """Seconds of work per cell; a task that several cells share is split among them."""
    known = set(plan.get("known", ()))
    seconds = {task["key"]: task["expected_s"] for task in plan["tasks"] if task["key"] not in known}
    sharing: dict[str, int] = {}
    for entry in plan["entries"]:
        sharing[entry["key"]] = sharing.get(entry["key"], 0) + 1
    found = {cell["id"]: 0.0 for cell in plan["cells"]}
    for entry in plan["entries"]:
        if entry["key"] in seconds:
            found[entry["cell"]] += seconds[entry["key"]] / sharing[entry["key"]]
    return found


def touched(impact: dict[str, Any]) -> set[str]:
    """Cells that have a task whose key is not the one it was."""
    return {cell for task in impact["tasks"] if task["effect"] not in UNTOUCHED for cell in task["cells"]}


def deal(cost: dict[str, float], most: int) -> list[list[str]]:
    """At most `most` shards of cells, the dearest cell first to the shard with the least work so far."""
    shards: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(min(most, LIMIT, len(cost)))]
    for cell in sorted(cost, key=lambda name: (-cost[name], name)):
        index = min(range(len(shards)), key=lambda number: (shards[number][0], number))
        total, cells = shards[index]
        shards[index] = (total + cost[cell], [*cells, cell])
    return [cells for _total, cells in shards]


def jobs(
    plan: dict[str, Any], *, most: int, impact: dict[str, Any] | None = None, cards: int = 0
) -> list[dict[str, str]]:
    """The `include` list: name, cells (separated by spaces) and, for cells on NPUs, the runner's label."""
    wanted = touched(impact) if impact else {cell["id"] for cell in plan["cells"]}
    socs = {cell["id"]: cell["axes"].get("soc", "a2") for cell in plan["cells"] if cell["device"] == "npu"}
    cost = {cell: seconds for cell, seconds in costs(plan).items() if cell in wanted}
    if not cards:
        return [
            {"name": str(number), "cells": " ".join(cells)}
            for number, cells in enumerate(deal(cost, most), 1)
        ]
    found = []
    for soc in sorted({socs[cell] for cell in cost if cell in socs}):
        of_soc = {cell: seconds for cell, seconds in cost.items() if socs.get(cell) == soc}
        found += [
            {"name": f"{soc}-{number}", "cells": " ".join(cells), "label": f"linux-aarch64-{soc}-{cards}"}
            for number, cells in enumerate(deal(of_soc, most), 1)
        ]
    return found[:LIMIT]


def main() -> int:
    """Read the plan from standard input, print the outputs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--impact", type=Path)
    parser.add_argument("--npu", type=int, default=0, metavar="CARDS")
    options = parser.parse_args()
    plan = json.load(sys.stdin)
    impact = json.loads(options.impact.read_text(encoding="utf-8")) if options.impact else None
    include = jobs(plan, most=options.most, impact=impact, cards=options.npu)
    print(f"matrix={json.dumps({'include': include})}")
    print(f"any={'true' if include else 'false'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
