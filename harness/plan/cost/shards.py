"""Divides cells, and the checks of long cells, among the jobs of a GitHub Actions matrix by expected cost."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.plan.tasks.task import Plan

#: GitHub's limit for the jobs of one matrix.
MAX_JOBS = 256
#: Cells are divided by their checks until the longest job is at most this many times the lower bound.
GOAL = 1.15


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The cells of one job. label: that of its runner, "" for a hosted runner.

    checks: the checks of its one cell, if the cell is divided among several jobs; otherwise empty.
    """

    name: str
    cells: tuple[str, ...]
    seconds: float
    checks: tuple[str, ...] = ()
    label: str = ""


def make_shards(
    plan: Plan,
    seconds: Mapping[str, float],
    max_jobs: int,
    *,
    only: Collection[str] | None = None,
    cards: int = 0,
) -> tuple[Shard, ...]:
    """At most `max_jobs` shards, and never more than GitHub allows; every check of a cell is in exactly one.

    seconds: key -> cost of each task that still has to run; a job runs each of its tasks once, and what they
    need. only: the cells to divide. cards: if 0, all cells are divided over hosted runners; otherwise only
    the cells on NPUs, over runners labelled `linux-aarch64-SOC-CARDS`, with separate shards for each SoC.
    """
    selected = [cell for cell in plan.cells if only is None or cell.id in only]
    if not cards:
        return _distribute(plan, [cell.id for cell in selected], seconds, max_jobs, "", "")
    found: list[Shard] = []
    for soc in sorted({cell.axes.get("soc", "a2") for cell in selected if cell.device == "npu"}):
        of_soc = [cell.id for cell in selected if cell.device == "npu" and cell.axes.get("soc", "a2") == soc]
        label = f"linux-aarch64-{soc}-{cards}"
        found += _distribute(plan, of_soc, seconds, max_jobs, f"{soc}-", label)
    return tuple(found[:MAX_JOBS])


def github_output(shards: Sequence[Shard]) -> str:
    """Two lines for `$GITHUB_OUTPUT`: the matrix, and whether it has jobs, because GitHub rejects an empty
    one."""
    include = [
        {
            "name": shard.name,
            "cells": " ".join(shard.cells),
            "checks": " ".join(shard.checks),
            **({"label": shard.label} if shard.label else {}),
        }
        for shard in shards
    ]
    return f"matrix={json.dumps({'include': include})}\nany={'true' if include else 'false'}"


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one job can be given: a cell, or some checks of one. keys: the tasks that it runs there."""

    cell: str
    keys: frozenset[str]
    checks: tuple[str, ...] = ()


class _Costs:
    """The cost of running tasks in one job, each once and with everything that they need."""

    def __init__(self, plan: Plan, seconds: Mapping[str, float]) -> None:
        self._plan, self._seconds = plan, seconds
        self._known: dict[str, frozenset[str]] = {}

    def closure(self, key: str) -> frozenset[str]:
        """The tasks that still have to run for this one, with itself."""
        if key not in self._known:
            own = frozenset({key}) if key in self._seconds else frozenset()
            needs = self._plan.tasks[key].needs if key in self._plan.tasks else ()
            self._known[key] = own.union(*(self.closure(need) for need in needs))
        return self._known[key]

    def of(self, keys: Iterable[str]) -> float:
        """Seconds of these tasks, without those that they need."""
        # Exact, so that the order of a set, which is another one in every process, does not decide a tie.
        return math.fsum(self._seconds[key] for key in keys)


def _distribute(
    plan: Plan, cells: Sequence[str], seconds: Mapping[str, float], max_jobs: int, prefix: str, label: str
) -> tuple[Shard, ...]:
    """Divide the cells so that the longest job is short.

    Cells with equal tasks are put together where that saves work. A cell that alone is longer than `GOAL`
    times the bound is divided by its checks, as long as that makes the longest job shorter.
    """
    costs = _Costs(plan, seconds)
    checks: dict[str, dict[str, frozenset[str]]] = {cell: {} for cell in cells}
    for entry in plan.entries:
        if entry.cell_id in checks:
            checks[entry.cell_id][entry.check] = costs.closure(entry.key) if entry.key else frozenset()
    jobs = min(max_jobs, MAX_JOBS)
    parts = dict.fromkeys(cells, 1)
    best = found = _assign(checks, parts, costs, jobs)
    bound = lower_bound(plan, seconds, jobs, cells)
    while (longest := max(found, key=lambda job: _seconds(job, costs), default=None)) is not None:
        cell = max((part.cell for part in longest), key=lambda name: costs.of(_all_keys(checks[name])))
        if _seconds(longest, costs) <= GOAL * bound or parts[cell] >= len(checks[cell]):
            break
        parts[cell] += 1
        # While another cell is as long, dividing the first one shortens nothing yet.
        found = _assign(checks, parts, costs, jobs)
        if not found:
            break
        best = min(best, found, key=lambda one: _makespan(one, costs))
    return tuple(
        Shard(
            name=f"{prefix}{number}",
            # In the order of the plan, so that files with the cells do not change with their costs.
            cells=tuple(sorted((part.cell for part in job), key=cells.index)),
            checks=job[0].checks,
            seconds=_seconds(job, costs),
            label=label,
        )
        for number, job in enumerate((job for job in best if job), 1)
    )


def lower_bound(plan: Plan, seconds: Mapping[str, float], jobs: int, cells: Collection[str]) -> float:
    """No division over `jobs` can have a shorter longest job: all work, or the longest chain of one task."""
    costs = _Costs(plan, seconds)
    chains = [costs.closure(one.key) for one in plan.entries if one.key and one.cell_id in cells]
    work = costs.of(frozenset().union(*chains))
    return max(work / jobs, max(map(costs.of, chains), default=0.0))


def _assign(
    checks: Mapping[str, Mapping[str, frozenset[str]]], parts: Mapping[str, int], costs: _Costs, jobs: int
) -> list[list[_Part]]:
    """Give each part of a divided cell a job of its own, and the other cells the remaining jobs.

    The dearest cell goes first, to the job that is shortest with it (Graham, Bounds on multiprocessing timing
    anomalies, 1969). The result is empty if there are too few jobs.
    """
    alone = [
        [part]
        for cell, count in parts.items()
        if count > 1
        for part in _divided(cell, checks[cell], count, costs)
    ]
    whole = [_Part(cell=cell, keys=_all_keys(checks[cell])) for cell, count in parts.items() if count == 1]
    free = min(jobs - len(alone), len(whole))
    if free < bool(whole):
        return []
    shared: list[list[_Part]] = [[] for _ in range(free)]
    loads: list[set[str]] = [set() for _ in range(free)]
    for part in sorted(whole, key=lambda one: (-costs.of(one.keys), one.cell)):
        more = [costs.of(part.keys - load) for load in loads]
        sums = [costs.of(load) + extra for load, extra in zip(loads, more, strict=True)]
        job = min(range(free), key=lambda number: (sums[number], more[number], len(shared[number]), number))
        shared[job].append(part)
        loads[job] |= part.keys
    return [*shared, *alone]


def _all_keys(checks: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*checks.values())


def _divided(cell: str, checks: Mapping[str, frozenset[str]], count: int, costs: _Costs) -> list[_Part]:
    """The checks of a cell in `count` parts; each contains what its checks need."""
    names: list[list[str]] = [[] for _ in range(count)]
    keys: list[set[str]] = [set() for _ in range(count)]
    for check in sorted(checks, key=lambda name: -costs.of(checks[name])):
        place = min(range(count), key=lambda number: costs.of(keys[number] | checks[check]))
        names[place].append(check)
        keys[place] |= checks[check]
    return [
        _Part(cell=cell, keys=frozenset(key), checks=tuple(name))
        for name, key in zip(names, keys, strict=True)
        if name
    ]


def _seconds(job: Sequence[_Part], costs: _Costs) -> float:
    return costs.of(frozenset().union(*(part.keys for part in job)))


def _makespan(jobs: Sequence[Sequence[_Part]], costs: _Costs) -> float:
    return max((_seconds(job, costs) for job in jobs), default=0.0)
