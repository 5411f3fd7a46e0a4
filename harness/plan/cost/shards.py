"""Divides the cells of a plan among the jobs of a GitHub Actions matrix by their expected cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.plan.tasks.task import Plan

#: GitHub's limit for the jobs of one matrix.
MAX_JOBS = 256


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The cells of one job. label: that of its runner, "" for a hosted runner."""

    name: str
    cells: tuple[str, ...]
    seconds: float
    label: str = ""


def make_shards(
    plan: Plan,
    seconds: Mapping[str, float],
    max_jobs: int,
    *,
    only: Collection[str] | None = None,
    cards: int = 0,
) -> tuple[Shard, ...]:
    """At most `max_jobs` shards, and never more than GitHub allows; every cell is in exactly one.

    seconds: key -> cost of each task that still has to run; the cost of a shared task is split among its
    cells. only: the cells to divide. cards: if 0, all cells are divided over hosted runners; otherwise only
    the cells on NPUs, over runners labelled `linux-aarch64-SOC-CARDS`, with separate shards for each SoC.
    """
    cost = _costs(plan, seconds)
    selected = [cell for cell in plan.cells if only is None or cell.id in only]
    if not cards:
        return _distribute({cell.id: cost[cell.id] for cell in selected}, max_jobs, "", "")
    found: list[Shard] = []
    for soc in sorted({cell.axes.get("soc", "a2") for cell in selected if cell.device == "npu"}):
        of_soc = {
            cell.id: cost[cell.id]
            for cell in selected
            if cell.device == "npu" and cell.axes.get("soc", "a2") == soc
        }
        found += _distribute(of_soc, max_jobs, f"{soc}-", f"linux-aarch64-{soc}-{cards}")
    return tuple(found[:MAX_JOBS])


def github_output(shards: Sequence[Shard]) -> str:
    """Two lines for `$GITHUB_OUTPUT`: the matrix, and whether it has jobs, because GitHub rejects an empty
    one."""
    include = [
        {
            "name": shard.name,
            "cells": " ".join(shard.cells),
            **({"label": shard.label} if shard.label else {}),
        }
        for shard in shards
    ]
    return f"matrix={json.dumps({'include': include})}\nany={'true' if include else 'false'}"


def _costs(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    sharing = Counter(entry.key for entry in plan.entries)
    found = dict.fromkeys((cell.id for cell in plan.cells), 0.0)
    for entry in plan.entries:
        if entry.key in seconds:
            found[entry.cell_id] += seconds[entry.key] / sharing[entry.key]
    return found


def _distribute(cost: Mapping[str, float], max_jobs: int, prefix: str, label: str) -> tuple[Shard, ...]:
    """Assign each cell, most expensive first, to the shard with the least work so far.

    The longest shard is at most 4/3 of the optimum (Graham, Bounds on multiprocessing timing anomalies,
    1969).
    """
    heaps: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(min(max_jobs, MAX_JOBS, len(cost)))]
    for cell in sorted(cost, key=lambda name: (-cost[name], name)):
        index = min(range(len(heaps)), key=lambda number: (heaps[number][0], number))
        heaps[index] = (heaps[index][0] + cost[cell], [*heaps[index][1], cell])
    return tuple(
        Shard(name=f"{prefix}{number}", cells=tuple(cells), seconds=total, label=label)
        for number, (total, cells) in enumerate(heaps, 1)
    )
